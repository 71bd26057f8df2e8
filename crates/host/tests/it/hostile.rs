//! Guests and VMMs that break the rules: their disk ends, the server and all others go on.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use host::{DiskSettings, Mode, Server};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserInflight;
use virtqueue::block::Kind;

use crate::guest::{DATA, Disk, ENTRIES, MEMORY, Machine, physical};
use crate::serve::{ERROR, OK, Place, one};

fn descriptor(address: u64, length: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

/// Waits until a disk's service has ended, and says why.
fn ended(server: &Server, index: usize) -> String {
    let begun = Instant::now();
    loop {
        if let Some(reason) = server.status()[index].ended.clone() {
            return reason;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "the server goes on: {:?}",
            server.status()[index]
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn works(socket: &Path) {
    let mut machine = Machine::new(socket, 1);
    machine.start(0, 0);
    assert_eq!(machine.driver(0).ask(Kind::Read, 0, &[(DATA, 4096)]), OK);
}

/// Each is a driver that writes the rings itself, and what the server says to it.
type Attack = (&'static str, fn(&Machine));

fn table(machine: &Machine, index: usize, bytes: &[u8]) {
    machine.memory.copy_from(Machine::places(0)[0] + 16 * index, bytes);
}

/// Makes a head available, and an index.
fn available(machine: &Machine, head: u16, index: u16) {
    let at = Machine::places(0)[1];
    machine.memory.store_u16(at + 4, head);
    machine.memory.store_u16(at + 2, index);
    machine.kicks[0].write(1).unwrap();
}

const ATTACKS: [Attack; 13] = [
    ("its index jumps", |machine| available(machine, 0, ENTRIES + 1)),
    ("its index jumps from 0 to 65535", |machine| available(machine, 0, u16::MAX)),
    ("outside of the queue", |machine| available(machine, ENTRIES, 1)),
    ("again while that is in flight", |machine| {
        // One request in flight for good would need a slow disk; two entries of one head in one step do.
        machine.memory.copy_from(DATA, &virtqueue::block::header(Kind::Read, 0));
        table(machine, 0, &descriptor(physical(DATA), 16, 1, 1));
        table(machine, 1, &descriptor(physical(DATA + 4096), 1 << 20, 3, 2));
        table(machine, 2, &descriptor(physical(DATA + 16), 1, 2, 0));
        available(machine, 0, 2);
    }),
    ("outside of its table", |machine| {
        table(machine, 0, &descriptor(physical(DATA), 16, 1, ENTRIES));
        available(machine, 0, 1);
    }),
    ("more than 1024 parts", |machine| {
        table(machine, 0, &descriptor(physical(DATA), 16, 1, 0));
        available(machine, 0, 1);
    }),
    ("inside of another", |machine| {
        machine.memory.copy_from(DATA, &descriptor(physical(DATA), 16, 4, 0));
        table(machine, 0, &descriptor(physical(DATA), 16, 4, 0));
        available(machine, 0, 1);
    }),
    ("an indirect table of 24 bytes", |machine| {
        table(machine, 0, &descriptor(physical(DATA), 24, 4, 0));
        available(machine, 0, 1);
    }),
    ("around the end of all addresses", |machine| {
        table(machine, 0, &descriptor(u64::MAX, 16, 0, 0));
        available(machine, 0, 1);
    }),
    ("behind something to be written", |machine| {
        table(machine, 0, &descriptor(physical(DATA), 16, 3, 1));
        table(machine, 1, &descriptor(physical(DATA), 16, 0, 0));
        available(machine, 0, 1);
    }),
    ("no memory at 0x10000000000", |machine| {
        table(machine, 0, &descriptor(1 << 40, 16, 1, 1));
        table(machine, 1, &descriptor(physical(DATA), 1, 2, 0));
        available(machine, 0, 1);
    }),
    ("without room for its status", |machine| {
        table(machine, 0, &descriptor(physical(DATA), 16, 0, 0));
        available(machine, 0, 1);
    }),
    ("no memory at 0x10000000000", |machine| {
        table(machine, 0, &descriptor(physical(DATA), 16, 1, 1));
        table(machine, 1, &descriptor(1 << 40, 1, 2, 0));
        available(machine, 0, 1);
    }),
];

#[test]
fn each_attack_of_a_guest_ends_its_disk_and_no_other() {
    let place = Place::new();
    let (bad, good) = (place.disk("bad"), place.disk("good"));
    let server = place.server(&[bad.clone(), good.clone()]);
    let mut other = Machine::new(&good.socket, 1);
    other.start(0, 0);
    let mut disk = other.driver(0);
    for (number, (expected, attack)) in ATTACKS.iter().enumerate() {
        let mut machine = Machine::new(&bad.socket, 1);
        machine.start(0, 0);
        attack(&machine);
        let reason = ended(&server, 0);
        assert!(reason.contains(expected), "{expected}: {reason}");
        assert_eq!(disk.ask(Kind::Write, 0, &[(DATA, 4096)]), OK, "{expected}");
        assert_eq!(server.status()[0].counters.breaches, number as u64 + 1, "{expected}");
        // A reset of the guest's device: everything from the beginning.
        machine.memory.copy_from(0, &[0; 12 << 10]);
        assert!(machine.frontend.get_vring_base(0).is_ok());
        machine.inflight = None;
        drop(machine);
        works(&bad.socket);
    }
}

#[test]
fn a_vmm_that_cuts_the_memory_short_ends_its_disk_and_no_other() {
    let place = Place::new();
    let good = place.disk("good");
    for mode in [Mode::Poll, Mode::Interrupt] {
        let bad = DiskSettings { mode, ..place.disk("bad") };
        let server = place.server(&[bad.clone(), good.clone()]);
        let mut other = Machine::new(&good.socket, 1);
        other.start(0, 0);
        let mut machine = Machine::new(&bad.socket, 1);
        machine.start(0, 0);
        let mut disk = machine.driver(0);
        assert_eq!(disk.ask(Kind::Read, 0, &[(DATA, 4096)]), OK);
        // Only the data has gone: the kernel says so, and it is that request's error.
        machine.file.set_len(DATA as u64).unwrap();
        assert_eq!(disk.ask(Kind::Read, 0, &[(DATA, 4096)]), ERROR);
        assert_eq!(server.status()[0].ended, None);
        // And now the rings, in the middle of the work.
        machine.file.set_len(0).unwrap();
        machine.kicks[0].write(1).unwrap();
        let reason = ended(&server, 0);
        assert!(reason.contains("cut the guest's memory short"), "{reason}");
        assert_eq!(other.driver(0).ask(Kind::Read, 0, &[(DATA, 4096)]), OK);
        drop(machine);
        works(&bad.socket);
    }
}

#[test]
fn indices_wrap() {
    let place = Place::new();
    let settings = DiskSettings { mode: Mode::Poll, ..place.disk("disk") };
    let (server, machine) = one(&place, &settings, 1);
    let mut disk: Disk = machine.driver(0);
    disk.driver.look();
    let (mut sent, mut heard) = (0_u32, 0);
    // Requests that need no kernel, eight at a time.
    while heard < 70_000 {
        while sent < heard + 7 {
            disk.send((sent % 8) as usize, Kind::Other(77), 0, &[]);
            sent += 1;
        }
        assert!(disk.heard(Duration::from_secs(60)).is_some());
        heard += 1;
    }
    assert_eq!(server.status()[0].ended, None);
}

#[test]
fn a_connection_with_anything_in_it_ends_and_the_next_is_served() {
    let place = Place::new();
    let settings = place.disk("disk");
    let server = place.server(std::slice::from_ref(&settings));
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..300_u32 {
        let mut stream = UnixStream::connect(&settings.socket).unwrap();
        let mut message = vec![0; random.usize(..120)];
        random.fill(&mut message);
        if round % 3 > 0 && message.len() >= 12 {
            // A header that is right: a known request, this version, and a length that fits or does not.
            message[..4].copy_from_slice(&random.u32(1..45).to_le_bytes());
            message[4..8].copy_from_slice(&[1 | random.u8(..2) << 3, 0, 0, 0]);
            let length = u32::try_from(message.len() - 12).unwrap() + random.u32(..2) * 8;
            message[8..12].copy_from_slice(&length.to_le_bytes());
        }
        let _ = stream.write_all(&message);
        // Half a message, and gone.
    }
    works(&settings.socket);
    assert_eq!(server.status()[0].counters.sessions, 301);
}

#[test]
fn a_vmm_is_told_what_it_does_wrong() {
    let place = Place::new();
    let settings = place.disk("disk");
    let _server = place.server(std::slice::from_ref(&settings));
    let refused = |act: fn(&mut Machine) -> bool| {
        let mut machine = Machine::new(&settings.socket, 1);
        assert!(act(&mut machine));
    };
    // A vIOMMU, a feature that was not offered, a log of dirty pages.
    refused(|machine| machine.frontend.set_features(1 << 33 | 1 << 32).is_err());
    refused(|machine| machine.frontend.set_features(1 << 29).is_err());
    refused(|machine| machine.frontend.set_features(1 << 26).is_err());
    // Memory that ends before its region, overlaps, or is none.
    refused(|machine| machine.frontend.set_mem_table(&[machine.region(4096, MEMORY)]).is_err());
    refused(|machine| {
        machine.frontend.set_mem_table(&[machine.region(0, 8192), machine.region(4096, 8192)]).is_err()
    });
    refused(|machine| {
        let (reader, _writer) = std::io::pipe().unwrap();
        let handle = reader.as_raw_fd();
        let region = vhost::VhostUserMemoryRegionInfo { mmap_handle: handle, ..machine.region(0, 4096) };
        machine.frontend.set_mem_table(&[region]).is_err()
    });
    // Queues that can't be, and rings that lie nowhere.
    refused(|machine| machine.frontend.set_vring_num(0, 3).is_err());
    refused(|machine| machine.frontend.set_vring_num(0, 0).is_err());
    // A log that is longer than its file.
    refused(|machine| {
        let (said, file) = machine.inflight.as_ref().unwrap();
        let longer = VhostUserInflight::new(said.mmap_size + 8192, 0, said.num_queues, said.queue_size);
        machine.frontend.set_inflight_fd(&longer, file.as_raw_fd()).is_err()
    });
    works(&settings.socket);
}
