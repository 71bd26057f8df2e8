//! A secret that the owner releases to this guest, by its evidence, and the files that come with it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use attest::Platform;
use cli::failure::Failure;
use kbs::{Address, Bundle, Session, VOLUME};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustls::ClientConfig;
use seal::SecretBytes;

/// For each request to the key broker.
const PATIENCE: Duration = Duration::from_secs(30);
/// The authorities that the system trusts, unless others are named.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The attach policy among the released files.
const POLICY: &str = "policy.toml";

/// Where a secret is released, and to whom.
#[derive(Debug, Clone)]
pub struct Released {
    /// The key broker and the resource.
    pub address: Address,
    /// Authorities that may vouch for the broker (PEM); without, the system's.
    pub authorities: Option<PathBuf>,
    /// The directory for the files that come with the secret.
    pub directory: Option<PathBuf>,
    /// What the launcher of a simulated platform has handed over; without, the chip is asked.
    pub seat: Option<PathBuf>,
}

/// An address as it is typed.
///
/// # Errors
/// A sentence, if it is none.
pub fn release_address(text: &str) -> Result<Address, String> {
    Address::parse(text).map_err(|error| error.to_string())
}

impl Released {
    /// Whether files come with the secret, and among them the attach policy.
    #[must_use]
    pub fn holds_files(&self) -> bool {
        self.address.resource.kind() == VOLUME
    }

    /// Where the attach policy lies once it is released; `None` if none comes with the secret.
    #[must_use]
    pub fn policy(&self) -> Option<PathBuf> {
        let directory = self.directory.as_ref().filter(|_| self.holds_files())?;
        Some(directory.join(POLICY))
    }

    /// Shows this guest's evidence, and takes what is released for it. Files are all in their directory when this is done, or none of them.
    ///
    /// # Errors
    /// If the broker cannot be reached or refuses, the chip gives no evidence, or the files cannot be written.
    pub(super) fn fetch(&self) -> Result<SecretBytes, Failure> {
        if self.holds_files() != self.directory.is_some() {
            return Err(Failure::usage(match self.holds_files() {
                true => format!(
                    "{} holds files beside the key; name a directory for them with --release-dir",
                    self.address
                ),
                false => format!("{} is a key alone; leave --release-dir out", self.address),
            }));
        }
        let content = self.ask().map_err(|failure| failure.on(&self.address))?;
        let Some(directory) = &self.directory else { return Ok(content) };
        let bundle =
            Bundle::decode(content.expose()).map_err(|error| Failure::io(error).on(&self.address))?;
        place(directory, &bundle)?;
        Ok(bundle.key)
    }

    fn ask(&self) -> Result<SecretBytes, Failure> {
        let platform = match &self.seat {
            Some(_) => Platform::Simulated,
            None => chip::platform(&chip::System)?,
        };
        let mut session = Session::begin(&self.address.endpoint, self.tls()?, platform.into(), PATIENCE)?;
        let evidence = match &self.seat {
            Some(seat) => {
                cli::output::warning(
                    "the key is asked for with simulated evidence: no chip vouches for this guest",
                );
                chip::simulated(seat, session.report_data())?
            }
            None => chip::evidence(&chip::System, session.report_data(), None)?,
        };
        session.attest(&evidence)?;
        Ok(session.resource(&self.address.resource)?)
    }

    /// TLS 1.3, and a broker that an authority vouches for. There is no way round it.
    fn tls(&self) -> Result<Arc<ClientConfig>, Failure> {
        let path = self.authorities.as_deref().unwrap_or(Path::new(SYSTEM_AUTHORITIES));
        let roots = tls_files::authorities(path).map_err(|error| {
            Failure::usage(error).with("name the key broker's authorities with --key-from-ca")
        })?;
        let config = ClientConfig::builder_with_provider(tls_files::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| Failure::internal(format!("no TLS: {error}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }
}

/// Puts the files into their directory: into a new one beside it, which then takes its place.
fn place(directory: &Path, bundle: &Bundle) -> Result<(), Failure> {
    let fail = |error: io::Error| {
        Failure::io(format!("what was released cannot be written to {}: {error}", directory.display()))
    };
    refuse_others(directory, bundle)?;
    let name = directory.file_name().ok_or_else(|| {
        Failure::usage(format!("{} cannot be a directory for released files", directory.display()))
    })?;
    let beside = directory.with_file_name(format!(".{}.released", name.to_string_lossy()));
    // Left by an attempt that was cut short.
    remove(&beside).map_err(fail)?;
    if let Some(parent) = directory.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(fail)?;
    }
    DirBuilder::new().mode(0o700).create(&beside).map_err(fail)?;
    for (name, content) in &bundle.files {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(beside.join(name));
        file.and_then(|mut file| file.write_all(content.expose())).map_err(fail)?;
    }
    if !directory.exists() {
        return fs::rename(&beside, directory).map_err(fail);
    }
    renameat_with(CWD, &beside, CWD, directory, RenameFlags::EXCHANGE).map_err(|errno| fail(errno.into()))?;
    remove(&beside).map_err(fail)
}

/// A directory with anything else in it is not one of ours, and stays as it is.
fn refuse_others(directory: &Path, bundle: &Bundle) -> Result<(), Failure> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Failure::usage(format!("{}: {error}", directory.display()))),
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !bundle.files.iter().any(|(known, _)| *known == name) {
            return Err(Failure::usage(format!(
                "{} holds {name}, which is not among what is released; name a directory for released files alone. Nothing was changed",
                directory.display()
            )));
        }
    }
    Ok(())
}

/// Removes a directory of files.
fn remove(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(files: &[(&str, &[u8])]) -> Bundle {
        let file = |(name, content): &(&str, &[u8])| (name.to_string(), SecretBytes::from_slice(content));
        Bundle { key: SecretBytes::from_slice(&[7; 64]), files: files.iter().map(file).collect() }
    }

    #[test]
    fn released_files_replace_those_of_before_as_a_whole_and_nothing_else() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("new/ledger");
        place(&directory, &bundle(&[("policy.toml", b"one"), ("client.key", b"two")])).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&directory.join("client.key"))), (0o700, 0o600));
        place(&directory, &bundle(&[("policy.toml", b"three"), ("client.key", b"four")])).unwrap();
        assert_eq!(fs::read(directory.join("policy.toml")).unwrap(), b"three");
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1, "nothing is left beside it");
        // One that came before and does not now: the directory is somebody else's, for all that is known.
        let failure = place(&directory, &bundle(&[("policy.toml", b"five")])).unwrap_err();
        assert!(failure.is_usage() && failure.to_string().contains("client.key"), "{failure}");
        assert_eq!(fs::read(directory.join("policy.toml")).unwrap(), b"three");
        fs::write(folder.path().join("file"), b"").unwrap();
        assert!(place(&folder.path().join("file"), &bundle(&[])).unwrap_err().is_usage());
    }

    #[test]
    fn a_directory_is_for_resources_that_hold_files() {
        let released = |resource: &str, directory: Option<&str>| Released {
            address: release_address(&format!("kbs+https://127.0.0.1:1/{resource}")).unwrap(),
            authorities: None,
            directory: directory.map(PathBuf::from),
            seat: None,
        };
        assert_eq!(released("a/volume/c", Some("/run/x")).policy(), Some("/run/x/policy.toml".into()));
        assert_eq!(released("a/key/c", None).policy(), None);
        for wrong in [released("a/volume/c", None), released("a/key/c", Some("/run/x"))] {
            let failure = wrong.fetch().unwrap_err();
            assert!(failure.is_usage() && failure.to_string().contains("--release-dir"), "{failure}");
        }
    }
}
