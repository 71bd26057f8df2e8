//! A client of NBD that does what it is told, also what no client should.

use export::nbd::wire::{Ask, Command, Flags, OptionHeader, Request};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A client that uses the export.
pub struct Client {
    pub stream: UnixStream,
    structured: bool,
    next: u64,
    pub flags: u16,
    pub size: u64,
}

/// A reply: to which request, the protocol's error, and the data of a read or the descriptors of block status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + N].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Connects, and says which flags it knows.
pub fn greet(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
    stream.write_all(&3_u32.to_be_bytes()).unwrap();
    stream
}

/// Asks, and returns the answers: their types and data.
pub fn ask(stream: &mut UnixStream, ask: &Ask) -> Vec<(u32, Vec<u8>)> {
    let data = ask.encode();
    let header = OptionHeader { code: ask.code(), length: u32::try_from(data.len()).unwrap() };
    stream.write_all(&[header.encode(), data].concat()).unwrap();
    let mut answers = Vec::new();
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(
            (number::<8>(&head, 0), number::<4>(&head, 8)),
            (0x0003_e889_0455_65a9, ask.code().into())
        );
        let mut data = vec![0; usize::try_from(number::<4>(&head, 16)).unwrap()];
        stream.read_exact(&mut data).unwrap();
        let kind = u32::try_from(number::<4>(&head, 12)).unwrap();
        answers.push((kind, data));
        if kind == 1 || kind >= 1 << 31 {
            return answers;
        }
    }
}

impl Client {
    /// A client with structured replies and block status, or with neither.
    pub fn connect(socket: &Path, structured: bool) -> Client {
        let mut stream = greet(socket);
        if structured {
            assert_eq!(ask(&mut stream, &Ask::StructuredReplies), [(1, vec![])]);
            let query = vec!["base:allocation".to_string()];
            let answers =
                ask(&mut stream, &Ask::MetaContexts { set: true, name: String::new(), queries: query });
            assert_eq!(answers[0].1[4..], *b"base:allocation");
        }
        let answers = ask(&mut stream, &Ask::Info { go: true, name: String::new(), wanted: vec![3] });
        let (_, export) = answers.iter().find(|(kind, data)| *kind == 3 && data[..2] == [0, 0]).unwrap();
        let (size, flags) = (number::<8>(export, 2), u16::try_from(number::<2>(export, 10)).unwrap());
        Client { stream, structured, next: 1, flags, size }
    }

    /// Sends a request without waiting; its cookie.
    pub fn send(&mut self, command: Command, flags: Flags, offset: u64, length: u32, data: &[u8]) -> u64 {
        let cookie = self.next;
        self.next += 1;
        let request = Request { flags, command, cookie, offset, length };
        self.stream.write_all(&[&request.encode(), data].concat()).unwrap();
        cookie
    }

    /// The next reply. `reads`: the length of the request's data, if it is a read, which only a simple reply needs to be told.
    pub fn receive(&mut self, reads: u32) -> Reply {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).unwrap();
        match number::<4>(&head, 0) {
            0x6744_6698 => {
                let error = u32::try_from(number::<4>(&head, 4)).unwrap();
                let mut data = vec![0; if error == 0 { usize::try_from(reads).unwrap() } else { 0 }];
                self.stream.read_exact(&mut data).unwrap();
                Reply { cookie: number::<8>(&head, 8), error, data }
            }
            0x668e_33ef => {
                assert!(self.structured);
                let mut length = [0; 4];
                self.stream.read_exact(&mut length).unwrap();
                let mut data = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
                self.stream.read_exact(&mut data).unwrap();
                let cookie = number::<8>(&head, 8);
                assert_eq!(number::<2>(&head, 4), 1, "one chunk is all");
                match number::<2>(&head, 6) {
                    1 => Reply { cookie, error: 0, data: data.split_off(8) },
                    5 => Reply { cookie, error: 0, data: data.split_off(4) },
                    0x8001 => {
                        Reply { cookie, error: u32::try_from(number::<4>(&data, 0)).unwrap(), data: vec![] }
                    }
                    other => panic!("a chunk of type {other}"),
                }
            }
            other => panic!("no reply: {other:x}"),
        }
    }

    /// Sends a request and waits for its reply: the data, or the protocol's error.
    pub fn call(
        &mut self,
        command: Command,
        flags: Flags,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> Result<Vec<u8>, u32> {
        let cookie = self.send(command, flags, offset, length, data);
        let reply = self.receive(if command == Command::Read { length } else { 0 });
        assert_eq!(reply.cookie, cookie);
        if reply.error == 0 { Ok(reply.data) } else { Err(reply.error) }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<Vec<u8>, u32> {
        self.call(Command::Write, Flags::default(), offset, u32::try_from(data.len()).unwrap(), data)
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        self.call(Command::Read, Flags::default(), offset, length, &[])
    }

    /// Whether the server has hung up.
    pub fn is_cut(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }
}
