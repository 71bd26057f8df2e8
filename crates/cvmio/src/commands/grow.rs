//! `cvmio volume grow`

use volume::{AttachOptions, Growth};

use super::offline;
use crate::cli::Offline;
use crate::cli::grow::Grow;
use cli::failure::Failure;
use cli::output;
use daemon::control::Request;
use daemon::front::Shown;
use daemon::growth::Room;
use daemon::input::{self, Origin, VolumeFiles};
use daemon::runtime::Place;
use daemon::system;

pub fn run(args: &Grow) -> Result<(), Failure> {
    let logical_blocks = args.size.map(input::whole_blocks).transpose()?;
    system::protect()?.iter().for_each(|warning| output::warning(warning));
    match offline::running(&args.offline.store, &args.runtime)? {
        Some(place) => grow_attached(args, logical_blocks, &place),
        None => grow(args, logical_blocks),
    }
}

/// Of an attached volume: its daemon does it.
fn grow_attached(args: &Grow, logical_blocks: Option<u64>, place: &Place) -> Result<(), Failure> {
    let Offline { store, policy, buffered, credential, .. } = &args.offline;
    offline::refuse_for_attached(store, policy.as_deref(), *buffered, args.force)?;
    let shown: Shown = serde_json::from_value(place.ask_soon(&Request::Status)?["report"].take())
        .map_err(|error| Failure::internal(error.to_string()))?;
    shown.can_grow()?;
    let credential = input::load(credential, Origin::Known)?;
    let spinner = output::spinner("growing the volume");
    let room = place.ask_with(&Request::Grow { logical_blocks }, &[credential])?;
    drop(spinner);
    let room = serde_json::from_value(room).map_err(|error| Failure::internal(error.to_string()))?;
    let next = match shown {
        Shown::Fuse { loop_device: Some(device), .. } => {
            format!("Enlarge what is on {} (resize2fs, xfs_growfs).", device.display())
        }
        Shown::Nbd { .. } => "Clients see it when they connect again.".into(),
        _ => "Its file shows it.".into(),
    };
    report(args, &room, &next)
}

fn grow(args: &Grow, logical_blocks: Option<u64>) -> Result<(), Failure> {
    let offline = &args.offline;
    let policy_path = input::default_policy(&offline.store, offline.policy.as_deref())?;
    let policy = input::read_policy(&policy_path)?;
    VolumeFiles::known(&offline.store, &policy_path, &policy)
        .opened_by(&offline.credential)
        .refuse_same(&[])?;
    input::check_policy_can_follow(&policy_path)?;
    // With the lock of one who writes: nobody on this machine may have it attached.
    let store = system::open_store(&offline.store, offline.buffered)?;
    let anchor = system::open_anchor(&policy)?;
    let credential = input::load(&offline.credential, Origin::Known)?;
    let growth = Growth {
        logical_blocks,
        enlarge: system::enlarge(store.clone()),
        save: input::save_when_grown(&policy_path),
        force: args.force,
    };
    let spinner = output::spinner("growing the volume");
    let environment = system::environment(store, anchor);
    let grown = volume::grow(environment, policy, credential, growth, AttachOptions::default())?.block()?;
    drop(spinner);
    report(args, &grown.into(), "Attach it, and enlarge what is on it (resize2fs, xfs_growfs).")
}

/// `next`: what there is to do now.
fn report(args: &Grow, room: &Room, next: &str) -> Result<(), Failure> {
    if args.offline.json {
        return output::print_json(room);
    }
    let size = output::bytes;
    output::print(&match (room.size != room.size_before, room.store_size != room.store_size_before) {
        (false, false) => format!(
            "the volume has {} and uses {} of its store already; there is nothing to do",
            size(room.size),
            size(room.store_size)
        ),
        (false, true) => format!(
            "grown: {} of the store are used, {} before; the size stays {}",
            size(room.store_size),
            size(room.store_size_before),
            size(room.size)
        ),
        (true, _) => format!(
            "grown from {} to {}; it uses {} of its store, and the policy file says so\n{next} Replace copies of the policy, and header backups.",
            size(room.size_before),
            size(room.size),
            size(room.store_size),
        ),
    });
    Ok(())
}
