//! The NBD server, and clients that do not behave.

use crate::client::{Client, ask, greet};
use crate::conformance::ByNbd;
use export::Error;
use export::nbd::wire::{Ask, Command, Flags, Request};
use export::nbd::{Listen, MAX_CLIENTS, Options, Peer, Server, Tls};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const MIB: u32 = 1 << 20;

fn usize_of(length: u32) -> usize {
    usize::try_from(length).unwrap()
}

#[test]
fn what_is_offered_is_told() {
    let shown = ByNbd::new(true);
    let mut stream = greet(&shown.socket());
    assert_eq!(ask(&mut stream, &Ask::List), [(2, b"\0\0\0\x06volume".to_vec()), (1, vec![])]);
    assert_eq!(ask(&mut stream, &Ask::Unknown(99))[0].0, 1 << 31 | 1);
    assert_eq!(ask(&mut stream, &Ask::StartTls)[0].0, 1 << 31 | 2, "there is no TLS here");
    let info = |name: &str| Ask::Info { go: false, name: name.into(), wanted: vec![1] };
    assert_eq!(ask(&mut stream, &info("other"))[0].0, 1 << 31 | 6);
    let size = [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 0, 0x40, 0, 0];
    let answers = ask(&mut stream, &info("volume"));
    assert!(answers.contains(&(3, size.to_vec())), "{answers:?}");
    assert!(answers.contains(&(3, b"\0\x01volume".to_vec())), "{answers:?}");
    let contexts =
        |set, query: &str| Ask::MetaContexts { set, name: String::new(), queries: vec![query.into()] };
    assert_eq!(
        ask(&mut stream, &contexts(true, "base:allocation"))[0].0,
        1 << 31 | 3,
        "not before structured replies"
    );
    ask(&mut stream, &Ask::StructuredReplies);
    assert_eq!(ask(&mut stream, &contexts(false, "base:"))[0], (4, b"\0\0\0\0base:allocation".to_vec()));
    assert_eq!(ask(&mut stream, &contexts(true, "other:")), [(1, vec![])]);
    assert_eq!(ask(&mut stream, &Ask::Abort), [(1, vec![])]);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    let mode = shown.socket().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn the_old_way_to_choose_an_export_works_too() {
    let shown = ByNbd::new(false);
    let mut stream = greet(&shown.socket());
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..8], (8_u64 << 20).to_be_bytes());
    stream
        .write_all(
            &Request { flags: Flags::default(), command: Command::Flush, cookie: 5, offset: 0, length: 0 }
                .encode(),
        )
        .unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[4..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
    // No export of that name: there is no other way to say so.
    let mut stream = greet(&shown.socket());
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x01x").unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn requests_are_in_flight_together_and_replied_to_in_any_order() {
    let shown = ByNbd::new(true);
    let mut client = Client::connect(&shown.socket(), true);
    assert_eq!(client.size, 8 << 20);
    shown.device.gather(32);
    let sent: Vec<u64> = (0..32_u8)
        .map(|number| {
            client.send(Command::Write, Flags::default(), u64::from(number) * 4096, 4096, &[number; 4096])
        })
        .collect();
    let mut replied: Vec<u64> = sent
        .iter()
        .map(|_| client.receive(0))
        .map(|reply| {
            assert_eq!(reply.error, 0);
            reply.cookie
        })
        .collect();
    assert_eq!(shown.device.counts().most_in_flight, 32);
    assert_ne!(replied, sent, "the device takes the newest first");
    replied.sort_unstable();
    assert_eq!(replied, sent);
}

#[test]
fn requests_that_make_no_sense_are_refused_and_the_next_one_is_served() {
    let shown = ByNbd::new(true);
    let mut client = Client::connect(&shown.socket(), true);
    let (none, end) = (Flags::default(), 8_u64 << 20);
    let (sent, large, huge) = ([0; 512], vec![0; 5 << 20], vec![0; 33 << 20]);
    for (command, flags, offset, length, data, error) in [
        (Command::Read, none, 0, 0, &[][..], 22),
        (Command::Read, none, end - 1, 2, &[], 22),
        (Command::Read, none, u64::MAX, 2, &[], 22),
        (Command::Read, none, 0, 4 * MIB + 1, &[], 22),
        (Command::Read, Flags::NO_HOLE, 0, 512, &[], 22),
        (Command::Write, none, end, 512, &sent, 28),
        // More than may be at once: its data is passed over, and the connection goes on.
        (Command::Write, none, 0, 5 * MIB, &large, 22),
        (Command::Write, none, 0, 33 * MIB, &huge, 22),
        (Command::Read, none, 0, 33 * MIB, &[], 22),
        (Command::Write, Flags(1 << 9), 0, 512, &sent, 22),
        (Command::Trim, none, end, 512, &[], 22),
        (Command::WriteZeroes, none, end, 512, &[], 28),
        (Command::WriteZeroes, Flags(Flags::FAST_ZERO.0 | Flags::NO_HOLE.0), 0, 512, &[], 95),
        (Command::BlockStatus, none, end, 512, &[], 22),
        (Command::Unknown(5), none, 0, 512, &[], 22),
    ] {
        assert_eq!(
            client.call(command, flags, offset, length, data),
            Err(error),
            "{command:?} {flags:?} {offset} {length}"
        );
    }
    assert_eq!(client.write(0, &[1; 512]), Ok(vec![]));
    assert_eq!(client.read(511, 2), Ok(vec![1, 0]));
    let mut plain = Client::connect(&shown.socket(), false);
    assert_eq!(plain.call(Command::BlockStatus, none, 0, 512, &[]), Err(22), "it was not agreed upon");
    assert_eq!(shown.device.counts().wrong, [""; 0]);
}

#[test]
fn block_status_tells_what_is_allocated() {
    let shown = ByNbd::new(true);
    let mut client = Client::connect(&shown.socket(), true);
    client.write(8192, &[1; 4096]).unwrap();
    client.call(Command::WriteZeroes, Flags::NO_HOLE, 65_536, 8192, &[]).unwrap();
    client.call(Command::WriteZeroes, Flags::default(), 69_632, 4096, &[]).unwrap();
    let mut status = |flags, offset, length| {
        let data = client.call(Command::BlockStatus, flags, offset, length, &[]).unwrap();
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        data.chunks_exact(8).fold(Vec::<(u32, u32)>::new(), |mut all, one| {
            match all.last_mut() {
                Some(last) if last.1 == number(&one[4..]) => last.0 += number(&one[..4]),
                _ => all.push((number(&one[..4]), number(&one[4..]))),
            }
            all
        })
    };
    let all = status(Flags::default(), 0, 100_000);
    assert_eq!(all, [(8192, 3), (4096, 0), (53_248, 3), (4096, 0), (30_368, 3)]);
    assert_eq!(status(Flags::default(), 9000, 10), [(10, 0)]);
    assert_eq!(status(Flags::ONE_EXTENT, 12_000, 8192), [(288, 0)]);
}

#[test]
fn who_sends_garbage_loses_this_connection_and_no_other() {
    let shown = ByNbd::new(true);
    let mut good = Client::connect(&shown.socket(), true);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], b"IHAVEOPT\0\0\0\x03\xff\xff\xff\xff"] {
        let mut stream = greet(&shown.socket());
        // It may hang up while we still talk.
        let _ = stream.write_all(garbage);
        assert!(!matches!(stream.read(&mut [0; 64]), Ok(1..)), "{garbage:?}");
        let mut bad = Client::connect(&shown.socket(), true);
        let _ = bad.stream.write_all(&[garbage, &[0; 28]].concat());
        assert!(bad.is_cut(), "{garbage:?}");
        assert_eq!(good.read(0, 512), Ok(vec![0; 512]));
    }
}

#[test]
fn half_a_write_is_not_acknowledged() {
    let shown = ByNbd::new(true);
    for length in [512, 2 * MIB].repeat(10) {
        let mut client = Client::connect(&shown.socket(), true);
        client.send(Command::Write, Flags::default(), 0, length, &vec![1; usize_of(length) - 1]);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut head = [0; 16];
        let replied = client.stream.read_exact(&mut head).is_ok();
        assert!(!replied || head[4..8] == [0, 0, 0, 5], "{head:?}");
    }
    wait_for("both to be gone", || shown.server.close().is_ok());
}

#[test]
fn who_never_reads_replies_holds_up_nobody_else() {
    let shown = ByNbd::new(true);
    // More of them than the common pool has room for, each with more unread replies than it may have.
    let silent: Vec<_> = (0..6)
        .map(|_| {
            let mut client = Client::connect(&shown.socket(), true);
            client.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            let read = Request {
                flags: Flags::default(),
                command: Command::Read,
                cookie: 1,
                offset: 0,
                length: 4 * MIB,
            };
            while client.stream.write_all(&read.encode()).is_ok() && shown.device.counts().reads < 1000 {
                if shown.device.counts().in_flight == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            client
        })
        .collect();
    let mut good = Client::connect(&shown.socket(), true);
    for _ in 0..20 {
        assert_eq!(good.read(0, 4 * MIB).unwrap().len(), usize_of(4 * MIB));
        good.write(0, &[1; 4096]).unwrap();
    }
    drop((silent, good));
    wait_for("all of them to be gone", || shown.server.close().is_ok());
    assert_eq!(shown.device.counts().in_flight, 0);
}

#[test]
fn there_is_a_limit_to_the_number_of_clients() {
    let shown = ByNbd::new(true);
    let mut clients: Vec<_> = (0..MAX_CLIENTS).map(|_| Client::connect(&shown.socket(), true)).collect();
    let mut late = std::os::unix::net::UnixStream::connect(shown.socket()).unwrap();
    assert!(!matches!(late.read(&mut [0; 18]), Ok(1..)), "there is no room");
    clients.pop();
    wait_for("the place to be free", || {
        let mut stream = std::os::unix::net::UnixStream::connect(shown.socket()).unwrap();
        matches!(stream.read(&mut [0; 18]), Ok(1..))
    });
    assert_eq!(clients[0].read(0, 1), Ok(vec![0]));
}

#[test]
fn in_use_is_who_uses_it_and_not_who_only_asks() {
    let shown = ByNbd::new(true);
    let mut asks = greet(&shown.socket());
    let uses = Client::connect(&shown.socket(), true);
    wait_for("the client to be noticed", || {
        shown.server.close() == Err(vec![Peer::Process(std::process::id())])
    });
    drop(uses);
    wait_for("the client to be gone", || shown.server.close().is_ok());
    assert_eq!(asks.read(&mut [0]).unwrap(), 0);
    assert!(!shown.socket().exists());
    assert!(std::os::unix::net::UnixStream::connect(shown.socket()).is_err());
}

/// Or whoever disconnects and then puts the volume away would be told that he is connected.
#[test]
fn who_was_hung_up_on_is_not_connected_any_more() {
    for round in 0..100 {
        let shown = ByNbd::new(true);
        let mut client = Client::connect(&shown.socket(), round % 2 == 0);
        client.write(0, &[1; 4096]).unwrap();
        client.send(Command::Disconnect, Flags::default(), 0, 0, &[]);
        assert!(client.is_cut());
        assert_eq!(shown.server.close(), Ok(()), "round {round}");
    }
}

#[test]
fn dropping_the_server_hangs_up_on_everybody() {
    let ByNbd { server, device, directory, .. } = ByNbd::new(true);
    let mut client = Client::connect(&directory.path().join("nbd"), true);
    drop(server);
    assert!(client.is_cut());
    wait_for("the device to be let go of", || Arc::strong_count(&device) == 1);
}

#[test]
fn a_device_that_forgets_a_request_or_ends_is_an_error_to_the_client() {
    struct Forgetful;
    impl export::Device for Forgetful {
        fn size(&self) -> u64 {
            1 << 20
        }
        fn submit(&self, request: export::Request, done: export::Done) {
            if request == export::Request::Flush {
                done(Err(rustix::io::Errno::SHUTDOWN));
            }
        }
        fn allocated(&self, _: u64, _: u64, _: export::Found) {}
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd");
    let options =
        Options { name: "x".into(), listen: Listen::Unix(socket.clone()), tls: None, read_only: true };
    let _server = Server::start(Arc::new(Forgetful), &options).unwrap();
    for structured in [false, true] {
        let mut client = Client::connect(&socket, structured);
        assert_eq!(client.read(0, 4096), Err(5));
        assert_eq!(client.call(Command::Flush, Flags::default(), 0, 0, &[]), Err(108));
        let status = client.call(Command::BlockStatus, Flags::default(), 0, 4096, &[]);
        assert_eq!(status, Err(if structured { 5 } else { 22 }));
        assert_eq!(client.write(0, &[1; 512]), Err(1), "it is read only");
        assert_eq!(client.flags & 2, 2);
    }
}

#[test]
fn the_network_is_refused_without_certificates_for_both_sides() {
    let one_sided = Tls { certificate: "c".into(), key: "k".into(), clients: None };
    for (address, tls) in [("0.0.0.0:0", None), ("[::]:0", None), ("192.0.2.1:10809", Some(one_sided))] {
        let options = Options {
            name: "x".into(),
            listen: Listen::Tcp(address.parse().unwrap()),
            tls,
            read_only: false,
        };
        let refused = options.check().unwrap_err();
        assert!(
            matches!(&refused, Error::Exposed(_))
                && refused.to_string().contains("certificates for both sides"),
            "{refused}"
        );
    }
    let listen = Listen::Tcp("127.0.0.1:0".parse().unwrap());
    let options = Options { name: "x".into(), listen, tls: None, read_only: false };
    let server = Server::start(crate::common::Memory::new(4096), &options).unwrap();
    let port: u16 = server.uri().strip_prefix("nbd://127.0.0.1:").unwrap().parse().unwrap();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
}
