//! `HOST:PORT/NAME`: what stands behind `owner:` in an anchor's address.

use crate::wire::Name;
use rustls::pki_types::ServerName;
use std::fmt;
use std::str::FromStr;

/// Where the service is, and the volume's name there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Host name or address, without the brackets of IPv6.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The volume's name at the service.
    pub name: Name,
}

impl Address {
    /// The form of an address, for error messages.
    pub const FORM: &'static str = "owner:HOST:PORT/NAME";

    /// `HOST:PORT`, as one connects to it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// The name that the service's certificate must be for.
    ///
    /// # Errors
    /// Says what is wrong with the host.
    pub fn server_name(&self) -> Result<ServerName<'static>, String> {
        ServerName::try_from(self.host.clone())
            .map_err(|_| format!("{:?} is no host name and no IP address", self.host))
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let (endpoint, name) = text.split_once('/').ok_or("it names no volume")?;
        let (host, port) = endpoint.rsplit_once(':').ok_or("it names no port")?;
        let host = match host.strip_prefix('[') {
            Some(rest) => {
                let inner = rest.strip_suffix(']').ok_or("a bracket is open")?;
                // One address must have one form.
                if inner.contains(':') { inner } else { return Err("brackets are for IPv6 addresses".into()) }
            }
            None if host.contains(':') => return Err("an IPv6 address needs brackets".into()),
            None => host,
        };
        // `parse` takes a plus sign and leading zeros as well.
        let number: u16 = port.parse().map_err(|_| format!("{port:?} is no port"))?;
        if number == 0 || number.to_string() != port {
            return Err(format!("{port:?} is no port"));
        }
        let name = name.parse().map_err(|error| format!("{name:?} is no name of a volume: {error}"))?;
        let address = Address { host: host.to_owned(), port: number, name };
        address.server_name()?;
        Ok(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.endpoint(), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refusal(text: &str) -> String {
        text.parse::<Address>().unwrap_err()
    }

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["owner.example:7443/ledger", "10.0.0.7:1/a", "[::1]:65535/a.b-c_d"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        let address: Address = "[::1]:7443/a".parse().unwrap();
        assert_eq!((address.host.as_str(), address.port), ("::1", 7443));
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        assert!(refusal("owner.example:7443").contains("no volume"));
        assert!(refusal("owner.example/a").contains("no port"));
        assert!(refusal("::1:7443/a").contains("brackets"));
        assert!(refusal("[::1:7443/a").contains("bracket is open"));
        assert!(refusal("[a]:7443/a").contains("brackets are for"));
        for port in ["0", "65536", "+1", "01", ""] {
            assert!(refusal(&format!("h:{port}/a")).contains("is no port"), "{port}");
        }
        assert!(refusal("h:1/A").contains("is no name of a volume"));
        assert!(refusal("h:1/").contains("at least one character"));
        assert!(refusal(":1/a").contains("is no host name"));
        assert!(refusal("a b:1/a").contains("is no host name"));
    }

    proptest! {
        #[test]
        fn what_parses_prints_the_same(text in "\\[?[a-z0-9:.]{0,8}\\]?:[0-9+]{0,6}/[a-zA-Z0-9._-]{0,6}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string(), text);
            }
        }
    }
}
