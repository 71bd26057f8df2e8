//! Where the running volumes are, for the commands that deal with them.

use std::path::PathBuf;

use clap::Args;

use cli::failure::Failure;

/// Where running volumes are found.
#[derive(Args, Debug, Clone, Default)]
pub struct RuntimeArgs {
    /// Directory of the running volumes [default: /run/cvmio, or cvmio in XDG_RUNTIME_DIR]
    #[arg(long, value_name = "DIR", env = "CVMIO_RUNTIME_DIR", hide_env_values = true)]
    pub runtime_dir: Option<PathBuf>,
}

impl RuntimeArgs {
    /// For a command without the option.
    pub fn of_environment() -> Self {
        Self { runtime_dir: std::env::var_os("CVMIO_RUNTIME_DIR").map(PathBuf::from) }
    }

    /// Where the running volumes are.
    pub fn directory(&self) -> Result<PathBuf, Failure> {
        let path = match &self.runtime_dir {
            Some(path) => path.clone(),
            None if rustix::process::geteuid().is_root() => PathBuf::from("/run/cvmio"),
            None => match std::env::var_os("XDG_RUNTIME_DIR") {
                Some(path) => PathBuf::from(path).join("cvmio"),
                None => {
                    return Err(Failure::usage(
                        "there is no runtime directory for this user; name one with --runtime-dir",
                    ));
                }
            },
        };
        std::path::absolute(&path)
            .map_err(|error| Failure::usage(format!("{} is no usable path: {error}", path.display())))
    }
}
