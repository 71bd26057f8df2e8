//! What each command does.

pub mod anchor;
mod attach;
mod check;
mod create;
mod grow;
mod header;
mod key;
pub mod manual;
mod offline;
mod reanchor;
mod rekey;
mod running;
pub mod service;
mod stream;
mod top;

use crate::cli::VolumeCommand;
use cli::failure::Failure;
use cli::output;

/// Carries out a command on volumes.
///
/// # Errors
/// As the command's help says.
pub fn volume(command: VolumeCommand) -> Result<(), Failure> {
    command.path_only().map_or(Ok(()), offline::refuse_attached_name)?;
    match command {
        VolumeCommand::Create(create) => create::run(&create),
        VolumeCommand::Attach(attach) => attach::run(&attach),
        VolumeCommand::Detach(args) => running::detach(&args),
        VolumeCommand::List(list) => running::list(&list),
        VolumeCommand::Status(named) => running::status(&named),
        VolumeCommand::Prepare(prepare) => service::prepare(&prepare),
        VolumeCommand::Activate(activate) => service::activate(&activate),
        VolumeCommand::Deactivate(deactivate) => service::deactivate(&deactivate),
        VolumeCommand::Units(args) => service::units(&args),
        VolumeCommand::Top(top) => top::run(&top),
        VolumeCommand::Commit(named) => running::commit(&named),
        VolumeCommand::Scrub(args) => running::scrub(&args),
        VolumeCommand::Check(args) => check::run(&args),
        VolumeCommand::Dump(dump) => offline::dump(&dump),
        VolumeCommand::Key(key) => key::run(&key),
        VolumeCommand::Rekey(args) => rekey::run(&args),
        VolumeCommand::Reanchor(args) => reanchor::run(&args),
        VolumeCommand::Header(header) => header::run(&header),
        VolumeCommand::Export(args) => stream::export::run(&args),
        VolumeCommand::Import(args) => stream::import::run(&args),
        VolumeCommand::Grow(args) => grow::run(&args),
        VolumeCommand::Serve { .. } => daemon::launch::serve(),
        VolumeCommand::LoopAttach { file, read_only } => {
            // Without the daemon that serves the file nobody would ever take the device away again.
            let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            output::print(&export::loopdev::attach(&file, read_only)?.display().to_string());
            Ok(())
        }
        VolumeCommand::LoopResize { device } => Ok(export::loopdev::resize(&device)?),
        VolumeCommand::LoopDetach { device } => Ok(export::loopdev::detach(&device)?),
    }
}
