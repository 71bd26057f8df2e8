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
    /// Server and path of `http://...` or `https://...`; the path with its query, and `/` without one. `None` if the text is something else: one
    /// with a user, a fragment, a blank or a character beyond ASCII.
    #[must_use]
    pub fn from_url(text: &str) -> Option<(Endpoint, String)> {
        let (tls, rest, port) = match text.split_once("://")? {
            ("https", rest) => (true, rest, 443),
            ("http", rest) => (false, rest, 80),
            _ => return None,
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (host, port) = split_port(authority, port)?;
        let path = match path {
            "" => "/".to_string(),
            path if path.starts_with('?') => format!("/{path}"),
            path => path.to_string(),
        };
        let good = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        good.then_some((Endpoint { tls, host, port }, path))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart_and_others_are_refused() {
        let taken = |text| Endpoint::from_url(text).map(|(endpoint, path)| (endpoint.to_string(), path));
        let is = |server: &str, path: &str| Some((server.to_string(), path.to_string()));
        assert_eq!(taken("https://a.example/vcek/v1?x=1"), is("https://a.example:443", "/vcek/v1?x=1"));
        assert_eq!(taken("http://[::1]:8081"), is("http://[::1]:8081", "/"));
        assert_eq!(taken("http://a?x"), is("http://a:80", "/?x"));
        for text in [
            "ftp://a/b",
            "a.example/b",
            "https:///b",
            "https://u@a/b",
            "https://a/b c",
            "https://a/b#c",
            "https://a/\u{e4}",
        ] {
            assert_eq!(taken(text), None, "{text}");
        }
    }
}
