//! Requests through the queue threads, also from one session to the next.

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use bytes::Bytes;
use export::nbd::{self, wire};

use super::*;
use crate::polling::Poll;
use crate::session::Session;
use crate::tamper::{OnTamper, Orders};
use crate::testing::TestVolume;

const BLOCK: u64 = BLOCK_SIZE as u64;

fn queues(poll: Poll) -> Queues {
    Queues { count: 2, polling: Polling::new(poll, 2).0 }
}

fn start(volume: &Volume) -> (Disk, Threads) {
    let orders = Orders { on: OnTamper::Continue, hook: None };
    let tamper = Arc::new(Tamper::new(&orders, "disk", "memory").unwrap());
    Disk::start(volume, queues(Poll::Adaptive), SystemClock::new(), &tamper).unwrap()
}

pub(crate) fn ask(disk: &Disk, request: export::Request) -> Receiver<Result<Bytes, Errno>> {
    let (sender, receiver) = channel();
    disk.submit(request, Box::new(move |result| drop(sender.send(result))));
    receiver
}

pub(crate) fn write(block: u64, byte: u8) -> export::Request {
    export::Request::Write { offset: block * BLOCK, data: vec![byte; BLOCK_SIZE].into(), fua: false }
}

fn read(disk: &Disk, block: u64) -> Bytes {
    let request = export::Request::Read { offset: block * BLOCK, length: 4096 };
    ask(disk, request).recv().unwrap().unwrap()
}

#[test]
fn requests_wait_for_the_next_session() {
    let bench = TestVolume::new();
    let first = Session::begin(bench.attach()).unwrap();
    let (disk, threads) = start(&first.volume);
    ask(&disk, write(0, 1)).recv().unwrap().unwrap();
    let idle = disk.idle().unwrap();
    // On each lane one, and more than one.
    let waiting: Vec<_> = std::thread::scope(|scope| {
        let users: Vec<_> = (1..7)
            .map(|block| {
                scope.spawn({
                    let disk = &disk;
                    move || ask(disk, write(block, 2))
                })
            })
            .collect();
        users.into_iter().map(|user| user.join().unwrap()).collect()
    });
    first.end().unwrap();
    assert!(waiting.iter().all(|done| done.try_recv().is_err()), "nothing is lost, and nothing is done");
    let second = Session::begin(bench.attach()).unwrap();
    idle.go_on(&second.volume).unwrap();
    waiting.iter().for_each(|done| drop(done.recv().unwrap().unwrap()));
    assert!(
        read(&disk, 0) == vec![1; BLOCK_SIZE]
            && (1..7).all(|block| read(&disk, block) == vec![2; BLOCK_SIZE])
    );
    disk.close();
    threads.join().unwrap();
    second.end().unwrap();
}

#[test]
fn without_a_next_session_requests_fail() {
    let bench = TestVolume::new();
    for refused in [true, false] {
        let session = Session::begin(bench.attach()).unwrap();
        let (disk, threads) = start(&session.volume);
        let idle = disk.idle().unwrap();
        let waiting = ask(&disk, write(0, 1));
        bench.trouble.queues.store(if refused { 0 } else { u64::MAX }, Ordering::SeqCst);
        match refused {
            true => assert!(idle.go_on(&session.volume).unwrap_err().to_string().contains("queue")),
            false => drop(idle),
        }
        bench.trouble.queues.store(u64::MAX, Ordering::SeqCst);
        assert_eq!(waiting.recv().unwrap(), Err(Errno::SHUTDOWN));
        assert_eq!(ask(&disk, write(0, 1)).recv().unwrap(), Err(Errno::SHUTDOWN));
        assert!(disk.idle().is_err(), "its threads have ended");
        disk.close();
        threads.join().unwrap();
        session.end().unwrap();
    }
}

#[test]
fn data_goes_through_the_pool_and_back() {
    let bench = TestVolume::new();
    let session = Session::begin(bench.attach()).unwrap();
    let (disk, threads) = start(&session.volume);
    let mut memory = disk.memory(2 * BLOCK_SIZE);
    memory.as_mut().fill(7);
    let address = memory.as_ref().as_ptr();
    let request = export::Request::Write { offset: 0, data: memory.freeze(), fua: false };
    ask(&disk, request).recv().unwrap().unwrap();
    let found = ask(&disk, export::Request::Read { offset: 0, length: 8192 }).recv().unwrap().unwrap();
    assert!(found == vec![7; 2 * BLOCK_SIZE]);
    assert_eq!(found.as_ptr(), address, "what the write had was free again");
    assert_ne!(disk.memory(BLOCK_SIZE).as_ref().as_ptr(), address, "the reader has it still");
    assert_eq!(disk.memory(100).as_ref().len(), 100);
    disk.close();
    threads.join().unwrap();
    session.end().unwrap();
}

/// A client of an NBD server that has chosen its export.
fn client(socket: &Path) -> UnixStream {
    let mut client = UnixStream::connect(socket).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // Fixed newstyle without zeros, and the default export.
    client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    client.read_exact(&mut [0; 18 + 10]).unwrap();
    client
}

fn send(client: &mut UnixStream, command: wire::Command, data: &[u8]) {
    let flags = wire::Flags::default();
    let request = wire::Request { flags, command, cookie: 1, offset: 0, length: 4096 };
    client.write_all(&request.encode()).unwrap();
    client.write_all(data).unwrap();
}

fn receive(client: &mut UnixStream, length: usize) -> Vec<u8> {
    let mut reply = vec![0; 16 + length];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply[4..8], [0; 4], "an error");
    reply.split_off(16)
}

#[test]
fn no_request_of_the_kernel_goes_from_one_thread_to_another() {
    let allowed = rustix::process::geteuid().is_root() && std::fs::File::open("/dev/fuse").is_ok();
    if !allowed {
        let _ =
            writeln!(std::io::stderr(), "\nSKIPPED no_request_of_the_kernel: it needs root and /dev/fuse");
        return;
    }
    let (bench, directory) = (TestVolume::new(), tempfile::tempdir().unwrap());
    let first = Session::begin(bench.attach()).unwrap();
    let (disk, threads) = start(&first.volume);
    let shown = export::fuse::Options::default();
    let mount = export::fuse::Mount::new(directory.path(), "disk", Arc::new(disk.clone()), &shown).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(mount.file()).unwrap();
    for block in 0..20 {
        file.write_all_at(&[7; BLOCK_SIZE], block * BLOCK).unwrap();
    }
    file.sync_all().unwrap();
    let idle = disk.idle().unwrap();
    // It waits for the next session.
    let reader = std::thread::spawn(move || {
        let mut back = vec![0; 20 * BLOCK_SIZE];
        file.read_exact_at(&mut back, 0).unwrap();
        back
    });
    first.end().unwrap();
    let second = Session::begin(bench.attach()).unwrap();
    idle.go_on(&second.volume).unwrap();
    assert!(reader.join().unwrap().iter().all(|byte| *byte == 7));
    assert_eq!(disk.hand_overs(), 0);
    mount.unmount().unwrap();
    disk.close();
    threads.join().unwrap();
    second.end().unwrap();
}

#[test]
fn a_queue_thread_with_much_to_do_lets_another_help() {
    let bench = TestVolume::new();
    let session = Session::begin(bench.attach()).unwrap();
    let (disk, threads) = start(&session.volume);
    let (sender, ended) = channel();
    let also = disk.clone();
    // All at once, from a queue thread. Each is as much as it keeps to itself.
    let asks: Client = Box::new(move |_| {
        Box::pin(async move {
            for _ in 0..4 {
                let sender = sender.clone();
                let request = export::Request::Read { offset: 0, length: u32::try_from(MUCH).unwrap() };
                also.submit(
                    request,
                    Box::new(move |result| sender.send(result.map(|data| data.len())).unwrap()),
                );
            }
        })
    });
    disk.attend(asks);
    let lengths: Vec<_> = (0..4).map(|_| ended.recv().unwrap()).collect();
    assert_eq!(lengths, [Ok(usize::try_from(MUCH).unwrap()); 4]);
    assert!((1..4).contains(&disk.hand_overs()), "{}", disk.hand_overs());
    assert!(disk.lanes.iter().all(|lane| lane.load() == 0));
    disk.close();
    threads.join().unwrap();
    session.end().unwrap();
}

#[test]
fn a_client_that_comes_as_the_session_changes_is_served_in_the_next() {
    let bench = TestVolume::new();
    let session = Session::begin(bench.attach()).unwrap();
    let (disk, threads) = start(&session.volume);
    let (serving, served) = channel();
    let client: Client = Box::new(move |_| Box::pin(async move { serving.send(()).unwrap() }));
    let ((sender, next), (done, changed)) = (channel(), channel());
    {
        // The thread finds both at once.
        let mut inbox = disk.lanes[0].inbox();
        inbox.clients.push(client);
        inbox.change = Some(Change { done, next });
        inbox.waker.wake_by_ref();
    }
    changed.recv().unwrap().unwrap();
    sender.send(session.volume.clone()).unwrap();
    changed.recv().unwrap().unwrap();
    assert!(served.recv_timeout(Duration::from_secs(20)).is_ok(), "it was hung up on");
    disk.close();
    threads.join().unwrap();
    session.end().unwrap();
}

#[test]
fn clients_are_served_by_the_queue_threads_and_stay_while_the_session_changes() {
    let (bench, directory) = (TestVolume::new(), tempfile::tempdir().unwrap());
    let first = Session::begin(bench.attach()).unwrap();
    let (disk, threads) = start(&first.volume);
    let socket = directory.path().join("nbd");
    let options = nbd::Options {
        name: "volume".into(),
        listen: nbd::Listen::Unix(socket.clone()),
        tls: None,
        read_only: false,
    };
    let server = nbd::Server::start(Arc::new(disk.clone()), &options).unwrap();
    // On each lane more than one, and most have nothing to ask for.
    let mut clients: Vec<_> = (0..5).map(|_| client(&socket)).collect();
    send(&mut clients[0], wire::Command::Write, &[1; BLOCK_SIZE]);
    receive(&mut clients[0], 0);
    let own = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        std::fs::read_to_string(task.unwrap().path().join("comm")).ok().filter(|name| name == "nbd-replies\n")
    });
    assert_eq!(own.count(), 0, "no thread of a client's own takes its requests");
    assert_eq!(disk.hand_overs(), 0);
    let idle = disk.idle().unwrap();
    send(&mut clients[1], wire::Command::Read, &[]);
    first.end().unwrap();
    let second = Session::begin(bench.attach()).unwrap();
    idle.go_on(&second.volume).unwrap();
    assert!(receive(&mut clients[1], BLOCK_SIZE) == [1; BLOCK_SIZE]);
    for client in &mut clients {
        send(client, wire::Command::Read, &[]);
        assert!(receive(client, BLOCK_SIZE) == [1; BLOCK_SIZE]);
    }
    disk.close();
    threads.join().unwrap();
    let left = clients.iter_mut().map(|client| client.read(&mut [0]));
    assert!(left.into_iter().all(|read| matches!(read, Ok(0))), "nobody serves them any more");
    drop(server);
    second.end().unwrap();
}
