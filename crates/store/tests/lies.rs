//! A host that lies on a virtqueue that we drive: each request ends within its deadline, with an error for each lie, and nothing else happens.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use memory::{Access, FileMapping};
use store::{Completion, ErrorKind, Operation, Queue, RingOptions, RingStore, Store};

const DEADLINE: Duration = Duration::from_millis(500);
const REGION: usize = 1 << 20;
/// Where the parts of queue 0 lie in the region, and its slots.
const DESCRIPTORS: usize = 0;
const AVAILABLE: usize = 16 << 10;
const USED: usize = 20 << 10;
const SLOTS: usize = 32 << 10;
const STATUS: usize = 16;

/// What a host answers to the messages of vhost-user. It serves nothing.
#[derive(Clone, Copy, Default)]
struct Control {
    is_silent: bool,
    /// Goes away at the message of this number.
    goes_at: Option<u32>,
    sectors: u64,
    lacks_config: bool,
}

fn attend(mut stream: UnixStream, control: Control) -> Option<()> {
    loop {
        let mut header = [0; 12];
        stream.read_exact(&mut header).ok()?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let (request, flags, size) = (word(0), word(4), word(8));
        let mut body = vec![0; size as usize];
        stream.read_exact(&mut body).ok()?;
        if control.is_silent {
            continue;
        }
        if control.goes_at == Some(request) {
            return None;
        }
        let reply = match request {
            1 => Some((1_u64 << 32 | 1 << 30 | 1 << 9 | 1 << 12).to_le_bytes().to_vec()),
            15 => {
                Some((1_u64 | 1 << 3 | if control.lacks_config { 0 } else { 1 << 9 }).to_le_bytes().to_vec())
            }
            17 => Some(1_u64.to_le_bytes().to_vec()),
            24 => {
                body[12..20].copy_from_slice(&control.sectors.to_le_bytes());
                Some(body)
            }
            11 => Some(body),
            _ if flags & 8 != 0 => Some(0_u64.to_le_bytes().to_vec()),
            _ => None,
        };
        if let Some(reply) = reply {
            let mut message = [
                request.to_le_bytes(),
                5_u32.to_le_bytes(),
                u32::try_from(reply.len()).unwrap().to_le_bytes(),
            ]
            .concat();
            message.extend(reply);
            stream.write_all(&message).ok()?;
        }
    }
}

fn connect(control: Control) -> Result<RingStore, store::Error> {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept() {
            attend(stream, control);
        }
    });
    let options = RingOptions { region: REGION, deadline: DEADLINE, queues: 1, ..RingOptions::default() };
    RingStore::connect(&socket, options)
}

const HONEST: Control = Control { is_silent: false, goes_at: None, sectors: 2048, lacks_config: false };

/// The region, as the host sees it: this process has one at a time.
fn region() -> FileMapping {
    let is_it = |path: &Path| {
        std::fs::read_link(path).is_ok_and(|name| name.display().to_string().contains("cvmio-region"))
    };
    let mut files = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let path = files.find(|path| is_it(path)).expect("a store has a region");
    let file = File::options().read(true).write(true).open(path).unwrap();
    FileMapping::untouched(&file, 0, (64 << 10) + REGION, Access::ReadWrite).unwrap()
}

/// Puts an entry into the used ring.
fn say(region: &FileMapping, position: usize, id: u32, length: u32) {
    region.copy_from(USED + 4 + 8 * position, &[id.to_le_bytes(), length.to_le_bytes()].concat());
}

fn status(region: &FileMapping, number: usize, status: u8) {
    region.copy_from(SLOTS + 64 * number + STATUS, &[status]);
}

fn heads(region: &FileMapping) -> [u32; 2] {
    [0, 1].map(|position| u32::from(region.load_u16(AVAILABLE + 4 + 2 * position)))
}

/// A test looks for its region among the files of this process.
static ONE: Mutex<()> = Mutex::new(());

/// What became of two reads at a host that does this. Of each, its error.
fn ends(lie: impl FnOnce(&FileMapping)) -> Vec<Option<String>> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let store = connect(HONEST).unwrap();
    let mut queue = store.queue(4).unwrap();
    let region = region();
    for token in 0..2 {
        let buffer = queue.buffer(1);
        queue.submit(token, Operation::Read { block: token, buffer });
    }
    let mut completions = Vec::new();
    queue.poll(&mut completions);
    assert!(completions.is_empty());
    lie(&region);
    let begun = Instant::now();
    while completions.len() < 2 {
        // Far longer than the deadline: the machine may be busy.
        assert!(begun.elapsed() < Duration::from_secs(60), "a request never ends");
        queue.wait(Some(Duration::from_millis(20)), &mut completions);
    }
    completions.sort_by_key(|completion| completion.token);
    let ended = store.ended();
    let said: Vec<_> = completions.iter().map(said).collect();
    // Once it is over, it is over: whatever the host says now.
    if ended.is_some() {
        region.store_u16(USED + 2, 2);
        let more = refused(&mut *queue);
        assert!(store.queue(1).is_err() && more.is_some_and(|more| more.contains(&ended.unwrap())));
    }
    said
}

fn refused(queue: &mut dyn Queue) -> Option<String> {
    let mut completions = Vec::new();
    queue.submit(9, Operation::Flush);
    queue.poll(&mut completions);
    completions.first().and_then(said)
}

fn said(completion: &Completion) -> Option<String> {
    completion.result.as_ref().err().map(ToString::to_string)
}

/// Both fail, and say this.
fn both(lie: impl FnOnce(&FileMapping), expected: &str) {
    for said in ends(lie) {
        let said = said.expect("a lie is an error");
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn an_honest_answer_counts_whatever_else_the_host_writes() {
    let all = ends(|region| {
        let heads = heads(region);
        // Descriptors and the available ring are written anew, lengths are nonsense, and the answers come in the other order.
        region.copy_from(DESCRIPTORS, &[0xff; 256]);
        region.copy_from(AVAILABLE, &[0xff; 64]);
        say(region, 0, heads[1], u32::MAX);
        say(region, 1, heads[0], 0);
        status(region, 0, 0);
        status(region, 1, 0);
        region.store_u16(USED + 2, 2);
    });
    assert_eq!(all, [None, None]);
}

#[test]
fn each_status_is_that_requests_own() {
    for (of_host, expected) in [
        (1, "the host failed it"),
        (2, "does not know"),
        (0x77, "without saying how"),
        (0xff, "without saying how"),
    ] {
        let all = ends(|region| {
            let heads = heads(region);
            say(region, 0, heads[0], 1);
            say(region, 1, heads[1], 1);
            // The last one is a completion before the data, and before the status.
            status(region, 0, of_host);
            status(region, 1, 0);
            region.store_u16(USED + 2, 2);
        });
        assert!(all[0].as_ref().is_some_and(|said| said.contains(expected)) && all[1].is_none(), "{all:?}");
    }
}

#[test]
fn what_cannot_be_ends_the_session() {
    both(|region| region.store_u16(USED + 2, 3), "the used index moved from 0 to 3");
    both(|region| region.store_u16(USED + 2, u16::MAX), "the used index moved from 0 to 65535");
    both(|region| region.store_u16(USED + 2, 0x8000), "the used index moved from 0 to 32768");
    for id in [1000, 15, 1 << 16, u32::MAX] {
        both(
            |region| {
                say(region, 0, id, 0);
                region.store_u16(USED + 2, 1);
            },
            &format!("id {id} was completed"),
        );
    }
    // A descriptor in the middle of a chain that is in flight.
    both(
        |region| {
            let mut descriptor = [0; 16];
            region.copy_to(DESCRIPTORS + 16 * heads(region)[0] as usize, &mut descriptor);
            say(region, 0, u32::from(u16::from_le_bytes([descriptor[14], descriptor[15]])), 0);
            region.store_u16(USED + 2, 1);
        },
        "is not in flight",
    );
    // One of them twice: the first counts, all else fails.
    let all = ends(|region| {
        let heads = heads(region);
        say(region, 0, heads[0], 0);
        say(region, 1, heads[0], 0);
        status(region, 0, 0);
        region.store_u16(USED + 2, 2);
    });
    assert!(
        all[0].is_none() && all[1].as_ref().is_some_and(|said| said.contains("is not in flight")),
        "{all:?}"
    );
}

#[test]
fn silence_ends_with_the_deadline() {
    both(|_| {}, "the host has not answered a read in 0.5 s");
    // Rings that are reset under the requests.
    both(|region| region.copy_from(0, &[0; 32 << 10]), "has not answered");
    // One is answered and the other is not.
    let all = ends(|region| {
        say(region, 0, heads(region)[1], 0);
        status(region, 1, 0);
        region.store_u16(USED + 2, 1);
    });
    assert!(
        all[1].is_none() && all[0].as_ref().is_some_and(|said| said.contains("has not answered")),
        "{all:?}"
    );
}

#[test]
fn a_server_that_cannot_be_used_is_an_error_in_time() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let refused = |control: Control| connect(control).unwrap_err().to_string();
    let begun = Instant::now();
    let silent = connect(Control { is_silent: true, ..HONEST }).unwrap_err();
    assert!(silent.kind == ErrorKind::InUse && silent.message.contains("not answered in 0.5 s"), "{silent}");
    assert!(begun.elapsed() >= DEADLINE);
    for at in [1, 5, 15, 17, 24] {
        assert!(refused(Control { goes_at: Some(at), ..HONEST }).contains("breaks off"), "{at}");
    }
    assert!(refused(Control { sectors: 7, ..HONEST }).contains("less than one block"));
    assert!(refused(Control { lacks_config: true, ..HONEST }).contains("CONFIG"));
    let error = RingStore::connect(Path::new("/nowhere/at/all"), RingOptions::default()).unwrap_err();
    assert!(error.to_string().contains("does a server listen there?"), "{error}");
}
