//! What a guest asks for is what happens to its disk.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use host::{DiskSettings, Mode, Server, Settings};
use tempfile::TempDir;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use virtqueue::block::Kind;

use crate::guest::{DATA, Machine};

pub const SIZE: u64 = 8 << 20;
pub const OK: u8 = 0;
pub const ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// A directory with disks and sockets.
pub struct Place(pub TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A disk of its own, with a socket beside it.
    pub fn disk(&self, name: &str) -> DiskSettings {
        let file = self.at(&format!("{name}.img"));
        fs::File::create(&file).unwrap().set_len(SIZE).unwrap();
        DiskSettings::new(self.at(&format!("{name}.sock")), file)
    }

    pub fn server(&self, disks: &[DiskSettings]) -> Server {
        Server::start(&Settings { cores: Vec::new(), disks: disks.to_vec() }).unwrap()
    }
}

/// A server with one disk, and a machine at it, with all its queues started.
pub fn one(place: &Place, settings: &DiskSettings, queues: usize) -> (Server, Machine) {
    let server = place.server(std::slice::from_ref(settings));
    let mut machine = Machine::new(&settings.socket, queues);
    (0..queues).for_each(|queue| machine.start(queue, 0));
    (server, machine)
}

fn random(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

#[test]
fn every_kind_of_request_does_what_it_says() {
    let place = Place::new();
    for (mode, direct) in [(Mode::Poll, true), (Mode::Interrupt, false), (Mode::Adaptive, true)] {
        let settings = DiskSettings { mode, direct, ..place.disk("disk") };
        let (server, machine) = one(&place, &settings, 1);
        let mut disk = machine.driver(0);
        assert_eq!((machine.config.sectors, machine.config.queues), (SIZE / 512, 16));
        let file = fs::File::open(&settings.file).unwrap();

        let content = random(12288, 7);
        machine.memory.copy_from(DATA, &content);
        // In three descriptors, one of which begins where no block of memory does.
        assert_eq!(disk.ask(Kind::Write, 8, &[(DATA, 4096), (DATA + 4096, 512), (DATA + 4608, 7680)]), OK);
        let mut found = vec![0; 12288];
        file.read_exact_at(&mut found, 4096).unwrap();
        assert!(found == content, "{mode:?}: it is not on the disk");
        assert_eq!(disk.ask(Kind::Flush, 0, &[]), OK);

        // At odd addresses, cut in odd places.
        let odd = DATA + (1 << 20) + 3;
        assert_eq!(disk.ask(Kind::Read, 8, &[(odd, 1), (odd + 1, 4095), (odd + 4096, 8192)]), OK);
        machine.memory.copy_to(odd, &mut found);
        assert!(found == content, "{mode:?}: it is not what was written");
        machine.memory.copy_from(odd, &random(4096, 8));
        assert_eq!(disk.ask(Kind::Write, 0, &[(odd, 4096)]), OK);
        file.read_exact_at(&mut found[..4096], 0).unwrap();
        assert!(found[..4096] == random(4096, 8));

        let segment = |sector: u64, sectors: u32, flags: u32| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&sector.to_le_bytes());
            bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
            bytes[12..].copy_from_slice(&flags.to_le_bytes());
            bytes
        };
        for (flags, sector) in [(0, 8), (1, 16)] {
            machine.memory.copy_from(DATA, &segment(sector, 8, flags));
            assert_eq!(disk.ask(Kind::WriteZeroes, 0, &[(DATA, 16)]), OK);
        }
        file.read_exact_at(&mut found, 4096).unwrap();
        assert!(found[..8192].iter().all(|byte| *byte == 0) && found[8192..] == content[8192..], "{mode:?}");
        let taken = file.metadata().unwrap().blocks();
        machine.memory.copy_from(DATA, &[segment(0, 8, 0), segment(24, 8, 0)].concat());
        assert_eq!(disk.ask(Kind::Discard, 0, &[(DATA, 32)]), OK);
        assert!(file.metadata().unwrap().blocks() < taken, "a discard gives space back");

        assert_eq!(disk.ask(Kind::Id, 0, &[(DATA, 20)]), OK);
        let mut id = [0; 20];
        machine.memory.copy_to(DATA, &mut id);
        assert_eq!(&id, b"disk.img\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(disk.ask(Kind::Other(99), 0, &[]), UNSUPPORTED);
        let counters = server.status()[0].counters;
        assert_eq!((counters.reads, counters.writes, counters.flushes, counters.discards), (1, 2, 1, 3));
        assert_eq!((counters.others, counters.errors, counters.read_bytes), (2, 0, 12288));
    }
}

#[test]
fn what_is_not_on_the_disk_or_in_memory_is_that_requests_error() {
    let place = Place::new();
    let settings = place.disk("disk");
    let (server, machine) = one(&place, &settings, 1);
    let mut disk = machine.driver(0);
    let last = SIZE / 512;
    for (kind, sector, data) in [
        (Kind::Read, last, (DATA, 4096)),
        (Kind::Read, last - 1, (DATA, 4096)),
        (Kind::Write, u64::MAX, (DATA, 4096)),
        (Kind::Write, u64::MAX / 512, (DATA, 4096)),
        (Kind::Read, 0, (DATA, 511)),
        (Kind::Write, 0, (1 << 40, 4096)),
        (Kind::Read, 0, (crate::guest::MEMORY - 512, 4096)),
        (Kind::Discard, 0, (DATA, 17)),
        (Kind::WriteZeroes, 0, (DATA, 32)),
    ] {
        assert_eq!(disk.ask(kind, sector, &[data]), ERROR, "{kind:?} at {sector} of {data:?}");
    }
    for kind in [Kind::Read, Kind::Write] {
        assert_eq!(disk.ask(kind, 0, &[]), ERROR);
    }
    assert_eq!(disk.ask(Kind::Read, last - 8, &[(DATA, 4096)]), OK);
    let status = &server.status()[0];
    assert_eq!((status.counters.errors, &status.ended), (11, &None));
}

#[test]
fn a_disk_that_is_only_read_refuses_changes() {
    let place = Place::new();
    let settings = DiskSettings { read_only: true, ..place.disk("disk") };
    let (_server, machine) = one(&place, &settings, 1);
    let mut disk = machine.driver(0);
    assert_eq!(machine.config.write_zeroes, [0, 0]);
    assert_eq!(disk.ask(Kind::Read, 0, &[(DATA, 4096)]), OK);
    for kind in [Kind::Write, Kind::Discard, Kind::Flush] {
        assert_eq!(disk.ask(kind, 0, &[(DATA, 4096)]), ERROR);
    }
}

/// Both sides look at the rings: no exit is taken for a request.
#[test]
fn when_both_poll_nobody_is_notified() {
    let place = Place::new();
    let settings = DiskSettings { mode: Mode::Poll, ..place.disk("disk") };
    let (server, machine) = one(&place, &settings, 1);
    let mut disk = machine.driver(0);
    disk.driver.look();
    let before = server.status()[0].counters;
    for round in 0..500 {
        assert_eq!(disk.ask(Kind::Read, round % 100, &[(DATA, 4096)]), OK);
    }
    let after = server.status()[0].counters;
    assert_eq!(after.reads - before.reads, 500);
    assert!(after.kicks - before.kicks <= 1 && after.interrupts - before.interrupts <= 1, "{after:?}");
    assert!(disk.kicked <= 1, "{}", disk.kicked);
}

/// Waits until a server has gone to sleep more often than so many times; how often it has.
fn when_asleep(server: &Server, before: u64) -> u64 {
    let begun = Instant::now();
    loop {
        let sleeps = server.status()[0].counters.sleeps;
        if sleeps > before {
            return sleeps;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it never sleeps");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Neither side looks by itself, and a request is noticed and answered each time.
#[test]
fn when_neither_polls_each_is_woken() {
    let place = Place::new();
    let settings = DiskSettings { mode: Mode::Interrupt, ..place.disk("disk") };
    let (server, machine) = one(&place, &settings, 1);
    let mut disk = machine.driver(0);
    let mut slept = 0;
    for round in 0..200 {
        // In the first rounds it is asleep when the request comes, however busy this machine is.
        if round < 5 {
            slept = when_asleep(&server, slept);
        }
        let head = disk.send(0, Kind::Read, round, &[(DATA, 4096)]);
        assert_eq!(disk.woken(), head);
        assert_eq!(disk.status(0), OK);
    }
    let counters = server.status()[0].counters;
    assert!(counters.kicks > 0 && counters.interrupts > 0 && counters.sleeps > 0, "{counters:?}");
    assert!(disk.kicked > 0 && disk.interrupted > 0);
}

/// An idle server sleeps, and a request wakes it.
#[test]
fn an_adaptive_server_takes_no_time_when_nothing_comes() {
    let place = Place::new();
    let (server, machine) = one(&place, &place.disk("disk"), 1);
    let mut disk = machine.driver(0);
    for _ in 0..5 {
        let sleeps = server.status()[0].counters.sleeps;
        assert_eq!(disk.ask(Kind::Read, 0, &[(DATA, 4096)]), OK);
        when_asleep(&server, sleeps);
    }
    assert!(disk.kicked >= 4, "a server that sleeps is kicked: {}", disk.kicked);
}

#[test]
fn several_queues_and_deep_ones_keep_their_data_apart() {
    const QUEUES: usize = 3;
    let place = Place::new();
    for mode in [Mode::Poll, Mode::Adaptive] {
        let settings = DiskSettings { mode, ..place.disk("disk") };
        let (server, machine) = one(&place, &settings, QUEUES);
        std::thread::scope(|scope| {
            for queue in 0..QUEUES {
                let mut disk = machine.driver(queue);
                scope.spawn(move || {
                    let data = DATA + (queue << 20);
                    let mut random = fastrand::Rng::with_seed(queue as u64);
                    // Each queue has its own blocks, and four requests in flight.
                    let mut written = [None::<u8>; 64];
                    for _ in 0..150 {
                        let mut sent = Vec::new();
                        for number in 0..4 {
                            let block = random.usize(..16) * 4 + number;
                            let sector = 8 * (queue * 64 + block) as u64;
                            let at = data + 4096 * number;
                            let is_write = random.bool();
                            if is_write {
                                let value = random.u8(1..);
                                disk.memory.copy_from(at, &[value; 4096]);
                                written[block] = Some(value);
                            }
                            let kind = if is_write { Kind::Write } else { Kind::Read };
                            disk.send(number, kind, sector, &[(at, 4096)]);
                            sent.push((number, block, at));
                        }
                        for _ in 0..4 {
                            assert!(disk.heard(Duration::from_secs(60)).is_some());
                        }
                        for (number, block, at) in sent {
                            assert_eq!(disk.status(number), OK);
                            let mut found = [0; 4096];
                            disk.memory.copy_to(at, &mut found);
                            assert!(
                                found.iter().all(|byte| *byte == written[block].unwrap_or(0)),
                                "{mode:?}"
                            );
                        }
                    }
                });
            }
        });
        let counters = server.status()[0].counters;
        assert_eq!((counters.requests(), counters.errors), (150 * 4 * QUEUES as u64, 0));
    }
}

#[test]
fn a_queue_that_was_stopped_goes_on_where_it_was() {
    let place = Place::new();
    let (server, mut machine) = one(&place, &place.disk("disk"), 2);
    let mut disk = machine.driver(0);
    for _ in 0..20 {
        assert_eq!(disk.ask(Kind::Read, 0, &[(DATA, 4096)]), OK);
    }
    machine.frontend.set_vring_enable(0, false).unwrap();
    assert_eq!(machine.frontend.get_vring_base(0).unwrap(), 20);
    assert_eq!(server.status()[0].queues, 1);
    disk.send(0, Kind::Read, 0, &[(DATA, 4096)]);
    assert_eq!(disk.heard(Duration::from_millis(50)), None, "a stopped queue is not served");
    machine.start(0, 20);
    assert!(disk.heard(Duration::from_secs(60)).is_some());
    // Memory that comes and goes while it works.
    let more = machine.region(0, 4096);
    let more = vhost::VhostUserMemoryRegionInfo { guest_phys_addr: 1 << 40, userspace_addr: 1 << 46, ..more };
    machine.frontend.add_mem_region(&more).unwrap();
    assert_eq!(disk.ask(Kind::Read, 0, &[(DATA, 4096)]), OK);
    machine.frontend.remove_mem_region(&more).unwrap();
    assert_eq!(disk.ask(Kind::Read, 0, &[(DATA, 4096)]), OK);
    // Another descriptor for interrupts.
    machine.calls[0] = vmm_sys_util::eventfd::EventFd::new(vmm_sys_util::eventfd::EFD_NONBLOCK).unwrap();
    machine.frontend.set_vring_call(0, &machine.calls[0]).unwrap();
    disk.call = machine.calls[0].try_clone().unwrap();
    disk.send(0, Kind::Read, 0, &[(DATA, 4096)]);
    disk.woken();
}

#[test]
fn a_vmm_that_comes_back_is_served_again() {
    let place = Place::new();
    let settings = place.disk("disk");
    let (server, mut machine) = one(&place, &settings, 1);
    let mut disk = machine.driver(0);
    for round in 1..4 {
        assert_eq!(disk.ask(Kind::Write, 0, &[(DATA, 4096)]), OK);
        machine = machine.again(&settings.socket);
        let base = machine.used_index(0);
        machine.start(0, base);
        disk.take_events(&machine, 0);
        assert_eq!(server.status()[0].counters.sessions, round + 1);
    }
    assert_eq!(disk.ask(Kind::Read, 0, &[(DATA, 4096)]), OK);
}

/// What is found after a kill: a request in the log, one that is available, and one that ended without an interrupt.
#[test]
fn what_a_killed_server_had_taken_is_taken_again_and_what_it_ended_is_told() {
    let place = Place::new();
    let settings = place.disk("disk");
    let server = place.server(std::slice::from_ref(&settings));
    let mut machine = Machine::new(&settings.socket, 1);
    let mut disk = machine.driver(0);
    let data = |number: usize| [(DATA + 4096 * number, 4096)];
    let heads = [0, 1, 2].map(|number| disk.send(number, Kind::Write, 8 * number as u64, &data(number)));
    // The second of them has ended; the first was taken, and the third was not.
    let [_, _, used] = Machine::places(0);
    machine.memory.copy_from(used + 4, &u64::from(heads[1]).to_le_bytes());
    machine.memory.store_u16(used + 2, 1);
    let log = machine.inflight.as_ref().map(|(_, file)| file.try_clone().unwrap()).unwrap();
    // Version, entries, head of the last batch, used index: the batch of the second is not marked as ended.
    let words = [1, crate::guest::ENTRIES, heads[1], 0];
    log.write_all_at(&words.map(u16::to_le_bytes).concat(), 8).unwrap();
    for (head, counter) in [(heads[0], 0_u64), (heads[1], 1)] {
        let entry = [1_u64.to_le_bytes(), counter.to_le_bytes()].concat();
        log.write_all_at(&entry, 16 + 16 * u64::from(head)).unwrap();
    }
    let base = machine.used_index(0);
    machine.start(0, base);
    // The guest slept when the server was killed: it is woken, though nothing has ended since.
    disk.sleep();
    // The one that had ended is told first, and nobody else tells it.
    let heard = [0; 3].map(|_| disk.woken());
    assert_eq!(heard[0], heads[1]);
    assert!(heard.contains(&heads[0]) && heard.contains(&heads[2]), "{heard:?}");
    let counters = server.status()[0].counters;
    assert_eq!((counters.resumed, counters.writes, disk.driver.in_flight()), (1, 2, 0));
    assert_eq!((disk.status(0), disk.status(1), disk.status(2)), (OK, 0xff, OK));
}

/// A guest's memory is not ours to fill: what no request names stays untouched.
#[test]
fn memory_that_no_request_names_stays_untouched() {
    let place = Place::new();
    let (_server, machine) = one(&place, &place.disk("disk"), 1);
    let mut disk = machine.driver(0);
    for round in 0..50 {
        assert_eq!(disk.ask(Kind::Read, round * 8, &[(DATA, 4096)]), OK);
    }
    // Of 16 MiB: three pages of rings, one of headers, one of data.
    assert_eq!(machine.file.metadata().unwrap().blocks(), 5 * 8);
}

#[test]
fn a_limit_holds_a_disk_back_and_no_other() {
    let place = Place::new();
    let slow = DiskSettings { requests_per_second: Some(100), ..place.disk("slow") };
    let fast = place.disk("fast");
    let server = place.server(&[slow.clone(), fast.clone()]);
    let begun = Instant::now();
    let count = |socket: &std::path::Path| {
        let mut machine = Machine::new(socket, 1);
        machine.start(0, 0);
        let mut disk = machine.driver(0);
        for _ in 0..60 {
            assert_eq!(disk.ask(Kind::Read, 0, &[(DATA, 4096)]), OK);
        }
    };
    count(&slow.socket);
    // A burst of ten comes first.
    assert!(begun.elapsed() >= Duration::from_millis(480), "{:?}", begun.elapsed());
    count(&fast.socket);
    let [of_slow, of_fast] = [0, 1].map(|index| server.status()[index].counters.throttled);
    assert!(of_slow > 0 && of_fast == 0);
}
