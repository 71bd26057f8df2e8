//! Whether the kernel would run a file: what execve(2) would say at the first alarm is to be known before.
//!
//! The file is not run to find out, and not trusted to be what its name says. Where nothing can be known, it counts as a program.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Access, access};

/// As much of a file as the kernel looks at to know its format (`BINPRM_BUF_SIZE`).
const LOOKED_AT: u64 = 256;
/// Scripts that are each other's interpreters, one more than the kernel takes.
const MOST_SCRIPTS: u32 = 5;
/// Where the kernel says which further formats it has been told of (Documentation/admin-guide/binfmt-misc.rst).
const FORMATS: &str = "/proc/sys/fs/binfmt_misc";
/// What else a machine may run, by its number in ELF headers: x86-64 programs of 32 bits, ARM64 those of ARM.
const ALSO: [(u16, u16); 2] = [(62, 3), (183, 40)];

/// Finds why the kernel would not run a file.
///
/// # Errors
/// Says why.
pub fn check(path: &Path) -> Result<(), String> {
    if let Err(errno) = access(path, Access::EXEC_OK) {
        return Err(format!("{errno}; make it executable (chmod +x)"));
    }
    look(path, 0)
}

fn look(path: &Path, depth: u32) -> Result<(), String> {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut start));
    // One may be allowed to run what one must not read.
    if read.is_err() {
        return Ok(());
    }
    match &start[..] {
        [] => Err("it is empty".into()),
        [b'#', b'!', line @ ..] => look_at_script(line, depth),
        [0x7f, b'E', b'L', b'F', ..] => look_at_elf(path, &start),
        _ if is_told_of(path, &start) => Ok(()),
        [0xef, 0xbb, 0xbf, ..] => {
            Err("it begins with a byte-order mark, and not with `#!`; write it without".into())
        }
        _ => Err("it is no program of this machine, and does not begin with `#!` and an interpreter".into()),
    }
}

/// `line` stands behind `#!`.
fn look_at_script(line: &[u8], depth: u32) -> Result<(), String> {
    let line = line.split(|byte| matches!(byte, b'\n' | 0)).next().unwrap_or_default();
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let interpreter = line.split(is_blank).find(|word| !word.is_empty()).unwrap_or_default();
    let shown = interpreter.escape_ascii();
    if interpreter.is_empty() {
        return Err("no interpreter stands behind its `#!`".into());
    }
    // What does not end within what the kernel looks at, it does not take for a path.
    if 2 + line.len() as u64 == LOOKED_AT && line.ends_with(interpreter) {
        return Err(format!("its interpreter `{shown}` is too long"));
    }
    if depth == MOST_SCRIPTS {
        return Err("its interpreter is a script, and so is that one's, and so on".into());
    }
    // The daemon stands in the root directory.
    let path = Path::new("/").join(std::ffi::OsStr::from_bytes(interpreter));
    if let (true, Err(_)) = (interpreter.ends_with(b"\r"), fs::metadata(&path)) {
        return Err(format!(
            "its interpreter `{shown}` is not there: its lines end with CR and LF; write them with LF only"
        ));
    }
    let usable =
        fs::metadata(&path).map_err(|error| error.to_string()).and_then(|found| match found.is_file() {
            true => access(&path, Access::EXEC_OK).map_err(|errno| errno.to_string()),
            false => Err("it is no file".into()),
        });
    usable.map_err(|why| format!("its interpreter `{shown}` cannot be run: {why}"))?;
    look(&path, depth + 1).map_err(|why| format!("its interpreter `{shown}` cannot be run: {why}"))
}

/// Fields as elf(5) has them.
fn look_at_elf(path: &Path, start: &[u8]) -> Result<(), String> {
    let number = |at: usize| {
        let bytes = [*start.get(at)?, *start.get(at + 1)?];
        Some(if start[5] == 2 { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    };
    let (Some(kind), Some(machine)) = (number(16), number(18)) else {
        return Err("it is cut short".into());
    };
    // Programs, also those that can lie anywhere.
    if kind != 2 && kind != 3 {
        return Err("it is an object file or a core dump, and no program".into());
    }
    let Some(ours) = own_machine() else { return Ok(()) };
    if machine == ours {
        return look_at_loader(path, start);
    }
    match ALSO.contains(&(ours, machine)) || is_told_of(path, start) {
        true => Ok(()),
        false => Err("it is a program for another kind of machine".into()),
    }
}

fn own_machine() -> Option<u16> {
    let mut start = [0; 20];
    File::open("/proc/self/exe").ok()?.read_exact_at(&mut start, 0).ok()?;
    Some(u16::from_ne_bytes([start[18], start[19]]))
}

/// The program that loads it, of an ELF for 64 bits; a static one has none.
fn look_at_loader(path: &Path, start: &[u8]) -> Result<(), String> {
    const INTERPRETER: u32 = 3;
    const ENTRY: usize = 56;
    let loader = || -> Option<Vec<u8>> {
        let number =
            |bytes: &[u8], at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let file = File::open(path).ok()?;
        let table = number(start, 32)?;
        let count = u16::from_ne_bytes([*start.get(56)?, *start.get(57)?]);
        let mut entries = vec![0; ENTRY * usize::from(count)];
        file.read_exact_at(&mut entries, table).ok()?;
        let entry = entries.chunks(ENTRY).find(|entry| entry.starts_with(&INTERPRETER.to_ne_bytes()))?;
        let mut name = vec![0; usize::try_from(number(entry, 32)?.min(4096)).ok()?];
        file.read_exact_at(&mut name, number(entry, 8)?).ok()?;
        Some(name.split(|byte| *byte == 0).next()?.to_vec())
    };
    let is_64 = start.get(4) == Some(&2);
    match loader().filter(|_| is_64) {
        Some(name) if !Path::new("/").join(std::ffi::OsStr::from_bytes(&name)).exists() => {
            Err(format!("`{}`, which is to load it, is not there", name.escape_ascii()))
        }
        _ => Ok(()),
    }
}

/// Whether the kernel has been told of a program that runs such files.
fn is_told_of(path: &Path, start: &[u8]) -> bool {
    let formats = fs::read_dir(FORMATS).into_iter().flatten().flatten();
    let texts = formats.filter_map(|format| fs::read_to_string(format.path()).ok());
    texts.into_iter().any(|text| is_of_format(&text, path, start))
}

/// `text` is what the kernel says about a format.
fn is_of_format(text: &str, path: &Path, start: &[u8]) -> bool {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    if !text.lines().any(|line| line == "enabled") || field("interpreter").is_none() {
        return false;
    }
    if let Some(extension) = field("extension") {
        return path
            .extension()
            .is_some_and(|own| Some(own.as_bytes()) == extension.strip_prefix('.').map(str::as_bytes));
    }
    let magic = field("magic").and_then(|magic| hex::decode(magic).ok()).unwrap_or_default();
    let offset = field("offset").and_then(|offset| offset.parse().ok()).unwrap_or(0_usize);
    let mask = field("mask").and_then(|mask| hex::decode(mask).ok()).unwrap_or_default();
    let found = start.get(offset..).unwrap_or_default();
    let same = |(at, byte): (usize, &u8)| {
        let mask = mask.get(at).copied().unwrap_or(0xff);
        found.get(at).is_some_and(|found| found & mask == byte & mask)
    };
    !magic.is_empty() && magic.iter().enumerate().all(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    /// What the kernel says, beside what is said here.
    fn judged(content: &[u8]) -> (Result<(), String>, bool) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hook");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        // A process that another test starts at this moment may have it open for writing still.
        let ran = loop {
            match Command::new(&path).output() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                ran => break ran.is_ok(),
            }
        };
        (check(&path), ran)
    }

    #[test]
    fn what_the_kernel_would_not_run_is_known_before() {
        let own = fs::read("/bin/true").unwrap();
        let changed = |at: usize, bytes: &[u8]| {
            let mut program = own.clone();
            program[at..at + bytes.len()].copy_from_slice(bytes);
            program
        };
        let loader = own.windows(4).position(|four| four == b"/lib").unwrap();
        let long = [b"#!/", &[b'x'; 300][..]].concat();
        for (content, why) in [
            (&b""[..], "is empty"),
            (b"echo alarm\n", "does not begin with `#!`"),
            (b"\xef\xbb\xbf#!/bin/sh\n", "byte-order mark"),
            (b"#!/bin/sh\r\nexit 0\r\n", "CR and LF"),
            (b"#!/no/such/shell\n", "`/no/such/shell` cannot be run: No such file"),
            (b"#!  \t\n", "no interpreter"),
            (b"#!/etc/passwd\n", "cannot be run: Permission denied"),
            (b"#!/bin\n", "no file"),
            (&long, "too long"),
            (&own[..17], "cut short"),
            (&changed(16, &[1, 0]), "object file"),
            (&changed(18, &[0xf3, 0x77]), "another kind of machine"),
            (&changed(loader, b"/nil"), "is to load it"),
        ] {
            let (said, ran) = judged(content);
            let told = said.expect_err(why);
            assert!(told.contains(why) && !ran, "{why}: {told}, {ran}");
        }
        for content in [&own[..], b"#!/bin/sh\nexit 0\n", b"#! /bin/sh -e\n", b"#!/bin/true", b"#!bin/sh\n\n"]
        {
            let (said, ran) = judged(content);
            // The kernel finds what begins without a slash from where the daemon stands, which is not here.
            assert!(said.is_ok() && (ran || content.starts_with(b"#!b")), "{said:?}, {ran}");
        }
    }

    #[test]
    fn formats_that_the_kernel_was_told_of_are_known() {
        let text = "enabled\ninterpreter /usr/bin/run\nflags: \noffset 2\nmagic 4d5a\nmask fffe\n";
        let is = |text: &str, name: &str, start: &[u8]| is_of_format(text, Path::new(name), start);
        assert!(is(text, "hook", b"..M[") && is(text, "hook", b"..MZrest"));
        assert!(!is(text, "hook", b"MZ") && !is(text, "hook", b"..M") && !is(text, "hook", b"..NZ"));
        assert!(!is(&text.replace("enabled", "disabled"), "hook", b"..MZ"));
        let by_name = "enabled\ninterpreter /usr/bin/run\nflags: \nextension .jar\n";
        assert!(is(by_name, "a/hook.jar", b"") && !is(by_name, "hook.jars", b"") && !is(by_name, "jar", b""));
        // What the kernel says of the whole, and not of a format.
        assert!(!is("enabled\n", "hook", b"") && !is("", "hook", b""));
    }
}
