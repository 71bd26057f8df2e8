//! Persistent memory whose pages are encrypted on this machine: a file system with `-o dax` on it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

const SIZE: u64 = 64 << 20;
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

fn succeed(program: &Path, at: &Path, words: &str) -> String {
    let output = Command::new(program).current_dir(at).args(words.split(' ')).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn has_marker(region: &Path) -> bool {
    let content = fs::read(region).unwrap();
    content.windows(MARKER.len()).any(|bytes| bytes == MARKER.as_bytes())
}

/// A key and a region in memory.
fn region(program: &Path) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    File::create(place.path().join("key")).unwrap().write_all(&[7; 64]).unwrap();
    fs::create_dir(place.path().join("mnt")).unwrap();
    succeed(program, place.path(), "create region --size 64m --key-file key");
    let region = place.path().join("region");
    (place, region)
}

const WRITE: &str = "while [ ! -e /dev/pmem0 ]; do sleep 0.1; done
     mkfs.ext4 -q -b 4096 /dev/pmem0
     mount -t ext4 -o dax /dev/pmem0 /mnt
     grep '/mnt ext4 .*dax' /proc/mounts";
const FILL: &str = "| head -n 20000 > content
     cp content /mnt/content
     sync
     umount /mnt
     mount -t ext4 -o dax /dev/pmem0 /mnt
     cmp content /mnt/content
     umount /mnt";
const READ: &str = "while [ ! -e /dev/pmem0 ]; do sleep 0.1; done
     mount -t ext4 -o dax /dev/pmem0 /mnt";

/// What one mode wrote, the other one reads: they have the same format.
#[test]
fn ext4_with_dax_by_fuse_and_by_userfaultfd() {
    let Some(bed) = guest::bed() else { return };
    let (scm, library) = bed.scm();
    let (place, region) = region(&scm);
    let at = place.path();
    let guest = || bed.guest().modules(&["ext4"]).programs(&["usr/sbin/mkfs.ext4"]);

    let server = Server::start(&scm, at, "serve region --key-file key --mode fuse --mountpoint mnt");
    let said = guest()
        .persistent_memory(&at.join("mnt/pmem"), SIZE)
        .succeed(&format!("{WRITE}\nyes '{MARKER}' {FILL}"));
    assert!(said.contains("dax"), "{said}");
    assert!(!has_marker(&region), "by FUSE the medium has plaintext");
    server.stop();
    assert!(!has_marker(&region));
    succeed(&scm, at, "check region --key-file key");

    // By userfaultfd, with QEMU as it is; killed in the middle, and recovered.
    let serve = "serve region --key-file key --mode userfaultfd --socket socket --open-limit 8m";
    let server = Server::start(&scm, at, serve);
    let said = guest()
        .persistent_memory(&region, SIZE)
        .environment("LD_PRELOAD", &library)
        .environment("CVMIO_SCM_REGION", &region)
        .environment("CVMIO_SCM_SOCKET", &at.join("socket"))
        .succeed(&format!(
            "{READ}\nyes '{MARKER}' | head -n 20000 | cmp - /mnt/content
             yes '{MARKER}, again' | head -n 20000 > /mnt/again\nsync\numount /mnt\necho read"
        ));
    assert!(said.contains("read"), "{said}");
    println!("{}", succeed(&scm, at, "status --socket socket"));
    drop(server);
    println!("{}", succeed(&scm, at, "recover region --key-file key"));
    assert!(!has_marker(&region), "the medium has plaintext after recovery");
    succeed(&scm, at, "check region --key-file key");
}
