//! What is made from the grammar itself: completions and manual pages.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use clap_complete::Shell;

/// Print the completions of a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio completions bash > /etc/bash_completion.d/cvmio")]
pub struct Completions {
    /// The shell
    pub shell: Shell,
}

/// Write the manual pages, one for each command
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio man /usr/local/share/man/man1")]
pub struct Manual {
    /// Directory for them; made if it does not exist
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
}
