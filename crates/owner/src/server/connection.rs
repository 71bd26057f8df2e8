//! One client's connection, from the TLS handshake to its end.

use super::Shared;
use super::seats::Seat;
use crate::keeper::{Job, Origin};
use crate::tls::client_of;
use anchor_owner::timed::Timed;
use anchor_owner::wire::{Answer, MESSAGE_SIZE, Outcome, PROTOCOL, Position, Refusal, Request, Text};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// After a refusal, for the peer to read what was said: a connection that is closed with unread bytes in it takes its last words with it.
const LINGER: Duration = Duration::from_secs(1);

type Stream = StreamOwned<ServerConnection, Timed>;

/// Serves one connection to its end.
pub(super) fn serve(
    stream: TcpStream,
    config: &Arc<ServerConfig>,
    shared: &Shared,
    number: u64,
    stranger: Seat<()>,
) {
    let peer = stream.peer_addr().ok();
    let Ok(timed) = Timed::new(stream, shared.limits.handshake) else { return };
    let Some(mut stream) = handshake(timed, config, shared, peer) else { return };
    let shown = stream.conn.peer_certificates().and_then(|chain| chain.first());
    let client = shown.and_then(|certificate| Some((client_of(certificate).ok()?, certificate)));
    let Some((client, certificate)) = client else { return };
    if let Some(line) = shared.ending.note(client, certificate) {
        (shared.report)(&line);
    }
    drop(stranger);
    let Some(_seat) = shared.clients.take(client) else {
        (shared.report)(&format!("refused {}: too many connections", name_of(peer)));
        return;
    };
    // An error here is the peer's going away, or its being too slow: the connection ends, and nothing else.
    let _ = converse(&mut stream, shared, Origin { client, connection: number });
    stream.conn.send_close_notify();
    stream.sock.allow(LINGER);
    let _ = stream.flush();
    linger(&mut stream.sock);
}

fn name_of(peer: Option<SocketAddr>) -> String {
    peer.map_or_else(|| "a client".into(), |peer| peer.to_string())
}

fn handshake(
    mut socket: Timed,
    config: &Arc<ServerConfig>,
    shared: &Shared,
    peer: Option<SocketAddr>,
) -> Option<Stream> {
    let mut session = ServerConnection::new(Arc::clone(config)).ok()?;
    while session.is_handshaking() {
        if let Err(error) = session.complete_io(&mut socket) {
            (shared.report)(&format!("no secure connection with {}: {error}", name_of(peer)));
            socket.allow(LINGER);
            linger(&mut socket);
            return None;
        }
    }
    if session.alpn_protocol() != Some(PROTOCOL) {
        (shared.report)(&format!("{} speaks TLS, but not this protocol", name_of(peer)));
        return None;
    }
    Some(StreamOwned::new(session, socket))
}

/// Waits until the peer has closed, at most until the deadline.
fn linger(socket: &mut Timed) {
    socket.end_writing();
    let mut rest = [0; 512];
    while socket.read(&mut rest).is_ok_and(|count| count > 0) {}
}

/// Requests and answers, one after the other.
fn converse(stream: &mut Stream, shared: &Shared, origin: Origin) -> io::Result<()> {
    loop {
        let Some(bytes) = next_message(stream, shared)? else { return Ok(()) };
        let (nonce, outcome, position) = match Request::decode(&bytes) {
            Ok(request) => {
                let nonce = request.nonce;
                let (outcome, position) = ask(shared, origin, request);
                (nonce, outcome, position)
            }
            Err(error) => {
                let _ = shared.jobs.try_send(Job::Unreadable(origin));
                let outcome = Outcome::Refused(Refusal::BadRequest, Text::new(&error.to_string()));
                ([0; 32], outcome, current(shared))
            }
        };
        let ends = matches!(outcome, Outcome::Refused(..));
        stream.sock.allow(shared.limits.message);
        stream.write_all(&Answer { nonce, position, outcome }.encode())?;
        stream.flush()?;
        // A client that was refused has to connect anew, so that being refused costs it more than it costs the service.
        if ends {
            return Ok(());
        }
    }
}

/// The next message; `None` if the client has ended the connection.
fn next_message(stream: &mut Stream, shared: &Shared) -> io::Result<Option<[u8; MESSAGE_SIZE]>> {
    let mut bytes = [0; MESSAGE_SIZE];
    stream.sock.allow(shared.limits.idle);
    let begun = stream.read(&mut bytes)?;
    if begun == 0 {
        return Ok(None);
    }
    stream.sock.allow(shared.limits.message);
    stream.read_exact(&mut bytes[begun..])?;
    Ok(Some(bytes))
}

fn current(shared: &Shared) -> Position {
    *shared.position.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ask(shared: &Shared, origin: Origin, request: Request) -> (Outcome, Position) {
    let unavailable = |why: &str| (Outcome::Unavailable(Text::new(why)), current(shared));
    let (sender, receiver) = sync_channel(1);
    match shared.jobs.try_send(Job::Ask(origin, request, sender)) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => return unavailable("too many requests are waiting"),
        Err(TrySendError::Disconnected(_)) => return unavailable("the service is ending"),
    }
    match receiver.recv_timeout(shared.limits.answer) {
        Ok(answer) => answer,
        Err(RecvTimeoutError::Timeout) => unavailable("the service's own anchor or its disk does not answer"),
        Err(RecvTimeoutError::Disconnected) => unavailable("the service is ending"),
    }
}
