//! Where metrics are asked for.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A socket of this machine, and of no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// A Unix socket, open to all that may open its file: where, as it was written.
    Unix(PathBuf),
    /// A port of the loopback interface, open to all users of this machine.
    Loopback(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err("`unix:` wants a path behind it".into()),
                false => Ok(Self::Unix(path.into())),
            };
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            format!("`{text}` is no address; write it like unix:/run/ledger.sock or 127.0.0.1:9100")
        })?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "{} is not a loopback address. The metrics tell how the volume is used, to everybody who asks: serve them on 127.0.0.1 or a \
                 Unix socket, and put a proxy with TLS and passwords in front",
                address.ip()
            ));
        }
        Ok(Self::Loopback(address))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Loopback(address) => address.fmt(f),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served() {
        for text in ["unix:/run/x.sock", "unix:x.sock", "127.0.0.1:9100", "127.8.8.8:1", "[::1]:9100"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for text in ["0.0.0.0:9100", "[::]:9100", "192.168.1.2:80", "[::ffff:127.0.0.1]:1"] {
            assert!(text.parse::<Address>().unwrap_err().contains("not a loopback address"), "{text}");
        }
        for text in ["", "unix:", "localhost:9100", "127.0.0.1", "9100"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
