//! All that a client says to an NBD server, handshake and requests, to the server itself.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use export::nbd::{Listen, Options, Server};
use export::{Device, Done, Request};

const SIZE: usize = 64 << 10;
const BLOCK: usize = 4096;
/// Longer than any session; one that stands still is a finding.
const PATIENCE: Duration = Duration::from_secs(60);

/// Threads that panicked, wherever: a server outlives its connections' threads, and nobody would notice.
static PANICS: AtomicU64 = AtomicU64::new(0);
static WATCH: Once = Once::new();

/// A device in memory that notes what nobody may ask of it.
struct Memory {
    bytes: Mutex<Vec<u8>>,
    wrong: AtomicU64,
}

impl Device for Memory {
    fn size(&self) -> u64 {
        SIZE as u64
    }

    fn submit(&self, request: Request, done: Done) {
        let (offset, length) = match &request {
            Request::Read { offset, length } => (*offset, u64::from(*length)),
            Request::Write { offset, data, .. } => (*offset, data.len() as u64),
            Request::Discard { offset, length } | Request::WriteZeroes { offset, length } => {
                (*offset, *length)
            }
            Request::Flush => (0, 0),
        };
        let is_there = offset.checked_add(length).is_some_and(|end| end <= SIZE as u64);
        if !is_there || (offset | length) % BLOCK as u64 != 0 {
            self.wrong.fetch_add(1, Ordering::Relaxed);
            return done(Ok(Vec::new().into()));
        }
        let place = |number: u64| usize::try_from(number).expect("64 bits");
        let range = place(offset)..place(offset + length);
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = Vec::new();
        match request {
            Request::Read { .. } => read.extend_from_slice(&bytes[range]),
            Request::Write { data, .. } => bytes[range].copy_from_slice(&data),
            Request::Discard { .. } | Request::WriteZeroes { .. } => bytes[range].fill(0),
            Request::Flush => {}
        }
        drop(bytes);
        done(Ok(read.into()));
    }
}

/// Any bytes as all that a client sends: the server answers, and hangs up; it asks its device for nothing that is not there, and serves the
/// next one.
pub fn session(bytes: &[u8]) {
    WATCH.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            before(info);
        }));
    });
    let panics = PANICS.load(Ordering::Relaxed);
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("nbd");
    let device = Arc::new(Memory { bytes: Mutex::new(vec![0; SIZE]), wrong: AtomicU64::new(0) });
    let options =
        Options { name: "volume".into(), listen: Listen::Unix(socket.clone()), tls: None, read_only: false };
    let server = Server::start(device.clone(), &options).expect("a server");
    let talk = |bytes: &[u8]| {
        let mut client = UnixStream::connect(&socket).expect("it listens");
        client.set_read_timeout(Some(PATIENCE)).expect("a socket");
        // It may have hung up already.
        let _ = client.write_all(bytes).and_then(|()| client.shutdown(Shutdown::Write));
        let mut said = Vec::new();
        match client.read_to_end(&mut said) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("it does not end: {error}"),
            _ => said,
        }
    };
    let _ = talk(bytes);
    assert!(talk(&[]).starts_with(b"NBDMAGICIHAVEOPT"), "it greets nobody any more");
    drop(server);
    assert_eq!(
        device.wrong.load(Ordering::Relaxed),
        0,
        "requests that reach beyond the device, or parts of blocks"
    );
    assert_eq!(PANICS.load(Ordering::Relaxed), panics, "a thread of the server has panicked");
}
