//! What a name was brought up as: kept beside the running volumes, so that it can be cleared away when its daemon has died.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use cli::failure::Failure;

/// What somebody else may have to clear away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Record {
    /// The loop device.
    pub device: Option<PathBuf>,
    /// Where it is mounted.
    pub mountpoint: Option<PathBuf>,
}

/// The only one who brings this name up or down, as long as it lives.
pub struct Turn {
    path: PathBuf,
    file: File,
}

impl Turn {
    /// Waits for its turn.
    ///
    /// # Errors
    /// When the runtime directory cannot be used.
    pub fn take(runtime: &Path, name: &str) -> Result<Self, Failure> {
        // No volume has a name that begins so.
        let path = runtime.join(format!(".{name}.service"));
        let fail =
            |error: std::io::Error| Failure::usage(format!("{} cannot be used: {error}", path.display()));
        DirBuilder::new().recursive(true).mode(0o700).create(runtime).map_err(fail)?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(fail)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|errno| fail(errno.into()))?;
        Ok(Self { path, file })
    }

    /// For a program that works on the volume: as its standard input it keeps the turn until it ends, whatever becomes of us.
    ///
    /// # Errors
    /// When there are no more file descriptors.
    pub fn held(&self) -> Result<Stdio, Failure> {
        let file = self.file.try_clone();
        file.map(Stdio::from).map_err(|error| Failure::io(format!("{}: {error}", self.path.display())))
    }

    /// A file of this name's own, for as long as the turn lasts.
    pub fn beside(&self, kind: &str) -> PathBuf {
        self.path.with_extension(kind)
    }

    /// What stands there; of what cannot be read, nothing is known.
    pub fn record(&self) -> Record {
        fs::read(&self.path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Remembers. The file is left for ever, since another may wait for its lock.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn remember(&self, record: &Record) -> Result<(), Failure> {
        let write = || -> std::io::Result<()> {
            let bytes = serde_json::to_vec(record)?;
            self.file.set_len(0)?;
            self.file.write_all_at(&bytes, 0)
        };
        write().map_err(|error| Failure::io(format!("{}: {error}", self.path.display())))
    }
}
