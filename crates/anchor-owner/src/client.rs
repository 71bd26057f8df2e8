//! A blocking client. It makes one attempt for each call, and keeps its connection while it is used.

use crate::timed::Timed;
use crate::tls;
use crate::wire::{
    Answer, MESSAGE_SIZE, NONCE_SIZE, Outcome, PROTOCOL, Position, Question, Refusal, Request,
};
use crate::{Address, Error};
use anchor::Stamp;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The PEM files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The authority of the service's certificate.
    pub authority: PathBuf,
    /// The client's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// How long the steps of a call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// To connect to one address of the host, and again for the TLS handshake.
    pub connect: Duration,
    /// From a question to its answer.
    pub answer: Duration,
    /// An older connection is not used again: the service or a firewall may have dropped it.
    pub idle: Duration,
}

impl Default for Times {
    /// The service waits up to 10 s for an anchor of its own before it says that it can't answer.
    fn default() -> Times {
        Times {
            connect: Duration::from_secs(3),
            answer: Duration::from_secs(15),
            idle: Duration::from_secs(30),
        }
    }
}

struct Connection {
    stream: StreamOwned<ClientConnection, Timed>,
    used: Instant,
    /// When the first of the two certificates ends, ours or the service's.
    certificate_until: Option<SystemTime>,
}

/// One volume's stamp at the service.
pub struct Client {
    address: Address,
    server: ServerName<'static>,
    files: Files,
    times: Times,
    connection: Option<Connection>,
    /// When its certificate ends, as of the last connection.
    certificate_until: Option<SystemTime>,
    /// The furthest log that an answer rested on.
    seen: Option<Position>,
    /// A move was sent, and its answer was lost: it may still be on its way.
    unsettled: bool,
}

impl Client {
    /// A client that connects when it is first asked.
    ///
    /// # Errors
    /// Says what is wrong with the host in the address.
    pub fn new(address: Address, files: Files, times: Times) -> Result<Client, String> {
        let server = address.server_name()?;
        Ok(Client {
            address,
            server,
            files,
            times,
            connection: None,
            certificate_until: None,
            seen: None,
            unsettled: false,
        })
    }

    /// Where the service is.
    #[must_use]
    pub fn place(&self) -> &Address {
        &self.address
    }

    /// The furthest log of the service that an answer rested on.
    #[must_use]
    pub fn seen(&self) -> Option<Position> {
        self.seen
    }

    /// When the first of the two certificates of the last connection ends, ours or the service's.
    #[must_use]
    pub fn certificate_until(&self) -> Option<SystemTime> {
        self.certificate_until
    }

    /// The stamp that is held. After a move whose answer was lost this also makes sure that the move can't be done later.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn ask_stamp(&mut self) -> Result<Option<Box<Stamp>>, Error> {
        let settle = self.unsettled;
        match self.ask_again_if_superseded(&Question::Read { settle })? {
            Outcome::Held(held) => {
                self.unsettled = false;
                Ok(held)
            }
            other => Err(self.unexpected(other)),
        }
    }

    /// Replaces `expected` by `new`, durably.
    ///
    /// # Errors
    /// [`Error::Conflict`] with what is held. After [`Error::Lost`] and [`Error::Unavailable`] the move may have been done: read.
    pub fn compare_and_swap(&mut self, expected: Option<&Stamp>, new: &Stamp) -> Result<(), Error> {
        if self.unsettled {
            self.ask_stamp()?;
        }
        let expected = expected.map(|stamp| Box::new(stamp.clone()));
        match self.ask_again_if_superseded(&Question::Move { expected, new: Box::new(new.clone()) })? {
            Outcome::Moved => Ok(()),
            Outcome::Conflict(held) => Err(Error::Conflict(held)),
            other => Err(self.unexpected(other)),
        }
    }

    /// "Superseded" says that nothing was done, since the connection is an old one. A new connection may ask the same.
    fn ask_again_if_superseded(&mut self, question: &Question) -> Result<Outcome, Error> {
        match self.ask(question)? {
            Outcome::Refused(Refusal::Superseded, _) => {
                self.connection = None;
                self.ask(question)
            }
            outcome => Ok(outcome),
        }
    }

    fn unexpected(&mut self, outcome: Outcome) -> Error {
        // What comes after a refusal is the service's to decide; it may hang up.
        self.connection = None;
        let at = self.address.endpoint();
        match outcome {
            Outcome::Refused(refusal, text) => Error::Refused(at, refusal, text),
            Outcome::Unavailable(text) => Error::Unavailable(at, text),
            _ => Error::OtherQuestion(at),
        }
    }

    fn ask(&mut self, question: &Question) -> Result<Outcome, Error> {
        let mut connection = match self.connection.take() {
            Some(kept) if kept.used.elapsed() < self.times.idle => kept,
            _ => self.connect()?,
        };
        self.certificate_until = connection.certificate_until;
        let request =
            Request { nonce: self.nonce()?, name: self.address.name.clone(), question: question.clone() };
        let is_move = matches!(question, Question::Move { .. });
        self.unsettled |= is_move;
        connection.stream.sock.allow(self.times.answer);
        let answer = exchange(&mut connection.stream, &request.encode())
            .map_err(|error| self.broken(error))
            .and_then(|bytes| {
                Answer::decode(&bytes).map_err(|error| Error::Nonsense(self.address.endpoint(), error))
            })?;
        if answer.nonce != request.nonce {
            return Err(Error::OtherQuestion(self.address.endpoint()));
        }
        self.check_position(answer.position)?;
        if is_move && !matches!(answer.outcome, Outcome::Unavailable(_)) {
            self.unsettled = false;
        }
        connection.used = Instant::now();
        self.connection = Some(connection);
        Ok(answer.outcome)
    }

    /// An answer that rests on less of the log than one before comes from a database that was put back.
    fn check_position(&mut self, now: Position) -> Result<(), Error> {
        if let Some(was) = self.seen {
            let goes_on = was.database == now.database
                && (now.number > was.number || (now.number == was.number && now.head == was.head));
            if !goes_on {
                return Err(Error::RolledBack(self.address.endpoint(), Box::new((was, now))));
            }
        }
        self.seen = Some(now);
        Ok(())
    }

    fn nonce(&self) -> Result<[u8; NONCE_SIZE], Error> {
        let mut nonce = [0; NONCE_SIZE];
        tls_files::provider().secure_random.fill(&mut nonce).map_err(|_| Error::Random)?;
        Ok(nonce)
    }

    fn broken(&self, error: io::Error) -> Error {
        match tls::tls_error(&error) {
            Some(tls) => Error::Tls(self.address.endpoint(), tls.clone()),
            // The words of rustls for this are for programmers.
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "the service closed it");
                Error::Lost(self.address.endpoint(), closed)
            }
            None => Error::Lost(self.address.endpoint(), error),
        }
    }

    /// Reads the PEM files anew, so that renewed certificates count from the next connection on.
    fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        let mut config = ClientConfig::builder_with_provider(tls_files::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(Error::Credentials)?
            .with_root_certificates(tls_files::authorities(&self.files.authority)?)
            .with_client_auth_cert(
                tls_files::certificates(&self.files.certificate)?,
                tls_files::private_key(&self.files.key)?,
            )
            .map_err(Error::Credentials)?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Both sides show their certificates at each connection.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    fn connect(&self) -> Result<Connection, Error> {
        let config = self.config()?;
        let at = self.address.endpoint();
        let unreachable = |error| Error::Unreachable(at.clone(), error);
        let socket = reach(&at, self.times.connect).map_err(unreachable)?;
        let mut socket = Timed::new(socket, self.times.connect).map_err(unreachable)?;
        let mut session = ClientConnection::new(config, self.server.clone()).map_err(Error::Credentials)?;
        while session.is_handshaking() {
            session.complete_io(&mut socket).map_err(|error| match tls::tls_error(&error) {
                Some(tls) => Error::Tls(at.clone(), tls.clone()),
                None => Error::Unreachable(at.clone(), error),
            })?;
        }
        if session.alpn_protocol() != Some(PROTOCOL) {
            return Err(Error::NotOwner(at));
        }
        let own = tls_files::certificates(&self.files.certificate)?;
        let theirs = session.peer_certificates().unwrap_or_default();
        let certificate_until = tls_files::until(own.iter().take(1).chain(theirs.iter().take(1)));
        Ok(Connection { stream: StreamOwned::new(session, socket), used: Instant::now(), certificate_until })
    }
}

/// The first address of the host that takes a connection.
fn reach(endpoint: &str, time: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in endpoint.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, time) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn exchange(
    stream: &mut StreamOwned<ClientConnection, Timed>,
    request: &[u8; MESSAGE_SIZE],
) -> io::Result<[u8; MESSAGE_SIZE]> {
    stream.write_all(request)?;
    stream.flush()?;
    let mut answer = [0; MESSAGE_SIZE];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}
