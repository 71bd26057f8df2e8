//! A VMM with a guest in it: the front end of vhost-user, and a driver of virtio-blk.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use memory::{Access, FileMapping};
use rustix::fs::MemfdFlags;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtqueue::block::{Config, Kind, header};
use virtqueue::{Area, Driver, Part, Rings};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Where the guest's memory lies for the guest, and for its VMM.
pub const PHYSICAL: u64 = 0x1000_0000;
const USER: u64 = 0x7f00_0000_0000;
pub const MEMORY: usize = 16 << 20;
pub const ENTRIES: u16 = 16;
/// Each queue has so much for its rings and headers, and behind all of them lies data.
const OF_QUEUE: usize = 64 << 10;
const HEADERS: usize = 32 << 10;
pub const DATA: usize = 4 << 20;
/// How long a request may take on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A part of the guest's memory.
pub struct Piece(Arc<FileMapping>, usize, usize);

impl Area for Piece {
    fn size(&self) -> usize {
        self.2
    }

    fn load(&self, offset: usize) -> u16 {
        self.0.load_u16(self.1 + offset)
    }

    fn store(&self, offset: usize, value: u16) {
        self.0.store_u16(self.1 + offset, value);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.copy_to(self.1 + offset, into);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.copy_from(self.1 + offset, bytes);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// A machine's memory and its control connection.
pub struct Machine {
    pub file: File,
    pub memory: Arc<FileMapping>,
    pub frontend: Frontend,
    pub queues: usize,
    pub inflight: Option<(VhostUserInflight, File)>,
    pub config: Config,
    pub kicks: Vec<EventFd>,
    pub calls: Vec<EventFd>,
}

/// New memory that all may map.
pub fn memfd(bytes: usize) -> File {
    let file: OwnedFd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, bytes as u64).unwrap();
    file.into()
}

pub fn physical(offset: usize) -> u64 {
    PHYSICAL + offset as u64
}

impl Machine {
    /// Connects a machine with new memory.
    pub fn new(socket: &Path, queues: usize) -> Self {
        let file = memfd(MEMORY);
        let memory = Arc::new(FileMapping::untouched(&file, 0, MEMORY, Access::ReadWrite).unwrap());
        Self::connect(socket, queues, file, memory, None)
    }

    /// The same machine with a new connection, as a VMM does it whose server was killed.
    pub fn again(self, socket: &Path) -> Self {
        let Self { file, memory, frontend, queues, inflight, .. } = self;
        drop(frontend);
        Self::connect(socket, queues, file, memory, inflight)
    }

    fn connect(
        socket: &Path,
        queues: usize,
        file: File,
        memory: Arc<FileMapping>,
        inflight: Option<(VhostUserInflight, File)>,
    ) -> Self {
        let begun = Instant::now();
        let mut frontend = loop {
            match Frontend::connect(socket, queues as u64) {
                Ok(frontend) => break frontend,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{}: {error}", socket.display()),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        assert!(features & 1 << 33 != 0, "a guest of a confidential machine needs it");
        // As QEMU does where no vIOMMU is.
        frontend.set_features(features & !(1 << 33)).unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocol).unwrap();
        frontend.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        assert!(
            protocol
                .contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD | VhostUserProtocolFeatures::BACKEND_REQ)
        );
        assert!(frontend.get_queue_num().unwrap() >= queues as u64);
        let (_, said) = frontend.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]).unwrap();
        let event = || EventFd::new(EFD_NONBLOCK).unwrap();
        let mut machine = Self {
            config: Config::from_bytes(&said),
            file,
            memory,
            frontend,
            queues,
            inflight,
            kicks: (0..queues).map(|_| event()).collect(),
            calls: (0..queues).map(|_| event()).collect(),
        };
        machine.bring_log();
        let region = machine.region(0, MEMORY);
        machine.frontend.set_mem_table(&[region]).unwrap();
        machine
    }

    fn bring_log(&mut self) {
        if self.inflight.is_none() {
            let asked = VhostUserInflight::new(0, 0, u16::try_from(self.queues).unwrap(), ENTRIES);
            self.inflight = Some(self.frontend.get_inflight_fd(&asked).unwrap());
        }
        let (said, file) = self.inflight.as_ref().unwrap();
        self.frontend.set_inflight_fd(said, file.as_raw_fd()).unwrap();
    }

    pub fn region(&self, offset: usize, length: usize) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: physical(offset),
            memory_size: length as u64,
            userspace_addr: USER + offset as u64,
            mmap_offset: offset as u64,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    /// Offsets of the descriptors, the available and the used ring.
    pub fn places(queue: usize) -> [usize; 3] {
        [0, 4096, 8192].map(|offset| queue * OF_QUEUE + offset)
    }

    pub fn piece(&self, offset: usize, length: usize) -> Piece {
        Piece(self.memory.clone(), offset, length)
    }

    /// Tells the server of a queue, which then begins.
    pub fn start(&mut self, queue: usize, base: u16) {
        let [descriptors, available, used] = Self::places(queue).map(|offset| USER + offset as u64);
        let rings = VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            flags: 0,
            desc_table_addr: descriptors,
            used_ring_addr: used,
            avail_ring_addr: available,
            log_addr: None,
        };
        self.frontend.set_vring_num(queue, ENTRIES).unwrap();
        self.frontend.set_vring_base(queue, base).unwrap();
        self.frontend.set_vring_addr(queue, &rings).unwrap();
        self.frontend.set_vring_call(queue, &self.calls[queue]).unwrap();
        self.frontend.set_vring_kick(queue, &self.kicks[queue]).unwrap();
        self.frontend.set_vring_enable(queue, true).unwrap();
    }

    pub fn used_index(&self, queue: usize) -> u16 {
        self.memory.load_u16(Self::places(queue)[2] + 2)
    }

    /// A driver for a queue that nobody has used.
    pub fn driver(&self, queue: usize) -> Disk {
        let [descriptors, available, used] = Self::places(queue);
        let [of_descriptors, of_available, of_used] = Rings::<Piece>::lengths(ENTRIES);
        let rings = Rings::new(
            ENTRIES,
            self.piece(descriptors, of_descriptors),
            self.piece(available, of_available),
            self.piece(used, of_used),
        );
        Disk {
            driver: Driver::new(rings.unwrap()),
            memory: self.memory.clone(),
            headers: queue * OF_QUEUE + HEADERS,
            kick: self.kicks[queue].try_clone().unwrap(),
            call: self.calls[queue].try_clone().unwrap(),
            kicked: 0,
            interrupted: 0,
        }
    }
}

/// A queue's driver. It looks at its ring by itself, unless it is told to wait for interrupts.
pub struct Disk {
    pub driver: Driver<Piece>,
    pub memory: Arc<FileMapping>,
    headers: usize,
    kick: EventFd,
    pub call: EventFd,
    pub kicked: u64,
    pub interrupted: u64,
}

impl Disk {
    /// The machine has other events now: after a new connection.
    pub fn take_events(&mut self, machine: &Machine, queue: usize) {
        self.kick = machine.kicks[queue].try_clone().unwrap();
        self.call = machine.calls[queue].try_clone().unwrap();
    }

    /// Where header and status of a request lie, by its number.
    fn slot(&self, number: usize) -> usize {
        self.headers + 32 * number
    }

    /// Sends a request with data at these parts of the guest's memory; its number is a place for its header.
    pub fn send(&mut self, number: usize, kind: Kind, sector: u64, data: &[(usize, usize)]) -> u16 {
        let slot = self.slot(number);
        self.memory.copy_from(slot, &header(kind, sector));
        self.memory.copy_from(slot + 16, &[0xff]);
        let is_writable = matches!(kind, Kind::Read | Kind::Id);
        let part = |offset: usize, length: usize, is_writable| Part {
            address: physical(offset),
            length: u32::try_from(length).unwrap(),
            is_writable,
        };
        let mut parts = vec![part(slot, 16, false)];
        parts.extend(data.iter().map(|(offset, length)| part(*offset, *length, is_writable)));
        parts.push(part(slot + 16, 1, true));
        let head = self.driver.push(&parts).expect("the queue has room");
        self.driver.publish();
        if self.driver.wants_kick() {
            self.kicked += 1;
            self.kick.write(1).unwrap();
        }
        head
    }

    /// The status of a request that has ended.
    pub fn status(&self, number: usize) -> u8 {
        let mut status = [0];
        self.memory.copy_to(self.slot(number) + 16, &mut status);
        status[0]
    }

    /// The next request that ended; its head. `None` after so long.
    pub fn heard(&mut self, patience: Duration) -> Option<u16> {
        let begun = Instant::now();
        loop {
            if let Some(head) = self.driver.pop().expect("the server does not lie") {
                return Some(head);
            }
            if begun.elapsed() > patience {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// The same, asleep until it is interrupted.
    pub fn woken(&mut self) -> u16 {
        loop {
            if let Some(head) = self.driver.pop().expect("the server does not lie") {
                return head;
            }
            if self.driver.listen() {
                self.sleep();
            }
            if self.call.read().is_ok() {
                self.interrupted += 1;
            }
        }
    }

    /// Sleeps until there is an interrupt, and leaves it for the next one who looks.
    pub fn sleep(&self) {
        // SAFETY: the event is open as long as `self`.
        let call = unsafe { std::os::fd::BorrowedFd::borrow_raw(self.call.as_raw_fd()) };
        let mut waiting = [rustix::event::PollFd::from_borrowed_fd(call, rustix::event::PollFlags::IN)];
        let time = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut waiting, Some(&time)), Ok(1), "no interrupt in a minute");
    }

    /// Sends a request and waits for its end.
    pub fn ask(&mut self, kind: Kind, sector: u64, data: &[(usize, usize)]) -> u8 {
        let head = self.send(0, kind, sector, data);
        assert_eq!(self.heard(PATIENCE), Some(head), "{kind:?} at {sector} has not ended in a minute");
        self.status(0)
    }
}
