//! Certificates, revocation lists and collateral: from files, and in a directory for verifying without a network.

use std::fs;
use std::path::{Path, PathBuf};

use attest::{Check, Context, Evidence, Hex, Policy, Reason, Verdict, is_revocation_list, pem};
use cli::failure::Failure;

use crate::files;

/// Most files of a directory.
const MOST: usize = 256;

/// What a verifier has beside the evidence.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    /// DER.
    pub certificates: Vec<Vec<u8>>,
    /// DER.
    pub revocation_lists: Vec<Vec<u8>>,
    /// JSON.
    pub collateral: Vec<Vec<u8>>,
}

const BEGIN_LIST: &str = "-----BEGIN X509 CRL-----";
const END_LIST: &str = "-----END X509 CRL-----";

/// Certificates of a file, PEM or DER.
///
/// # Errors
/// If it cannot be read, or holds none.
pub fn certificates(path: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let bytes = files::read(path, files::SMALL)?;
    if bytes.first() == Some(&0x30) {
        return Ok(vec![bytes]);
    }
    let text = std::str::from_utf8(&bytes).ok().and_then(pem::certificates);
    text.ok_or_else(|| {
        Failure::usage(format!("{} holds no certificate, neither as PEM nor as DER", path.display()))
    })
}

/// The revocation list of a file, PEM or DER.
///
/// # Errors
/// If it cannot be read, or holds none.
pub fn revocation_list(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = files::read(path, files::SMALL)?;
    if bytes.first() == Some(&0x30) {
        return Ok(bytes);
    }
    list_of(&String::from_utf8_lossy(&bytes)).ok_or_else(|| {
        Failure::usage(format!("{} holds no revocation list, neither as PEM nor as DER", path.display()))
    })
}

/// The revocation list of a PEM text.
fn list_of(text: &str) -> Option<Vec<u8>> {
    let text = text.trim();
    // The same text with the name of a certificate, which is what can be read.
    let is_list = text.starts_with(BEGIN_LIST) && text.ends_with(END_LIST);
    let renamed = text.replace("X509 CRL-----", "CERTIFICATE-----");
    if is_list { pem::certificates(&renamed)?.pop() } else { None }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unread = |error| Failure::usage(format!("{}: {error}", directory.display()));
    let all = fs::read_dir(directory).map_err(unread)?;
    let mut all: Vec<PathBuf> =
        all.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(unread)?;
    all.retain(|path| path.is_file());
    all.sort();
    if all.len() > MOST {
        return Err(Failure::usage(format!(
            "{} has {} files, and at most {MOST} are read",
            directory.display(),
            all.len()
        )));
    }
    Ok(all)
}

impl Beside {
    /// Reads a directory: files named `*.json` are collateral, `*.crl` revocation lists, `*.pem`, `*.der`, `*.crt` and `*.cer` certificates. Others
    /// are left out.
    ///
    /// # Errors
    /// If the directory or a file cannot be read, or a file is not what its name says.
    pub fn read(directory: &Path) -> Result<Self, Failure> {
        let mut found = Self::default();
        for path in entries(directory)? {
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => found.collateral.push(files::read(&path, files::SMALL)?),
                Some("crl") => found.revocation_lists.push(revocation_list(&path)?),
                Some("pem" | "der" | "crt" | "cer") => found.certificates.extend(certificates(&path)?),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Sorts in what a server gave: certificates, a revocation list (PEM or DER), or collateral (JSON). False if it is none of these.
    #[must_use]
    pub fn take(&mut self, bytes: Vec<u8>) -> bool {
        let text = String::from_utf8_lossy(&bytes);
        if bytes.first() == Some(&0x30) {
            let list =
                if is_revocation_list(&bytes) { &mut self.revocation_lists } else { &mut self.certificates };
            list.push(bytes);
        } else if let Some(list) = list_of(&text) {
            self.revocation_lists.push(list);
        } else if let Some(certificates) = pem::certificates(&text) {
            self.certificates.extend(certificates);
        } else if text.trim_start().starts_with('{') {
            self.collateral.push(bytes);
        } else {
            return false;
        }
        true
    }

    /// Writes each into a directory, under a name made from its content, so that the same is there once. How many were written.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn keep(&self, directory: &Path) -> Result<usize, Failure> {
        fs::create_dir_all(directory)
            .map_err(|error| Failure::io(format!("{}: {error}", directory.display())))?;
        let all = [(&self.certificates, "der"), (&self.revocation_lists, "crl"), (&self.collateral, "json")];
        let mut count = 0;
        for (list, extension) in all {
            for content in list {
                let name = attest::simulated::measure(&[("content", content)]);
                let name = Hex::<16>(name.0[..16].try_into().unwrap_or_default());
                files::write(&directory.join(format!("{name}.{extension}")), content, 0o644, true)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Judges evidence with all of this. Of several pieces of collateral the one counts that fits: each is signed, so trying them opens nothing.
    #[must_use]
    pub fn judge(&self, evidence: &Evidence, policy: &Policy, context: &Context<'_>) -> Verdict {
        let mut context = Context {
            certificates: &self.certificates,
            revocation_lists: &self.revocation_lists,
            ..context.clone()
        };
        let mut verdict = attest::verify(evidence, policy, &context);
        for one in &self.collateral {
            context.collateral = Some(one);
            let other = attest::verify(evidence, policy, &context);
            if other.reasons().len() < verdict.reasons().len() || verdict.reasons().iter().any(is_lack) {
                verdict = other;
            }
        }
        verdict
    }
}

fn is_lack(reason: &Reason) -> bool {
    reason.check == Check::Collateral
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_other_files_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Beside {
            certificates: vec![vec![0x30, 1]],
            revocation_lists: vec![vec![0x30, 2]],
            collateral: vec![b"{}".to_vec()],
        };
        assert_eq!(kept.keep(directory.path()).unwrap(), 3);
        assert_eq!(kept.keep(directory.path()).unwrap(), 3);
        fs::write(directory.path().join("README"), "no evidence").unwrap();
        let read = Beside::read(directory.path()).unwrap();
        assert_eq!(
            (read.certificates, read.revocation_lists, read.collateral),
            (kept.certificates, kept.revocation_lists, kept.collateral)
        );
        fs::write(directory.path().join("x.pem"), "no certificate").unwrap();
        assert!(
            Beside::read(directory.path()).unwrap_err().to_string().contains("x.pem holds no certificate")
        );
    }
}
