//! Answers, read. Whatever carries them may have changed them: nothing here is true before a session's HMAC has been checked.

use std::fmt;

use super::code::ResponseCode;
use super::command::{NvPublic, endorsement_public};
use super::{HEADER, MAX_MESSAGE, NO_SESSIONS, SESSIONS};

/// The bytes are no answer of a TPM 2.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// The message ends before its content does.
    Short,
    /// The message goes on after its content.
    Long,
    /// The message says that it has this many bytes, and has others or too many.
    Size(u32),
    /// The tag is that of no answer.
    Tag(u16),
    /// The answer has sessions where there were none, or the other way round.
    Sessions,
    /// The key is not of the endorsement key's template.
    Template,
    /// An answer of this kind has a field of another size.
    Field,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Short => f.write_str("the answer is cut short"),
            Malformed::Long => f.write_str("the answer is too long"),
            Malformed::Size(size) => write!(f, "the answer gives its size as {size} bytes"),
            Malformed::Tag(tag) => write!(f, "the answer begins with 0x{tag:04x}"),
            Malformed::Sessions => f.write_str("the answer and the command do not agree about sessions"),
            Malformed::Template => f.write_str("the key is no P-256 endorsement key"),
            Malformed::Field => f.write_str("a field of the answer has a size that it cannot have"),
        }
    }
}

impl std::error::Error for Malformed {}

/// A success.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The handle that some commands return.
    pub handle: Option<u32>,
    /// The parameters, of which the first may be encrypted.
    pub parameters: &'a [u8],
    /// With sessions: what proves the answer.
    pub proof: Option<Proof<'a>>,
}

/// A session's part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Proof<'a> {
    /// The TPM's new nonce.
    pub nonce: &'a [u8],
    /// The session's attributes.
    pub attributes: u8,
    /// The HMAC; empty for a password.
    pub hmac: &'a [u8],
}

/// Bytes of the whole message, from its first [`HEADER`] bytes.
///
/// # Errors
/// When no message of a TPM has that size.
pub fn message_size(header: &[u8; HEADER]) -> Result<usize, Malformed> {
    let mut fields = Fields(header);
    fields.u16()?;
    let size = fields.u32()?;
    match usize::try_from(size) {
        Ok(bytes) if (HEADER..=MAX_MESSAGE).contains(&bytes) => Ok(bytes),
        _ => Err(Malformed::Size(size)),
    }
}

/// Reads an answer: `Ok(Err(code))` is a refusal. `has_handle` and `has_session` follow from the command.
///
/// # Errors
/// When the bytes are no such answer.
pub fn read(
    bytes: &[u8],
    has_handle: bool,
    has_session: bool,
) -> Result<Result<Answer<'_>, ResponseCode>, Malformed> {
    let mut fields = Fields(bytes);
    let (tag, size, code) = (fields.u16()?, fields.u32()?, fields.u32()?);
    if usize::try_from(size) != Ok(bytes.len()) || bytes.len() > MAX_MESSAGE {
        return Err(Malformed::Size(size));
    }
    match (tag, code) {
        // A TPM 1.2 says that it knows no such tag: 0x00c4.
        (NO_SESSIONS | SESSIONS, 0) => {}
        (NO_SESSIONS, code) => return fields.end().map(|()| Err(ResponseCode(code))),
        (tag, _) => return Err(Malformed::Tag(tag)),
    }
    if (tag == SESSIONS) != has_session {
        return Err(Malformed::Sessions);
    }
    let handle = if has_handle { Some(fields.u32()?) } else { None };
    if !has_session {
        return Ok(Ok(Answer { handle, parameters: fields.0, proof: None }));
    }
    let length = usize::try_from(fields.u32()?).map_err(|_| Malformed::Field)?;
    let parameters = fields.take(length)?;
    let nonce = fields.sized()?;
    let attributes = fields.take(1)?[0];
    let hmac = fields.sized()?;
    fields.end()?;
    Ok(Ok(Answer { handle, parameters, proof: Some(Proof { nonce, attributes, hmac }) }))
}

/// The endorsement key's point, from the parameters of TPM2_CreatePrimary.
///
/// # Errors
/// When the key is not of the template.
pub fn endorsement_point(parameters: &[u8]) -> Result<[[u8; 32]; 2], Malformed> {
    let public = Fields(parameters).sized()?;
    let coordinates = public.len().checked_sub(2 * (2 + 32)).ok_or(Malformed::Template)?;
    let mut fields = Fields(public.get(coordinates..).ok_or(Malformed::Short)?);
    let mut coordinate = || fields.sized()?.try_into().map_err(|_| Malformed::Template);
    let point = [coordinate()?, coordinate()?];
    // All that we do not read must be as we would have written it.
    if public == endorsement_public(&point) { Ok(point) } else { Err(Malformed::Template) }
}

/// The TPM's nonce, from the parameters of TPM2_StartAuthSession.
///
/// # Errors
/// When there is not a nonce of 16 to 32 bytes, and nothing else.
pub fn session_nonce(parameters: &[u8]) -> Result<&[u8], Malformed> {
    let mut fields = Fields(parameters);
    let nonce = fields.sized()?;
    fields.end()?;
    if (16..=32).contains(&nonce.len()) { Ok(nonce) } else { Err(Malformed::Field) }
}

/// The public area of an index, from the parameters of TPM2_NV_ReadPublic.
///
/// # Errors
/// When there is no such area.
pub fn nv_public(parameters: &[u8]) -> Result<NvPublic, Malformed> {
    let mut fields = Fields(parameters);
    let mut area = Fields(fields.sized()?);
    let _name = fields.sized()?;
    fields.end()?;
    let public = NvPublic {
        index: area.u32()?,
        name_algorithm: area.u16()?,
        attributes: area.u32()?,
        policy: area.sized()?.to_vec(),
        size: area.u16()?,
    };
    area.end()?;
    Ok(public)
}

/// The value of an anchor's index, from the parameters of TPM2_NV_Read, decrypted.
///
/// # Errors
/// When there are not 32 bytes.
pub fn nv_value(parameters: &[u8]) -> Result<[u8; 32], Malformed> {
    let mut fields = Fields(parameters);
    let value = fields.sized()?;
    fields.end()?;
    value.try_into().map_err(|_| Malformed::Field)
}

/// Handles, from the parameters of TPM2_GetCapability.
///
/// # Errors
/// When there is no list of handles.
pub fn handles(parameters: &[u8]) -> Result<Vec<u32>, Malformed> {
    let mut fields = Fields(parameters);
    let (_more, capability, count) = (fields.take(1)?, fields.u32()?, fields.u32()?);
    if capability != 1 || usize::try_from(count).map_err(|_| Malformed::Field)? > MAX_MESSAGE / 4 {
        return Err(Malformed::Field);
    }
    let handles = (0..count).map(|_| fields.u32()).collect::<Result<_, _>>()?;
    fields.end()?;
    Ok(handles)
}

/// The bytes of a first parameter that a session encrypts: those after its size. `None` if there is none.
#[must_use]
pub fn first_parameter(parameters: &[u8]) -> Option<std::ops::Range<usize>> {
    let length = Fields(parameters).sized().ok()?.len();
    Some(2..2 + length)
}

/// What is left to read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed::Short)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    fn sized(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u16()?;
        self.take(length.into())
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Long) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(tag: u16, code: u32, body: &[u8]) -> Vec<u8> {
        let size = u32::try_from(HEADER + body.len()).unwrap();
        [&tag.to_be_bytes()[..], &size.to_be_bytes(), &code.to_be_bytes(), body].concat()
    }

    #[test]
    fn refusals_and_successes_are_told_apart() {
        assert_eq!(read(&message(NO_SESSIONS, 0x98e, &[]), true, true), Ok(Err(ResponseCode(0x98e))));
        assert_eq!(read(&message(NO_SESSIONS, 0x98e, &[0]), true, true), Err(Malformed::Long));
        assert_eq!(read(&message(0x00c4, 0x1e, &[]), false, false), Err(Malformed::Tag(0x00c4)));
        assert_eq!(read(&message(NO_SESSIONS, 0, &[]), false, true), Err(Malformed::Sessions));
        let body = [&[0x80, 0, 0, 1][..], &[0, 0, 0, 3], b"abc", &[0, 1, 9], &[0x21], &[0, 2, 7, 8]].concat();
        let expected = Answer {
            handle: Some(0x8000_0001),
            parameters: b"abc",
            proof: Some(Proof { nonce: &[9], attributes: 0x21, hmac: &[7, 8] }),
        };
        let bytes = message(SESSIONS, 0, &body);
        assert_eq!(read(&bytes, true, true), Ok(Ok(expected)));
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut], true, true).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn only_an_endorsement_key_of_the_template_is_one() {
        let public = endorsement_public(&[[1; 32], [2; 32]]);
        let sized =
            |public: &[u8]| [&u16::try_from(public.len()).unwrap().to_be_bytes()[..], public].concat();
        assert_eq!(endorsement_point(&sized(&public)), Ok([[1; 32], [2; 32]]));
        for at in 0..public.len() - 68 {
            let mut other = public.clone();
            other[at] ^= 1;
            assert_eq!(endorsement_point(&sized(&other)), Err(Malformed::Template), "byte {at}");
        }
        assert!(endorsement_point(&sized(&public[..40])).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), handle: bool, session: bool) {
            let _ = read(&bytes, handle, session);
            let _ = (endorsement_point(&bytes), session_nonce(&bytes), nv_public(&bytes));
            let _ = (nv_value(&bytes), handles(&bytes), first_parameter(&bytes));
        }

        #[test]
        fn an_area_that_is_read_is_laid_out_again(index: u32, attributes: u32, size: u16, policy in prop::collection::vec(any::<u8>(), 0..33)) {
            let public = NvPublic { index, name_algorithm: super::super::SHA256, attributes, policy, size };
            let area = public.encode();
            let length = u16::try_from(area.len()).unwrap().to_be_bytes();
            prop_assert_eq!(nv_public(&[&length[..], &area, &[0, 0]].concat()), Ok(public));
        }
    }
}
