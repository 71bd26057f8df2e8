//! The guest's image: what a guest boots, all of it measured or checked against what is measured.
//!
//! A directory with the kernel, the initramfs, the root disk (squashfs, and behind it the hash tree of dm-verity), [`Image`] as `image.json`,
//! and the lock file `packages.lock`, which names each Debian package with its version and digest.

mod build;
mod initial;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};
use crate::file::Digest;
use crate::tree::digest_of;

pub use build::{Options, build};

/// The file that describes an image.
const DESCRIPTION: &str = "image.json";
/// The version of its form.
const VERSION: u32 = 1;
/// Words of each guest's command line.
const WORDS: &str = "console=ttyS0 quiet oops=panic panic=-1 no_timer_check";

/// An image, as its directory describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Image {
    version: u32,
    /// The kernel.
    pub kernel: Part,
    /// The initramfs.
    pub initramfs: Part,
    /// The root disk.
    pub root: Part,
    /// The root of the disk's hash tree, in hexadecimal digits.
    pub root_hash: String,
    /// Where the hash tree begins on the disk, in bytes.
    pub hash_offset: u64,
}

/// A file of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Part {
    /// Its name in the directory.
    pub file: String,
    /// Its digest.
    pub digest: Digest,
}

impl Part {
    fn of(directory: &Path, file: &str) -> Result<Self> {
        let path = directory.join(file);
        let digest = File::open(&path).and_then(digest_of).of(&path)?;
        Ok(Self { file: file.into(), digest })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self, directory: &Path) -> PathBuf {
        directory.join(&self.file)
    }
}

impl Image {
    /// Opens the image of a directory, and checks the files that are measured against its description.
    ///
    /// # Errors
    /// If something is missing or of another form or content. The root disk is not read: the guest does, by its hash tree.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(DESCRIPTION);
        let bytes = fs::read(&path).map_err(|error| {
            Error::usage(format!("{}: {error}; `cvmio image build` makes an image", path.display()))
                .because(error)
        })?;
        let image: Self = serde_json::from_slice(&bytes).map_err(|error| {
            Error::usage(format!("{}: this describes no image: {error}", path.display())).because(error)
        })?;
        image.check(directory)?;
        Ok(image)
    }

    fn check(&self, directory: &Path) -> Result<()> {
        if self.version != VERSION {
            return Err(Error::usage(format!(
                "the image has form {}, and this program reads form {VERSION}; build it anew",
                self.version
            )));
        }
        for part in [&self.kernel, &self.initramfs, &self.root] {
            if part.file.is_empty() || part.file.contains('/') || part.file.starts_with('.') {
                return Err(Error::usage(format!(
                    "the image's file {:?} is refused: it is a name in the image's directory",
                    part.file
                )));
            }
        }
        if hex::decode(&self.root_hash).map(|hash| hash.len()) != Ok(32) {
            return Err(Error::usage("the image's root hash is not 64 hexadecimal digits"));
        }
        for part in [&self.kernel, &self.initramfs] {
            let found = Part::of(directory, &part.file)?;
            if found.digest != part.digest {
                return Err(Error::refused(format!(
                    "{} is not what the image's description says ({}, and it says {}); build the image anew",
                    part.path(directory).display(),
                    found.digest,
                    part.digest
                )));
            }
        }
        Ok(())
    }

    /// The kernel's command line for a guest with so many bytes for its job. It is measured: nobody but the owner chooses it.
    #[must_use]
    pub fn words(&self, storage: u64) -> String {
        format!(
            "{WORDS} cvmio.root={} cvmio.offset={} cvmio.storage={storage}",
            self.root_hash, self.hash_offset
        )
    }

    /// An evidence policy in TOML that guests with this command line pass on a simulated platform, and no others.
    ///
    /// # Errors
    /// If the kernel or the initramfs cannot be read.
    pub fn simulated_policy(&self, directory: &Path, words: &str) -> Result<String> {
        let measurement = self.simulated_measurement(directory, words)?;
        Ok(format!("version = 1\n\n[simulated]\nmeasurements = [\"{measurement}\"]\n"))
    }

    /// The measurement of a simulated platform for this command line: the same as `cvmio attest measure` computes.
    ///
    /// # Errors
    /// If the kernel or the initramfs cannot be read.
    pub fn simulated_measurement(&self, directory: &Path, words: &str) -> Result<attest::Hex<48>> {
        let read = |part: &Part| fs::read(part.path(directory)).of(part.path(directory));
        let (kernel, initramfs) = (read(&self.kernel)?, read(&self.initramfs)?);
        Ok(attest::simulated::measure(&[
            ("kernel", &kernel),
            ("initrd", &initramfs),
            ("command-line", words.as_bytes()),
        ]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, Image) {
        let directory = tempfile::tempdir().unwrap();
        for name in ["vmlinuz", "initramfs", "root.img"] {
            fs::write(directory.path().join(name), name).unwrap();
        }
        let part = |name: &str| Part::of(directory.path(), name).unwrap();
        let image = Image {
            version: VERSION,
            kernel: part("vmlinuz"),
            initramfs: part("initramfs"),
            root: part("root.img"),
            root_hash: "ab".repeat(32),
            hash_offset: 4096,
        };
        fs::write(directory.path().join(DESCRIPTION), serde_json::to_vec(&image).unwrap()).unwrap();
        (directory, image)
    }

    #[test]
    fn a_changed_kernel_is_noticed_before_it_is_booted() {
        let (directory, image) = directory();
        assert_eq!(Image::open(directory.path()).unwrap(), image);
        fs::write(directory.path().join("vmlinuz"), "another").unwrap();
        assert!(Image::open(directory.path()).unwrap_err().to_string().contains("vmlinuz is not what"));
        fs::remove_file(directory.path().join(DESCRIPTION)).unwrap();
        assert!(Image::open(directory.path()).unwrap_err().to_string().contains("cvmio image build"));
    }

    #[test]
    fn no_name_or_hash_of_a_description_reaches_elsewhere() {
        let (directory, image) = directory();
        let refused = |image: Image| image.check(directory.path()).unwrap_err().to_string();
        let part = |file: &str| Part { file: file.into(), ..image.root.clone() };
        for file in ["../x", "/x", "", ".."] {
            assert!(refused(Image { root: part(file), ..image.clone() }).contains("refused"), "{file}");
        }
        assert!(refused(Image { root_hash: "ab cvmio.root=x".into(), ..image.clone() }).contains("64"));
        assert!(refused(Image { version: 9, ..image.clone() }).contains("form 9"));
    }

    #[test]
    fn the_command_line_is_part_of_the_measurement() {
        let (directory, image) = directory();
        let measure = |storage| image.simulated_measurement(directory.path(), &image.words(storage)).unwrap();
        assert_eq!(measure(1), measure(1));
        assert_ne!(measure(1), measure(2));
    }
}
