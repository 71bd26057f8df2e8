//! A kernel for guests, with its modules.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, Error, Result};
use crate::program::missing;
use cli::interrupt::Interrupt;

/// What is advised where there is no kernel.
const ADVICE: &str = "name a directory with boot/vmlinuz-VERSION and lib/modules/VERSION by --guest-kernel, for example one in which \
                      `dpkg-deb -x` has unpacked Debian's linux-image-cloud-amd64 and `depmod -b DIR VERSION` has listed its modules";

/// A kernel that a package has installed, or that was unpacked.
#[derive(Debug)]
pub struct Kernel {
    /// The file that is booted.
    pub image: PathBuf,
    /// Its version.
    pub version: String,
    modules: PathBuf,
    /// Lines of `modules.dep`: a module's file, and those that it needs.
    needs: String,
    builtin: String,
}

/// A module's name as the kernel has it.
fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

impl Kernel {
    /// The one under a directory: the machine's own one if it is there, else the last by name.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(directory: &Path) -> Result<Self> {
        // QEMU is started in another directory.
        let directory = &directory
            .canonicalize()
            .map_err(|error| Error::usage(format!("{}; {ADVICE}", directory.display())).because(error))?;
        let boot = directory.join("boot");
        let entries = fs::read_dir(&boot).map_err(|error| {
            Error::usage(format!("{}: there is no kernel for a guest; {ADVICE}", boot.display()))
                .because(error)
        })?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut versions: Vec<String> =
            names.filter_map(|name| name.strip_prefix("vmlinuz-").map(String::from)).collect();
        versions.sort();
        let own = rustix::system::uname().release().to_string_lossy().into_owned();
        let version = versions.iter().find(|version| **version == own).or(versions.last());
        let Some(version) = version.cloned() else {
            return Err(Error::usage(format!(
                "{}: there is no kernel for a guest; {ADVICE}",
                boot.display()
            )));
        };
        let places = ["lib/modules", "usr/lib/modules"].map(|place| directory.join(place).join(&version));
        let modules = places
            .into_iter()
            .find(|place| place.is_dir())
            .ok_or_else(|| Error::usage(format!("there are no modules of kernel {version}; {ADVICE}")))?;
        let list = modules.join("modules.dep");
        let needs = fs::read_to_string(&list).map_err(|error| {
            Error::usage(format!(
                "{}: run `depmod -b {} {version}` first",
                list.display(),
                directory.display()
            ))
            .because(error)
        })?;
        let builtin = fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
        let image = boot.join(format!("vmlinuz-{version}"));
        Ok(Self { image, version, modules, needs, builtin })
    }

    /// The files of a module and of what it needs, in the order in which they are loaded: none where it is part of the kernel, and `None`
    /// where the kernel does not have it.
    pub fn module(&self, wanted: &str) -> Option<Vec<PathBuf>> {
        let wanted = wanted.replace('-', "_");
        let lines = || self.needs.lines().filter_map(|line| line.split_once(':'));
        let Some((path, needs)) = lines().find(|(path, _)| name(path) == wanted) else {
            return self.builtin.lines().any(|path| name(path) == wanted).then(Vec::new);
        };
        // What is needed first stands last.
        let all = needs.split_whitespace().rev().chain(std::iter::once(path));
        Some(all.map(|path| self.modules.join(path)).collect())
    }
}

/// A module's content, not compressed.
///
/// # Errors
/// When it cannot be read, or the program that unpacks it is missing.
pub fn content(path: &Path, interrupt: &Interrupt) -> Result<Vec<u8>> {
    interrupt.check()?;
    let unpack = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).doing(path.display()),
    };
    let mut command = Command::new(unpack);
    let output = command.arg("-dc").arg(path).output().map_err(|error| missing(&command, error))?;
    if !output.status.success() {
        return Err(Error::io(format!("{} cannot be unpacked by {unpack}", path.display())));
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let modules = directory.path().join("usr/lib/modules/6.1-x");
        fs::create_dir_all(&modules).unwrap();
        fs::create_dir(directory.path().join("boot")).unwrap();
        fs::write(directory.path().join("boot/vmlinuz-6.1-x"), "").unwrap();
        fs::write(modules.join("modules.builtin"), "kernel/drivers/nvme/host/nvme.ko\n").unwrap();
        directory
    }

    #[test]
    fn a_module_comes_after_what_it_needs() {
        let directory = tree();
        let said = Kernel::find(directory.path()).unwrap_err().to_string();
        assert!(said.contains("depmod -b"), "{said}");
        let list = directory.path().join("usr/lib/modules/6.1-x/modules.dep");
        fs::write(list, "k/dm-crypt.ko.xz: k/dm-mod.ko.xz k/dax.ko\nk/dm-mod.ko.xz: k/dax.ko\n").unwrap();
        let kernel = Kernel::find(directory.path()).unwrap();
        let names: Vec<String> =
            kernel.module("dm_crypt").unwrap().iter().map(|path| name(&path.to_string_lossy())).collect();
        assert_eq!(
            (names, kernel.version.as_str()),
            (["dax", "dm_mod", "dm_crypt"].map(String::from).to_vec(), "6.1-x")
        );
        assert_eq!(kernel.module("nvme"), Some(Vec::new()));
        assert_eq!(kernel.module("dm-integrity"), None);
    }

    #[test]
    fn no_kernel_is_told_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let said = Kernel::find(directory.path()).unwrap_err().to_string();
        assert!(said.contains("--guest-kernel") && said.contains("dpkg-deb -x"), "{said}");
    }
}
