//! Replies over a socket whose other end is slow, late or gone.

use super::super::link::Link;
use super::{Outbox, Reply, Writer, outbox};
use crate::budget::{Budget, Limits, Share};
use crate::nbd::link::Socket;
use crate::together::together;
use bytes::Bytes;
use proptest::prelude::*;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// More than a socket takes at a time.
const LARGE: usize = 1 << 20;

fn pair() -> (Arc<Outbox>, Writer, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let socket = Arc::new(Socket::Unix(ours));
    let link = Link::new(Arc::clone(&socket), Instant::now() + Duration::from_secs(60));
    let (outbox, writer) = outbox(socket, link.output);
    (outbox, writer, theirs)
}

fn share() -> Arc<Share> {
    Budget::new(Limits { own: 64 << 20, each: 64 << 20, common: 0 }).share()
}

/// A reply that says who sent it, and how long it is.
fn reply(share: &Arc<Share>, from: u8, length: usize) -> Reply {
    let mut head = vec![from];
    head.extend(u32::try_from(length).unwrap().to_be_bytes());
    let data = [length / 3, length - length / 3].map(|length| vec![from; length]);
    Reply::new(head, data.map(Bytes::from).into(), share.wait(u64::try_from(length).unwrap()))
}

/// The next reply: who sent it, and its length.
fn next(client: &mut impl Read) -> Option<(u8, usize)> {
    let mut head = [0; 5];
    client.read_exact(&mut head).ok()?;
    let length = usize::try_from(u32::from_be_bytes(head[1..].try_into().unwrap())).unwrap();
    let mut data = vec![0; length];
    client.read_exact(&mut data).unwrap();
    assert!(data.iter().all(|byte| *byte == head[0]), "bytes of another reply");
    Some((head[0], length))
}

#[test]
fn small_replies_need_no_thread_of_the_client_and_leave_at_the_end() {
    let (outbox, _writer, mut client) = pair();
    let share = share();
    client.set_nonblocking(true).unwrap();
    together(|| {
        (1..=9).for_each(|from| outbox.post(reply(&share, from, 100)));
        assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    });
    assert_eq!(
        (1..=9).map(|_| next(&mut client).unwrap()).collect::<Vec<_>>(),
        (1..=9).map(|from| (from, 100)).collect::<Vec<_>>()
    );
    outbox.post(reply(&share, 10, 0));
    assert_eq!(next(&mut client), Some((10, 0)));
}

#[test]
fn who_posts_never_waits_for_a_client_that_does_not_read() {
    let (outbox, writer, mut client) = pair();
    let share = share();
    let thread = thread::spawn(move || writer.run());
    together(|| (0..8).for_each(|from| outbox.post(reply(&share, from, LARGE))));
    outbox.post(reply(&share, 8, 1));
    let mut came: Vec<_> = (0..9).map(|_| next(&mut client).unwrap()).collect();
    came.sort_unstable();
    assert_eq!(came, (0..8).map(|from| (from, LARGE)).chain([(8, 1)]).collect::<Vec<_>>());
    // When all is sent, the socket is everybody's again.
    let deadline = Instant::now() + Duration::from_secs(10);
    while outbox.road.lock().behind {
        assert!(Instant::now() < deadline, "the client's thread keeps the socket");
        thread::yield_now();
    }
    drop(outbox);
    thread.join().unwrap();
}

#[test]
fn a_client_that_is_gone_holds_nobody_up() {
    let (outbox, writer, client) = pair();
    let share = share();
    let thread = thread::spawn(move || writer.run());
    drop(client);
    (0..200).for_each(|_| outbox.post(reply(&share, 1, LARGE)));
    drop(outbox);
    thread.join().unwrap();
    drop(share.wait(64 << 20));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Several threads post replies of any size, alone or together, to a client that reads in its own time: each arrives whole, once.
    #[test]
    fn replies_never_mix(sizes in prop::collection::vec(prop::collection::vec(prop_oneof![3 => 0..5000_usize, 1 => 0..LARGE], 1..20), 1..4)) {
        let (outbox, writer, mut client) = pair();
        let share = share();
        let mut expected: Vec<(u8, usize)> =
            (0_u8..).zip(&sizes).flat_map(|(from, sizes)| sizes.iter().map(move |size| (from, *size))).collect();
        let (done, ended) = channel();
        let reader = thread::spawn(move || {
            let mut came = Vec::new();
            while let Some(reply) = next(&mut client) {
                came.push(reply);
                if came.len() % 5 == 0 {
                    thread::yield_now();
                }
            }
            done.send(came).unwrap();
        });
        let writer = thread::spawn(move || writer.run());
        thread::scope(|scope| {
            for (from, sizes) in (0_u8..).zip(&sizes) {
                let (outbox, share) = (&outbox, &share);
                scope.spawn(move || {
                    for few in sizes.chunks(3) {
                        together(|| few.iter().for_each(|size| outbox.post(reply(share, from, *size))));
                    }
                });
            }
        });
        // The socket closes when its last user is gone: the writer first, then the outbox.
        drop(outbox);
        writer.join().unwrap();
        let mut came = ended.recv_timeout(Duration::from_secs(60)).unwrap();
        reader.join().unwrap();
        came.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(came, expected);
    }
}
