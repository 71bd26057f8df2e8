//! The other programs of this project: found beside this one, else on the path, as git finds `git-foo`.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;

/// A command whose work another program does.
#[derive(Debug, Clone, Copy)]
pub struct Other {
    /// The command, as it is typed: `cvmio WORD`.
    pub word: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// The program that is started, and the Debian package that it comes in.
    pub program: &'static str,
    /// Whether the word is the program's first argument: some have several commands.
    pub passes_word: bool,
}

impl Other {
    /// Becomes that program, with these arguments. Standard streams, exit status and signals are the program's from then on.
    ///
    /// # Errors
    /// When it is not installed, or cannot be started; returns only then.
    pub fn start(&self, arguments: &[OsString]) -> Failure {
        match find(self.program) {
            Some(path) => {
                let word = self.passes_word.then_some(self.word);
                let error = Command::new(&path).args(word).args(arguments).exec();
                Failure::io(format!(
                    "{} cannot be started: {error}; install its package again",
                    path.display()
                ))
            }
            None => Failure::usage(format!(
                "`cvmio {}` is done by the program {}, which is not installed; install the package {}, or put the program beside cvmio or on the \
                 path",
                self.word, self.program, self.program
            )),
        }
    }
}

/// The program `name`: beside this one, else on the path.
pub fn find(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_path_buf()));
    let path = std::env::var_os("PATH");
    search(beside.as_deref(), path.as_deref(), name)
}

/// The program `cvmio`, for one that works with its commands.
///
/// # Errors
/// When it is not installed.
pub fn cvmio() -> Result<PathBuf, Failure> {
    find("cvmio").ok_or_else(|| {
        Failure::usage("the program cvmio is not installed; install the package cvmio, or put it beside this program or on the path")
    })
}

fn search(beside: Option<&Path>, path: Option<&OsStr>, name: &str) -> Option<PathBuf> {
    let on_path =
        path.into_iter().flat_map(std::env::split_paths).filter(|directory| directory.is_absolute());
    let places = beside.map(Path::to_path_buf).into_iter().chain(on_path);
    places.map(|directory| directory.join(name)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_program_is_looked_for_beside_this_one_and_then_on_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let [beside, first, second] = ["beside", "first", "second"].map(|name| directory.path().join(name));
        for place in [&beside, &first, &second] {
            fs::create_dir(place).unwrap();
        }
        let path = std::env::join_paths([&first, &second, &PathBuf::from(".")]).unwrap();
        let found = || search(Some(&beside), Some(&path), "cvmio-x");
        let make = |place: &Path, mode| {
            fs::write(place.join("cvmio-x"), "").unwrap();
            fs::set_permissions(place.join("cvmio-x"), fs::Permissions::from_mode(mode)).unwrap();
        };
        assert_eq!(found(), None);
        make(&first, 0o644);
        assert_eq!(found(), None, "what cannot be run is no program");
        make(&second, 0o755);
        assert_eq!(found(), Some(second.join("cvmio-x")));
        make(&first, 0o755);
        assert_eq!(found(), Some(first.join("cvmio-x")));
        make(&beside, 0o755);
        assert_eq!(found(), Some(beside.join("cvmio-x")));
        assert_eq!(search(None, None, "cvmio-x"), None);
    }
}
