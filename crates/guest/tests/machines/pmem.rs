//! Persistent memory whose pages are encrypted on this machine: file systems with `-o dax`, a data base and verified fio on it, and what the
//! medium shows from outside meanwhile.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guest::{Bed, Guest};

const SIZE: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// Something to find on the medium, if it is there in the clear.
const MARKER: &str = "what the medium must not have in the clear";

/// A server, and what it says.
struct Server(Child, Lines<BufReader<ChildStdout>>);

impl Server {
    fn start(program: &Path, at: &Path, words: &str) -> Server {
        let mut command = Command::new(program);
        command.current_dir(at).args(words.split(' ')).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.by_ref().map_while(Result::ok).any(|line| line.starts_with("ready"));
        assert!(ready, "{words}: it is never ready");
        Server(child, lines)
    }

    fn stop(mut self) {
        assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
        let said: Vec<String> = self.1.by_ref().map_while(Result::ok).collect();
        assert!(self.0.wait().unwrap().success(), "{said:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A region in memory, and the programs.
struct Place {
    directory: tempfile::TempDir,
    program: PathBuf,
    library: PathBuf,
}

const FUSE: &str = "serve region --key-file key --mode fuse --mountpoint mnt --socket socket";
/// Nothing is taken back for being idle: pages are open when the server is killed.
const USERFAULTFD: &str = "serve region --key-file key --mode userfaultfd --socket socket --open-limit 8m --idle-ms 600000 --io-ms 0";

impl Place {
    fn new(bed: &Bed) -> Place {
        let (program, library) = bed.scm();
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        File::create(directory.path().join("key")).unwrap().write_all(&[7; 64]).unwrap();
        fs::create_dir(directory.path().join("mnt")).unwrap();
        let place = Place { directory, program, library };
        place.run("create region --size 64m --key-file key", 0);
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn serve(&self, words: &str) -> Server {
        Server::start(&self.program, self.directory.path(), words)
    }

    /// Runs a command that must end with this code; what it said.
    fn run(&self, words: &str, code: i32) -> String {
        let mut command = Command::new(&self.program);
        let output = command.current_dir(self.directory.path()).args(words.split(' ')).output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words}: {text}");
        text
    }

    /// Bytes of the medium that are copies of the marker.
    fn in_the_clear(&self) -> usize {
        let found = Command::new("grep").args(["-oaF", MARKER]).arg(self.at("region")).output().unwrap();
        found.stdout.len()
    }

    fn by_fuse<'a>(&self, guest: Guest<'a>) -> Guest<'a> {
        guest.persistent_memory(&self.at("mnt/region/pmem"), SIZE)
    }

    fn by_userfaultfd<'a>(&self, guest: Guest<'a>) -> Guest<'a> {
        guest.persistent_memory(&self.at("socket/pmem"), SIZE).environment("LD_PRELOAD", &self.library)
    }

    /// Runs a script while the medium is looked at from outside; what it printed, and the most bytes in the clear at a look.
    fn watched(&self, guest: Guest<'_>, script: &str) -> (String, usize) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut most = 0;
                while !is_over.load(Ordering::Relaxed) {
                    most = most.max(self.in_the_clear());
                    std::thread::sleep(Duration::from_millis(200));
                }
                most
            });
            let said = guest.run(&format!("set -eu\n{script}"));
            is_over.store(true, Ordering::Relaxed);
            let most = watcher.join().unwrap();
            match said {
                Ok(outcome) if outcome.code == 0 => (outcome.output, most),
                Ok(outcome) => panic!("{outcome}"),
                Err(trouble) => panic!("{trouble}"),
            }
        })
    }
}

fn with_programs(bed: &Bed) -> Guest<'_> {
    let programs = ["usr/sbin/mkfs.ext4", "usr/sbin/e2fsck", "usr/bin/sqlite3"];
    bed.guest().modules(&["ext4"]).programs(&programs).machine_program(Path::new("/usr/bin/fio"))
}

/// What both guests do with it: mapped and by system calls, each byte verified; a data base that maps its file.
const WORK: &str = r#"
    mount -t ext4 -o dax /dev/pmem0 /mnt
    grep '/mnt ext4 .*dax' /proc/mounts
    verified() {
        fio --name=verified --filename=/mnt/verified --size=4m --rw=randwrite --thread --verify=crc32c --verify_fatal=1 \
            --norandommap=0 "$@" > fio.log 2>&1 || { cat fio.log; exit 1; }
        grep -q 'err= 0' fio.log
        echo "fio verified: $1"
    }
    verified --ioengine=mmap --bs=4k
    verified --ioengine=psync --bs=16k --fsync=32
    for round in 1 2 3; do
        sqlite3 /mnt/database 'pragma mmap_size=8388608; pragma synchronous=full; create table if not exists t (n, c);
            with recursive c(n) as (select 1 union all select n + 1 from c where n < 500) insert into t select n, hex(randomblob(100)) from c;' >/dev/null
    done
    echo "rows: $(sqlite3 /mnt/database 'pragma mmap_size=8388608; pragma integrity_check; select count(*) from t' | tail -n 2 | tr '\n' ' ')"
"#;
const WAIT: &str = "while [ ! -e /dev/pmem0 ]; do sleep 0.1; done\n";

/// What one mode wrote, the other one reads: they have the same format.
#[test]
fn file_systems_and_data_bases_live_on_it_in_each_mode() {
    let Some(bed) = guest::bed() else { return };
    let place = Place::new(&bed);

    let server = place.serve(FUSE);
    let (said, most) = place.watched(
        place.by_fuse(with_programs(&bed)),
        &format!(
            "{WAIT}mkfs.ext4 -q -b 4096 /dev/pmem0{WORK}
             yes '{MARKER}' | head -n 20000 > content
             cp content /mnt/content
             umount /mnt
             mount -t ext4 -o dax /dev/pmem0 /mnt
             cmp content /mnt/content
             umount /mnt"
        ),
    );
    for expected in ["dax", "--ioengine=mmap", "--ioengine=psync", "rows: ok 1500"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert_eq!(most, 0, "by FUSE the medium never has plaintext");
    server.stop();
    assert_eq!(place.in_the_clear(), 0);
    place.run("check region --key-file key", 0);

    // QEMU as it is, with the library preloaded.
    let server = place.serve(USERFAULTFD);
    let (said, most) = place.watched(
        place.by_userfaultfd(with_programs(&bed)),
        &format!(
            "{WAIT}{WORK}
             yes '{MARKER}' | head -n 20000 | cmp - /mnt/content
             yes '{MARKER}, again' | head -n 20000 > /mnt/again
             sync
             yes '{MARKER}, again' | head -n 20000 | cmp - /mnt/again
             umount /mnt
             e2fsck -fn /dev/pmem0"
        ),
    );
    assert!(said.contains("rows: ok 3000"), "{said}");
    println!("in the clear on the medium while the guest ran: at most {most} bytes of the marker");
    println!("{}", place.run("status --socket socket", 0));
    assert!(most <= 8 << 20, "more is in the clear than may be open");
    assert!(
        place.in_the_clear() > 0,
        "pages that are open are in the clear, so a search for them finds some"
    );
    drop(server);
    println!("{}", place.run("recover region --key-file key", 0));
    assert_eq!(place.in_the_clear(), 0, "the medium has plaintext after recovery");
    place.run("check region --key-file key", 0);

    // What was open at the kill is whole; and a clean stop leaves nothing in the clear.
    let server = place.serve(USERFAULTFD);
    let said = place.by_userfaultfd(with_programs(&bed)).succeed(&format!(
        "{WAIT}e2fsck -fn /dev/pmem0\nmount -t ext4 -o dax /dev/pmem0 /mnt
         yes '{MARKER}, again' | head -n 20000 | cmp - /mnt/again
         sqlite3 /mnt/database 'pragma integrity_check; select count(*) from t' | tr '\\n' ' '
         umount /mnt"
    ));
    assert!(said.contains("ok 3000"), "{said}");
    server.stop();
    assert_eq!(place.in_the_clear(), 0, "the medium has plaintext after a clean stop");
}

/// QEMU where the library is not found, and where nobody serves: it has nothing to run on, makes no file, and the region stays as it was.
#[test]
fn a_machine_without_the_library_or_the_server_does_not_start() {
    let Some(bed) = guest::bed() else { return };
    let mut place = Place::new(&bed);
    // The pages lie first; behind them a server notes that it has come and gone.
    let pages = |place: &Place| {
        let mut pages = fs::read(place.at("region")).unwrap();
        pages.truncate(usize::try_from(SIZE).unwrap());
        pages
    };
    let before = pages(&place);
    let server = place.serve(USERFAULTFD);
    let refused = |place: &Place| {
        let trouble =
            place.by_userfaultfd(bed.guest()).run("true").expect_err("a machine ran without its region");
        assert!(trouble.reason.contains("backing store"), "{trouble}");
    };
    let library = std::mem::replace(&mut place.library, "libcvmio_scm.so".into());
    refused(&place);
    place.run("status --socket socket", 0);
    server.stop();
    refused(&place);
    place.library = library;
    refused(&place);
    assert!(pages(&place) == before, "the region's pages were changed");
    place.run("check region --key-file key", 0);
    assert!(!place.at("socket").exists());
}

/// The guest reads a good page, and then one that was replayed or changed outside: its VMM dies of a memory error, as if the medium had one.
#[test]
fn a_page_changed_outside_is_reported_and_never_read() {
    const REPLAYED: u64 = 9000;
    const FLIPPED: u64 = 12_000;
    let Some(bed) = guest::bed() else { return };
    let place = Place::new(&bed);
    let mut pages = [0; 4096];
    {
        let server = place.serve(FUSE);
        let file = File::options().write(true).open(place.at("mnt/region/pmem")).unwrap();
        let write = |byte: u8| {
            file.write_all_at(&[byte; 4096], REPLAYED * PAGE).and_then(|()| file.sync_all()).unwrap();
        };
        let region = File::open(place.at("region")).unwrap();
        write(1);
        region.read_exact_at(&mut pages, REPLAYED * PAGE).unwrap();
        write(2);
        drop(file);
        server.stop();
    }
    let region = File::options().read(true).write(true).open(place.at("region")).unwrap();
    region.write_all_at(&pages, REPLAYED * PAGE).unwrap();
    region.read_exact_at(&mut pages, FLIPPED * PAGE).unwrap();
    pages[1000] ^= 1;
    region.write_all_at(&pages, FLIPPED * PAGE).unwrap();
    let checked = place.run("check region --key-file key", 4);
    assert!(checked.contains("corrupt pages: 9000, 12000:"), "{checked}");

    let modes = [(USERFAULTFD, REPLAYED), (FUSE, FLIPPED)];
    for (serve, page) in modes {
        let server = place.serve(serve);
        let guest =
            if serve == FUSE { place.by_fuse(bed.guest()) } else { place.by_userfaultfd(bed.guest()) };
        let script = format!(
            "{WAIT}dd if=/dev/pmem0 bs=4k skip=100 count=1 of=/dev/null 2>/dev/null && echo 'a good page'
             dd if=/dev/pmem0 bs=4k skip={page} count=1 of=/dev/null 2>/dev/null && echo 'a bad page'"
        );
        let trouble = guest.run(&script).expect_err("a guest went on behind a corrupt page");
        assert!(trouble.output.contains("a good page"), "{trouble}");
        assert!(!trouble.output.contains("a bad page"), "{trouble}");
        let status = place.run("status --socket socket", 0);
        assert!(!status.contains(" 0 corrupt"), "{status}");
        server.stop();
    }
}
