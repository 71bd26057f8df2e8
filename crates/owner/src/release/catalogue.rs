//! The catalogue: a file in TOML that says what is released, and to whom. `docs/owner.md` describes it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anchor_owner::wire::Name;
use attest::Policy;
use kbs::{Bundle, MAX_RESOURCE, Resource, VOLUME};
use seal::SecretBytes;
use seal::slot::MIN_KEY_FILE_SIZE;
use serde::Deserialize;

use crate::error::Error;
use crate::private;

/// Most bytes of the file.
const MAX_SIZE: u64 = 256 * 1024;
/// Most releases.
const MAX_RELEASES: usize = 1024;
/// The version of its format.
const VERSION: u32 = 1;
/// The name under which a guest gets the attach policy.
const ATTACH_POLICY: &str = "policy.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    #[serde(default)]
    release: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Row {
    name: String,
    resource: String,
    evidence_policy: PathBuf,
    key: PathBuf,
    attach_policy: Option<PathBuf>,
    #[serde(default)]
    files: Vec<PathBuf>,
    #[serde(default)]
    require_tls_binding: bool,
}

/// What is released under one name.
#[derive(Debug)]
pub struct Release {
    pub(crate) name: Name,
    pub(crate) resource: Resource,
    /// Whether the evidence must be bound to our certificate.
    pub(crate) require_tls_binding: bool,
    evidence_policy: PathBuf,
    key: PathBuf,
    files: Vec<(String, PathBuf)>,
}

/// All releases.
#[derive(Debug)]
pub struct Catalogue(pub(crate) Vec<Release>);

fn wrong(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::Usage(format!("the releases in {}: {why}", path.display()))
}

impl Catalogue {
    /// Reads the file. Paths in it are relative to its directory.
    ///
    /// # Errors
    /// If it cannot be read, others can write it, or it is no catalogue.
    pub fn read(path: &Path) -> Result<Self, Error> {
        private::check_settled(path)?;
        let text = text(path)?;
        let document: Document =
            toml::from_str(&text).map_err(|error| wrong(path, error.to_string().trim_end()))?;
        if document.version != VERSION {
            return Err(wrong(
                path,
                format_args!("version {} is not understood, {VERSION} is", document.version),
            ));
        }
        if document.release.len() > MAX_RELEASES {
            return Err(wrong(path, format_args!("there are more than {MAX_RELEASES}")));
        }
        let beside = path.parent().unwrap_or(Path::new("."));
        let all = document.release.into_iter().map(|row| row.checked(beside));
        let all: Vec<Release> = all.collect::<Result<_, _>>().map_err(|why| wrong(path, why))?;
        let (mut names, mut resources) = (BTreeSet::new(), BTreeSet::new());
        for release in &all {
            if !names.insert(release.name.clone()) || !resources.insert(release.resource.clone()) {
                let what = format_args!("the name {} or its resource is there twice", release.name.as_str())
                    .to_string();
                return Err(wrong(path, what));
            }
        }
        Ok(Self(all))
    }

    /// Reads everything that each release names, as a guest's request would.
    ///
    /// # Errors
    /// The first thing that cannot be released.
    pub fn check(&self) -> Result<(), Error> {
        for release in &self.0 {
            release.policy()?;
            release.content()?;
        }
        Ok(())
    }

    /// The release of this resource.
    pub(crate) fn find(&self, resource: &Resource) -> Option<&Release> {
        self.0.iter().find(|release| release.resource == *resource)
    }
}

impl Row {
    fn checked(self, beside: &Path) -> Result<Release, String> {
        let name = Name::new(&self.name).map_err(|error| format!("{:?}: {error}", self.name))?;
        let resource = Resource::parse(&self.resource)?;
        let mut files: Vec<(String, PathBuf)> = Vec::new();
        files.extend(self.attach_policy.map(|path| (ATTACH_POLICY.to_string(), beside.join(path))));
        for path in self.files {
            let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
            files.push((file.unwrap_or_default(), beside.join(path)));
        }
        if resource.kind() != VOLUME && !files.is_empty() {
            return Err(format!(
                "{}: only a resource of type {VOLUME:?} holds files beside its key, and this one is {resource}",
                name.as_str()
            ));
        }
        Ok(Release {
            name,
            resource,
            require_tls_binding: self.require_tls_binding,
            evidence_policy: beside.join(self.evidence_policy),
            key: beside.join(self.key),
            files,
        })
    }
}

impl Release {
    /// The evidence policy, as the file has it now.
    pub(crate) fn policy(&self) -> Result<Policy, Error> {
        private::check_settled(&self.evidence_policy)?;
        let text = text(&self.evidence_policy)?;
        Policy::parse(&text)
            .map_err(|error| Error::Usage(format!("{}: {error}", self.evidence_policy.display())))
    }

    /// All that is released, as the files have it now.
    pub(crate) fn content(&self) -> Result<SecretBytes, Error> {
        let key = secret(&self.key)?;
        if key.len() < MIN_KEY_FILE_SIZE {
            let why = format_args!("a key has at least {MIN_KEY_FILE_SIZE} random bytes").to_string();
            return Err(wrong(&self.key, why));
        }
        if self.resource.kind() != VOLUME {
            return Ok(key);
        }
        let files = self.files.iter().map(|(name, path)| Ok((name.clone(), file(path)?)));
        let bundle = Bundle { key, files: files.collect::<Result<_, Error>>()? };
        bundle.encode().map_err(|error| Error::Usage(format!("{}: {error}", self.name.as_str())))
    }
}

fn unread(path: &Path, error: std::io::Error) -> Error {
    Error::Io("read", path.to_owned(), error)
}

fn text(path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| unread(path, error))?;
    file.take(MAX_SIZE + 1).read_to_string(&mut text).map_err(|error| unread(path, error))?;
    if text.len() as u64 > MAX_SIZE {
        return Err(wrong(path, format_args!("it has more than {MAX_SIZE} bytes").to_string()));
    }
    Ok(text)
}

/// A file that goes to a guest beside the key: a policy, a certificate, or a private key, which must not be readable by all.
fn file(path: &Path) -> Result<SecretBytes, Error> {
    private::check_settled(path)?;
    let content = read(path)?;
    const MARK: &[u8] = b"PRIVATE KEY-----";
    if content.expose().windows(MARK.len()).any(|part| part == MARK) {
        private::check_key(path)?;
    }
    Ok(content)
}

/// The key that goes to a guest.
fn secret(path: &Path) -> Result<SecretBytes, Error> {
    private::check_key(path)?;
    read(path)
}

fn read(path: &Path) -> Result<SecretBytes, Error> {
    let mut file = File::open(path).map_err(|error| unread(path, error))?;
    SecretBytes::read_from(&mut file, MAX_RESOURCE).map_err(|error| unread(path, error))
}
