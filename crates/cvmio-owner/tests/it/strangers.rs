//! Clients that misbehave: they are cut off, and others do not notice.

use crate::room::{Room, stamp};
use anchor_owner::Files;
use anchor_owner::wire::{Answer, MESSAGE_SIZE, Outcome, PROTOCOL, Refusal};
use owner::{Limits, Service, Setup};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Short limits, so that the tests do not wait for the real ones.
const LIMITS: Limits = Limits {
    handshakes: 8,
    connections: 12,
    each: 4,
    handshake: Duration::from_millis(1500),
    message: Duration::from_millis(500),
    idle: Duration::from_secs(3),
    answer: Duration::from_secs(10),
};

/// The service of a room, within this process.
fn serve(room: &Room) -> Service {
    let tls = room.path("state/tls");
    Service::start(Setup {
        directory: room.path("state"),
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: owner::Files {
            certificate: tls.join("server.pem"),
            key: tls.join("server.key"),
            clients: tls.join("authority.pem"),
        },
        own: None,
        limits: LIMITS,
        report: Arc::new(|_| {}),
    })
    .unwrap()
}

type Raw = StreamOwned<ClientConnection, TcpStream>;

/// A connection with a client's certificate, to send what a good client never sends.
fn raw(service: &Service, files: &Files) -> Raw {
    let mut config = ClientConfig::builder_with_provider(tls_files::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(tls_files::authorities(&files.authority).unwrap())
        .with_client_auth_cert(
            tls_files::certificates(&files.certificate).unwrap(),
            tls_files::private_key(&files.key).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    let stream = TcpStream::connect(service.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let session = ClientConnection::new(Arc::new(config), "127.0.0.1".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, stream);
    stream.flush().unwrap();
    stream
}

/// How long the service keeps this connection.
fn kept(stream: &mut impl Read) -> Duration {
    let begun = Instant::now();
    let mut rest = [0; 1024];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return begun.elapsed(),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                panic!("the service keeps the connection for ever")
            }
            Err(_) => return begun.elapsed(),
        }
    }
}

#[test]
fn strangers_are_cut_off_and_clients_go_on() {
    let room = Room::new();
    room.volume("ledger", &["guest"]);
    let service = serve(&room);
    let address = format!("{}/ledger", service.address());
    let mut client = room.client_at(&address, room.files("guest"));
    client.compare_and_swap(None, &stamp(1, 0)).unwrap();

    // Twice as many as there are seats: they say nothing, or something else, or a byte now and then.
    let mut strangers: Vec<TcpStream> = (0..16_u8)
        .map(|number| {
            let mut stream = TcpStream::connect(service.address()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            match number % 4 {
                0 => {}
                1 => stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap(),
                2 => stream.write_all(&[0x16, 3, 1, 2, 0, 1]).unwrap(),
                _ => stream.write_all(&[0xff; 4096]).unwrap(),
            }
            stream
        })
        .collect();
    let slow = strangers.iter().find_map(|stream| stream.try_clone().ok()).unwrap();
    let dripping = std::thread::spawn(move || {
        let mut slow = slow;
        // A time-out that began anew with each byte would never end this.
        while slow.write_all(&[0x16]).is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    for generation in 1..20 {
        client.compare_and_swap(Some(&stamp(1, generation - 1)), &stamp(1, generation)).unwrap();
    }
    strangers.iter_mut().for_each(|stream| {
        kept(stream);
    });
    dripping.join().unwrap();
    // Their seats are free again.
    let mut late = room.client_at(&address, room.files("guest"));
    assert_eq!(late.ask_stamp().unwrap().as_deref(), Some(&stamp(1, 19)));
    service.stop().unwrap();
}

#[test]
fn a_client_that_sends_nonsense_is_told_so_and_logged() {
    let room = Room::new();
    room.volume("ledger", &["guest"]);
    let service = serve(&room);
    let mut stream = raw(&service, &room.files("guest"));
    stream.write_all(&[b'x'; MESSAGE_SIZE]).unwrap();
    let mut bytes = [0; MESSAGE_SIZE];
    stream.read_exact(&mut bytes).unwrap();
    let answer = Answer::decode(&bytes).unwrap();
    assert!(matches!(answer.outcome, Outcome::Refused(Refusal::BadRequest, _)), "{answer:?}");
    // And hung up on.
    assert!(kept(&mut stream) < LIMITS.idle);
    let log = room.done("audit show", &[]);
    assert!(log.contains("refused - client") && log.contains("reason BadRequest"), "{log}");
    service.stop().unwrap();
}

#[test]
fn slow_and_idle_clients_are_cut_off_in_time() {
    let room = Room::new();
    room.volume("ledger", &["guest"]);
    let service = serve(&room);
    // Half a message, and then a byte now and then, each in a record of its own.
    let mut slow = raw(&service, &room.files("guest"));
    let begun = Instant::now();
    while slow.write_all(b"c").and_then(|()| slow.flush()).is_ok() {
        std::thread::sleep(Duration::from_millis(50));
        assert!(begun.elapsed() < Duration::from_secs(20), "the service waits for ever");
    }
    let mut idle = raw(&service, &room.files("guest"));
    assert!(kept(&mut idle) >= LIMITS.idle - Duration::from_millis(500));
    service.stop().unwrap();
}

#[test]
fn one_client_can_not_take_all_connections() {
    let room = Room::new();
    room.volume("ledger", &["greedy", "guest"]);
    let service = serve(&room);
    let address = format!("{}/ledger", service.address());
    let mut greedy: Vec<_> =
        (0..LIMITS.each).map(|_| room.client_at(&address, room.files("greedy"))).collect();
    for client in &mut greedy {
        client.ask_stamp().unwrap();
    }
    assert!(
        room.client_at(&address, room.files("greedy")).ask_stamp().is_err(),
        "one more than each may have"
    );
    let mut guest = room.client_at(&address, room.files("guest"));
    assert_eq!(guest.ask_stamp().unwrap(), None);
    drop(greedy);
    service.stop().unwrap();
}
