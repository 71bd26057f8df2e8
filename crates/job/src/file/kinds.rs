//! Values of a job file that are checked where they are read, so that an error names their line.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most characters of a name.
const MAX_NAME: usize = 64;
/// Most bytes of a path in the guest.
const MAX_PATH: usize = 1024;
/// Directories of the guest's own, which nothing is put into.
const OCCUPIED: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Why a value is refused, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindError(String);

impl fmt::Display for KindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for KindError {}

/// A kind of text with a rule: it is read, written and described alike.
macro_rules! text {
    ($kind:ident, $pattern:literal, $about:literal) => {
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                Self::parse(&text).map_err(de::Error::custom)
            }
        }

        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl JsonSchema for $kind {
            fn schema_name() -> Cow<'static, str> {
                stringify!($kind).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern, "description": $about })
            }
        }
    };
}

/// A job's name: 1 to 64 of `a-z A-Z 0-9 . _ -`, a letter or digit first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

text!(Name, "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", "A name");

impl Name {
    /// Reads one.
    ///
    /// # Errors
    /// If it is empty, too long, or has another character.
    pub fn parse(text: &str) -> Result<Self, KindError> {
        let fits = text.len() <= MAX_NAME && text.starts_with(|first: char| first.is_ascii_alphanumeric());
        if fits && text.chars().all(|one| one.is_ascii_alphanumeric() || "._-".contains(one)) {
            return Ok(Self(text.into()));
        }
        Err(KindError(format!(
            "the name {text:?} is refused: it has 1 to {MAX_NAME} of a-z, A-Z, 0-9, dot, dash and underscore, a letter or digit first"
        )))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An absolute path in the guest, without `.`, `..`, doubled or trailing slashes, and not the root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestPath(String);

text!(GuestPath, "^/", "An absolute path in the container");

impl GuestPath {
    /// Reads one. A slash at the end is left out.
    ///
    /// # Errors
    /// If it is relative, leads up, or belongs to the guest.
    pub fn parse(text: &str) -> Result<Self, KindError> {
        let refuse =
            |why: &str| Err(KindError(format!("the path {text:?} in the container is refused: {why}")));
        if text.len() > MAX_PATH || text.contains('\0') {
            return refuse("it is too long, or has a zero byte");
        }
        let Some(below) = text.strip_prefix('/') else {
            return refuse("it has to begin with a slash");
        };
        let below = below.strip_suffix('/').unwrap_or(below);
        if below.is_empty() {
            return refuse("it is the root directory; name something below it");
        }
        if below.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return refuse("it has an empty part, `.` or `..`");
        }
        let path = Self(format!("/{below}"));
        match OCCUPIED.into_iter().find(|occupied| path.is_at_or_below(occupied)) {
            Some(occupied) => refuse(&format!("{occupied} is the kernel's")),
            None => Ok(path),
        }
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its last part.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Whether it is this directory, or lies in it.
    #[must_use]
    pub fn is_at_or_below(&self, directory: &str) -> bool {
        self.0.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl fmt::Display for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// SHA-256 of a file, as `sha256:` and 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

text!(Digest, "^sha256:[0-9a-f]{64}$", "SHA-256 of a file");

impl Digest {
    /// Of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads one.
    ///
    /// # Errors
    /// If it is of another kind, or not 64 digits.
    pub fn parse(text: &str) -> Result<Self, KindError> {
        let bytes = text.strip_prefix("sha256:").and_then(|digits| hex::decode(digits).ok());
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(|| {
            KindError(format!("the digest {text:?} is refused: it is `sha256:` and 64 hexadecimal digits, as sha256sum prints them"))
        })
    }

    /// The digits.
    #[must_use]
    pub fn digits(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.digits())
    }
}

/// A number as it is, or text that a function understands.
struct Numeral<T> {
    expecting: &'static str,
    parse: fn(&str) -> Result<T, String>,
    number: fn(f64) -> Option<T>,
}

impl<T> Visitor<'_> for Numeral<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        #[expect(clippy::cast_precision_loss, reason = "what is too large for it is refused anyway")]
        let wide = number as f64;
        (self.number)(wide).ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        #[expect(clippy::cast_precision_loss, reason = "what is too large for it is refused anyway")]
        let wide = number as f64;
        (self.number)(wide).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        (self.number)(number).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
    }
}

/// A whole number up to 2^53.
fn whole(number: f64) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is whole and in range")]
    (number >= 1.0 && number <= (1_u64 << 53) as f64 && number.fract() == 0.0).then_some(number as u64)
}

/// Bytes: a number, or text such as `512M` (powers of 1024).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Numeral {
            expecting: "a size such as \"512M\", or a number of bytes",
            parse: |text| cli::input::parse_size(text).map(Self),
            number: |number| whole(number).map(Self),
        })
    }
}

/// Seconds: a number, or text such as `90s` or `2h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Seconds(pub u64);

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Numeral {
            expecting: "a time such as \"90s\" or \"2h\", or a number of seconds",
            parse: |text| match cli::input::parse_duration(text)?.as_secs() {
                0 => Err(format!("{text} is less than a second")),
                seconds => Ok(Self(seconds)),
            },
            number: |number| whole(number).map(Self),
        })
    }
}

/// A number with two decimals, above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hundredths(pub u32);

impl Serialize for Hundredths {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(f64::from(self.0) / 100.0)
    }
}

impl<'de> Deserialize<'de> for Hundredths {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
        let number =
            |number: f64| (0.01..=1024.0).contains(&number).then(|| Self((number * 100.0).round() as u32));
        from.deserialize_any(Numeral {
            expecting: "a number of processors from 0.01 to 1024",
            parse: |text| {
                Err(format!("{text:?} is text, and a number of processors is written without quotes"))
            },
            number,
        })
    }
}

/// A schema for a number or for text.
macro_rules! numeral {
    ($kind:ident, $about:literal) => {
        impl JsonSchema for $kind {
            fn schema_name() -> Cow<'static, str> {
                stringify!($kind).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": ["number", "string"], "description": $about })
            }
        }
    };
}

numeral!(Size, "A number of bytes, or text such as 512M (powers of 1024)");
numeral!(Seconds, "A number of seconds, or text such as 90s or 2h");
numeral!(Hundredths, "A number of processors, such as 1.5");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_container_lead_nowhere_else() {
        for good in ["/a", "/a/b.c", "/var/lib/x/"] {
            assert!(GuestPath::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "/",
            "a",
            "/a//b",
            "/a/../b",
            "/./a",
            "/proc",
            "/sys/x",
            "/dev/",
            "/a\0",
            &format!("/{}", "x".repeat(MAX_PATH)),
        ] {
            assert!(GuestPath::parse(bad).is_err(), "{bad}");
        }
        assert!(GuestPath::parse("/process").is_ok());
        assert!(
            GuestPath::parse("/a/b").unwrap().is_at_or_below("/a")
                && !GuestPath::parse("/ab").unwrap().is_at_or_below("/a")
        );
    }

    #[test]
    fn numbers_and_words_are_sizes_and_times() {
        let size = |text: &str| {
            serde_json::from_str::<Size>(text).map(|size| size.0).map_err(|error| error.to_string())
        };
        assert_eq!((size("4096"), size("\"1M\"")), (Ok(4096), Ok(1 << 20)));
        for bad in ["0", "-1", "1.5", "\"\"", "\"x\"", "1e300", "null"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        let time = |text: &str| serde_json::from_str::<Seconds>(text).map(|time| time.0).ok();
        assert_eq!((time("90"), time("\"2h\""), time("\"10ms\"")), (Some(90), Some(7200), None));
        let processors = |text: &str| serde_json::from_str::<Hundredths>(text).map(|one| one.0).ok();
        assert_eq!(
            (processors("1.5"), processors("2"), processors("0"), processors("\"2\"")),
            (Some(150), Some(200), None, None)
        );
    }

    #[test]
    fn names_and_digests_have_one_form() {
        assert!(Name::parse("tar-1.0_x").is_ok());
        for bad in ["", "-a", ".a", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(Name::parse(bad).is_err(), "{bad}");
        }
        let text = format!("sha256:{}", "ab".repeat(32));
        assert_eq!(Digest::parse(&text).unwrap().to_string(), text);
        for bad in ["sha256:ab", "sha512:", &text[7..]] {
            assert!(Digest::parse(bad).is_err(), "{bad}");
        }
    }
}
