//! Commands, laid out.

use seal::sha256;

use super::{HEADER, NO_SESSIONS, SESSIONS, SHA256};

/// The handle of the owner hierarchy, TPM_RH_OWNER.
pub const OWNER: u32 = 0x4000_0001;
/// The handle of the endorsement hierarchy, TPM_RH_ENDORSEMENT.
pub const ENDORSEMENT: u32 = 0x4000_000b;
/// Authorisation by a password, TPM_RS_PW.
const PASSWORD: u32 = 0x4000_0009;
const NULL_HANDLE: u32 = 0x4000_0007;
/// The first handle of sessions that are loaded, and of objects.
pub const LOADED_SESSIONS: u32 = 0x0200_0000;
/// The first handle of loaded objects.
pub const TRANSIENT: u32 = 0x8000_0000;

/// The session goes on after the command.
pub const CONTINUE: u8 = 0x01;
/// The command's first parameter is encrypted.
pub const DECRYPT: u8 = 0x20;
/// The answer's first parameter is to be encrypted.
pub const ENCRYPT: u8 = 0x40;

const AES: u16 = 0x0006;
const CFB: u16 = 0x0043;
const NONE: u16 = 0x0010;
const ECC: u16 = 0x0023;
const P256: u16 = 0x0003;

/// What is asked of the TPM (Part 2, section 6.5.2 "TPM_CC").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// TPM2_NV_UndefineSpace
    NvUndefineSpace = 0x122,
    /// TPM2_NV_DefineSpace
    NvDefineSpace = 0x12a,
    /// TPM2_CreatePrimary
    CreatePrimary = 0x131,
    /// TPM2_NV_Extend
    NvExtend = 0x136,
    /// TPM2_Startup
    Startup = 0x144,
    /// TPM2_NV_Read
    NvRead = 0x14e,
    /// TPM2_FlushContext
    FlushContext = 0x165,
    /// TPM2_NV_ReadPublic
    NvReadPublic = 0x169,
    /// TPM2_StartAuthSession
    StartAuthSession = 0x176,
    /// TPM2_GetCapability
    GetCapability = 0x17a,
}

/// A command before it is authorised.
#[derive(Debug, Clone)]
pub struct Command {
    /// What is asked.
    pub code: Code,
    /// What it is about: handle and name of each, the name as TPM2_NV_ReadPublic gives it.
    pub handles: Vec<(u32, Vec<u8>)>,
    /// The parameters, laid out.
    pub parameters: Vec<u8>,
}

/// A session's part of a command.
#[derive(Debug)]
pub struct Authorization<'a> {
    /// The session.
    pub session: u32,
    /// Our nonce.
    pub nonce: &'a [u8],
    /// [`CONTINUE`], [`DECRYPT`], [`ENCRYPT`].
    pub attributes: u8,
    /// The HMAC, or the password.
    pub hmac: &'a [u8],
}

impl Command {
    fn new(code: Code, handles: &[u32], parameters: Vec<u8>) -> Command {
        // The name of a hierarchy or a session is its handle.
        let handles = handles.iter().map(|&handle| (handle, handle.to_be_bytes().to_vec())).collect();
        Command { code, handles, parameters }
    }

    /// The digest of command code, names and parameters that a session's HMAC covers (cpHash).
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let code = (self.code as u32).to_be_bytes();
        let names = self.handles.iter().map(|(_, name)| &name[..]);
        let parts: Vec<&[u8]> =
            std::iter::once(&code[..]).chain(names).chain([&self.parameters[..]]).collect();
        sha256(&parts)
    }

    /// The bytes for the TPM.
    #[must_use]
    pub fn encode(&self, authorization: Option<&Authorization<'_>>) -> Vec<u8> {
        let mut body = Vec::new();
        for (handle, _) in &self.handles {
            put_u32(&mut body, *handle);
        }
        if let Some(Authorization { session, nonce, attributes, hmac }) = authorization {
            let mut area = session.to_be_bytes().to_vec();
            put_sized(&mut area, nonce);
            area.push(*attributes);
            put_sized(&mut area, hmac);
            put_u32(&mut body, u32::try_from(area.len()).expect("some hundred bytes"));
            body.extend_from_slice(&area);
        }
        body.extend_from_slice(&self.parameters);
        let mut out = Vec::with_capacity(HEADER + body.len());
        put_u16(&mut out, if authorization.is_some() { SESSIONS } else { NO_SESSIONS });
        put_u32(&mut out, u32::try_from(HEADER + body.len()).expect("our commands are short"));
        put_u32(&mut out, self.code as u32);
        out.extend_from_slice(&body);
        out
    }

    /// Starts a TPM that has power and nothing else: what firmware does for a chip.
    #[must_use]
    pub fn startup() -> Command {
        Command::new(Code::Startup, &[], vec![0, 0])
    }

    /// Asks for the handles in use, from `first` on.
    #[must_use]
    pub fn get_handles(first: u32) -> Command {
        let mut parameters = Vec::new();
        put_u32(&mut parameters, 1);
        put_u32(&mut parameters, first);
        put_u32(&mut parameters, 64);
        Command::new(Code::GetCapability, &[], parameters)
    }

    /// Forgets a loaded session or object.
    #[must_use]
    pub fn flush(handle: u32) -> Command {
        Command::new(Code::FlushContext, &[], handle.to_be_bytes().to_vec())
    }

    /// Makes the endorsement key anew, which gives the same key each time (TCG EK Credential Profile, template L-2: P-256).
    #[must_use]
    pub fn create_endorsement_key() -> Command {
        let mut parameters = Vec::new();
        // No authorisation value and no data: two empty fields.
        put_sized(&mut parameters, &[0; 4]);
        put_sized(&mut parameters, &endorsement_public(&[[0; 32]; 2]));
        put_sized(&mut parameters, &[]);
        put_u32(&mut parameters, 0);
        Command::new(Code::CreatePrimary, &[ENDORSEMENT], parameters)
    }

    /// Starts a session whose salt `encrypted_salt` is for `key`, and which is bound to nothing.
    #[must_use]
    pub fn start_session(key: u32, nonce: &[u8], encrypted_salt: &[[u8; 32]; 2]) -> Command {
        let mut parameters = Vec::new();
        put_sized(&mut parameters, nonce);
        let mut point = Vec::new();
        encrypted_salt.iter().for_each(|coordinate| put_sized(&mut point, coordinate));
        put_sized(&mut parameters, &point);
        parameters.push(0);
        for number in [AES, 128, CFB, SHA256] {
            put_u16(&mut parameters, number);
        }
        Command::new(Code::StartAuthSession, &[key, NULL_HANDLE], parameters)
    }

    /// Asks for the public area of an index.
    #[must_use]
    pub fn nv_read_public(index: u32) -> Command {
        Command::new(Code::NvReadPublic, &[index], Vec::new())
    }

    /// Defines an index with this authorisation value, as the TPM's owner.
    #[must_use]
    pub fn nv_define(public: &NvPublic, auth: &[u8]) -> Command {
        let mut parameters = Vec::new();
        put_sized(&mut parameters, auth);
        put_sized(&mut parameters, &public.encode());
        Command::new(Code::NvDefineSpace, &[OWNER], parameters)
    }

    /// Removes an index, as the TPM's owner.
    #[must_use]
    pub fn nv_undefine(public: &NvPublic) -> Command {
        Command::new(Code::NvUndefineSpace, &[OWNER], Vec::new()).about(public)
    }

    /// Reads all of an index, with its own authorisation value.
    #[must_use]
    pub fn nv_read(public: &NvPublic) -> Command {
        let mut parameters = Vec::new();
        put_u16(&mut parameters, public.size);
        put_u16(&mut parameters, 0);
        Command::new(Code::NvRead, &[], parameters).about(public).about(public)
    }

    /// Extends an index by `data`, with its own authorisation value.
    #[must_use]
    pub fn nv_extend(public: &NvPublic, data: &[u8; 32]) -> Command {
        let mut parameters = Vec::new();
        put_sized(&mut parameters, data);
        Command::new(Code::NvExtend, &[], parameters).about(public).about(public)
    }

    fn about(mut self, public: &NvPublic) -> Command {
        self.handles.push((public.index, public.name()));
        self
    }
}

/// The attributes of an index (Part 2, section 13.4 "TPMA_NV"), those that an anchor's has.
pub mod attributes {
    /// Its own authorisation value allows to write.
    pub const AUTH_WRITE: u32 = 1 << 2;
    /// Its type is Extend: writing replaces the value by the digest of value and data.
    pub const EXTEND: u32 = 4 << 4;
    /// Its own authorisation value allows to read.
    pub const AUTH_READ: u32 = 1 << 18;
    /// Wrong authorisation values are not counted.
    pub const NO_DA: u32 = 1 << 25;
    /// It lies in volatile memory between orderly shutdowns. An anchor's never does.
    pub const ORDERLY: u32 = 1 << 26;
    /// It was written at least once.
    pub const WRITTEN: u32 = 1 << 29;
    /// What an anchor's index is defined with.
    pub const ANCHOR: u32 = AUTH_WRITE | EXTEND | AUTH_READ | NO_DA;
}

/// The public area of an index (Part 2, section 13.5 "TPMS_NV_PUBLIC").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvPublic {
    /// Its handle.
    pub index: u32,
    /// The algorithm of its name, and of Extend.
    pub name_algorithm: u16,
    /// See [`attributes`].
    pub attributes: u32,
    /// Digest of a policy that allows its use.
    pub policy: Vec<u8>,
    /// Bytes of its value.
    pub size: u16,
}

impl NvPublic {
    /// The one of an anchor.
    #[must_use]
    pub fn anchor(index: u32, written: bool) -> NvPublic {
        let written = if written { attributes::WRITTEN } else { 0 };
        let attributes = attributes::ANCHOR | written;
        NvPublic { index, name_algorithm: SHA256, attributes, policy: Vec::new(), size: 32 }
    }

    /// As the TPM lays it out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u32(&mut out, self.index);
        put_u16(&mut out, self.name_algorithm);
        put_u32(&mut out, self.attributes);
        put_sized(&mut out, &self.policy);
        put_u16(&mut out, self.size);
        out
    }

    /// The name that HMACs cover, so that a command is for this index with these attributes and no other. The algorithm is SHA-256.
    #[must_use]
    pub fn name(&self) -> Vec<u8> {
        [&SHA256.to_be_bytes()[..], &sha256(&[&self.encode()])].concat()
    }
}

/// The public area of the endorsement key with this point.
#[must_use]
pub fn endorsement_public(point: &[[u8; 32]; 2]) -> Vec<u8> {
    /// Digest of TPM2_PolicySecret(TPM_RH_ENDORSEMENT), as the profile has it.
    const POLICY: [u8; 32] = [
        0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xb3, 0xf8, 0x1a, 0x90, 0xcc, 0x8d, 0x46, 0xa5, 0xd7, 0x24, 0xfd,
        0x52, 0xd7, 0x6e, 0x06, 0x52, 0x0b, 0x64, 0xf2, 0xa1, 0xda, 0x1b, 0x33, 0x14, 0x69, 0xaa,
    ];
    let mut out = Vec::new();
    put_u16(&mut out, ECC);
    put_u16(&mut out, SHA256);
    // fixedTPM, fixedParent, sensitiveDataOrigin, adminWithPolicy, restricted, decrypt.
    put_u32(&mut out, 0x0003_00b2);
    put_sized(&mut out, &POLICY);
    for number in [AES, 128, CFB, NONE, P256, NONE] {
        put_u16(&mut out, number);
    }
    point.iter().for_each(|coordinate| put_sized(&mut out, coordinate));
    out
}

/// The part of a command that says: authorised by a password, which is empty.
#[must_use]
pub fn empty_password() -> Authorization<'static> {
    Authorization { session: PASSWORD, nonce: &[], attributes: 0, hmac: &[] }
}

fn put_u16(out: &mut Vec<u8>, number: u16) {
    out.extend_from_slice(&number.to_be_bytes());
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_be_bytes());
}

/// A field that is preceded by its size, as TPM2B structures are.
fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u16(out, u16::try_from(bytes.len()).expect("our fields are short"));
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tpm2_protocol::frame::TpmCommand;

    /// A marshaller that others wrote reads what ours lays out.
    #[test]
    fn commands_are_valid_to_another_marshaller() {
        let public = NvPublic::anchor(0x0180_0001, true);
        let session =
            Authorization { session: 0x0200_0000, nonce: &[1; 32], attributes: 0x61, hmac: &[2; 32] };
        for (command, authorization) in [
            (Command::startup(), None),
            (Command::get_handles(TRANSIENT), None),
            (Command::flush(TRANSIENT), None),
            (Command::create_endorsement_key(), Some(empty_password())),
            (Command::start_session(TRANSIENT, &[3; 32], &[[4; 32], [5; 32]]), None),
            (Command::nv_read_public(public.index), None),
        ] {
            check(&command, authorization.as_ref());
        }
        for command in [
            Command::nv_define(&NvPublic::anchor(0x0180_0001, false), &[6; 32]),
            Command::nv_undefine(&public),
            Command::nv_read(&public),
            Command::nv_extend(&public, &[7; 32]),
        ] {
            check(&command, Some(&session));
        }
    }

    fn check(command: &Command, authorization: Option<&Authorization<'_>>) {
        let bytes = command.encode(authorization);
        let code = command.code;
        let read = TpmCommand::cast(&bytes).unwrap_or_else(|error| panic!("{code:?}: {error:?}"));
        read.validate().unwrap_or_else(|error| panic!("{code:?}: {error:?}"));
        assert_eq!(read.cc().unwrap() as u32, code as u32);
    }
}
