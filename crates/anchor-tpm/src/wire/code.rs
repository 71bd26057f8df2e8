//! Response codes (TPM 2.0 Library, Part 2, section 6.6 "TPM_RC"): what they mean for an anchor.

use std::fmt;

/// A response code that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseCode(pub u32);

/// Those that lead to different advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The HMAC or the authorisation value is wrong.
    Authorization,
    /// Too many wrong authorisation values: the TPM takes none for some time.
    Lockout,
    /// There is no such index, object or session.
    NoHandle,
    /// The session is gone: the TPM was reset, or somebody flushed it.
    NoSession,
    /// The index exists already.
    Defined,
    /// No room for another index.
    NvSpace,
    /// The index was never written.
    NotWritten,
    /// The index is locked, or of a type that is not extended, or not to be used so.
    NotUsable,
    /// No room for another loaded object or session.
    Memory,
    /// The TPM was not started.
    NotStarted,
    /// Not now: ask again.
    Later,
    /// The TPM has failed a self-test, and answers nothing until it is reset.
    Failed,
    /// The TPM does not know the command, or the algorithm.
    Unsupported,
    /// Anything else.
    Other,
}

/// What sits between us and the TPM puts its number into bits 16 to 23: the kernel's resource manager, say.
const LAYER: u32 = 0x00ff_0000;

impl ResponseCode {
    /// The code without the number of the parameter, handle or session that it is about.
    #[must_use]
    pub fn base(self) -> u32 {
        let code = self.0 & !LAYER;
        // Format one: bit 7; six bits say what, the others which parameter (bit 6), handle or session (bit 11).
        if code & 0x80 != 0 { code & 0xbf } else { code & 0xfff }
    }

    fn is_about_a_session(self) -> bool {
        self.0 & 0x80 != 0 && self.0 & 0x40 == 0 && self.0 & 0x800 != 0
    }

    /// What to make of it.
    #[must_use]
    pub fn meaning(self) -> Meaning {
        match self.base() {
            0x8e | 0xa2 | 0x12f => Meaning::Authorization,
            0x921 => Meaning::Lockout,
            0x918..=0x91e => Meaning::NoSession,
            // A session that is none: TPM_RC_HANDLE or TPM_RC_VALUE for a session's handle.
            0x84 | 0x8b if self.is_about_a_session() => Meaning::NoSession,
            0x8b | 0x910..=0x916 => Meaning::NoHandle,
            0x14c => Meaning::Defined,
            0x14b => Meaning::NvSpace,
            0x14a => Meaning::NotWritten,
            0x82 | 0x146 | 0x148 | 0x149 => Meaning::NotUsable,
            0x902..=0x906 => Meaning::Memory,
            0x100 => Meaning::NotStarted,
            0x908..=0x90a | 0x920 | 0x922 | 0x923 => Meaning::Later,
            0x101 => Meaning::Failed,
            0x81 | 0x83 | 0x96 | 0xa6 | 0x143 => Meaning::Unsupported,
            _ => Meaning::Other,
        }
    }
}

impl fmt::Display for ResponseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.meaning() {
            Meaning::Authorization => "the authorisation value is wrong",
            Meaning::Lockout => {
                "the TPM is locked after too many wrong authorisation values; wait, or have its owner reset the lockout"
            }
            Meaning::NoHandle => "there is no such index",
            Meaning::NoSession => "the session is gone: the TPM was reset",
            Meaning::Defined => "the index exists already",
            Meaning::NvSpace => "the TPM has no room for another index; its owner must undefine one",
            Meaning::NotWritten => "the index was never written",
            Meaning::NotUsable => "the index has other attributes, or is locked",
            Meaning::Memory => "the TPM has no room for another session or key",
            Meaning::NotStarted => "the TPM was not started by the firmware",
            Meaning::Later => "the TPM is busy",
            Meaning::Failed => "the TPM has failed its self-test; reset the machine",
            Meaning::Unsupported => {
                "the TPM does not support what an anchor needs (P-256, SHA-256, AES-128-CFB)"
            }
            Meaning::Other => "the TPM refuses",
        };
        write!(f, "{text} (TPM_RC 0x{:03x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_mean_the_same_whatever_they_are_about() {
        for (code, meaning) in [
            (0x98e, Meaning::Authorization),
            (0x9a2, Meaning::Authorization),
            (0x8a2, Meaning::Authorization),
            (0x921, Meaning::Lockout),
            (0x18b, Meaning::NoHandle),
            (0x28b, Meaning::NoHandle),
            (0x98b, Meaning::NoSession),
            (0x918, Meaning::NoSession),
            (0x14c, Meaning::Defined),
            (0x14b, Meaning::NvSpace),
            (0x14a, Meaning::NotWritten),
            (0x149, Meaning::NotUsable),
            (0x903, Meaning::Memory),
            (0x902, Meaning::Memory),
            (0x100, Meaning::NotStarted),
            (0x922, Meaning::Later),
            (0x101, Meaning::Failed),
            (0x143, Meaning::Unsupported),
            // As the kernel's resource manager says it.
            (0x000b_0143, Meaning::Unsupported),
            (0x2c4, Meaning::Other),
        ] {
            assert_eq!(ResponseCode(code).meaning(), meaning, "0x{code:x}");
        }
    }
}
