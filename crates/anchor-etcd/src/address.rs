//! `etcd:https://HOST:PORT[,https://HOST:PORT...]/PREFIX/NAME`: the cluster's client endpoints, and the key.

use http1::{Endpoint, split_port};

/// Most endpoints of one address.
const MAX_ENDPOINTS: usize = 16;
/// Most bytes of a key.
const MAX_KEY: usize = 1024;
/// Where etcd listens for clients unless it is told otherwise.
const PORT: u16 = 2379;

/// What to write.
pub(crate) const FORM: &str = "etcd:https://HOST:2379[,https://HOST:2379...]/PREFIX/NAME";

/// A cluster and a key in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) endpoints: Vec<Endpoint>,
    /// With the slash in front: `/cvmio/ledger`.
    pub(crate) key: String,
}

/// A member's client address.
fn endpoint(text: &str) -> Result<Endpoint, String> {
    let (tls, authority) = match text.split_once("://") {
        Some(("https", authority)) => (true, authority),
        Some(("http", authority)) => (false, authority),
        _ => return Err(format!("{text:?} is no endpoint")),
    };
    let (host, port) =
        split_port(authority, PORT).ok_or_else(|| format!("{authority:?} is no host and port"))?;
    let endpoint = Endpoint { tls, host, port };
    if !tls && !endpoint.is_loopback() {
        return Err(format!("{endpoint} is reached without TLS, so anybody on the way could answer"));
    }
    Ok(endpoint)
}

impl Place {
    /// Reads what stands behind `etcd:`.
    pub(crate) fn parse(rest: &str) -> Result<Place, String> {
        let wrong = |why: String| format!("{why}; write {FORM}");
        let last = rest.rfind("://").map_or(0, |at| at + 3);
        let slash = rest[last..].find('/').map(|at| last + at);
        let (endpoints, key) = rest.split_at(slash.unwrap_or(rest.len()));
        let endpoints: Result<Vec<_>, _> = endpoints.split(',').map(endpoint).collect();
        let endpoints = endpoints.map_err(wrong)?;
        if endpoints.len() > MAX_ENDPOINTS {
            return Err(wrong(format!("there may be {MAX_ENDPOINTS} endpoints at most")));
        }
        let is_name = key.len() > 1 && key.len() <= MAX_KEY && !key.ends_with('/');
        if !is_name || key.chars().any(char::is_control) {
            return Err(wrong("the key of the volume is missing behind the endpoints, or no name".into()));
        }
        Ok(Place { endpoints, key: key.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(tls: bool, host: &str, port: u16) -> Endpoint {
        Endpoint { tls, host: host.into(), port }
    }

    #[test]
    fn endpoints_and_key_are_told_apart() {
        for (text, endpoints, key) in [
            ("https://h1:2379/cvmio/ledger", vec![endpoint(true, "h1", 2379)], "/cvmio/ledger"),
            (
                "https://h1,https://10.0.0.2:1,https://[fd00::3]:2/a",
                vec![endpoint(true, "h1", 2379), endpoint(true, "10.0.0.2", 1), endpoint(true, "fd00::3", 2)],
                "/a",
            ),
            ("http://127.0.0.1:2379/a", vec![endpoint(false, "127.0.0.1", 2379)], "/a"),
            ("http://[::1]/a,b/c:d", vec![endpoint(false, "::1", 2379)], "/a,b/c:d"),
        ] {
            assert_eq!(Place::parse(text), Ok(Place { endpoints, key: key.into() }), "{text}");
        }
        assert_eq!(endpoint(true, "fd00::3", 2).to_string(), "https://[fd00::3]:2");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("", "no endpoint"),
            ("h1:2379/a", "no endpoint"),
            ("ftp://h1/a", "no endpoint"),
            ("https://h1:2379", "key of the volume is missing"),
            ("https://h1:2379/", "key of the volume is missing"),
            ("https://h1:2379/a/", "key of the volume is missing"),
            ("https://h1:2379/a\u{7}", "key of the volume is missing"),
            ("https://h1:0/a", "no host and port"),
            ("https://h1:99999/a", "no host and port"),
            ("https://user@h1/a", "no host and port"),
            ("https://[h1]/a", "no host and port"),
            ("https:///a", "no host and port"),
            ("https://h1,/a", "no endpoint"),
            ("http://h1:2379/a", "without TLS"),
        ] {
            let refused = Place::parse(text).expect_err(text);
            assert!(refused.contains(why) && refused.contains(FORM), "{text}: {refused}");
        }
        let many = ["https://h"; 17].join(",") + "/a";
        assert!(Place::parse(&many).expect_err("too many").contains("16 endpoints"));
    }
}
