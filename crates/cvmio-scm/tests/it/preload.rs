//! `libcvmio_scm.so` in a program that knows nothing of it: Python, which maps the region as a VMM does.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::forbidden::BOTH;
use crate::support::{PAGE, Place, Server, holds};

const SERVE: &str = "serve region --key-file key --mode userfaultfd --socket socket --io-ms 0 --idle-ms 100";
const CREATE: &str = "create region --size 256k --key-file key";
/// Tells a test that another one starts where the region is.
const REGION: &str = "REGION";
const PLANTED: &str = "planted, and not to be seen outside";

/// Does what each line of its input says.
const SCRIPT: &str = "
import mmap, os, sys
memory = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 262144)
os.chdir('/')
print('mapped', flush=True)
for line in sys.stdin:
    verb, page, text = line.rstrip('\\n').split(' ', 2)
    at = int(page) * 4096
    if verb == 'put':
        memory[at:at + len(text)] = text.encode()
        print('done', flush=True)
    else:
        print(memory[at:at + int(text)].decode(), flush=True)
";

/// The library, with `cvmio-scm` and `cvmio-bench` beside it, as they are installed. `cargo test -p cvmio-scm` builds all three; before
/// `--test it` the library and `cvmio-bench` need `cargo build -p cvmio-scm --examples`.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let program = Path::new(env!("CARGO_BIN_EXE_cvmio-scm"));
        let examples = program.with_file_name("examples");
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scm");
        fs::create_dir_all(&place).unwrap();
        for (from, name) in [
            (program.to_owned(), "cvmio-scm"),
            (examples.join("scm-bench"), "cvmio-bench"),
            (examples.join("libscm_preload.so"), "libcvmio_scm.so"),
        ] {
            // What an older build has left is replaced, and no moment is without one: another run of these tests may start a VMM just now,
            // which would go on without the library, and see ciphertext.
            let link = place.join(format!(".{name}.{}", std::process::id()));
            fs::hard_link(&from, &link).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
            fs::rename(&link, place.join(name)).unwrap();
            // Where it was there already, the kernel has left both.
            let _ = fs::remove_file(&link);
        }
        place.join("libcvmio_scm.so")
    })
}

pub struct Vmm {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// As another user, who may not use userfaultfd.
const NOBODY: &[&str] = &["setpriv", "--reuid", "65534", "--clear-groups"];

/// Debian's own: others may lie where only their user gets.
const PYTHON: &str = "/usr/bin/python3";

fn python(place: &Place, user: &[&str]) -> Command {
    let mut words = user.iter().chain([&PYTHON]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    // It goes to another directory when it has the mapping, as QEMU in the background does.
    command.args(["-u", "-c", SCRIPT, "socket/pmem"]).current_dir(place.at(""));
    command.env("LD_PRELOAD", library());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Vmm {
    pub fn start(place: &Place) -> Vmm {
        let mut child = python(place, &[]).stderr(Stdio::inherit()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut vmm = Vmm { child, input: Some(input), output: BufReader::new(output) };
        assert_eq!(vmm.line(), "mapped");
        vmm
    }

    /// The next line that it says, or an empty one if it has ended. What it said of its end is on standard error.
    fn line(&mut self) -> String {
        if self.output.buffer().is_empty() {
            let mut said = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            let limit = Timespec { tv_sec: 120, tv_nsec: 0 };
            let count = rustix::io::retry_on_intr(|| poll(&mut said, Some(&limit))).unwrap();
            assert!(count > 0, "the VMM waits for good: a touch is not served");
        }
        let mut line = String::new();
        if self.output.read_line(&mut line).unwrap() == 0 {
            let _ = writeln!(std::io::stderr(), "the VMM has ended: {}", self.child.wait().unwrap());
        }
        line.trim_end_matches('\n').into()
    }

    fn say(&mut self, line: &str) {
        // One that has ended is told of by `line`.
        let _ = writeln!(self.input.as_mut().unwrap(), "{line}");
    }

    pub fn put(&mut self, page: u32, text: &str) {
        self.say(&format!("put {page} {text}"));
        assert_eq!(self.line(), "done");
    }

    pub fn get(&mut self, page: u32, len: usize) -> String {
        self.say(&format!("get {page} {len}"));
        self.line()
    }

    pub fn end(mut self) -> ExitStatus {
        drop(self.input.take());
        self.child.wait().unwrap()
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn wait_until(place: &Place, about: &str) {
    let begun = Instant::now();
    while !place.succeed("status --socket socket").contains(about) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", place.succeed("status --socket socket"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn served() -> (Place, Server) {
    let place = Place::new();
    place.succeed(CREATE);
    let server = place.serve(SERVE);
    (place, server)
}

#[test]
fn a_program_that_knows_nothing_has_its_mapping_served() {
    let (place, server) = served();
    let mut vmm = Vmm::start(&place);
    vmm.put(9, PLANTED);
    assert_eq!(vmm.get(9, PLANTED.len()), PLANTED);
    wait_until(&place, "64 encrypted, 0 open");
    assert!(!holds(&place.at("region"), PLANTED.as_bytes()), "plaintext stays behind");
    assert_eq!(vmm.get(9, PLANTED.len()), PLANTED);
    assert!(vmm.end().success());
    assert!(server.stop().contains("every page is encrypted"));
    assert!(!holds(&place.at("region"), PLANTED.as_bytes()));
    place.succeed("check region --key-file key");
}

#[test]
fn a_vmm_that_is_killed_leaves_no_page_open() {
    let (place, server) = served();
    let mut vmm = Vmm::start(&place);
    vmm.put(1, PLANTED);
    vmm.child.kill().unwrap();
    vmm.child.wait().unwrap();
    wait_until(&place, "64 encrypted, 0 open, 0 unverified");
    let mut vmm = Vmm::start(&place);
    assert_eq!(vmm.get(1, PLANTED.len()), PLANTED);
    vmm.end();
    server.stop();
}

#[test]
fn a_vmm_outlives_its_server() {
    let place = Place::new();
    place.succeed(CREATE);
    // Nothing is taken back by itself: the page is open at the kill.
    let serve = SERVE.replace("100", "100000");
    let server = place.serve(&serve);
    let mut vmm = Vmm::start(&place);
    vmm.put(4, PLANTED);
    assert!(place.succeed("status --socket socket").contains("1 open"));
    assert!(holds(&place.at("region"), PLANTED.as_bytes()));
    server.kill();
    let server = place.serve(&serve);
    assert!(place.succeed("status --socket socket").contains("1 unverified"));
    assert_eq!(vmm.get(4, PLANTED.len()), PLANTED);
    vmm.put(5, "more");
    assert!(vmm.end().success());
    server.stop();
    assert!(!holds(&place.at("region"), PLANTED.as_bytes()));
    // Somebody looked at it, and says so.
    assert!(place.succeed("check region --key-file key").contains("unverified pages: 4\n"));
    place.fail("accept region --key-file key --page 64", 2, "there is no page 64");
    assert!(place.succeed("accept region --key-file key --page 3").contains("page 3 is not unverified"));
    assert!(place.succeed("accept region --key-file key --all").contains("1 pages are vouched for again; 0"));
    assert!(place.succeed("check region --key-file key").contains("every encrypted page opens; 0 are"));
}

/// Its servers are killed while it works: no touch is forgotten, and nothing that it stored is lost.
#[test]
fn a_vmm_at_work_outlives_many_servers() {
    let rounds = std::env::var("SCM_KILLS").map_or(6, |text| text.parse().expect("a number"));
    let place = Place::new();
    place.succeed(CREATE);
    let serve = "serve region --key-file key --mode userfaultfd --socket socket --io-ms 0 --idle-ms 1 --open-limit 64k";
    let mut server = Some(place.serve(serve));
    let mut vmm = Vmm::start(&place);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(1);
            let mut known = vec![0_u32; 64];
            let mut done = 0;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) || done < 200 {
                let page = random.u32(..64);
                let version = &mut known[page as usize];
                if *version > 0 {
                    assert_eq!(vmm.get(page, 10), format!("{version:010}"), "page {page}");
                }
                *version += 1;
                vmm.put(page, &format!("{version:010}"));
                done += 1;
            }
        });
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..rounds {
            std::thread::sleep(Duration::from_millis(random.u64(20..200)));
            // It has failed, and says why.
            if working.is_finished() {
                break;
            }
            server.take().unwrap().kill();
            server = Some(place.serve(serve));
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        working.join().unwrap();
    });
    assert!(vmm.end().success());
    server.unwrap().stop();
    place.succeed("check region --key-file key");
}

#[test]
fn a_file_cut_short_under_a_vmm_ends_the_service_and_loses_no_page() {
    let place = Place::new();
    place.succeed(CREATE);
    let server = place.serve(&SERVE.replace("100", "1000"));
    let mut vmm = Vmm::start(&place);
    vmm.put(1, PLANTED);
    let before = std::fs::read(place.at("region")).unwrap();
    let file = std::fs::File::options().write(true).open(place.at("region")).unwrap();
    file.set_len(8 * PAGE as u64).unwrap();
    // What is left stays usable for the VMM; what is gone is a memory error, as on any file.
    assert_eq!(vmm.get(1, PLANTED.len()), PLANTED);
    vmm.say("get 40 4");
    assert_eq!(vmm.child.wait().unwrap().signal(), Some(libc::SIGBUS));
    // The server notices when it takes the page back, and does nothing more.
    wait_until(&place, "the medium has failed");
    server.ask_to_stop();
    assert!(!server.ended_with(3).contains("every page is encrypted"));
    assert_eq!(std::fs::read(place.at("region")).unwrap(), before[..8 * PAGE]);
    std::fs::write(place.at("region"), &before).unwrap();
    place.succeed("recover region --key-file key");
    let server = place.serve(SERVE);
    let mut vmm = Vmm::start(&place);
    assert_eq!(vmm.get(1, PLANTED.len()), PLANTED);
    vmm.end();
    server.stop();
}

/// Two servers and two VMMs: the second of each is told why not, and the first goes on.
#[test]
fn a_region_has_one_server_and_one_vmm() {
    let (place, server) = served();
    let mut vmm = Vmm::start(&place);
    vmm.put(1, PLANTED);
    place.fail(&SERVE.replace("socket --", "other --"), 10, "another process serves");
    let output = python(&place, &[]).spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("one VMM at a time"), "{said}");
    assert_eq!(vmm.get(1, PLANTED.len()), PLANTED);
    vmm.end();
    server.stop();
}

/// Threads of a program that map the region at the same moment all have the one mapping of it, as fio's threads do.
#[test]
fn threads_that_map_it_at_once_share_the_mapping() {
    let (place, server) = served();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "preload::mapping_threads", "--ignored", "--test-threads=1"])
        .env("LD_PRELOAD", library())
        .env(REGION, place.at("socket/pmem"))
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    server.stop();
}

#[test]
#[ignore = "not a test of its own: the one before runs it, with the library preloaded"]
fn mapping_threads() {
    const THREADS: usize = 8;
    const LENGTH: usize = 256 << 10;
    let region = fs::File::options().read(true).write(true).open(std::env::var(REGION).unwrap());
    let region = region.unwrap();
    let together = Barrier::new(THREADS);
    let map_and_unmap = || {
        together.wait();
        // SAFETY: a new mapping of a file that stays; no reference into it is made.
        let mapped = unsafe {
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), LENGTH, writable, libc::MAP_SHARED, region.as_raw_fd(), 0)
        };
        together.wait();
        assert!(mapped != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        // SAFETY: this thread's own mapping, or its share of the one that all have.
        assert_eq!(unsafe { libc::munmap(mapped, LENGTH) }, 0);
        mapped.addr()
    };
    for round in 0..20 {
        let places: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(map_and_unmap)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(places.iter().all(|place| *place == places[0]), "round {round}: {places:?}");
    }
}

/// A server that speaks another version, and something that is no server at all.
#[test]
fn a_library_of_another_version_is_refused() {
    for answer in ["{\"error\":\"this server speaks version 3, and the client version 2\"}\n", "hello\n", ""]
    {
        let place = Place::new();
        place.succeed(CREATE);
        let listener = std::os::unix::net::UnixListener::bind(place.at("socket")).unwrap();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = [0; 256];
            let _ = std::io::Read::read(&mut stream, &mut line);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let output = python(&place, &[]).spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let about = if answer.contains("error") { "speaks version 3" } else { "no server of this version" };
        assert!(!output.status.success() && said.contains(about), "{answer:?}: {said}");
        other.join().unwrap();
    }
}

#[test]
fn a_touch_of_a_corrupt_page_is_a_memory_error() {
    let place = Place::new();
    place.succeed(CREATE);
    let mut bytes = std::fs::read(place.at("region")).unwrap();
    bytes[7 * PAGE] ^= 1;
    std::fs::write(place.at("region"), &bytes).unwrap();
    let server = place.serve(SERVE);
    let mut vmm = Vmm::start(&place);
    assert_eq!(vmm.get(6, 0), "");
    vmm.put(6, "good");
    vmm.say("get 7 4");
    let ended = vmm.child.wait().unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGBUS), "{ended}");
    wait_until(&place, "1 corrupt");
    server.stop();
    place.fail("check region --key-file key", 4, "corrupt pages: 7:");
}

/// Each way to run without the library, or with something else than its mapping: nothing is opened, made, mapped or changed.
#[test]
fn a_vmm_without_the_library_gets_nothing() {
    let (place, server) = served();
    let region = fs::read(place.at("region")).unwrap();
    let run = |preloaded: &Path, path: &str, script: &str| {
        let mut command = Command::new(PYTHON);
        command.args(["-c", script, path]).current_dir(place.at("")).env("LD_PRELOAD", preloaded);
        // Cargo has the loader look in its own directories, where an earlier build may have left the library.
        let output = command.env_remove("LD_LIBRARY_PATH").output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // As QEMU does: what is not there is made.
    let make = "import os, sys
try: os.open(sys.argv[1], os.O_RDWR)
except FileNotFoundError: os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_EXCL)";
    let nowhere = Path::new("libcvmio_scm.so");
    for (preloaded, path) in [(nowhere, "socket/pmem"), (nowhere, "sockt/pmem"), (library(), "sockt/pmem")] {
        let (done, said) = run(preloaded, path, make);
        assert!(!done && (said.contains("Errno 20") || said.contains("Errno 2]")), "{path}: {said}");
    }
    assert!(run(library(), "socket/pmem", make).0);
    // The stand-in is no memory, for this process and for those that get it.
    let start = "import mmap, os, sys
region = os.open(sys.argv[1], os.O_RDWR)
";
    for (script, about) in [
        ("mmap.mmap(region, 262144, flags=mmap.MAP_PRIVATE)", "a private mapping of the region is refused"),
        ("os.read(region, 1)", "Bad file descriptor"),
        ("os.write(region, b'x')", "not permitted"),
        ("os.posix_fallocate(region, 1 << 20, 1)", "not permitted"),
        ("os.ftruncate(region, 0)", "not permitted"),
        (
            "import socket; one, two = socket.socketpair(); socket.send_fds(one, [b'x'], [0, 1]); socket.send_fds(one, [b'x'], [0, region, 1])",
            "another process cannot have the region (vhost-user)",
        ),
        (
            "os.fork() or os.execvpe(sys.executable, ['python', '-c', f'import mmap; mmap.mmap({region}, 4096)'], {}); \
          sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))",
            "Permission denied",
        ),
    ] {
        let script = format!("{start}os.set_inheritable(region, True)\n{script}");
        let (done, said) = run(library(), "socket/pmem", &script);
        assert!(!done && said.contains(about), "{script}: {said}");
    }
    assert!(fs::read(place.at("region")).unwrap() == region, "the region was changed");
    assert!(place.succeed("status --socket socket").contains("64 encrypted, 0 open"));
    server.stop();
    // No server: nothing, and no file.
    let (done, said) = run(library(), "socket/pmem", make);
    assert!(!done, "{said}");
    assert!(!place.at("socket").exists());
}

/// What would leave the server with another picture of the mapping than the kernel has.
#[test]
fn a_mapping_that_is_served_is_not_moved_cut_or_covered() {
    let (place, server) = served();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "preload::changing_the_mapping", "--ignored", "--test-threads=1"])
        .env("LD_PRELOAD", library())
        .env(REGION, place.at("socket/pmem"))
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    wait_until(&place, "64 encrypted, 0 open, 0 unverified, 0 corrupt");
    server.stop();
    place.succeed("check region --key-file key");
}

#[test]
#[ignore = "not a test of its own: the one before runs it, with the library preloaded"]
fn changing_the_mapping() {
    const LENGTH: usize = 256 << 10;
    let region = fs::File::options().read(true).write(true).open(std::env::var(REGION).unwrap()).unwrap();
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let errno = || std::io::Error::last_os_error().raw_os_error();
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    for _ in 0..2 {
        // SAFETY: new mappings; what would change one of them is refused, as is asserted; no reference into them is made.
        unsafe {
            let shared = |offset| {
                libc::mmap(
                    std::ptr::null_mut(),
                    LENGTH,
                    writable,
                    libc::MAP_SHARED,
                    region.as_raw_fd(),
                    offset,
                )
            };
            let mapped = shared(0);
            assert_ne!(mapped, libc::MAP_FAILED);
            let word = |page: usize| mapped.byte_add(page * PAGE).cast::<u64>();
            (0..64).for_each(|page| word(page).write_volatile(page as u64 + 1));
            let part = mapped.cast::<u8>().add(8 * PAGE).cast();
            let elsewhere = libc::mmap(std::ptr::null_mut(), 2 * LENGTH, writable, anonymous, -1, 0);
            assert_eq!((libc::munmap(part, PAGE), errno()), (-1, Some(libc::EINVAL)));
            for (at, length) in [(part, PAGE), (mapped, LENGTH)] {
                let over = libc::mmap(at, length, writable, anonymous | libc::MAP_FIXED, -1, 0);
                assert_eq!((over, errno()), (libc::MAP_FAILED, Some(libc::EINVAL)));
                let moved = libc::mremap(at, length, 2 * length, libc::MREMAP_MAYMOVE);
                assert_eq!((moved, errno()), (libc::MAP_FAILED, Some(libc::EINVAL)));
                let over = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                assert_eq!(libc::mremap(elsewhere, length, length, over, at), libc::MAP_FAILED);
            }
            for advice in [libc::MADV_REMOVE, libc::MADV_DOFORK] {
                assert_eq!((libc::madvise(part, PAGE, advice), errno()), (-1, Some(libc::EOPNOTSUPP)));
            }
            assert_eq!(libc::madvise(mapped, LENGTH, libc::MADV_HUGEPAGE), 0);
            // VFIO_IOMMU_MAP_DMA: sizes and flags, address, address of the device, length.
            let mut dma = [32_u64, part.addr() as u64, 0, PAGE as u64];
            assert_eq!((libc::ioctl(-1, 0x3b71, dma.as_mut_ptr()), errno()), (-1, Some(libc::EPERM)));
            dma[1] = elsewhere.addr() as u64;
            assert_eq!((libc::ioctl(-1, 0x3b71, dma.as_mut_ptr()), errno()), (-1, Some(libc::EBADF)));
            assert_eq!((shared(4096), errno()), (libc::MAP_FAILED, Some(libc::EACCES)));
            std::thread::sleep(Duration::from_millis(400));
            (0..64).for_each(|page| assert_eq!(word(page).read_volatile(), page as u64 + 1, "page {page}"));
            assert_eq!((libc::munmap(mapped, LENGTH), libc::munmap(elsewhere, 2 * LENGTH)), (0, 0));
        }
    }
}

#[test]
fn a_vmm_that_cannot_be_served_does_not_get_the_mapping() {
    let place = Place::new();
    place.succeed(CREATE);
    let refused = |mut program: Command, about: &[&str]| {
        let output = program.spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && about.iter().all(|words| said.contains(words)), "{said}");
        assert!(output.stdout.is_empty());
    };
    refused(python(&place, &[]), &["socket"]);
    let server = place.serve(SERVE);
    let region = std::fs::read(place.at("region")).unwrap();
    let remedies = ["/dev/userfaultfd", "sysctl vm.unprivileged_userfaultfd", "CAP_SYS_PTRACE"];
    // Whatever the machine allows, a filter denies it.
    let mut forbidden = python(&place, &[]);
    let filter = BOTH.filter();
    // SAFETY: the filter was made before the fork; to set it are two system calls.
    unsafe { forbidden.pre_exec(filter) };
    refused(forbidden, &remedies);
    // As the kernel denies it: another user, whom neither the device nor the sysctl lets in.
    for (path, mode) in [("socket", 0o666), ("", 0o755)] {
        std::fs::set_permissions(place.at(path), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let sysctl = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap();
    if sysctl.trim() == "0" {
        refused(python(&place, NOBODY), &remedies);
    } else {
        let _ =
            writeln!(std::io::stderr(), "\nSKIPPED another user: the sysctl lets everybody use userfaultfd");
    }
    // Nothing of the region has changed, and a VMM that may have it is served.
    assert!(std::fs::read(place.at("region")).unwrap() == region, "the region was changed");
    let mut vmm = Vmm::start(&place);
    vmm.put(1, PLANTED);
    assert_eq!(vmm.get(1, PLANTED.len()), PLANTED);
    vmm.end();
    server.stop();
    place.succeed("check region --key-file key");
}

/// Whatever a test has started.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// QEMU hands all of the guest's memory to a vhost-user back end when the firmware looks at the disk: that is refused, with the reason, and neither
/// the region nor the back end sees anything of it.
#[test]
fn a_vhost_user_disk_beside_a_region_is_refused_when_it_is_to_start() {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !has("qemu-system-x86_64") || !has("qemu-storage-daemon") {
        let _ = writeln!(
            std::io::stderr(),
            "\nSKIPPED a vhost-user disk: there is no QEMU with its storage daemon"
        );
        return;
    }
    let (place, server) = served();
    fs::File::create(place.at("disk")).unwrap().set_len(1 << 20).unwrap();
    let start = |program: &str, words: &str| {
        let mut command = Command::new(program);
        command
            .args(words.split_whitespace())
            .current_dir(place.at(""))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.stderr(Stdio::piped());
        command
    };
    let mut back_end = Ended(
        start(
            "qemu-storage-daemon",
            "--blockdev driver=file,node-name=f,filename=disk --export type=vhost-user-blk,id=e,node-name=f,addr.type=unix,addr.path=back",
        )
        .spawn()
        .unwrap(),
    );
    let begun = Instant::now();
    while !place.at("back").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the back end has no socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    let arguments = place.succeed("qemu-args --socket socket");
    let words = format!(
        "-M q35,memory-backend=ram -accel tcg -m 64M,maxmem=1G -object memory-backend-memfd,id=ram,size=64M,share=on {arguments} \
         -chardev socket,id=c,path=back -device vhost-user-blk-pci,chardev=c,num-queues=1,bootindex=1 -display none -serial none -nic none"
    );
    let mut vmm = Ended(start("qemu-system-x86_64", &words).env("LD_PRELOAD", library()).spawn().unwrap());
    // It goes on without the disk, so its output has no end: a helper reads it, and the end is the wait's.
    let (sender, said) = std::sync::mpsc::channel();
    let errors = BufReader::new(vmm.0.stderr.take().unwrap());
    std::thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut all = Vec::new();
    while !all
        .iter()
        .any(|line: &String| line.contains("another process cannot have the region (vhost-user)"))
    {
        all.push(
            said.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|error| panic!("{error}: {all:?}")),
        );
    }
    assert!(vmm.0.try_wait().unwrap().is_none(), "the VMM has ended");
    assert!(back_end.0.try_wait().unwrap().is_none(), "the back end has ended");
    assert!(
        place.succeed("status --socket socket").contains("64 encrypted, 0 open, 0 unverified, 0 corrupt")
    );
    drop(vmm);
    back_end.0.kill().unwrap();
    let mut told = String::new();
    std::io::Read::read_to_string(&mut back_end.0.stderr.take().unwrap(), &mut told).unwrap();
    assert!(!told.contains("mmap"), "it got the region: {told}");
    server.stop();
    place.succeed("check region --key-file key");
}
