//! The entries of the audit log: 384 bytes each, little-endian.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `cvmioOL1` |
//! | 8 | 8 | number, from 1 |
//! | 16 | 8 | time: milliseconds since 1970, by the service's clock |
//! | 24 | 1 | event, 1 to 21 |
//! | 25 | 1 | events 1, 15: 1 if the service has an anchor of its own; 14: the reason; 16: 1 if retired; 20, 21: the machine, 0 to 3; else zero |
//! | 26 | 2 | zero |
//! | 28 | 4 | events 13, 14, 21: how many refusals before this one were left out |
//! | 32 | 32 | SHA-256 of the client's (20, 21: the guest's) public key; 1, 15: the database (16 bytes); 19: how many (8 bytes); else zeros |
//! | 64 | 64 | name of the volume, or of the release, zero-padded, where the event has one; else zeros |
//! | 128 | 192 | the stamp, where the event has one; 20, 21: measurement (48), check that refused (32 of text), zeros; else zeros |
//! | 32 | 32 | SHA-256 of the client's (20, 21: the guest's) public key; 1, 15: the database (16 bytes); 19: how many (8 bytes); else zeros |
//! | 352 | 32 | SHA-256 of bytes 0 to 351 |

use anchor::{STAMP_SIZE, Stamp, StampError, State};
use anchor_owner::wire::{Name, NameError, Refusal};
use std::fmt;

/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 384;

const MAGIC: &[u8; 8] = b"cvmioOL1";
/// Bytes of evidence in an entry.
const SHOWN_SIZE: usize = 48 + CHECK_SIZE;
const HASHED: usize = ENTRY_SIZE - 32;

/// SHA-256 of a client's public key, as it stands in its certificate (SubjectPublicKeyInfo, RFC 5280, DER).
pub type ClientId = [u8; 32];

/// One entry of the log, without its place in the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The first entry has number 1.
    pub number: u64,
    /// Milliseconds since 1970, by the service's clock. Nothing depends on it.
    pub time: u64,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The database was made, with this identity.
    Made {
        /// Identity of the database.
        database: [u8; 16],
        /// Whether the service has an anchor of its own.
        anchored: bool,
    },
    /// The service started.
    Started,
    /// The service ended cleanly.
    Stopped,
    /// A volume got a place.
    Added(Name),
    /// A client may move a volume from now on.
    Allowed(Name, ClientId),
    /// A client may not move a volume any more.
    Disallowed(Name, ClientId),
    /// A volume's stamp does not move any more.
    Retired(Name),
    /// A volume's place is gone, with its stamp.
    Removed(Name),
    /// A client moved a stamp. Whether it is a claim, a release or an end stands in the stamp, and in the one before.
    Moved(Move, Name, ClientId, Box<Stamp>),
    /// A client wanted to move to this stamp, but another was held than it expected.
    Conflict {
        /// Refusals that were left out before this one, since there were too many in a short time.
        left_out: u32,
        /// The volume.
        name: Name,
        /// The client that asked.
        client: ClientId,
        /// The stamp that it wanted.
        wanted: Box<Stamp>,
    },
    /// A request was refused.
    Refused {
        /// Why.
        reason: Refusal,
        /// As in `Conflict`.
        left_out: u32,
        /// The volume, if the request could be read.
        name: Option<Name>,
        /// The client that asked.
        client: ClientId,
    },
    /// A snapshot begins: what is held stands in the entries that follow, and nothing before is needed to know it.
    Snapshot {
        /// Identity of the database.
        database: [u8; 16],
        /// Whether the service has an anchor of its own.
        anchored: bool,
    },
    /// Snapshot: this volume has a place.
    KeptVolume(Name, bool),
    /// Snapshot: this client may move it.
    KeptClient(Name, ClientId),
    /// Snapshot: this is its stamp.
    KeptStamp(Name, Box<Stamp>),
    /// A guest got what a release names.
    Released {
        /// The release.
        name: Name,
        /// SHA-256 of the key that it was encrypted for.
        key: [u8; 32],
        /// What the guest showed.
        evidence: Shown,
    },
    /// A guest asked for a release, and did not get it.
    Withheld {
        /// As in `Conflict`.
        left_out: u32,
        /// The release, if it asked for one that there is.
        name: Option<Name>,
        /// SHA-256 of the key in its evidence; zeros if it had none.
        key: [u8; 32],
        /// What it showed, and which check refused it.
        evidence: Shown,
    },
    /// At the start, this many entries behind the anchored one were dropped: no answer rested on them.
    Cut(u64),
}

/// Evidence, as far as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The kind of machine; `None` if there was no evidence.
    pub machine: Option<Machine>,
    /// The guest's measurement; zeros if there was none.
    pub measurement: [u8; 48],
    /// The check that refused it, in at most 32 of `a-z` and `-`; empty if none did.
    pub check: String,
}

/// Most bytes of a check's name.
pub const CHECK_SIZE: usize = 32;

/// A kind of machine that gives evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// AMD SEV-SNP.
    Snp,
    /// Intel TDX.
    Tdx,
    /// A simulated platform: no chip vouched for anything.
    Simulated,
}

impl Shown {
    fn code(&self) -> u8 {
        match self.machine {
            None => 0,
            Some(Machine::Snp) => 1,
            Some(Machine::Tdx) => 2,
            Some(Machine::Simulated) => 3,
        }
    }

    fn encode(&self) -> [u8; SHOWN_SIZE] {
        let mut out = [0; SHOWN_SIZE];
        out[..48].copy_from_slice(&self.measurement);
        let check = &self.check.as_bytes()[..self.check.len().min(CHECK_SIZE)];
        out[48..48 + check.len()].copy_from_slice(check);
        out
    }

    fn decode(code: u8, bytes: &[u8; SHOWN_SIZE]) -> Result<Shown, EntryError> {
        let machine = match code {
            0 => None,
            1 => Some(Machine::Snp),
            2 => Some(Machine::Tdx),
            3 => Some(Machine::Simulated),
            other => return Err(EntryError::Reason(other)),
        };
        let (measurement, check) = bytes.split_first_chunk::<48>().ok_or(EntryError::NotZero)?;
        let end = check.iter().position(|byte| *byte == 0).unwrap_or(CHECK_SIZE);
        let good = check[..end].iter().all(|byte| byte.is_ascii_lowercase() || *byte == b'-');
        let check = if good {
            String::from_utf8_lossy(&check[..end]).into_owned()
        } else {
            return Err(EntryError::NotZero);
        };
        Ok(Shown { machine, measurement: *measurement, check })
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = match self.machine {
            None => "-",
            Some(Machine::Snp) => "snp",
            Some(Machine::Tdx) => "tdx",
            Some(Machine::Simulated) => "simulated",
        };
        write!(f, "machine {machine} measurement {}", hex::encode(self.measurement))?;
        if self.check.is_empty() { Ok(()) } else { write!(f, " check {}", self.check) }
    }
}

/// What kind of move it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// A new session.
    Claim,
    /// The same session went on.
    Advance,
    /// The session ended cleanly.
    Release,
    /// The volume went to another anchor.
    End,
}

impl Move {
    /// The kind of a move from `old` to `new`.
    #[must_use]
    pub fn between(old: Option<&Stamp>, new: &Stamp) -> Move {
        match (old, new.state) {
            (_, State::Terminal) => Move::End,
            (_, State::Released) => Move::Release,
            (Some(old), State::Claimed) if old.session == new.session => Move::Advance,
            (_, State::Claimed) => Move::Claim,
        }
    }
}

/// Why bytes are no entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryError {
    /// An entry has [`ENTRY_SIZE`] bytes; here is how many there were.
    Length(usize),
    /// The bytes don't begin with an entry's magic.
    Magic,
    /// The hash in the entry is not the hash of its bytes.
    Hash,
    /// There is no event with this number.
    Event(u8),
    /// A byte that must be zero is not.
    NotZero,
    /// The name is no name.
    Name(NameError),
    /// The stamp is no stamp.
    Stamp(StampError),
    /// There is no reason with this number.
    Reason(u8),
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryError::Length(found) => write!(f, "an entry has {ENTRY_SIZE} bytes, not {found}"),
            EntryError::Magic => f.write_str("this is no entry of the audit log"),
            EntryError::Hash => f.write_str("its bytes do not have the hash that it carries"),
            EntryError::Event(found) => write!(f, "there is no event {found}"),
            EntryError::NotZero => f.write_str("a byte that must be zero is not"),
            EntryError::Name(error) => write!(f, "the name of the volume: {error}"),
            EntryError::Stamp(error) => write!(f, "the stamp: {error}"),
            EntryError::Reason(found) => write!(f, "there is no reason {found}"),
        }
    }
}

impl std::error::Error for EntryError {}

/// The fields of an event as they lie in an entry.
#[derive(Default)]
struct Fields<'a> {
    event: u8,
    flag: u8,
    left_out: u32,
    client: [u8; 32],
    name: Option<&'a Name>,
    stamp: Option<&'a Stamp>,
    shown: Option<&'a Shown>,
}

impl Event {
    /// The volume whose row follows from this event.
    #[must_use]
    pub fn changes(&self) -> Option<&Name> {
        match self {
            Event::Added(name)
            | Event::Allowed(name, _)
            | Event::Disallowed(name, _)
            | Event::Retired(name)
            | Event::Removed(name)
            | Event::Moved(_, name, ..) => Some(name),
            // A snapshot repeats what the table has already.
            _ => None,
        }
    }

    fn fields(&self) -> Fields<'_> {
        let plain = |event| Fields { event, ..Fields::default() };
        let of = |event, name| Fields { name: Some(name), ..plain(event) };
        match self {
            Event::Made { database, anchored } => {
                Fields { flag: u8::from(*anchored), client: widened(database), ..plain(1) }
            }
            Event::Started => plain(2),
            Event::Stopped => plain(3),
            Event::Added(name) => of(4, name),
            Event::Allowed(name, client) => Fields { client: *client, ..of(5, name) },
            Event::Disallowed(name, client) => Fields { client: *client, ..of(6, name) },
            Event::Retired(name) => of(7, name),
            Event::Removed(name) => of(8, name),
            Event::Moved(kind, name, client, stamp) => {
                let event = match kind {
                    Move::Claim => 9,
                    Move::Advance => 10,
                    Move::Release => 11,
                    Move::End => 12,
                };
                Fields { client: *client, stamp: Some(stamp), ..of(event, name) }
            }
            Event::Conflict { left_out, name, client, wanted } => {
                Fields { left_out: *left_out, client: *client, stamp: Some(wanted), ..of(13, name) }
            }
            Event::Refused { reason, left_out, name, client } => Fields {
                flag: reason.code(),
                left_out: *left_out,
                client: *client,
                name: name.as_ref(),
                ..plain(14)
            },
            Event::Snapshot { database, anchored } => {
                Fields { flag: u8::from(*anchored), client: widened(database), ..plain(15) }
            }
            Event::KeptVolume(name, retired) => Fields { flag: u8::from(*retired), ..of(16, name) },
            Event::KeptClient(name, client) => Fields { client: *client, ..of(17, name) },
            Event::KeptStamp(name, stamp) => Fields { stamp: Some(stamp), ..of(18, name) },
            Event::Released { name, key, evidence } => {
                Fields { flag: evidence.code(), client: *key, shown: Some(evidence), ..of(20, name) }
            }
            Event::Withheld { left_out, name, key, evidence } => Fields {
                flag: evidence.code(),
                left_out: *left_out,
                client: *key,
                name: name.as_ref(),
                shown: Some(evidence),
                ..plain(21)
            },
            Event::Cut(count) => Fields { client: widened(&count.to_le_bytes()), ..plain(19) },
        }
    }
}

fn widened(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out[..bytes.len()].copy_from_slice(bytes);
    out
}

impl Entry {
    /// The entry as it lies in the log, behind an entry with this hash.
    #[must_use]
    pub fn encode(&self, previous: &[u8; 32]) -> [u8; ENTRY_SIZE] {
        let fields = self.event.fields();
        let mut out = [0; ENTRY_SIZE];
        out[0..8].copy_from_slice(MAGIC);
        out[8..16].copy_from_slice(&self.number.to_le_bytes());
        out[16..24].copy_from_slice(&self.time.to_le_bytes());
        out[24] = fields.event;
        out[25] = fields.flag;
        out[28..32].copy_from_slice(&fields.left_out.to_le_bytes());
        out[32..64].copy_from_slice(&fields.client);
        if let Some(name) = fields.name {
            out[64..128].copy_from_slice(&name.padded());
        }
        if let Some(stamp) = fields.stamp {
            out[128..320].copy_from_slice(&stamp.encode());
        }
        if let Some(shown) = fields.shown {
            out[128..128 + SHOWN_SIZE].copy_from_slice(&shown.encode());
        }
        out[320..352].copy_from_slice(previous);
        let hash = seal::sha256(&[&out[..HASHED]]);
        out[HASHED..].copy_from_slice(&hash);
        out
    }

    /// Reads what [`Entry::encode`] wrote: the entry, the hash of the one before, and its own.
    ///
    /// # Errors
    /// Every byte is accounted for: an entry that decodes encodes to the same bytes again.
    pub fn decode(bytes: &[u8]) -> Result<(Entry, [u8; 32], [u8; 32]), EntryError> {
        let bytes: &[u8; ENTRY_SIZE] = bytes.try_into().map_err(|_| EntryError::Length(bytes.len()))?;
        if bytes[0..8] != *MAGIC {
            return Err(EntryError::Magic);
        }
        let hash = array(bytes, HASHED);
        if seal::sha256(&[&bytes[..HASHED]]) != hash {
            return Err(EntryError::Hash);
        }
        let (number, time) = (u64::from_le_bytes(array(bytes, 8)), u64::from_le_bytes(array(bytes, 16)));
        let entry = Entry { number, time, event: decode_event(bytes)? };
        let previous = array(bytes, 320);
        // What an event does not use must be zero: then the bytes say the same as the value.
        if entry.encode(&previous) != *bytes {
            return Err(EntryError::NotZero);
        }
        Ok((entry, previous, hash))
    }
}

fn decode_event(bytes: &[u8; ENTRY_SIZE]) -> Result<Event, EntryError> {
    let (flag, client) = (bytes[25], array(bytes, 32));
    let left_out = u32::from_le_bytes(array(bytes, 28));
    let name = || Name::from_padded(&array(bytes, 64)).map_err(EntryError::Name);
    let stamp = || Stamp::decode(&bytes[128..128 + STAMP_SIZE]).map(Box::new).map_err(EntryError::Stamp);
    let named = || if bytes[64] == 0 { Ok(None) } else { name().map(Some) };
    let shown = || Shown::decode(flag, &array(bytes, 128));
    let moved = |kind| Ok(Event::Moved(kind, name()?, client, stamp()?));
    Ok(match bytes[24] {
        1 => Event::Made { database: array(bytes, 32), anchored: flag == 1 },
        2 => Event::Started,
        3 => Event::Stopped,
        4 => Event::Added(name()?),
        5 => Event::Allowed(name()?, client),
        6 => Event::Disallowed(name()?, client),
        7 => Event::Retired(name()?),
        8 => Event::Removed(name()?),
        9 => moved(Move::Claim)?,
        10 => moved(Move::Advance)?,
        11 => moved(Move::Release)?,
        12 => moved(Move::End)?,
        13 => Event::Conflict { left_out, name: name()?, client, wanted: stamp()? },
        14 => Event::Refused {
            reason: Refusal::from_code(flag).ok_or(EntryError::Reason(flag))?,
            left_out,
            name: named()?,
            client,
        },
        15 => Event::Snapshot { database: array(bytes, 32), anchored: flag == 1 },
        16 => Event::KeptVolume(name()?, flag == 1),
        17 => Event::KeptClient(name()?, client),
        18 => Event::KeptStamp(name()?, stamp()?),
        19 => Event::Cut(u64::from_le_bytes(array(bytes, 32))),
        20 => Event::Released { name: name()?, key: client, evidence: shown()? },
        21 => Event::Withheld { left_out, name: named()?, key: client, evidence: shown()? },
        other => return Err(EntryError::Event(other)),
    })
}

/// `N` bytes at `offset`; offsets are constants of the layout, so the range always exists.
fn array<const N: usize>(bytes: &[u8; ENTRY_SIZE], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[offset..offset + N]);
    out
}

impl fmt::Display for Entry {
    /// One line for people and for `grep`: number, time, event, and what belongs to it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.number, self.time)?;
        let short = |bytes: &[u8]| hex::encode(&bytes[..8]);
        let stamp = |stamp: &Stamp| {
            format!(
                "generation {} claim {} session {}",
                stamp.generation,
                stamp.claims,
                short(&stamp.session)
            )
        };
        match &self.event {
            Event::Made { database, anchored } => {
                write!(
                    f,
                    "made database {}{}",
                    hex::encode(database),
                    if *anchored { " anchored" } else { "" }
                )
            }
            Event::Started => f.write_str("started"),
            Event::Stopped => f.write_str("stopped"),
            Event::Added(name) => write!(f, "added {name}"),
            Event::Allowed(name, client) => write!(f, "allowed {name} client {}", hex::encode(client)),
            Event::Disallowed(name, client) => write!(f, "disallowed {name} client {}", hex::encode(client)),
            Event::Retired(name) => write!(f, "retired {name}"),
            Event::Removed(name) => write!(f, "removed {name}"),
            Event::Moved(kind, name, client, new) => {
                let what = match kind {
                    Move::Claim => "claimed",
                    Move::Advance => "moved",
                    Move::Release => "released",
                    Move::End => "ended",
                };
                write!(f, "{what} {name} client {} {}", short(client), stamp(new))
            }
            Event::Conflict { left_out, name, client, wanted } => {
                write!(
                    f,
                    "conflict {name} client {} wanted {} left-out {left_out}",
                    short(client),
                    stamp(wanted)
                )
            }
            Event::Refused { reason, left_out, name, client } => {
                let name = name.as_ref().map_or("-", Name::as_str);
                write!(
                    f,
                    "refused {name} client {} reason {reason:?} left-out {left_out}",
                    hex::encode(client)
                )
            }
            Event::Snapshot { .. } => f.write_str("snapshot"),
            Event::KeptVolume(name, retired) => {
                write!(f, "kept {name}{}", if *retired { " retired" } else { "" })
            }
            Event::KeptClient(name, client) => write!(f, "kept {name} client {}", hex::encode(client)),
            Event::KeptStamp(name, kept) => write!(f, "kept {name} {}", stamp(kept)),
            Event::Released { name, key, evidence } => {
                write!(f, "key-released {name} guest {} {evidence}", short(key))
            }
            Event::Withheld { left_out, name, key, evidence } => {
                let name = name.as_ref().map_or("-", Name::as_str);
                write!(f, "key-withheld {name} guest {} {evidence} left-out {left_out}", short(key))
            }
            Event::Cut(count) => write!(f, "cut {count} entries that no answer rested on"),
        }
    }
}
