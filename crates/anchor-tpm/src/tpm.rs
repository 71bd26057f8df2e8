//! A TPM, and the session through which it is used.
//!
//! Everything that counts goes through one session. Its salt is encrypted to the TPM's endorsement key, so a host that carries the messages can
//! neither read the first parameter of a command or answer (AES-128-CFB), nor change, repeat or make up any of them (HMAC over both, with
//! nonces). It is bound to nothing, and the index does not count wrong values (`no_da`): no power cut leads to a lockout. A refusal is
//! not proven (a TPM signs none): from what a refusal says, the anchor never concludes what state it is in.
//!
//! A device with the kernel's resource manager (`/dev/tpmrm0`) stays open, and session and key belong to it. Any other way
//! (`/dev/tpm0`, a socket) lets one client in at a time: it is opened for each use, and the session stays in the TPM between them. What
//! killed clients left behind there is flushed when the TPM has no room for more.

use std::thread;
use std::time::Duration;

use seal::tpm::{Nonces, SessionKey, salt_for};
use seal::{Random, SystemRandom, sha256};

use crate::error::Error;
use crate::transport::{self, Place, Transport};
use crate::wire::answer;
use crate::wire::code::{Meaning, ResponseCode};
use crate::wire::command::{
    Authorization, CONTINUE, Command, DECRYPT, ENCRYPT, LOADED_SESSIONS, NvPublic, TRANSIENT, empty_password,
    endorsement_public,
};

const NONCE: usize = 32;
/// How often a command is sent again that the TPM puts off, and the first pause before it; each is twice as long as the one before.
const PUT_OFF: u32 = 8;
const PAUSE: Duration = Duration::from_millis(20);

/// Digest of an endorsement key's public area, which names a TPM.
pub type KeyDigest = [u8; 32];

/// A TPM at some place.
pub struct Tpm {
    place: Place,
    /// The key that sessions are salted to. `None`: that of whichever TPM answers, to find out which it is.
    expected: Option<KeyDigest>,
    transport: Option<Box<dyn Transport>>,
    session: Option<Session>,
    /// A session that can't be used any more, and may still be loaded.
    abandoned: Option<u32>,
}

struct Session {
    handle: u32,
    key: SessionKey,
    /// The TPM's last nonce.
    nonce: Vec<u8>,
    /// The TPM has proven an answer in it.
    has_worked: bool,
}

/// An answer's handle and parameters.
struct Reply {
    handle: Option<u32>,
    parameters: Vec<u8>,
}

impl Tpm {
    /// The TPM at `place`. Nothing is opened yet.
    #[must_use]
    pub fn new(place: Place, expected: Option<KeyDigest>) -> Tpm {
        Tpm { place, expected, transport: None, session: None, abandoned: None }
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The digest of its endorsement key.
    ///
    /// # Errors
    /// Those of the TPM. Whether it really has the key is known only after a command in a session.
    pub fn endorsement_key(&mut self) -> Result<KeyDigest, Error> {
        let (handle, point) = self.create_key()?;
        self.flush(handle)?;
        Ok(sha256(&[&endorsement_public(&point)]))
    }

    /// The public area of an index, for people to read: it is not proven. `None` if there is no such index.
    ///
    /// # Errors
    /// Those of the TPM.
    pub fn public(&mut self, index: u32) -> Result<Option<NvPublic>, Error> {
        match self.plain("looking at the index", &Command::nv_read_public(index), false) {
            Ok(reply) => self.understand(answer::nv_public(&reply.parameters)).map(Some),
            Err(error) if error.means(Meaning::NoHandle) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The value of an anchor's index.
    ///
    /// # Errors
    /// Those of the TPM.
    pub fn nv_read(&mut self, public: &NvPublic, auth: &[u8]) -> Result<[u8; 32], Error> {
        let parameters = self.authorized("to read the index", Command::nv_read(public), auth, ENCRYPT)?;
        self.understand(answer::nv_value(&parameters))
    }

    /// Extends an anchor's index.
    ///
    /// # Errors
    /// Those of the TPM.
    pub fn nv_extend(&mut self, public: &NvPublic, auth: &[u8], data: &[u8; 32]) -> Result<(), Error> {
        self.authorized("to extend the index", Command::nv_extend(public, data), auth, DECRYPT).map(drop)
    }

    /// Defines an index, as the owner of the TPM, whose authorisation value is `owner`.
    ///
    /// # Errors
    /// Those of the TPM.
    pub fn nv_define(&mut self, public: &NvPublic, auth: &[u8], owner: &[u8]) -> Result<(), Error> {
        self.authorized("to define the index", Command::nv_define(public, auth), owner, DECRYPT).map(drop)
    }

    /// Removes an index, as the owner of the TPM.
    ///
    /// # Errors
    /// Those of the TPM.
    pub fn nv_undefine(&mut self, public: &NvPublic, owner: &[u8]) -> Result<(), Error> {
        self.authorized("to undefine the index", Command::nv_undefine(public), owner, 0).map(drop)
    }

    /// Starts a session, unless there is one: this is the TPM that the policy names, if what follows is proven.
    ///
    /// # Errors
    /// [`Error::OtherTpm`], and those of the TPM.
    pub fn begin(&mut self) -> Result<(), Error> {
        if self.session.is_none() {
            self.session = Some(self.start_session()?);
        }
        Ok(())
    }

    /// Ends a use of the TPM: others may have it now.
    pub fn rest(&mut self) {
        if !self.place.is_managed() {
            self.transport = None;
        }
    }

    /// Sends a command in the session, and returns the parameters of its answer, proven and decrypted.
    fn authorized(
        &mut self,
        doing: &'static str,
        command: Command,
        auth: &[u8],
        encryption: u8,
    ) -> Result<Vec<u8>, Error> {
        let session = match self.session.take() {
            Some(session) => session,
            None => self.start_session()?,
        };
        let has_worked = session.has_worked;
        let is_repeatable = encryption == ENCRYPT;
        let result = self.in_session(session, doing, command.clone(), auth, encryption);
        match result {
            // What was right before can't be wrong now: the TPM was reset, or the session's handle is another's, or the command was changed on
            // its way. What changes nothing is asked again in a new session, which tells whether that was it. All else is not: the caller
            // looks first at what happened.
            Err(Error::Refused { code, .. }) if has_worked => {
                if is_repeatable {
                    let session = self.start_session()?;
                    self.in_session(session, doing, command, auth, encryption)
                } else {
                    let source = std::io::Error::other(format!("its session ended ({code})"));
                    Err(Error::Lost { doing, source })
                }
            }
            other => other,
        }
    }

    fn in_session(
        &mut self,
        mut session: Session,
        doing: &'static str,
        mut command: Command,
        auth: &[u8],
        encryption: u8,
    ) -> Result<Vec<u8>, Error> {
        let nonce = fresh_nonce();
        let attributes = CONTINUE | encryption;
        let code = command.code as u32;
        if encryption == DECRYPT
            && let Some(range) = answer::first_parameter(&command.parameters)
        {
            let nonces = Nonces { newer: &nonce, older: &session.nonce };
            session.key.encrypt(auth, nonces, &mut command.parameters[range]);
        }
        let hmac = session.key.sign(auth, &[&command.digest(), &nonce, &session.nonce, &[attributes]]);
        let authorization = Authorization { session: session.handle, nonce: &nonce, attributes, hmac: &hmac };
        let bytes = command.encode(Some(&authorization));
        let sent = self.send(doing, &bytes);
        let read = match &sent {
            Ok(bytes) => answer::read(bytes, false, true),
            Err(_) => {
                self.abandon(session.handle);
                return sent.map(drop).map(|()| Vec::new());
            }
        };
        let (parameters, proof) = match read {
            Ok(Ok(answer::Answer { parameters, proof: Some(proof), .. })) => (parameters, proof),
            Ok(Err(code)) => {
                // A real one leaves the session's nonces as they were; whether it is real, nothing says.
                self.abandon(session.handle);
                return Err(Error::Refused { doing, code });
            }
            Ok(Ok(_)) => {
                self.abandon(session.handle);
                return Err(Error::Nonsense(answer::Malformed::Sessions));
            }
            Err(malformed) => {
                self.abandon(session.handle);
                return Err(Error::Nonsense(malformed));
            }
        };
        let digest = sha256(&[&0_u32.to_be_bytes(), &code.to_be_bytes(), parameters]);
        let signed: [&[u8]; 4] = [&digest, proof.nonce, &nonce, &[proof.attributes]];
        if !session.key.verify(auth, &signed, proof.hmac) || proof.attributes != attributes {
            self.abandon(session.handle);
            return Err(Error::Forged { doing });
        }
        let mut parameters = parameters.to_vec();
        if encryption == ENCRYPT
            && let Some(range) = answer::first_parameter(&parameters)
        {
            session.key.decrypt(auth, Nonces { newer: proof.nonce, older: &nonce }, &mut parameters[range]);
        }
        session.nonce = proof.nonce.to_vec();
        session.has_worked = true;
        self.session = Some(session);
        Ok(parameters)
    }

    /// A session whose salt only the expected TPM can have read.
    fn start_session(&mut self) -> Result<Session, Error> {
        if let Some(handle) = self.abandoned.take() {
            // It may be gone already; then there is nothing to do.
            let _ = self.flush(handle);
        }
        let (key, point) = self.create_key()?;
        let started = self.start_session_with(key, &point);
        // Nothing needs the key any more, and where it stays loaded room for others is missing.
        let flushed = self.flush(key);
        let session = started?;
        flushed?;
        Ok(session)
    }

    fn start_session_with(&mut self, key: u32, point: &[[u8; 32]; 2]) -> Result<Session, Error> {
        let found = sha256(&[&endorsement_public(point)]);
        if self.expected.is_none_or(|expected| expected != found) {
            return Err(Error::OtherTpm {
                found: hex::encode(found),
                expected: self.expected.map(hex::encode),
            });
        }
        let (salt, encrypted) =
            salt_for(point).map_err(|seal::tpm::NoPoint| Error::Nonsense(answer::Malformed::Template))?;
        let ours = fresh_nonce();
        let start = Command::start_session(key, &ours, &encrypted);
        let reply = self.plain("to start a session", &start, true)?;
        let nonce = self.understand(answer::session_nonce(&reply.parameters).map(<[u8]>::to_vec))?;
        let handle = reply.handle.ok_or(Error::Nonsense(answer::Malformed::Short))?;
        Ok(Session { handle, key: salt.into_session(&nonce, &ours), nonce, has_worked: false })
    }

    /// Makes the endorsement key: its handle and its point.
    fn create_key(&mut self) -> Result<(u32, [[u8; 32]; 2]), Error> {
        let doing = "to make its endorsement key";
        let bytes = Command::create_endorsement_key().encode(Some(&empty_password()));
        let reply = self.ready(doing, &bytes, true, true)?;
        let handle = reply.handle.ok_or(Error::Nonsense(answer::Malformed::Short))?;
        Ok((handle, self.understand(answer::endorsement_point(&reply.parameters))?))
    }

    fn flush(&mut self, handle: u32) -> Result<(), Error> {
        self.plain("to forget a session or key", &Command::flush(handle), false).map(drop)
    }

    fn plain(&mut self, doing: &'static str, command: &Command, has_handle: bool) -> Result<Reply, Error> {
        self.ready(doing, &command.encode(None), has_handle, false)
    }

    /// Sends a command to a TPM that may first have to be started, or to be given room.
    fn ready(
        &mut self,
        doing: &'static str,
        bytes: &[u8],
        has_handle: bool,
        has_session: bool,
    ) -> Result<Reply, Error> {
        let first = self.once(doing, bytes, has_handle, has_session);
        match first {
            Err(error) if error.means(Meaning::NotStarted) && !self.place.is_managed() => {
                self.once("to start", &Command::startup().encode(None), false, false)?;
            }
            Err(error) if error.means(Meaning::Memory) && !self.place.is_managed() => {
                self.make_room(LOADED_SESSIONS)?;
                // Only to make the key is there a session here; later it is itself among what would be flushed.
                if has_session {
                    self.make_room(TRANSIENT)?;
                }
            }
            other => return other,
        }
        self.once(doing, bytes, has_handle, has_session)
    }

    /// Flushes what others have loaded. Only for a TPM without resource manager: there is one client at a time, and it is this one.
    fn make_room(&mut self, first: u32) -> Result<(), Error> {
        let doing = "to list what is loaded";
        let reply = self.once(doing, &Command::get_handles(first).encode(None), false, false)?;
        for handle in self.understand(answer::handles(&reply.parameters))? {
            // The list goes on into the next kind of handle.
            if handle >> 24 == first >> 24 {
                self.once("to make room", &Command::flush(handle).encode(None), false, false)?;
            }
        }
        Ok(())
    }

    fn once(
        &mut self,
        doing: &'static str,
        bytes: &[u8],
        has_handle: bool,
        has_session: bool,
    ) -> Result<Reply, Error> {
        let bytes = self.send(doing, bytes)?;
        match self.understand(answer::read(&bytes, has_handle, has_session))? {
            Ok(answer) => Ok(Reply { handle: answer.handle, parameters: answer.parameters.to_vec() }),
            Err(code) => Err(Error::Refused { doing, code }),
        }
    }

    /// Sends a command, again while the TPM puts it off, and returns the last answer.
    fn send(&mut self, doing: &'static str, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        for attempt in 0.. {
            let transport = match &mut self.transport {
                Some(transport) => transport,
                None => self.transport.insert(transport::open(&self.place)?),
            };
            let answer = match transport.transact(bytes) {
                Ok(answer) => answer,
                Err(error) => {
                    self.transport = None;
                    return Err(error);
                }
            };
            let put_off = matches!(answer::read(&answer, false, false),
                Ok(Err(code)) if code.meaning() == Meaning::Later);
            if !put_off {
                return Ok(answer);
            }
            if attempt == PUT_OFF {
                return Err(Error::Refused { doing, code: ResponseCode(0x922) });
            }
            thread::sleep(PAUSE * 2_u32.pow(attempt));
        }
        unreachable!("the loop has no end")
    }

    /// After nonsense nothing that follows on this connection can be trusted to be an answer to the next command.
    fn understand<T>(&mut self, read: Result<T, answer::Malformed>) -> Result<T, Error> {
        read.map_err(|malformed| {
            self.transport = None;
            Error::Nonsense(malformed)
        })
    }

    fn abandon(&mut self, handle: u32) {
        self.session = None;
        self.abandoned = Some(handle);
        self.transport = None;
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        // With a resource manager they end with the file.
        if self.place.is_managed() {
            return;
        }
        let left = [self.session.take().map(|session| session.handle), self.abandoned.take()];
        for handle in left.into_iter().flatten() {
            let _ = self.flush(handle);
        }
    }
}

fn fresh_nonce() -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    SystemRandom.fill(&mut nonce);
    nonce
}
