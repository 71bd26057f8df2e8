//! The anchor: an index, its companion file, and the steps between them.

use std::path::PathBuf;

use anchor::{BlockingAnchor, Failure, Stamp};
use seal::{Random, SecretBytes, SystemRandom};

use crate::attempt::{Attempt, UNWRITTEN, Value};
use crate::companion::Companion;
use crate::error::{Error, Remedy};
use crate::replay::Standing;
use crate::steps::{self, Chip, Log};
use crate::tpm::{KeyDigest, Tpm};
use crate::transport::Place;
use crate::wire::code::Meaning;
use crate::wire::command::{NvPublic, attributes};

/// How often a chip's non-volatile memory can be written, about. No TPM says it of itself.
pub const ENDURANCE: u64 = 500_000;

/// What an anchor in a TPM is opened with.
#[derive(Debug)]
pub struct Settings {
    /// Where the TPM is.
    pub place: Place,
    /// The handle of the NV index.
    pub index: u32,
    /// Digest of the endorsement key's public area.
    pub endorsement_key: Option<KeyDigest>,
    /// The index's authorisation value.
    pub secret: SecretBytes,
    /// Path of the companion file.
    pub companion: PathBuf,
    /// Whether the anchor is only read.
    pub read_only: bool,
    /// The address, as in a policy.
    pub address: String,
}

/// An anchor in an NV index of type Extend. Each call blocks for as long as the TPM takes, and makes one attempt.
pub struct TpmAnchor {
    tpm: Tpm,
    settings: Settings,
    extends: Option<u64>,
}

/// An index as the steps want it.
struct Index<'a> {
    tpm: &'a mut Tpm,
    public: NvPublic,
    secret: &'a SecretBytes,
}

impl Chip for Index<'_> {
    fn value(&mut self) -> Result<Value, Error> {
        self.tpm.nv_read(&self.public, self.secret.expose())
    }

    fn extend(&mut self, digest: &[u8; 32]) -> Result<(), Error> {
        self.tpm.nv_extend(&self.public, self.secret.expose(), digest)
    }
}

impl TpmAnchor {
    /// The anchor with these settings. Nothing is opened yet.
    #[must_use]
    pub fn new(settings: Settings) -> TpmAnchor {
        let tpm = Tpm::new(settings.place.clone(), settings.endorsement_key);
        TpmAnchor { tpm, settings, extends: None }
    }

    /// The stamp that is held, which stays until a later move; `None`: it was never claimed.
    ///
    /// # Errors
    /// Those of the TPM and of the companion file.
    pub fn stamp(&mut self) -> Result<Option<Stamp>, Error> {
        let read_only = self.settings.read_only;
        self.using(
            |index, log| {
                if read_only { steps::look(index, log) } else { steps::read(index, log, &SystemRandom) }
            },
        )
        .map(|standing| standing.winner.stamp)
    }

    /// Moves the anchor.
    ///
    /// # Errors
    /// [`Error::Conflict`], and those of the TPM and of the companion file. Whether it has moved is then unknown.
    pub fn compare_and_swap(&mut self, expected: Option<&Stamp>, new: &Stamp) -> Result<(), Error> {
        if self.settings.read_only {
            return Err(Error::Usage("this anchor was opened for reading only".into()));
        }
        self.using(|index, log| steps::advance(index, log, &SystemRandom, expected, new)).map(drop)
    }

    /// How many times the index was extended, as of the last call.
    #[must_use]
    pub fn extends(&self) -> Option<u64> {
        self.extends
    }

    /// Defines the index, as the TPM's owner, and makes the companion file. Goes on with what was cut short, and leaves alone what was
    /// made and never claimed. Returns whether it made the index.
    ///
    /// # Errors
    /// Those of the TPM and of the file; [`Error::Index`] if there is such an index already.
    pub fn create(&mut self, owner: &[u8]) -> Result<bool, Error> {
        let result = self.create_in(owner);
        self.tpm.rest();
        result
    }

    fn create_in(&mut self, owner: &[u8]) -> Result<bool, Error> {
        let index = self.settings.index;
        self.tpm.begin()?;
        let new = NvPublic::anchor(index, false);
        match self.tpm.public(index)? {
            None => {
                let first = self.first_attempt()?;
                let secret = self.settings.secret.expose();
                self.tpm.nv_define(&new, secret, owner).map_err(|error| refused_to_owner(index, error))?;
                self.extend_first(&first)?;
                Ok(true)
            }
            // Cut short before it was extended for the first time.
            Some(there) if there == new => {
                let first = self.first_attempt()?;
                self.extend_first(&first)?;
                Ok(true)
            }
            Some(there) if there == NvPublic::anchor(index, true) => match self.stamp()? {
                None => Ok(false),
                Some(_) => Err(Error::Index {
                    index,
                    what: "it is the anchor of a volume already; choose another index".into(),
                }),
            },
            Some(there) => Err(taken(&there)),
        }
    }

    /// The attempt that makes the index one that was never claimed; in the file before the index exists.
    fn first_attempt(&mut self) -> Result<Attempt, Error> {
        let path = &self.settings.companion;
        let mut random = [0; 16];
        SystemRandom.fill(&mut random);
        let first = Attempt { base: UNWRITTEN, random, number: 1, stamp: None };
        match Companion::create(path, &first) {
            Ok(()) => return Ok(first),
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let kept = Companion::open(path, false)?.load()?;
        match kept.first() {
            Some(first) if kept.iter().all(|other| other == first) && first.base == UNWRITTEN => Ok(first.clone()),
            _ => Err(Error::Companion {
                path: path.clone(),
                what: "it belongs to another anchor; choose another path, or remove it if that anchor is not used any more".into(),
            }),
        }
    }

    fn extend_first(&mut self, first: &Attempt) -> Result<(), Error> {
        let public = NvPublic::anchor(self.settings.index, false);
        let secret = self.settings.secret.expose();
        let done = self.tpm.nv_extend(&public, secret, &first.digest());
        done.map_err(|error| self.explain(error))?;
        self.extends = Some(1);
        Ok(())
    }

    /// Removes index and companion file. For what was just made, and for tests.
    ///
    /// # Errors
    /// Those of the TPM.
    pub fn destroy(&mut self, owner: &[u8]) -> Result<(), Error> {
        let result = match self.tpm.public(self.settings.index) {
            Ok(Some(public)) => self.tpm.nv_undefine(&public, owner),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        self.tpm.rest();
        result?;
        let path = &self.settings.companion;
        std::fs::remove_file(path).map_err(|source| Error::File {
            path: path.clone(),
            doing: "removing",
            source,
        })
    }

    /// Does something with the index while no other process uses the companion file.
    fn using(
        &mut self,
        act: impl FnOnce(&mut Index<'_>, &mut Companion) -> Result<Standing, Error>,
    ) -> Result<Standing, Error> {
        let mut companion = Companion::open(&self.settings.companion, self.settings.read_only)?;
        let public = NvPublic::anchor(self.settings.index, true);
        let mut index = Index { tpm: &mut self.tpm, public, secret: &self.settings.secret };
        let result = act(&mut index, &mut companion);
        let result = result.map_err(|error| self.explain(error));
        self.tpm.rest();
        let standing = result?;
        self.extends = Some(standing.extends());
        Ok(standing)
    }

    /// Finds out what is behind a refusal, for people: what the TPM says without a session is not proven.
    fn explain(&mut self, error: Error) -> Error {
        let telling = [Meaning::Authorization, Meaning::NoHandle, Meaning::NotUsable, Meaning::NotWritten];
        if !telling.iter().any(|&meaning| error.means(meaning)) {
            return error;
        }
        let index = self.settings.index;
        let what = match self.tpm.public(index) {
            Err(_) => return error,
            Ok(None) => format!(
                "the TPM has no such index; make the anchor with `cvmio anchor init {}`. If it was made, the TPM was cleared or its owner has undefined the index: the anchor is lost then, and the volume's owner sets a new one (reanchor, without the old one)",
                self.settings.address
            ),
            Ok(Some(there)) if there == NvPublic::anchor(index, false) => {
                "it was never extended: either `cvmio anchor init` was cut short, then do it again; or the TPM's owner has undefined it and defined it anew: then the anchor is lost, and the volume's owner sets a new one (reanchor, without the old one)".into()
            }
            Ok(Some(there)) if there != NvPublic::anchor(index, true) => return taken(&there),
            Ok(Some(_)) => format!(
                "its authorisation value is not the secret that the policy has ({error}). Either the secret is wrong; or the TPM's owner has undefined the index and defined it anew: then the anchor is lost, and the volume's owner sets a new one (reanchor, without the old one)"
            ),
        };
        Error::Index { index, what }
    }
}

fn taken(there: &NvPublic) -> Error {
    let NvPublic { index, attributes, size, name_algorithm, .. } = *there;
    let kind = (attributes >> 4) & 0xf;
    let orderly = if attributes & attributes::ORDERLY != 0 { ", orderly" } else { "" };
    Error::Index {
        index,
        what: format!(
            "it is used for something else (type {kind}{orderly}, attributes 0x{attributes:08x}, algorithm 0x{name_algorithm:04x}, {size} bytes; an anchor has type 4, 0x{:08x}, 0x000b, 32 bytes); choose another index",
            attributes::ANCHOR
        ),
    }
}

fn refused_to_owner(index: u32, error: Error) -> Error {
    if error.means(Meaning::Authorization) {
        let what = "the TPM's owner hierarchy has an authorisation value of its own; give it with the option `owner-secret` (only to define the index)";
        return Error::Index { index, what: what.into() };
    }
    error
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error.remedy() {
            Remedy::Wait => Failure::Away(error.to_string()),
            Remedy::Mend => Failure::Setup(error.to_string()),
            Remedy::None => Failure::Refused(error.into()),
        }
    }
}

impl BlockingAnchor for TpmAnchor {
    fn read(&mut self) -> Result<Option<Stamp>, Failure> {
        Ok(self.stamp()?)
    }

    fn advance(&mut self, expected: Option<&Stamp>, new: &Stamp) -> Result<(), Failure> {
        Ok(self.compare_and_swap(expected, new)?)
    }

    fn address(&self) -> String {
        self.settings.address.clone()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let writes = self.extends.map(|count| ("nv-writes", format!("{count} of about {ENDURANCE}")));
        writes.into_iter().collect()
    }
}
