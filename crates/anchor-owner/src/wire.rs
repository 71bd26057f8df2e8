//! The messages between a client and the service: 512 bytes each way, little-endian.
//!
//! A request:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `cvmioOQ1` |
//! | 8 | 1 | question: 1 read, 2 move |
//! | 9 | 1 | flags: bit 0 a stamp is expected (move), bit 1 settle (read) |
//! | 10 | 6 | zero |
//! | 16 | 32 | nonce |
//! | 48 | 64 | name of the volume, zero-padded |
//! | 112 | 192 | move: the expected stamp, if there is one; else zeros |
//! | 304 | 192 | move: the new stamp; else zeros |
//! | 496 | 16 | zero |
//!
//! An answer:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `cvmioOA1` |
//! | 8 | 1 | outcome: 1 held, 2 moved, 3 conflict, 4 refused, 5 unavailable |
//! | 9 | 1 | flags: bit 0 a stamp is held (held, conflict) |
//! | 10 | 1 | refused: the reason, 1 to 5; else zero |
//! | 11 | 5 | zero |
//! | 16 | 32 | the request's nonce |
//! | 48 | 16 | identity of the database |
//! | 64 | 8 | number of the last entry of the audit log |
//! | 72 | 32 | hash of that entry |
//! | 104 | 192 | the stamp that is held, if there is one; else zeros |
//! | 296 | 200 | refused, unavailable: a text for people, UTF-8 without control characters, zero-padded; else zeros |
//! | 496 | 16 | zero |

use anchor::{STAMP_SIZE, Stamp, StampError};
use std::fmt;
use std::str::FromStr;

mod name;
pub use name::{NAME_SIZE, Name, NameError};

/// Bytes of a request and of an answer.
pub const MESSAGE_SIZE: usize = 512;

/// The protocol's name in TLS (ALPN, RFC 7301). A later version gets another name.
pub const PROTOCOL: &[u8] = b"cvmio-owner/1";

/// Bytes of a nonce.
pub const NONCE_SIZE: usize = 32;

/// Bytes of an answer's text.
pub const TEXT_SIZE: usize = 200;

const REQUEST_MAGIC: &[u8; 8] = b"cvmioOQ1";
const ANSWER_MAGIC: &[u8; 8] = b"cvmioOA1";

/// What a client wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Fresh random bytes, which the answer repeats.
    pub nonce: [u8; NONCE_SIZE],
    /// The volume.
    pub name: Name,
    /// What to do.
    pub question: Question,
}

/// What to do with a volume's stamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Tell the stamp.
    Read {
        /// Refuse what this client asked to move before, on other connections, and what has not arrived yet.
        settle: bool,
    },
    /// Replace one stamp by another, or report what is held.
    Move {
        /// The stamp to replace; `None` if there was none yet.
        expected: Option<Box<Stamp>>,
        /// The stamp to hold from now on.
        new: Box<Stamp>,
    },
}

/// How far the service's audit log reaches: what an answer rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Identity of the database, chosen when it was made.
    pub database: [u8; 16],
    /// Number of the last entry.
    pub number: u64,
    /// Hash of that entry.
    pub head: [u8; 32],
}

/// What the service says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The nonce of the request.
    pub nonce: [u8; NONCE_SIZE],
    /// The log that it stands on.
    pub position: Position,
    /// The answer itself.
    pub outcome: Outcome,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Read: this stamp is held, or none yet.
    Held(Option<Box<Stamp>>),
    /// The move was done, and is durable.
    Moved,
    /// The move was not done: this is held instead of what was expected.
    Conflict(Option<Box<Stamp>>),
    /// Nothing was done.
    Refused(Refusal, Text),
    /// The service can't tell whether it was done.
    Unavailable(Text),
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such volume, or it is not this client's. The service does not say which.
    NotAllowed,
    /// The volume was retired: its stamp does not move any more.
    Retired,
    /// The client asked on a newer connection to settle this volume.
    Superseded,
    /// The stamp belongs to another volume than the one that is held.
    OtherVolume,
    /// The request can't be read.
    BadRequest,
}

/// A text for people: UTF-8 without control characters, at most [`TEXT_SIZE`] bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Text(String);

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireError {
    /// The bytes don't begin with the magic of a message of this kind.
    Magic,
    /// A field has a value that does not exist: its name, and the value.
    Unknown(&'static str, u8),
    /// A byte that must be zero is not; its field.
    NotZero(&'static str),
    /// The name is no name.
    Name(NameError),
    /// A stamp is no stamp; its field.
    Stamp(&'static str, StampError),
    /// The text is not UTF-8, or has control characters.
    Text,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Magic => f.write_str("this is no message of cvmio-owner, version 1"),
            WireError::Unknown(field, value) => write!(f, "the field {field:?} can't be {value}"),
            WireError::NotZero(field) => write!(f, "the field {field:?} must be zero here"),
            WireError::Name(error) => write!(f, "the name of the volume: {error}"),
            WireError::Stamp(field, error) => write!(f, "the {field} stamp: {error}"),
            WireError::Text => f.write_str("the text is not UTF-8, or has control characters"),
        }
    }
}

impl std::error::Error for WireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WireError::Name(error) => Some(error),
            WireError::Stamp(_, error) => Some(error),
            _ => None,
        }
    }
}

impl Text {
    /// The text, with control characters replaced, cut to what has room.
    #[must_use]
    pub fn new(text: &str) -> Text {
        let mut kept = String::new();
        for character in text.chars().map(|one| if one.is_control() { ' ' } else { one }) {
            if kept.len() + character.len_utf8() > TEXT_SIZE {
                break;
            }
            kept.push(character);
        }
        Text(kept)
    }

    fn decode(bytes: &[u8]) -> Result<Text, WireError> {
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| WireError::Text)?;
        if text.chars().any(char::is_control) {
            return Err(WireError::Text);
        }
        Ok(Text(text.to_owned()))
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Refusal {
    /// All of them, by their number on the wire, from 1.
    pub const ALL: [Refusal; 5] = [
        Refusal::NotAllowed,
        Refusal::Retired,
        Refusal::Superseded,
        Refusal::OtherVolume,
        Refusal::BadRequest,
    ];

    /// The number on the wire and in the audit log.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Refusal::NotAllowed => 1,
            Refusal::Retired => 2,
            Refusal::Superseded => 3,
            Refusal::OtherVolume => 4,
            Refusal::BadRequest => 5,
        }
    }

    /// The refusal with this number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|refusal| refusal.code() == code)
    }
}

impl Request {
    /// The request as it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_SIZE] {
        let mut out = [0; MESSAGE_SIZE];
        out[0..8].copy_from_slice(REQUEST_MAGIC);
        out[16..48].copy_from_slice(&self.nonce);
        out[48..112].copy_from_slice(&self.name.padded());
        match &self.question {
            Question::Read { settle } => {
                out[8] = 1;
                out[9] = if *settle { 2 } else { 0 };
            }
            Question::Move { expected, new } => {
                out[8] = 2;
                if let Some(expected) = expected {
                    out[9] = 1;
                    out[112..304].copy_from_slice(&expected.encode());
                }
                out[304..496].copy_from_slice(&new.encode());
            }
        }
        out
    }

    /// Reads what [`Request::encode`] wrote.
    ///
    /// # Errors
    /// Every byte is accounted for: a request that decodes encodes to the same bytes again.
    pub fn decode(bytes: &[u8; MESSAGE_SIZE]) -> Result<Request, WireError> {
        if bytes[0..8] != *REQUEST_MAGIC {
            return Err(WireError::Magic);
        }
        zeros(bytes, 10..16, "reserved")?;
        zeros(bytes, 496..512, "reserved")?;
        let (kind, flags) = (bytes[8], bytes[9]);
        let question = match kind {
            1 if flags & !2 == 0 => {
                zeros(bytes, 112..496, "stamps")?;
                Question::Read { settle: flags == 2 }
            }
            2 if flags & !1 == 0 => Question::Move {
                expected: optional_stamp(bytes, 112, flags == 1, "expected")?,
                new: Box::new(stamp(bytes, 304, "new")?),
            },
            1 | 2 => return Err(WireError::Unknown("flags", flags)),
            other => return Err(WireError::Unknown("question", other)),
        };
        let name = Name::from_padded(&array(bytes, 48)).map_err(WireError::Name)?;
        Ok(Request { nonce: array(bytes, 16), name, question })
    }
}

impl Answer {
    /// The answer as it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_SIZE] {
        let mut out = [0; MESSAGE_SIZE];
        out[0..8].copy_from_slice(ANSWER_MAGIC);
        out[16..48].copy_from_slice(&self.nonce);
        out[48..64].copy_from_slice(&self.position.database);
        out[64..72].copy_from_slice(&self.position.number.to_le_bytes());
        out[72..104].copy_from_slice(&self.position.head);
        let (kind, held, text) = match &self.outcome {
            Outcome::Held(held) => (1, held.as_deref(), None),
            Outcome::Moved => (2, None, None),
            Outcome::Conflict(held) => (3, held.as_deref(), None),
            Outcome::Refused(refusal, text) => {
                out[10] = refusal.code();
                (4, None, Some(text))
            }
            Outcome::Unavailable(text) => (5, None, Some(text)),
        };
        out[8] = kind;
        if let Some(held) = held {
            out[9] = 1;
            out[104..296].copy_from_slice(&held.encode());
        }
        if let Some(Text(text)) = text {
            out[296..296 + text.len()].copy_from_slice(text.as_bytes());
        }
        out
    }

    /// Reads what [`Answer::encode`] wrote.
    ///
    /// # Errors
    /// Every byte is accounted for: an answer that decodes encodes to the same bytes again.
    pub fn decode(bytes: &[u8; MESSAGE_SIZE]) -> Result<Answer, WireError> {
        if bytes[0..8] != *ANSWER_MAGIC {
            return Err(WireError::Magic);
        }
        zeros(bytes, 11..16, "reserved")?;
        zeros(bytes, 496..512, "reserved")?;
        let kind = bytes[8];
        let held = match bytes[9] {
            flag @ (0 | 1) => optional_stamp(bytes, 104, flag == 1, "held")?,
            other => return Err(WireError::Unknown("flags", other)),
        };
        if !matches!(kind, 1 | 3) && held.is_some() {
            return Err(WireError::NotZero("flags"));
        }
        if kind != 4 && bytes[10] != 0 {
            return Err(WireError::NotZero("reason"));
        }
        if !matches!(kind, 4 | 5) {
            zeros(bytes, 296..496, "text")?;
        }
        let text = Text::decode(&bytes[296..496])?;
        let outcome = match kind {
            1 => Outcome::Held(held),
            2 => Outcome::Moved,
            3 => Outcome::Conflict(held),
            4 => {
                let reason = bytes[10];
                let refusal = Refusal::from_code(reason).ok_or(WireError::Unknown("reason", reason))?;
                Outcome::Refused(refusal, text)
            }
            5 => Outcome::Unavailable(text),
            other => return Err(WireError::Unknown("outcome", other)),
        };
        let position = Position {
            database: array(bytes, 48),
            number: u64::from_le_bytes(array(bytes, 64)),
            head: array(bytes, 72),
        };
        Ok(Answer { nonce: array(bytes, 16), position, outcome })
    }
}

fn stamp(bytes: &[u8; MESSAGE_SIZE], offset: usize, field: &'static str) -> Result<Stamp, WireError> {
    Stamp::decode(&bytes[offset..offset + STAMP_SIZE]).map_err(|error| WireError::Stamp(field, error))
}

fn optional_stamp(
    bytes: &[u8; MESSAGE_SIZE],
    offset: usize,
    there: bool,
    field: &'static str,
) -> Result<Option<Box<Stamp>>, WireError> {
    if there {
        return Ok(Some(Box::new(stamp(bytes, offset, field)?)));
    }
    zeros(bytes, offset..offset + STAMP_SIZE, field)?;
    Ok(None)
}

fn zeros(
    bytes: &[u8; MESSAGE_SIZE],
    range: std::ops::Range<usize>,
    field: &'static str,
) -> Result<(), WireError> {
    if bytes[range].iter().any(|&byte| byte != 0) {
        return Err(WireError::NotZero(field));
    }
    Ok(())
}

/// `N` bytes at `offset`; offsets are constants of the layout, so the range always exists.
fn array<const N: usize>(bytes: &[u8; MESSAGE_SIZE], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[offset..offset + N]);
    out
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        Name::new(text)
    }
}

#[cfg(test)]
mod tests;
