//! Volumes of a job: what outlives the machine. The disk is the host's; key, policy and anchor are the owner's.
//!
//! Invariants, each with the module that keeps it:
//!
//! * **V1.** Key, policy and the anchor's credentials leave the owner only behind evidence that has passed, over the pinned channel
//!   (`owner/flow.rs`), and stay in the guest's memory (`guest/volume.rs`).
//! * **V2.** The anchor is out of the host's reach: a service that both sides of TLS know by certificates, on another machine. The host carries
//!   that connection and cannot speak in it. An anchor in a file or a TPM of the guest would be the host's, and no anchor at all would let it
//!   roll the disk back; both are refused before the launch ([`Plan::of`]).
//! * **V3.** Nothing of the disk is believed but what `cvmio` has opened by that key, policy and anchor. Which disk is which is not believed
//!   either: the policy names the volume's id.
//! * **V4.** The container gets the mounted file system, and neither key nor policy, nor a way to the anchor.
//! * **V5.** A result is signed only when each volume has been put away in order, and says which stamps the anchor held before and after.
//! * **V6.** A volume that cannot be put away while its anchor is away is waited for: giving up would lose what the container was told is there.
//!
//! The guest has no network. Its way to the anchor is a port on its own loopback that the owner's SSH connection carries to the anchor, from
//! the owner's side: so nobody but the owner chooses what is reached, and nothing is reached when the owner has gone.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::error::{Error, Result};

/// The first port on the guest's loopback that leads to an anchor.
const FIRST_PORT: u16 = 7001;
/// Most bytes of a [`Grant`] on its way.
pub const MAX_GRANT: u64 = 1 << 20;
/// Most bytes of a policy, a key or a file of the anchor's.
pub const MAX_FILE: u64 = 128 << 10;
/// Most volumes of a job.
pub const MAX_VOLUMES: usize = 8;
/// Most endpoints of an anchor.
const MAX_ENDPOINTS: usize = 16;
/// Where etcd listens unless it is told otherwise.
const ETCD_PORT: u16 = 2379;
/// How an option of an anchor ends that names a file.
const FILE_OPTION: &str = "-file";

/// A port on the guest's loopback, and where the owner's side carries it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Route {
    /// The port in the guest.
    pub port: u16,
    /// The anchor's host, as the owner's side finds it.
    pub host: String,
    /// The anchor's port.
    pub to: u16,
}

/// What the guest is given to open a volume with.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Grant {
    /// The attach policy, with the anchor at the guest's end of the routes.
    policy: String,
    /// What opens a key slot.
    key: Bytes,
    /// Files of the anchor's, by the option that names them.
    files: BTreeMap<String, Bytes>,
    /// Names of the anchor's machines, which the guest finds on its loopback.
    names: Vec<String>,
}

/// Bytes as base64, wiped when they are dropped.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
#[serde(transparent)]
struct Bytes(String);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bytes(..)")
    }
}

impl Bytes {
    fn new(bytes: &[u8]) -> Self {
        Self(Base64::encode_string(bytes))
    }

    fn get(&self) -> Result<Zeroizing<Vec<u8>>> {
        let bytes = Base64::decode_vec(&self.0);
        bytes
            .map(Zeroizing::new)
            .map_err(|_| Error::protocol("a volume's key or certificate is no base64 text"))
    }
}

/// A file that the guest writes for a volume.
pub struct GrantedFile {
    /// Its name.
    pub name: String,
    /// Its content.
    pub content: Zeroizing<Vec<u8>>,
}

/// Names of the two files that each volume has.
pub const POLICY: &str = "policy.toml";
/// The same.
pub const KEY: &str = "key";

impl Grant {
    /// Reads one that has arrived.
    ///
    /// # Errors
    /// If it has another form, or names what is no name.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let grant: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::protocol(format!("what opens a volume has another form: {error}")))?;
        let is_option = |name: &str| {
            name.ends_with(FILE_OPTION) && name.bytes().all(|one| one.is_ascii_lowercase() || one == b'-')
        };
        match grant.files.keys().find(|name| !is_option(name)) {
            Some(name) => return Err(Error::protocol(format!("an anchor has no file {name:?}"))),
            None => grant.names.iter().try_for_each(|name| check_name(name))?,
        }
        Ok(grant)
    }

    /// The files that it brings, for a directory of their own: in the policy, the anchor's options name them there.
    ///
    /// # Errors
    /// If the policy or a file cannot be read.
    pub fn files(&self, directory: &Path) -> Result<Vec<GrantedFile>> {
        let mut policy = table(&self.policy).map_err(Error::protocol)?;
        let mut files = vec![GrantedFile { name: KEY.into(), content: self.key.get()? }];
        for (name, content) in &self.files {
            let place = directory.join(name).display().to_string();
            if let Some(options) = policy.get_mut("anchor-options").and_then(toml::Value::as_table_mut) {
                options.insert(name.clone(), place.into());
            }
            files.push(GrantedFile { name: name.clone(), content: content.get()? });
        }
        let text = Zeroizing::new(policy.to_string().into_bytes());
        files.push(GrantedFile { name: POLICY.into(), content: text });
        Ok(files)
    }

    /// Names of the anchor's machines.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

/// What the owner's side knows of a volume before the launch: all but the secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The volume's id, in hexadecimal digits.
    pub id: String,
    /// How the guest reaches the anchor.
    pub routes: Vec<Route>,
    policy: String,
    files: BTreeMap<String, PathBuf>,
    names: Vec<String>,
}

/// What is read of a policy here. The guest's `cvmio` reads all of it.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Policy {
    volume: String,
    freshness: String,
    anchor: Option<String>,
    #[serde(default)]
    anchor_options: BTreeMap<String, String>,
}

fn table(text: &str) -> std::result::Result<toml::Table, String> {
    text.parse().map_err(|error: toml::de::Error| format!("the policy is no TOML: {}", error.message()))
}

impl Plan {
    /// Of a policy's text. `taken` ports of the guest lead to other volumes' anchors.
    ///
    /// # Errors
    /// If it is no policy, or its anchor is one that the host could roll back or that the guest cannot reach.
    pub fn of(text: &str, taken: usize) -> std::result::Result<Self, String> {
        let mut whole = table(text)?;
        let policy: Policy = whole
            .clone()
            .try_into()
            .map_err(|error: toml::de::Error| format!("this is no attach policy: {}", error.message()))?;
        let id = policy.volume;
        if hex::decode(&id).map(|bytes| bytes.len()) != Ok(16) {
            return Err("its `volume` is not 32 hexadecimal digits".into());
        }
        let anchor = policy.anchor.filter(|_| policy.freshness != "off").ok_or(
            "it has no anchor, so the host could put back an older disk between two runs; make the volume with an anchor \
             `owner:` or `etcd:`",
        )?;
        let first = u16::try_from(taken).ok().and_then(|taken| FIRST_PORT.checked_add(taken));
        let (anchor, routes) = through(&anchor, first.ok_or("there are too many anchors")?)?;
        whole.insert("anchor".into(), anchor.into());
        let is_file = |(name, _): &(String, String)| name.ends_with(FILE_OPTION);
        let files = policy.anchor_options.into_iter().filter(is_file);
        let files = files.map(|(name, path)| (name, path.into())).collect();
        let mut names: Vec<String> = routes.iter().map(|route| route.host.clone()).collect();
        names.retain(|name| name.parse::<IpAddr>().is_err());
        names.dedup();
        Ok(Self { id, routes, policy: whole.to_string(), files, names })
    }

    /// Files of the anchor's that the policy names.
    pub fn anchor_files(&self) -> impl Iterator<Item = &Path> {
        self.files.values().map(PathBuf::as_path)
    }

    /// What the guest is given, with the bytes of each file. `read` reads one.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn grant(&self, key: &Path, read: impl Fn(&Path) -> Result<Zeroizing<Vec<u8>>>) -> Result<Grant> {
        let bytes = |path: &Path| read(path).map(|bytes| Bytes::new(&bytes));
        let files = self.files.iter().map(|(name, path)| Ok((name.clone(), bytes(path)?)));
        Ok(Grant {
            policy: self.policy.clone(),
            key: bytes(key)?,
            files: files.collect::<Result<_>>()?,
            names: self.names.clone(),
        })
    }
}

/// The address as the guest writes it, and the routes to its endpoints, from this port on.
fn through(address: &str, first: u16) -> std::result::Result<(String, Vec<Route>), String> {
    let (scheme, rest) = address.split_once(':').unwrap_or((address, ""));
    let (prefix, separator, endpoints, name, port) = match scheme {
        "owner" => {
            let (endpoint, name) =
                rest.split_once('/').ok_or("its anchor names no volume at the owner's service")?;
            ("", "", vec![endpoint], name, None)
        }
        "etcd" => {
            let from = rest.rfind("://").map_or(0, |at| at + 3);
            let slash =
                rest[from..].find('/').map(|at| from + at).ok_or("its anchor names no key in the cluster")?;
            let endpoints: Option<Vec<_>> =
                rest[..slash].split(',').map(|endpoint| endpoint.strip_prefix("https://")).collect();
            let endpoints = endpoints.ok_or(
                "its anchor has an endpoint without TLS, which the host could speak for; write https://",
            )?;
            ("https://", ",", endpoints, &rest[slash + 1..], Some(ETCD_PORT))
        }
        _ => {
            return Err(format!(
                "its anchor `{scheme}:` would lie in the guest, whose machine belongs to the host; `cvmio anchor migrate` moves the volume to an \
                 anchor `owner:` or `etcd:`"
            ));
        }
    };
    if endpoints.len() > MAX_ENDPOINTS {
        return Err(format!("its anchor has more than {MAX_ENDPOINTS} endpoints"));
    }
    let mut routes = Vec::new();
    for (endpoint, place) in endpoints.into_iter().zip(first..) {
        let (host, to) = endpoint_of(endpoint, port)?;
        routes.push(Route { port: place, host, to });
    }
    let endpoints: Vec<String> =
        routes.iter().map(|route| format!("{prefix}{}:{}", route.host, route.port)).collect();
    Ok((format!("{scheme}:{}/{name}", endpoints.join(separator)), routes))
}

/// Host and port of an endpoint.
fn endpoint_of(text: &str, port: Option<u16>) -> std::result::Result<(String, u16), String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, digits)) => (host, digits.parse().ok().filter(|port| *port != 0)),
        None => (text, port),
    };
    let port = port.ok_or_else(|| format!("its anchor {text:?} names no port"))?;
    check_name(host).map_err(|error| format!("its anchor {text:?}: {error}"))?;
    Ok((host.into(), port))
}

/// A name that the guest can find on its own loopback, and nothing that a table of hosts or `ssh` would take for more.
fn check_name(name: &str) -> Result<()> {
    let refuse = |why: &str| Err(Error::usage(format!("the host {name:?} is refused: {why}")));
    if name.parse::<IpAddr>().is_ok_and(|address| address != IpAddr::V4(Ipv4Addr::LOCALHOST)) {
        return refuse(
            "the guest reaches it by a name only; give the anchor's machine one, also in its certificate",
        );
    }
    let is_plain = name.bytes().all(|one| one.is_ascii_alphanumeric() || one == b'-' || one == b'.');
    match is_plain && name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.len() < 254 {
        true => Ok(()),
        false => refuse("a name has letters, digits, dots and dashes"),
    }
}

/// The state of a volume whose last session has ended in order.
pub const RELEASED: &str = "released";

/// What an anchor held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Stamp {
    /// The volume's id, in hexadecimal digits.
    pub volume: String,
    /// `claimed` by a session that may be writing, or `released` by one that has ended in order.
    pub state: String,
    /// Number of the last commit that the anchor vouches for.
    pub generation: u64,
    /// Hash of all commits up to it, in hexadecimal digits.
    pub head: String,
    /// How often the volume was ever claimed.
    pub claims: u64,
}

impl Stamp {
    /// Of what `cvmio anchor show --json` prints; `None` for an anchor that was never claimed.
    ///
    /// # Errors
    /// If it has another form.
    pub fn shown(text: &[u8]) -> Result<Option<Self>> {
        let other = || Error::protocol("`cvmio anchor show` printed something else than an anchor");
        let value: serde_json::Value =
            serde_json::from_slice(text).map_err(|error| other().because(error))?;
        let stamp = value.get("stamp").filter(|stamp| !stamp.is_null());
        let Some(stamp) = stamp else { return Ok(None) };
        let word = |name: &str| stamp[name].as_str().map(String::from).ok_or_else(other);
        let number = |name: &str| stamp[name].as_u64().ok_or_else(other);
        Ok(Some(Self {
            volume: word("volume")?,
            state: word("state")?,
            generation: number("generation")?,
            head: word("head")?,
            claims: number("claims")?,
        }))
    }
}

/// A volume of a job that has ended, for its manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Used {
    /// Where the container had it.
    pub to: String,
    /// The volume's id, in hexadecimal digits.
    pub volume: String,
    /// What its anchor held before; nothing for a volume that was new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Stamp>,
    /// What its anchor held when it had been put away.
    pub after: Stamp,
}

#[cfg(test)]
mod tests;
