//! Where a server is.

use std::fmt;
use std::net::IpAddr;

/// A server's address, as a URL has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether it is reached over TLS.
    pub tls: bool,
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    /// Host and port as in a URL.
    #[must_use]
    pub fn authority(&self) -> String {
        let Endpoint { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Whether nobody but this machine is asked.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

/// Host and port of `HOST[:PORT]`; an IPv6 address stands in brackets, and none is without its port. `None` if it is something else.
#[must_use]
pub fn split_port(authority: &str, default: u16) -> Option<(String, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, port)
        }
        None => {
            let end = authority.find(':').unwrap_or(authority.len());
            let (host, port) = authority.split_at(end);
            let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.' || c == '_';
            if host.is_empty() || host.len() > 253 || !host.chars().all(good) {
                return None;
            }
            (host, port)
        }
    };
    let port = match port {
        "" => default,
        port => port.strip_prefix(':')?.parse().ok().filter(|&port| port != 0)?,
    };
    Some((host.into(), port))
}
