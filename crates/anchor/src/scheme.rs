//! The kinds of anchors that a program knows.

use crate::{Address, Anchor, Error, FileAnchor, OptionKey, Options};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// One kind of anchor, as the program registers it.
#[derive(Clone, Copy)]
pub struct Scheme {
    /// What stands before the colon of its addresses.
    pub name: &'static str,
    /// The form of its addresses, for help and errors: `file:/PATH`.
    pub form: &'static str,
    /// The options that it knows.
    pub options: &'static [OptionKey],
    /// Checks the rest of an address and the options, without any I/O. The error says what to write instead.
    pub check: fn(rest: &str, options: &Options) -> Result<(), Error>,
    /// What must be there before such an anchor can be opened.
    pub needs: fn(rest: &str) -> Needs,
    /// Opens an anchor that was made.
    pub open: fn(&Opening<'_>) -> Result<Arc<dyn Anchor>, Error>,
    /// Makes an anchor where there is none; opens one that was made and never claimed.
    pub create: fn(&Opening<'_>) -> Result<Created, Error>,
}

/// What an anchor is opened with.
#[derive(Debug, Clone, Copy)]
pub struct Opening<'a> {
    /// Its address, checked by the scheme.
    pub address: &'a Address,
    /// The policy's options for it, checked by the scheme.
    pub options: &'a Options,
    /// Whether it may be moved.
    pub access: Access,
    /// How long an anchor that is away is waited for; `None` is for ever.
    pub timeout: Option<Duration>,
}

/// What an anchor is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It never moves through this.
    ReadOnly,
    /// It may.
    ReadWrite,
}

/// A new anchor.
pub struct Created {
    /// The anchor, never claimed unless somebody claims it right now.
    pub anchor: Arc<dyn Anchor>,
    /// Takes away what was made, when what it was made for fails. `None` if it was there.
    pub undo: Option<Box<dyn FnOnce() + Send>>,
    /// What the owner should know about an anchor of this kind, a sentence each.
    pub notes: Vec<String>,
}

/// What must be there before an anchor can be opened; for units and dependencies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Files.
    pub paths: Vec<PathBuf>,
    /// Devices, such as `/dev/tpmrm0`.
    pub devices: Vec<PathBuf>,
    /// Whether it is reached over a network.
    pub network: bool,
}

/// A table of schemes.
#[derive(Clone)]
pub struct Schemes(Vec<Scheme>);

impl Default for Schemes {
    fn default() -> Schemes {
        Schemes::new()
    }
}

impl Schemes {
    /// A table with `file:` only.
    #[must_use]
    pub fn new() -> Schemes {
        Schemes(vec![FILE])
    }

    /// Adds a scheme.
    ///
    /// # Panics
    /// If the table has one of this name: two lines of the program contradict each other.
    pub fn register(&mut self, scheme: Scheme) {
        assert!(
            self.0.iter().all(|known| known.name != scheme.name),
            "the anchor scheme {} is registered twice",
            scheme.name
        );
        self.0.push(scheme);
    }

    /// All schemes, in the order of their registration.
    #[must_use]
    pub fn all(&self) -> &[Scheme] {
        &self.0
    }

    /// The forms of all addresses, for help and errors.
    #[must_use]
    pub fn forms(&self) -> String {
        self.0.iter().map(|scheme| scheme.form).collect::<Vec<_>>().join(", ")
    }

    /// Reads an address, and checks it and its options by its scheme.
    ///
    /// # Errors
    /// [`Error::Address`] that says what to write instead, or [`Error::Unusable`].
    pub fn check(&self, text: &str, options: &Options) -> Result<(Address, Scheme), Error> {
        let forms = self.forms();
        let address = Address::parse(text).ok_or_else(|| {
            Error::Address(format!("anchor address {text:?} names no scheme: write one of {forms}"))
        })?;
        let scheme = self.0.iter().find(|scheme| scheme.name == address.scheme()).ok_or_else(|| {
            Error::Address(format!(
                "anchor address {text:?} has an unknown scheme {:?}; known are: {forms}",
                address.scheme()
            ))
        })?;
        for (name, _) in options.iter() {
            if scheme.options.iter().all(|known| known.name != name) {
                return Err(unknown_option(scheme, name));
            }
        }
        (scheme.check)(address.rest(), options)?;
        Ok((address, *scheme))
    }

    /// Opens the anchor at an address.
    ///
    /// # Errors
    /// [`Error::Unusable`] for an address that can't be read, or with nothing usable behind it.
    pub fn open(
        &self,
        text: &str,
        options: &Options,
        access: Access,
        timeout: Option<Duration>,
    ) -> Result<Arc<dyn Anchor>, Error> {
        let (address, scheme) = self.check(text, options)?;
        (scheme.open)(&Opening { address: &address, options, access, timeout })
    }

    /// Makes the anchor at an address, or opens the one that was made there and never claimed.
    ///
    /// # Errors
    /// As [`open`](Schemes::open), and when it can't be made.
    pub fn create(&self, text: &str, options: &Options, timeout: Option<Duration>) -> Result<Created, Error> {
        let (address, scheme) = self.check(text, options)?;
        (scheme.create)(&Opening { address: &address, options, access: Access::ReadWrite, timeout })
    }

    /// The same options without the values that are secret, to be shown.
    #[must_use]
    pub fn shown(&self, text: &str, options: &Options) -> Options {
        let scheme =
            Address::parse(text).and_then(|address| self.0.iter().find(|s| s.name == address.scheme()));
        let is_open = |name: &str| {
            scheme.is_some_and(|scheme| scheme.options.iter().any(|key| key.name == name && !key.secret))
        };
        options
            .iter()
            .map(|(name, value)| (name.into(), if is_open(name) { value.into() } else { "(secret)".into() }))
            .collect()
    }
}

fn unknown_option(scheme: &Scheme, name: &str) -> Error {
    let known: Vec<_> = scheme.options.iter().map(|key| key.name).collect();
    let known = if known.is_empty() { "it has none".into() } else { format!("it has {}", known.join(", ")) };
    Error::Address(format!("an anchor of the scheme `{}` has no option {name:?}; {known}", scheme.name))
}

static INSTALLED: OnceLock<Schemes> = OnceLock::new();

/// Makes `schemes` the table of this process. To be called once, when the process starts, before any anchor is opened.
///
/// # Panics
/// When a table is in use already.
pub fn install(schemes: Schemes) {
    assert!(
        INSTALLED.set(schemes).is_ok(),
        "the anchor schemes of a process are installed once, and before use"
    );
}

/// The table of this process: the installed one, or `file:` alone.
pub fn schemes() -> &'static Schemes {
    INSTALLED.get_or_init(Schemes::new)
}

/// Opens an anchor by the table of this process.
///
/// # Errors
/// As [`Schemes::open`].
pub fn open_address(
    text: &str,
    options: &Options,
    timeout: Option<Duration>,
) -> Result<Arc<dyn Anchor>, Error> {
    schemes().open(text, options, Access::ReadWrite, timeout)
}

/// The same for reading only: the anchor never moves through it.
///
/// # Errors
/// As [`Schemes::open`].
pub fn open_address_read_only(
    text: &str,
    options: &Options,
    timeout: Option<Duration>,
) -> Result<Arc<dyn Anchor>, Error> {
    schemes().open(text, options, Access::ReadOnly, timeout)
}

/// Makes an anchor by the table of this process, or opens one that was made and never claimed.
///
/// # Errors
/// As [`Schemes::create`].
pub fn create_address(text: &str, options: &Options, timeout: Option<Duration>) -> Result<Created, Error> {
    schemes().create(text, options, timeout)
}

/// Checks an address by the table of this process, before anything is made.
///
/// # Errors
/// As [`Schemes::check`].
pub fn check_address(text: &str, options: &Options) -> Result<Address, Error> {
    schemes().check(text, options).map(|(address, _)| address)
}

const FILE: Scheme = Scheme {
    name: "file",
    form: "file:/PATH",
    options: &[],
    check: check_file,
    needs: |rest| Needs { paths: vec![rest.into()], ..Needs::default() },
    open: |opening| {
        let path = Path::new(opening.address.rest());
        Ok(Arc::new(FileAnchor::open_for(path, opening.access, opening.timeout)?))
    },
    create: create_file,
};

fn check_file(rest: &str, _options: &Options) -> Result<(), Error> {
    if rest.contains('\0') {
        return Err(Error::Address(format!("anchor address \"file:{rest:?}\" has a NUL byte in its path")));
    }
    // What a relative path means depends on the working directory; a policy must not.
    if !Path::new(rest).is_absolute() {
        return Err(Error::Address(format!(
            "anchor address \"file:{rest}\" has a relative path: write the whole path, file:/..."
        )));
    }
    Ok(())
}

fn create_file(opening: &Opening<'_>) -> Result<Created, Error> {
    let path = PathBuf::from(opening.address.rest());
    if path.exists() {
        let anchor = Arc::new(FileAnchor::open_for(&path, opening.access, opening.timeout)?);
        return Ok(Created { anchor, undo: None, notes: Vec::new() });
    }
    let anchor = Arc::new(FileAnchor::create_for(&path, opening.timeout)?);
    let undo = Box::new(move || {
        let _ = std::fs::remove_file(path);
    });
    Ok(Created { anchor, undo: Some(undo), notes: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryAnchor;
    use proptest::prelude::*;

    const TOY: Scheme = Scheme {
        name: "toy",
        form: "toy:NAME",
        options: &[
            OptionKey { name: "pin", secret: true, about: "opens it" },
            OptionKey { name: "colour", secret: false, about: "its colour" },
        ],
        check: |rest, _| match rest {
            "" => Err(Error::Unusable("toy: needs a name".into())),
            _ => Ok(()),
        },
        needs: |_| Needs { network: true, ..Needs::default() },
        open: |opening| match opening.options.get("pin") {
            Some("1234") => Ok(Arc::new(MemoryAnchor::new())),
            _ => Err(opening.address.unusable("wrong PIN")),
        },
        create: |_| Err(Error::Unusable("made at the factory".into())),
    };

    fn table() -> Schemes {
        let mut table = Schemes::new();
        table.register(TOY);
        table
    }

    fn options(pairs: &[(&str, &str)]) -> Options {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn refusal(text: &str, pairs: &[(&str, &str)]) -> String {
        match table().check(text, &options(pairs)) {
            Err(Error::Address(why) | Error::Unusable(why)) => why,
            other => panic!("{text:?} gave {:?}", other.map(|(address, _)| address)),
        }
    }

    #[test]
    fn refusals_say_what_to_write() {
        assert!(refusal("/var/anchor", &[]).contains("names no scheme: write one of file:/PATH, toy:NAME"));
        assert!(refusal("", &[]).contains("names no scheme"));
        assert!(refusal("file:anchor", &[]).contains("relative path"));
        let kind = |text| error_kind::HasKind::kind(&check_address(text, &Options::default()).unwrap_err());
        assert_eq!(kind("file:anchor"), error_kind::Kind::Usage);
        assert_eq!(kind("fil:/anchor"), error_kind::Kind::Usage);
        assert!(refusal("file:", &[]).contains("relative path"));
        assert!(refusal("file:/a\0b", &[]).contains("NUL"));
        assert!(refusal("toy:", &[]).contains("needs a name"));
        let unknown = refusal("ftp:/x", &[]);
        assert!(
            unknown.contains("\"ftp\"") && unknown.contains("known are: file:/PATH, toy:NAME"),
            "{unknown}"
        );
        assert!(refusal("toy:a", &[("pni", "1")]).contains("no option \"pni\"; it has pin, colour"));
        assert!(refusal("file:/a", &[("pin", "1")]).contains("no option \"pin\"; it has none"));
    }

    #[test]
    fn an_address_and_its_options_reach_the_scheme() {
        let open = |pin| table().open("toy:a", &options(&[("pin", pin)]), Access::ReadOnly, None);
        assert!(open("1234").is_ok());
        let refused = open("4321").err().map(|error| error.to_string());
        assert_eq!(refused.as_deref(), Some("anchor toy:a: wrong PIN"));
    }

    #[test]
    fn a_secret_option_is_never_shown() {
        let options = options(&[("pin", "1234"), ("colour", "red")]);
        assert!(!format!("{options:?}").contains("1234"));
        let shown = table().shown("toy:a", &options);
        assert_eq!((shown.get("pin"), shown.get("colour")), (Some("(secret)"), Some("red")));
        // Of a scheme that is not known, nothing is known to be open.
        assert_eq!(table().shown("other:a", &options).get("colour"), Some("(secret)"));
    }

    #[test]
    fn a_file_is_made_once_and_taken_away_when_it_was_made_in_vain() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("anchor");
        let address = format!("file:{}", path.display());
        let none = Options::default();
        assert!(matches!(open_address(&address, &none, None), Err(Error::Unusable(_))));
        let created = create_address(&address, &none, None).unwrap();
        assert_eq!(created.anchor.address(), address);
        assert_eq!(open_address(&address, &none, None).unwrap().address(), address);
        assert!(create_address(&address, &none, None).unwrap().undo.is_none());
        (created.undo.unwrap())();
        assert!(!path.exists());
    }

    #[test]
    #[should_panic(expected = "registered twice")]
    fn a_name_is_registered_once() {
        table().register(TOY);
    }

    proptest! {
        #[test]
        fn what_is_accepted_prints_the_same(text in "(file|toy|FILE|f)?:?/?\\PC{0,12}") {
            if let Ok((address, scheme)) = table().check(&text, &Options::default()) {
                prop_assert_eq!(address.scheme(), scheme.name);
                prop_assert_eq!(format!("{}:{}", address.scheme(), address.rest()), text.clone());
                prop_assert_eq!(address.to_string(), text);
            }
        }
    }
}
