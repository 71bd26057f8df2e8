//! What a guest gets for a volume, together or not at all: a secret that opens a key slot, and files: the attach policy, the credentials of the
//! anchor.
//!
//! ```text
//! magic "cvmioRB1" 8 | key's size 4 | key | number of files 1 | of each: name's size 1 | name | content's size 4 | content
//! ```
//! Numbers are little-endian. A resource whose type is `volume` holds this; of any other type the resource is the secret itself.

use std::fmt;

use seal::SecretBytes;
use zeroize::Zeroizing;

use crate::MAX_RESOURCE;

/// The type of resources that hold a bundle.
pub const VOLUME: &str = "volume";

const MAGIC: &[u8; 8] = b"cvmioRB1";
/// Most files.
const MAX_FILES: usize = 16;
/// Most bytes of a file's name.
const MAX_NAME: usize = 64;

/// What a guest gets for a volume.
#[derive(Debug, PartialEq, Eq)]
pub struct Bundle {
    /// Opens a key slot.
    pub key: SecretBytes,
    /// Names and contents. A name is one of a file, without a path: letters, digits, `.`, `_` and `-`, and begins with a letter or a digit.
    pub files: Vec<(String, SecretBytes)>,
}

/// Why bytes are no bundle, or what is to be one cannot be laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BundleError {
    /// They do not begin as one, or end too early or too late.
    Form,
    /// There are too many files, or too many bytes.
    TooLarge,
    /// A name is none of a file, or there twice.
    Name(String),
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => f.write_str("what was released is no bundle for a volume"),
            Self::TooLarge => {
                write!(f, "a release has at most {MAX_FILES} files and {MAX_RESOURCE} bytes")
            }
            Self::Name(name) => write!(f, "{name:?} is no name of a released file, or is there twice"),
        }
    }
}

impl std::error::Error for BundleError {}

fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.len() <= MAX_NAME && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(good)
}

impl Bundle {
    /// Lays it out.
    ///
    /// # Errors
    /// If it is too large, or a name is none.
    pub fn encode(&self) -> Result<SecretBytes, BundleError> {
        self.check()?;
        let sizes = self.files.iter().map(|(name, content)| 5 + name.len() + content.len());
        let whole = MAGIC.len() + 5 + self.key.len() + sizes.sum::<usize>();
        if whole > MAX_RESOURCE {
            return Err(BundleError::TooLarge);
        }
        // Never grows, so no copy is left behind.
        let mut out = Zeroizing::new(Vec::with_capacity(whole));
        let size =
            |length: usize| u32::try_from(length).map(u32::to_le_bytes).map_err(|_| BundleError::TooLarge);
        let short = |length: usize| u8::try_from(length).map_err(|_| BundleError::TooLarge);
        out.extend(MAGIC);
        out.extend(size(self.key.len())?);
        out.extend(self.key.expose());
        out.push(short(self.files.len())?);
        for (name, content) in &self.files {
            out.push(short(name.len())?);
            out.extend(name.as_bytes());
            out.extend(size(content.len())?);
            out.extend(content.expose());
        }
        Ok(SecretBytes::from_slice(&out))
    }

    /// Reads what [`Bundle::encode`] wrote.
    ///
    /// # Errors
    /// If it is something else.
    pub fn decode(bytes: &[u8]) -> Result<Self, BundleError> {
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(BundleError::Form)?;
        let key = SecretBytes::from_slice(sized(&mut rest)?);
        let count = byte(&mut rest)?;
        let mut files = Vec::new();
        for _ in 0..count {
            let length = byte(&mut rest)?;
            let name = std::str::from_utf8(take(&mut rest, length)?).map_err(|_| BundleError::Form)?;
            files.push((name.to_string(), SecretBytes::from_slice(sized(&mut rest)?)));
        }
        if !rest.is_empty() {
            return Err(BundleError::Form);
        }
        let bundle = Self { key, files };
        bundle.check().map(|()| bundle)
    }

    fn check(&self) -> Result<(), BundleError> {
        if self.files.len() > MAX_FILES {
            return Err(BundleError::TooLarge);
        }
        for (place, (name, _)) in self.files.iter().enumerate() {
            if !is_name(name) || self.files[..place].iter().any(|(other, _)| other == name) {
                return Err(BundleError::Name(name.clone()));
            }
        }
        Ok(())
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], BundleError> {
    let (taken, behind) = rest.split_at_checked(length).ok_or(BundleError::Form)?;
    *rest = behind;
    Ok(taken)
}

fn byte(rest: &mut &[u8]) -> Result<usize, BundleError> {
    Ok(usize::from(take(rest, 1)?[0]))
}

fn sized<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], BundleError> {
    let size = take(rest, 4)?.try_into().map_or(0, u32::from_le_bytes);
    take(rest, usize::try_from(size).map_err(|_| BundleError::Form)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(names: &[&str]) -> Bundle {
        let content = |name: &&str| (name.to_string(), SecretBytes::from_slice(&[7; 9]));
        Bundle { key: SecretBytes::from_slice(&[3; 64]), files: names.iter().map(content).collect() }
    }

    #[test]
    fn a_bundle_comes_back_and_no_other_bytes_are_one() {
        for names in [&[][..], &["policy.toml", "client.key"]] {
            let whole = bundle(names).encode().unwrap();
            assert_eq!(Bundle::decode(whole.expose()).unwrap(), bundle(names));
            for cut in 0..whole.len() {
                assert_eq!(Bundle::decode(&whole.expose()[..cut]), Err(BundleError::Form), "{cut}");
            }
            let more = [whole.expose(), &[0]].concat();
            assert_eq!(Bundle::decode(&more), Err(BundleError::Form));
        }
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        for name in ["", "..", ".profile", "a/b", "/etc/passwd", "a\0", "-x", &"x".repeat(65)] {
            assert_eq!(bundle(&[name]).encode().unwrap_err(), BundleError::Name(name.into()));
            // As somebody else may have laid it out.
            let mut bytes = [MAGIC, &[0; 4][..], &[1, u8::try_from(name.len()).unwrap()]].concat();
            bytes.extend(name.as_bytes());
            bytes.extend([0; 4]);
            assert_eq!(Bundle::decode(&bytes).unwrap_err(), BundleError::Name(name.into()));
        }
        assert_eq!(bundle(&["a", "a"]).encode().unwrap_err(), BundleError::Name("a".into()));
        let many: Vec<String> = (0..17).map(|number| format!("f{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(bundle(&many).encode().unwrap_err(), BundleError::TooLarge);
        let large = Bundle { key: SecretBytes::from_vec(vec![0; MAX_RESOURCE]), files: Vec::new() };
        assert_eq!(large.encode().unwrap_err(), BundleError::TooLarge);
    }
}
