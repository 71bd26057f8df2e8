//! What programs open on this machine, so that guests get the same: a compiler or a data base is more than a file and its libraries.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use crate::error::{Context, Result};
use crate::ledger::Place;
use crate::program::find;

/// The tracer.
pub const PROGRAM: &str = "strace";

/// What belongs to the machine that runs, and not to its programs.
const OF_THE_MACHINE: [&str; 5] = ["/proc", "/sys", "/dev", "/run", "/tmp"];

/// Runs that are traced.
pub struct Traces {
    directory: Place,
}

/// Files of this machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Those that were run.
    pub programs: BTreeSet<PathBuf>,
    /// The others.
    pub files: BTreeSet<PathBuf>,
}

impl Traces {
    /// # Errors
    /// When no directory can be made for them.
    pub fn new() -> Result<Self> {
        let directory = Place::temporary("cvmio-bench-traces-")?;
        // Some programs run as another user.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).doing("permissions")?;
        Ok(Self { directory })
    }

    /// The words that stand before a program to have it traced, with all that it starts. `beside`: the tracer is no parent of the program,
    /// which gets the signals itself.
    pub fn words(&self, name: &str, beside: bool) -> Vec<OsString> {
        let tracer = find(PROGRAM).unwrap_or_else(|| PROGRAM.into());
        let mut words: Vec<OsString> = vec![tracer.into()];
        words.extend(beside.then(|| "-D".into()));
        words.extend(
            ["-ff", "-qq", "-s", "4096", "-e", "trace=execve,open,openat", "-e", "status=successful", "-o"]
                .map(Into::into),
        );
        words.push(self.directory.path().join(name).into());
        words
    }

    /// What was opened, but for what lies below `own`.
    ///
    /// # Errors
    /// When the traces cannot be read.
    pub fn opened(&self, own: &Path) -> Result<Opened> {
        let mut opened = Opened::default();
        for entry in fs::read_dir(self.directory.path()).doing("the traces")? {
            let path = entry.doing("the traces")?.path();
            let text = fs::read(&path).doing(path.display())?;
            String::from_utf8_lossy(&text).lines().for_each(|line| opened.note(line, own));
        }
        let programs = std::mem::take(&mut opened.programs);
        for program in programs {
            opened.programs.extend(interpreter(&program));
            opened.programs.insert(program);
        }
        opened.files.retain(|file| !opened.programs.contains(file));
        Ok(opened)
    }
}

impl Opened {
    fn note(&mut self, line: &str, own: &Path) {
        let Some((is_program, path)) = path_of(line) else { return };
        let is_ours = path.starts_with(own) || OF_THE_MACHINE.iter().any(|at| path.starts_with(at));
        if !is_ours && path.is_file() {
            let all = if is_program { &mut self.programs } else { &mut self.files };
            all.insert(path);
        }
    }
}

/// Whether a line of the trace is of a program that was run, and the path in it; none if it is relative, or one that no text can hold.
fn path_of(line: &str) -> Option<(bool, PathBuf)> {
    let (call, rest) = line.split_once('(')?;
    let rest = match call {
        "openat" => rest.split_once(", ")?.1,
        "execve" | "open" => rest,
        _ => return None,
    };
    let (path, _) = rest.strip_prefix('"')?.split_once('"')?;
    if !path.starts_with('/') || path.contains('\\') {
        return None;
    }
    // In the guest no directory is a link, so `..` is what it looks like.
    let mut plain = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    Some((call == "execve", plain))
}

/// The program that runs a script: the kernel opens it, and no trace has it.
fn interpreter(program: &Path) -> Option<PathBuf> {
    let bytes = fs::read(program).ok()?;
    let line = bytes.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    line.split_whitespace().next().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_path_of_a_call_is_found() {
        for (line, expected) in [
            (r#"execve("/bin/sh", ["sh"], 0x7 /* 9 vars */) = 0"#, Some((true, "/bin/sh"))),
            (
                r#"openat(AT_FDCWD, "/usr/lib/gcc/12/../../crti.o", O_RDONLY) = 3"#,
                Some((false, "/usr/lib/crti.o")),
            ),
            (r#"openat(AT_FDCWD, "main.c", O_RDONLY) = 3"#, None),
            (r#"openat(AT_FDCWD, "/od\303d", O_RDONLY) = 3"#, None),
            ("+++ exited with 0 +++", None),
            ("openat(", None),
            (r#"open("/etc/passwd"#, None),
        ] {
            let found = path_of(line);
            let found = found.as_ref().map(|(is_program, path)| (*is_program, path.to_str().unwrap()));
            assert_eq!(found, expected, "{line}");
        }
    }

    #[test]
    fn a_script_and_all_that_it_runs_and_reads_are_found() {
        if find(PROGRAM).is_none() {
            eprintln!("\nSKIPPED a_script_and_all_that_it_runs_and_reads_are_found: there is no strace");
            return;
        }
        // Not below /tmp, which is not looked at, and where this checkout may lie.
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("own")).unwrap();
        fs::write(at("own/made"), "x").unwrap();
        fs::write(at("read"), "x").unwrap();
        fs::write(at("script"), format!("#!/bin/sh\ncat {0}/read {0}/own/made\n", place.path().display()))
            .unwrap();
        fs::set_permissions(at("script"), fs::Permissions::from_mode(0o755)).unwrap();
        let traces = Traces::new().unwrap();
        let words = traces.words("all", false);
        let ended = Command::new(&words[0]).args(&words[1..]).arg(at("script")).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let opened = traces.opened(&at("own")).unwrap();
        let has = |name: &str| opened.programs.iter().any(|path| path.ends_with(name));
        assert!(opened.programs.contains(&at("script")) && has("sh") && has("cat"), "{opened:?}");
        assert!(opened.files.contains(&at("read")) && !opened.files.contains(&at("own/made")), "{opened:?}");
    }
}
