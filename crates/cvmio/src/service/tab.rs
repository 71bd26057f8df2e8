//! `/etc/cvmiotab`: the volumes of this machine, one a line, like crypttab(5).
//!
//! `name store policy key options`, apart by blanks. The key is `key-file:/PATH` or `passphrase-file:/PATH`; the options are apart by commas, `-` for none. Lines
//! that begin with `#` are comments. A path with a blank or, in an option, a comma cannot be written.
//!
//! A line with the option `initramfs` is for the boot script there, which knows no other option but `on-tamper`; its key may be `ask`.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::Target;
use super::target::parse_front_end;
use crate::daemon::tamper::OnTamper;
use crate::failure::Failure;
use crate::input::{parse_duration, parse_name, parse_size};

/// Most bytes of a table.
const MAX_TAB: u64 = 1 << 20;
/// How unlike a known word a misspelt one may be.
const TYPING_ERRORS: usize = 2;

/// All that may stand in the last field.
const OPTIONS: [&str; 17] = [
    "as",
    "buffered",
    "fs",
    "initramfs",
    "interval",
    "loop",
    "memory",
    "metrics",
    "mount-option",
    "mountpoint",
    "noauto",
    "nofail",
    "on-tamper",
    "provision",
    "queues",
    "read-only",
    "tamper-hook",
];

/// What may stand beside `initramfs`, and itself.
const BOOT_OPTIONS: [&str; 2] = ["initramfs", "on-tamper"];

/// A volume of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What to bring up.
    pub target: Target,
    /// Only when it is asked for by name.
    pub noauto: bool,
    /// The machine starts without it.
    pub nofail: bool,
    /// The initramfs attaches it, and nobody else brings it up or down.
    pub initramfs: bool,
}

/// Where a table is wrong, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabError {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// What is wrong there.
    pub message: String,
}

impl fmt::Display for TabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// Reads the table at `path`.
///
/// # Errors
/// When it cannot be read, or something in it is wrong; says where.
pub fn read(path: &Path) -> Result<Vec<Line>, Failure> {
    let fail = |error: std::io::Error| {
        Failure::usage(format!(
            "the table {} cannot be read: {error}; name another with --tab",
            path.display()
        ))
    };
    let mut text = String::new();
    File::open(path).map_err(fail)?.take(MAX_TAB + 1).read_to_string(&mut text).map_err(fail)?;
    if text.len() as u64 > MAX_TAB {
        return Err(Failure::usage(format!("the table {} is longer than {MAX_TAB} bytes", path.display())));
    }
    parse(&text).map_err(|error| Failure::usage(format!("{}:{error}", path.display())))
}

/// The volume `name` of the table at `path`.
///
/// # Errors
/// As [`read`], and when there is none of that name.
pub fn find(path: &Path, name: &str) -> Result<Target, Failure> {
    let lines = read(path)?;
    let names: Vec<&str> = lines.iter().map(|line| line.target.name.as_str()).collect();
    let unknown = || {
        let hint = suggestion(name, names.iter().copied());
        Failure::usage(format!("there is no volume `{name}` in {}{hint}", path.display()))
    };
    let line = lines.iter().find(|line| line.target.name == name).ok_or_else(unknown)?;
    if line.initramfs {
        return Err(Failure::usage(format!(
            "{name} is attached in the initramfs, before the system starts, and stays"
        )));
    }
    Ok(line.target.clone())
}

/// Reads a table.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse(text: &str) -> Result<Vec<Line>, TabError> {
    let mut lines = Vec::new();
    let (mut names, mut mountpoints) = (BTreeSet::new(), BTreeSet::new());
    for (index, text) in text.lines().enumerate() {
        let at = |(column, message)| TabError { line: index + 1, column, message };
        let Some(line) = parse_line(text).map_err(at)? else { continue };
        let first = text.chars().take_while(|c| c.is_whitespace()).count() + 1;
        if !names.insert(line.target.name.clone()) {
            return Err(at((first, format!("there is a volume `{}` above already", line.target.name))));
        }
        if let Some(mountpoint) = &line.target.mountpoint
            && !mountpoints.insert(mountpoint.clone())
        {
            let message = format!("another volume above is mounted on {} already", mountpoint.display());
            return Err(at((first, message)));
        }
        lines.push(line);
    }
    Ok(lines)
}

/// A piece of a line, with its column.
#[derive(Clone, Copy)]
struct Word<'a> {
    column: usize,
    text: &'a str,
}

impl Word<'_> {
    fn wrong<T>(self, message: impl Into<String>) -> Result<T, (usize, String)> {
        Err((self.column, message.into()))
    }

    /// The pieces between `separator`s.
    fn split(self, separator: impl Fn(char) -> bool) -> Vec<Self> {
        let mut words = Vec::new();
        let mut rest = self;
        loop {
            let Some((offset, found)) = rest.text.char_indices().find(|(_, c)| separator(*c)) else {
                words.push(rest);
                return words;
            };
            let (text, behind) = rest.text.split_at(offset);
            words.push(Self { column: rest.column, text });
            let column = rest.column + text.chars().count() + 1;
            rest = Self { column, text: behind.get(found.len_utf8()..).unwrap_or_default() };
        }
    }

    fn path(self) -> Result<PathBuf, (usize, String)> {
        match self.text.starts_with('/') {
            true => Ok(self.text.into()),
            false => self.wrong(format!("`{}` is no absolute path", self.text)),
        }
    }
}

fn parse_line(text: &str) -> Result<Option<Line>, (usize, String)> {
    let line = Word { column: 1, text };
    let words: Vec<Word> =
        line.split(char::is_whitespace).into_iter().filter(|word| !word.text.is_empty()).collect();
    let (name, store, policy, key, options) = match words[..] {
        [] => return Ok(None),
        [first, ..] if first.text.starts_with('#') => return Ok(None),
        [name, store, policy, key] => (name, store, policy, key, None),
        [name, store, policy, key, options] => (name, store, policy, key, Some(options)),
        [_, _, _, _, _, more, ..] => {
            return more.wrong("nothing follows the options: they are apart by commas, without blanks");
        }
        [.., last] => {
            let missing = ["a store", "a policy", "a key"].get(words.len() - 1).copied().unwrap_or("a field");
            let end = last.column + last.text.chars().count();
            return Err((
                end,
                format!("{missing} is missing; a line has name, store, policy, key and options"),
            ));
        }
    };
    let id = parse_name(name.text).or_else(|message| name.wrong(message))?;
    let mut target = Target::new(&id, &store.path()?, &policy.path()?);
    let asks = key.text == "ask";
    if !asks {
        parse_key(key, &mut target)?;
    }
    let mut parsed = Line { target, noauto: false, nofail: false, initramfs: false };
    if let Some(options) = options.filter(|options| options.text != "-") {
        parse_options(options, &mut parsed)?;
    }
    match (asks, parsed.initramfs) {
        (true, false) => {
            return key.wrong("`ask` goes with the option initramfs only: later nobody can be asked");
        }
        (true, true) => {}
        (false, _) => parsed.target.check().or_else(|message| name.wrong(message))?,
    }
    Ok(Some(parsed))
}

fn parse_key(word: Word, target: &mut Target) -> Result<(), (usize, String)> {
    let (kind, path) = word.text.split_once(':').unwrap_or((word.text, ""));
    let path = Word { column: word.column + kind.chars().count() + 1, text: path };
    match kind {
        "key-file" => target.key_file = Some(path.path()?),
        "passphrase-file" => target.passphrase_file = Some(path.path()?),
        _ => {
            let hint = suggestion(kind, ["key-file", "passphrase-file"]);
            return word.wrong(format!(
                "`{}` says not where the key is: write key-file:/PATH or passphrase-file:/PATH{hint}",
                word.text
            ));
        }
    }
    Ok(())
}

fn parse_options(word: Word, line: &mut Line) -> Result<(), (usize, String)> {
    let mut seen = BTreeSet::new();
    for option in word.split(|c| c == ',') {
        let (name, value) = match option.text.split_once('=') {
            Some((name, value)) => {
                (name, Some(Word { column: option.column + name.chars().count() + 1, text: value }))
            }
            None => (option.text, None),
        };
        if !seen.insert(name) && name != "mount-option" {
            return option.wrong(format!("`{name}` stands here twice"));
        }
        set(option, name, value, line)?;
    }
    if line.initramfs && seen.iter().any(|option| !BOOT_OPTIONS.contains(option)) {
        return word
            .wrong("`initramfs` stands alone, or with `on-tamper`: the boot script knows no other option");
    }
    Ok(())
}

fn set(option: Word, name: &str, value: Option<Word>, line: &mut Line) -> Result<(), (usize, String)> {
    let target = &mut line.target;
    match (name, value) {
        ("loop", None) => target.use_loop = true,
        ("buffered", None) => target.buffered = true,
        ("noauto", None) => line.noauto = true,
        ("nofail", None) => line.nofail = true,
        ("initramfs", None) => line.initramfs = true,
        ("read-only", None) => target.read_only = true,
        ("as", Some(value)) => target.front_end = typed(value, parse_front_end)?,
        ("fs", Some(value)) => target.fs = Some(typed(value, str::parse)?),
        ("mountpoint", Some(value)) => target.mountpoint = Some(value.path()?),
        ("mount-option", Some(value)) if !value.text.is_empty() => {
            let all = target.mount_options.take().map_or(String::new(), |before| before + ",");
            target.mount_options = Some(all + value.text);
        }
        ("memory", Some(value)) => target.memory = typed(value, parse_size)?,
        ("interval", Some(value)) => target.interval = typed(value, parse_duration)?,
        ("queues", Some(value)) => {
            let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number of queues"));
            target.queues = typed(value, number)?;
        }
        ("provision", Some(value)) => target.provision = typed(value, str::parse)?,
        ("on-tamper", Some(value)) => target.on_tamper = typed(value, parse_on_tamper)?,
        ("tamper-hook", Some(value)) => target.tamper_hook = Some(value.path()?),
        ("metrics", Some(value)) => target.metrics = Some(typed(value, str::parse)?),
        (known, None) if OPTIONS.contains(&known) => {
            return option.wrong(format!("`{known}` wants a value: {known}=..."));
        }
        (known, Some(value)) if OPTIONS.contains(&known) => {
            return match value.text.is_empty() {
                true => option.wrong(format!("`{known}` wants a value: {known}=...")),
                false => option.wrong(format!("`{known}` takes no value")),
            };
        }
        (unknown, _) => {
            let hint = suggestion(unknown, OPTIONS);
            return option.wrong(format!("there is no option `{unknown}`{hint}"));
        }
    }
    Ok(())
}

fn parse_on_tamper(text: &str) -> Result<OnTamper, String> {
    OnTamper::from_str(text, false).map_err(|_| {
        format!("`{text}` is nothing that a device does; there are continue, read-only and stop")
    })
}

fn typed<T, E: ToString>(value: Word, parse: impl Fn(&str) -> Result<T, E>) -> Result<T, (usize, String)> {
    parse(value.text).or_else(|message| value.wrong(message.to_string()))
}

/// What somebody may have meant.
fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = known.into_iter().map(|known| (strsim::damerau_levenshtein(word, known), known)).min();
    near.filter(|(errors, _)| *errors <= TYPING_ERRORS)
        .map_or(String::new(), |(_, known)| format!("; did you mean `{known}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::FrontEnd;
    use crate::service::filesystem::FileSystem;
    use proptest::prelude::*;

    const TABLE: &str = "\
# name  store      policy            key                    options
ledger  /dev/vdb   /etc/ledger.toml  key-file:/k/ledger     fs=ext4,mountpoint=/srv/ledger,mount-option=noatime,mount-option=nodev,nofail

  scratch /dev/vdc /etc/scratch.toml passphrase-file:/k/p   loop,noauto,memory=64M,queues=4,interval=500ms,provision=thin,metrics=unix:/m
plain\t/dev/vdd\t/etc/plain.toml\tkey-file:/k/plain\t-
device /dev/vde /etc/device.toml key-file:/k/device       as=auto,on-tamper=read-only,tamper-hook=/usr/sbin/page
root   /dev/vda /etc/root.toml   ask                      initramfs,on-tamper=stop
image  /dev/vdf /etc/image.toml  key-file:/k/image        as=auto,read-only
";

    #[test]
    fn each_line_is_a_volume() {
        let lines = parse(TABLE).unwrap();
        let names: Vec<&str> = lines.iter().map(|line| line.target.name.as_str()).collect();
        assert_eq!(names, ["ledger", "scratch", "plain", "device", "root", "image"]);
        let ledger = &lines[0].target;
        assert_eq!(
            (ledger.fs, ledger.mount_options.as_deref()),
            (Some(FileSystem::Ext4), Some("noatime,nodev"))
        );
        assert_eq!((lines[0].noauto, lines[0].nofail, lines[1].noauto), (false, true, true));
        assert_eq!((lines[1].target.memory, lines[1].target.queues), (64 << 20, 4));
        assert_eq!(lines[2].target.key_file.as_deref(), Some(Path::new("/k/plain")));
        assert_eq!((lines[2].target.front_end, lines[3].target.front_end), (FrontEnd::Fuse, FrontEnd::Auto));
        let device = &lines[3].target;
        assert_eq!(device.on_tamper, OnTamper::ReadOnly);
        assert_eq!(device.tamper_hook.as_deref(), Some(Path::new("/usr/sbin/page")));
        assert_eq!((lines[4].initramfs, lines[4].target.on_tamper), (true, OnTamper::Stop));
        let image = &lines[5].target;
        assert!(image.read_only && !image.may_be_ublk());
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (line, column, part) in [
            ("a", 2, "a store is missing"),
            ("a /s", 5, "a policy is missing"),
            ("a /s /p", 8, "a key is missing"),
            ("a/b /s /p key-file:/k", 1, "cannot be a volume's name"),
            ("a s /p key-file:/k", 3, "`s` is no absolute path"),
            ("a /s /p key-fil:/k", 9, "did you mean `key-file`?"),
            ("a /s /p key-file:k", 18, "`k` is no absolute path"),
            ("a /s /p /k", 9, "says not where the key is"),
            ("a /s /p key-file:/k loop,mountpiont=/x", 26, "did you mean `mountpoint`?"),
            ("a /s /p key-file:/k colour=red", 21, "there is no option `colour`"),
            ("a /s /p key-file:/k loop,loop", 26, "twice"),
            ("a /s /p key-file:/k loop=yes", 21, "takes no value"),
            ("a /s /p key-file:/k fs", 21, "wants a value"),
            ("a /s /p key-file:/k mount-option=", 21, "wants a value"),
            ("a /s /p key-file:/k fs=ntfs,mountpoint=/x", 24, "no file system that is made here"),
            ("a /s /p key-file:/k loop,memory=1X", 33, "not a size"),
            ("a /s /p key-file:/k as=iscsi", 24, "`iscsi` is no front end"),
            ("a /s /p key-file:/k as=ublk,loop", 1, "loop goes with fuse"),
            ("a /s /p key-file:/k loop,", 26, "no option ``"),
            ("a /s /p key-file:/k fs=ext4", 1, "go together"),
            ("a /s /p key-file:/k loop noauto", 26, "apart by commas"),
            ("a /s /p ask", 9, "`ask` goes with the option initramfs only"),
            ("a /s /p ask initramfs,nofail", 13, "`initramfs` stands alone"),
            ("a /s /p key-file:/k on-tamper=panic", 31, "continue, read-only and stop"),
            ("a /s /p key-file:/k tamper-hook=page", 33, "`page` is no absolute path"),
            ("a /s /p key-file:/k as=ublk,read-only", 1, "cannot be read-only"),
            ("\u{e4}\u{e4} /s /p key-file:/k", 1, "cannot be a volume's name"),
            ("a /\u{e4}\u{e4} p key-file:/k", 7, "`p` is no absolute path"),
        ] {
            let error = parse(&format!("# first\n{line}\n")).unwrap_err();
            assert_eq!((error.line, error.column), (2, column), "{line}: {error}");
            assert!(error.message.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn no_two_volumes_share_a_name_or_a_mountpoint() {
        let one = "a /s /p key-file:/k fs=ext4,mountpoint=/srv";
        assert!(parse(&format!("{one}\n{one}")).unwrap_err().message.contains("a volume `a` above"));
        let error = parse(&format!("{one}\n b{}", one.trim_start_matches('a'))).unwrap_err();
        assert_eq!((error.line, error.column), (2, 2));
        assert!(error.message.contains("mounted on /srv already"), "{error}");
    }

    /// A line like one of the table's, with something of it changed.
    fn damaged() -> impl Strategy<Value = String> {
        let lines: Vec<&'static str> = TABLE.lines().collect();
        (prop::sample::select(lines), any::<prop::sample::Index>(), any::<prop::sample::Index>(), ".{0,3}")
            .prop_map(|(line, from, to, new)| {
                let characters: Vec<char> = line.chars().collect();
                let (from, to) = (from.index(characters.len() + 1), to.index(characters.len() + 1));
                let (from, to) = (from.min(to), from.max(to).min(from.min(to) + 3));
                characters[..from]
                    .iter()
                    .copied()
                    .chain(new.chars())
                    .chain(characters[to..].iter().copied())
                    .collect()
            })
    }

    proptest! {
        /// Whatever is written, the answer is a table of usable volumes, or a place inside the text.
        #[test]
        fn any_text_is_read_or_refused_with_its_place(text in prop_oneof![".{0,200}", damaged(), "[a/:=,# \\n\\t-]{0,80}"]) {
            match parse(&text) {
                Ok(lines) => prop_assert!(lines.iter().all(|line| line.initramfs || line.target.check().is_ok())),
                Err(error) => {
                    let line = text.lines().nth(error.line - 1);
                    prop_assert!(line.is_some_and(|line| (1..=line.chars().count() + 1).contains(&error.column)), "{error}");
                }
            }
        }
    }
}
