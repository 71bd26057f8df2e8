//! `kbs+https://HOST[:PORT]/REPOSITORY/TYPE/TAG`: a key broker, and a resource of it.

use std::fmt;

use http1::{Endpoint, split_port};

use crate::Error;

/// What to write.
const FORM: &str = "kbs+https://HOST[:PORT]/REPOSITORY/TYPE/TAG";
const SCHEME: &str = "kbs+https://";
/// The port of Trustee's key broker.
const PORT: u16 = 8080;
/// Most bytes of one part of a resource's name.
const MAX_PART: usize = 64;

/// A resource's name: repository, type and tag. Each has 1 to 64 of `a-z`, `A-Z`, `0-9`, `.`, `_` and `-`, and does not begin with `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource([String; 3]);

impl Resource {
    /// Reads `REPOSITORY/TYPE/TAG`.
    ///
    /// # Errors
    /// A sentence, if it is something else.
    pub fn parse(text: &str) -> Result<Self, String> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_part = |part: &str| {
            !part.is_empty() && part.len() <= MAX_PART && !part.starts_with('.') && part.chars().all(good)
        };
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            [repository, kind, tag] if parts.iter().all(|part| is_part(part)) => {
                Ok(Self([repository, kind, tag].map(String::from)))
            }
            _ => Err(format!(
                "{text:?} is no resource: write REPOSITORY/TYPE/TAG, each of letters, digits, `.`, `_` and `-`"
            )),
        }
    }

    /// The type.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.0[1]
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}

/// A key broker and a resource of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The broker, always over TLS.
    pub endpoint: Endpoint,
    /// The resource.
    pub resource: Resource,
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::Address(format!("{text:?} is no address of a key broker: {why}; write {FORM}"))
        };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| wrong("it begins with another scheme"))?;
        let (authority, path) = rest.split_once('/').ok_or_else(|| wrong("it names no resource"))?;
        let (host, port) = split_port(authority, PORT).ok_or_else(|| wrong("it has no host and port"))?;
        let resource = Resource::parse(path).map_err(|why| wrong(&why))?;
        Ok(Self { endpoint: Endpoint { tls: true, host, port }, resource })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.endpoint.authority(), self.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_and_others_are_refused() {
        for text in ["kbs+https://owner.example:8443/default/volume/ledger", "kbs+https://[::1]:9/a/b/c"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        let plain = Address::parse("kbs+https://owner.example/default/key/1").unwrap();
        assert_eq!((plain.endpoint.port, plain.endpoint.tls, plain.resource.kind()), (8080, true, "key"));
        for text in [
            "kbs+http://owner.example/a/b/c",
            "https://owner.example/a/b/c",
            "kbs+https://owner.example",
            "kbs+https://owner.example/a/b",
            "kbs+https://owner.example/a/b/c/d",
            "kbs+https://owner.example/a/../c",
            "kbs+https://owner.example/a/b/c?x=y",
            "kbs+https://user@owner.example/a/b/c",
            "kbs+https://owner.example:0/a/b/c",
            "kbs+https://owner.example/a/b/%2e",
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(FORM), "{text}: {error}");
        }
        assert!(Resource::parse(&format!("a/b/{}", "c".repeat(65))).is_err());
    }
}
