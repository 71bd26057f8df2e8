//! `/etc/cvmiotab`: the volumes of this machine, one a line, like crypttab(5).
//!
//! `name store policy key options`, apart by blanks. The key is `key-file:/PATH`, `passphrase-file:/PATH` or `key-from:ADDRESS`; the options are
//! apart by commas, `-` for none. Lines that begin with `#` are comments. A path with a blank or, in an option, a comma cannot be written.
//!
//! A line with the option `initramfs` is for the boot script there, which knows no other option but `on-tamper`; its key may be `ask`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use store::Address;

use super::Target;
use super::target::parse_front_end;
use cli::failure::Failure;
use cli::input::{parse_duration, parse_name, parse_size, parse_switch, without_mark};
use daemon::input::release_address;
use daemon::tamper::OnTamper;

/// Most bytes of a table.
const MAX_TAB: u64 = 1 << 20;
/// How unlike a known word a misspelt one may be.
const TYPING_ERRORS: usize = 2;

/// All that may stand in the last field.
const OPTIONS: [&str; 25] = [
    "anchor-timeout",
    "as",
    "block-cache",
    "buffered",
    "discard",
    "fs",
    "initramfs",
    "interval",
    "key-from-ca",
    "loop",
    "memory",
    "metrics",
    "mount-option",
    "mountpoint",
    "noauto",
    "nofail",
    "on-tamper",
    "poll",
    "provision",
    "queues",
    "read-only",
    "release-dir",
    "simulated-seat",
    "store-timeout",
    "tamper-hook",
];

/// Those of them that have no value.
const FLAGS: [&str; 6] = ["buffered", "initramfs", "loop", "noauto", "nofail", "read-only"];

/// Words for disks that other tables have, and where the system shows them as paths.
const TAGS: [(&str, &str); 4] = [
    ("LABEL=", "/dev/disk/by-label/"),
    ("PARTLABEL=", "/dev/disk/by-partlabel/"),
    ("PARTUUID=", "/dev/disk/by-partuuid/"),
    ("UUID=", "/dev/disk/by-uuid/"),
];

/// What a line is made of.
const FIELDS: &str = "a line has name, store, policy, key and options";

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
    let mut bytes = Vec::new();
    File::open(path).map_err(fail)?.take(MAX_TAB + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_TAB {
        return Err(Failure::usage(format!("the table {} is longer than {MAX_TAB} bytes", path.display())));
    }
    let lines = text_of(without_mark(&bytes)).and_then(parse);
    lines.map_err(|error| Failure::usage(format!("{}:{error}", path.display())))
}

fn text_of(bytes: &[u8]) -> Result<&str, TabError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        let (line, rest) = (before.matches('\n').count() + 1, before.rsplit('\n').next().unwrap_or_default());
        let message = "this is no text in UTF-8; write the table anew with an editor".into();
        TabError { line, column: rest.chars().count() + 1, message }
    })
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
    let (mut names, mut mountpoints) = (BTreeMap::new(), BTreeMap::new());
    for (index, text) in text.lines().enumerate() {
        let at = |(column, message)| TabError { line: index + 1, column, message };
        let Some(line) = parse_line(text).map_err(at)? else { continue };
        let first = text.chars().take_while(|c| c.is_whitespace()).count() + 1;
        if let Some(above) = names.insert(line.target.name.clone(), index + 1) {
            let message = format!("line {above} has a volume `{}` already", line.target.name);
            return Err(at((first, message)));
        }
        if let Some(mountpoint) = &line.target.mountpoint
            && let Some(above) = mountpoints.insert(mountpoint.clone(), index + 1)
        {
            let message =
                format!("the volume of line {above} is mounted on {} already", mountpoint.display());
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

    /// That of a store.
    fn address(self) -> Result<PathBuf, (usize, String)> {
        match Address::of(Path::new(self.text)) {
            Ok(Address::File(_)) => self.path(),
            Ok(address) if address.path().is_absolute() => Ok(address.to_path()),
            Ok(address) => self.wrong(format!("`{address}` names no absolute path, which a service needs")),
            Err(error) => self.wrong(error.to_string()),
        }
    }

    fn path(self) -> Result<PathBuf, (usize, String)> {
        let text = self.text;
        if text.starts_with('/') {
            return Ok(text.into());
        }
        let hint = match TAGS.iter().find_map(|(tag, place)| Some((place, text.strip_prefix(tag)?))) {
            Some((place, rest)) => format!("; did you mean `{place}{rest}`?"),
            None => ", which begins with `/`".into(),
        };
        self.wrong(format!("`{text}` is no absolute path{hint}"))
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
        [_, _, key]
            if ["key-file:", "passphrase-file:", "key-from:"]
                .iter()
                .any(|kind| key.text.starts_with(kind)) =>
        {
            return key.wrong(format!("a policy is missing before the key; {FIELDS}"));
        }
        [.., last] => {
            let missing = ["a store", "a policy", "a key"].get(words.len() - 1).copied().unwrap_or("a field");
            let end = last.column + last.text.chars().count();
            return Err((end, format!("{missing} is missing; {FIELDS}")));
        }
    };
    let id = parse_name(name.text).or_else(|message| name.wrong(message))?;
    let mut target = Target::new(&id, &store.address()?, &policy.path()?);
    let asks = key.text == "ask";
    if !asks {
        parse_key(key, &mut target)?;
    }
    let mut parsed = Line { target, noauto: false, nofail: false, initramfs: false };
    if let Some(options) = options.filter(|options| options.text != "-") {
        parse_options(options, &mut parsed)?;
    }
    if parsed.initramfs && parsed.target.key_from.is_some() {
        return key
            .wrong("the boot script of the initramfs cannot ask the owner for a key: name a file, or `ask`");
    }
    match (asks, parsed.initramfs) {
        (true, false) => {
            return key.wrong("`ask` goes with the option initramfs only: later nobody can be asked");
        }
        (true, true) => {}
        // Each word was looked at by itself: what is wrong still is between options.
        (false, _) => parsed.target.check().or_else(|message| options.unwrap_or(name).wrong(message))?,
    }
    Ok(Some(parsed))
}

fn parse_key(word: Word, target: &mut Target) -> Result<(), (usize, String)> {
    let behind = |path: &str| {
        let kind = word.text.chars().count() - path.chars().count();
        Word { column: word.column + kind, text: path }.path()
    };
    match word.text.split_once(':') {
        Some(("key-file", path)) => target.key_file = Some(behind(path)?),
        Some(("passphrase-file", path)) => target.passphrase_file = Some(behind(path)?),
        Some(("key-from", address)) => {
            target.key_from = Some(release_address(address).or_else(|why| word.wrong(why))?);
        }
        other => {
            let kinds = ["key-file", "passphrase-file", "key-from"];
            let hint = suggestion(other.map_or("", |(kind, _)| kind), kinds);
            return word.wrong(format!(
                "`{}` says not where the key is: write key-file:/PATH, passphrase-file:/PATH or key-from:kbs+https://...{hint}",
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
    let wants_value = OPTIONS.contains(&name) && !FLAGS.contains(&name);
    if wants_value && value.as_ref().is_none_or(|value| value.text.is_empty()) {
        return option.wrong(format!("`{name}` wants a value: {name}=..."));
    }
    match (name, value) {
        ("loop", None) => target.use_loop = true,
        ("buffered", None) => target.buffered = true,
        ("noauto", None) => line.noauto = true,
        ("nofail", None) => line.nofail = true,
        ("initramfs", None) => line.initramfs = true,
        ("read-only", None) => target.read_only = true,
        ("as", Some(value)) => {
            target.front_end = one_of(value, ["auto", "fuse", "nbd", "ublk"], parse_front_end)?
        }
        ("fs", Some(value)) => target.fs = Some(one_of(value, ["ext4", "xfs"], str::parse)?),
        ("mountpoint", Some(value)) => target.mountpoint = Some(value.path()?),
        ("mount-option", Some(value)) => {
            let all = target.mount_options.take().map_or(String::new(), |before| before + ",");
            target.mount_options = Some(all + value.text);
        }
        ("memory", Some(value)) => target.memory = typed(value, parse_size)?,
        ("block-cache", Some(value)) => target.block_cache = typed(value, parse_size)?,
        ("anchor-timeout", Some(value)) => target.anchor_timeout = Some(typed(value, parse_duration)?),
        ("store-timeout", Some(value)) => target.store_timeout = Some(typed(value, parse_duration)?),
        ("interval", Some(value)) => target.interval = Some(typed(value, parse_duration)?),
        ("discard", Some(value)) => target.discard = Some(typed(value, parse_switch)?),
        ("queues", Some(value)) => {
            let number = |text: &str| text.parse().ok().filter(|number| (1..=64).contains(number));
            let wrong = |text: &str| format!("`{text}` is no number of queues; there are 1 to 64");
            target.queues = typed(value, |text| number(text).ok_or_else(|| wrong(text)))?;
        }
        ("poll", Some(value)) => target.poll = one_of(value, ["off", "adaptive", "always"], str::parse)?,
        ("provision", Some(value)) => target.provision = one_of(value, ["full", "thin"], str::parse)?,
        ("on-tamper", Some(value)) => {
            target.on_tamper = one_of(value, ["continue", "read-only", "stop"], parse_on_tamper)?;
        }
        ("key-from-ca", Some(value)) => target.key_from_ca = Some(value.path()?),
        ("release-dir", Some(value)) => target.release_dir = Some(value.path()?),
        ("simulated-seat", Some(value)) => target.simulated_seat = Some(value.path()?),
        ("tamper-hook", Some(value)) => target.tamper_hook = Some(value.path()?),
        ("metrics", Some(value)) => {
            if let Some(path) = value.text.strip_prefix("unix:") {
                // Where that would be depends on who reads the table.
                Word { column: value.column + 5, text: path }.path()?;
            }
            target.metrics = Some(typed(value, str::parse)?);
        }
        (known, _) if OPTIONS.contains(&known) => {
            return option.wrong(format!("`{known}` takes no value"));
        }
        ("", _) => return option.wrong("no option stands here: there is a comma too many"),
        (unknown, _) => {
            let hint = suggestion(unknown, OPTIONS);
            return option.wrong(format!("there is no option `{unknown}`{hint}"));
        }
    }
    Ok(())
}

fn parse_on_tamper(text: &str) -> Result<OnTamper, String> {
    OnTamper::ALL.into_iter().find(|on| on.name() == text).ok_or_else(|| {
        format!("`{text}` is nothing that a device does; there are continue, read-only and stop")
    })
}

fn typed<T, E: ToString>(value: Word, parse: impl Fn(&str) -> Result<T, E>) -> Result<T, (usize, String)> {
    parse(value.text).or_else(|message| value.wrong(message.to_string()))
}

/// As [`typed`], for one of a few words.
fn one_of<T, E: ToString, const N: usize>(
    value: Word,
    words: [&str; N],
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, (usize, String)> {
    typed(value, |text| parse(text).map_err(|message| message.to_string() + &suggestion(text, words)))
}

/// What somebody may have meant.
fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = known.into_iter().map(|known| (strsim::damerau_levenshtein(word, known), known)).min();
    near.filter(|(errors, _)| *errors <= TYPING_ERRORS)
        .map_or(String::new(), |(_, known)| format!("; did you mean `{known}`?"))
}

#[cfg(test)]
mod tests;
