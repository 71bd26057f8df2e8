//! A region as a file under a FUSE mount.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::support::{PAGE, Place, holds};

const SERVE: &str = "serve region --key-file key --mode fuse --mountpoint mnt --socket socket";
const PLANTED: &[u8; 32] = b"planted plaintext, to be hidden!";

fn open(place: &Place) -> File {
    File::options().read(true).write(true).open(place.at("mnt/region/pmem")).unwrap()
}

/// Writes, maps, syncs and reads, on tmpfs and on the file system of the temporary directory.
#[test]
fn what_is_written_is_read_again_and_the_medium_has_ciphertext() {
    for place in [Place::new(), Place::on(&std::env::temp_dir())] {
        for page_size in ["4k", "2m"] {
            place.succeed(&format!("create region --size 8m --page-size {page_size} --key-file key"));
            let server = place.serve(SERVE);
            let file = open(&place);
            assert_eq!(file.metadata().unwrap().len(), 8 << 20);
            let content: Vec<u8> = (0..=240).cycle().take(3 * PAGE).collect();
            file.write_all_at(&content, 5 * PAGE as u64 - 100).unwrap();
            map_and_store(&file, 700 * PAGE);
            file.sync_all().unwrap();
            assert!(!holds(&place.at("region"), PLANTED), "plaintext on the medium while it is served");
            // Another server, and a look by others, while it is served.
            place.fail("recover region --key-file key", 10, "another process serves");
            place.fail("check region --key-file key", 10, "another process serves");
            assert!(place.succeed("status --socket socket").contains("0 open"));
            assert!(place.succeed("status --socket socket --metrics").contains("cvmio_scm_pages_open 0"));
            drop(file);
            assert!(server.stop().contains("every page is encrypted"));
            assert!(!holds(&place.at("region"), PLANTED));
            let server = place.serve(SERVE);
            let file = open(&place);
            let mut read = vec![0; content.len()];
            file.read_exact_at(&mut read, 5 * PAGE as u64 - 100).unwrap();
            assert_eq!(read, content);
            let mut planted = [0; 32];
            file.read_exact_at(&mut planted, 700 * PAGE as u64).unwrap();
            assert_eq!(&planted, PLANTED);
            drop(file);
            server.stop();
            place.succeed("check region --key-file key");
            fs::remove_file(place.at("region")).unwrap();
        }
    }
}

/// Maps the file as QEMU does, stores into the mapping, and syncs it.
fn map_and_store(file: &File, at: usize) {
    use std::os::fd::AsRawFd;
    let len = 8 << 20;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh shared mapping of a file of this length, used here only, and taken away again.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(base, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        std::ptr::copy_nonoverlapping(PLANTED.as_ptr(), base.cast::<u8>().add(at), PLANTED.len());
        assert_eq!(libc::msync(base, len, libc::MS_SYNC), 0);
        libc::munmap(base, len);
    }
}

#[test]
fn a_server_whose_file_is_in_use_stays_until_it_is_not() {
    let place = Place::new();
    place.succeed("create region --size 64k --key-file key");
    let server = place.serve(SERVE);
    let file = open(&place);
    server.ask_to_stop();
    let stopping = std::thread::spawn(move || server.ended());
    std::thread::sleep(std::time::Duration::from_millis(300));
    file.write_all_at(&[1; PAGE], 0).unwrap();
    file.sync_all().unwrap();
    assert!(!stopping.is_finished());
    drop(file);
    // By hand, as an operator may.
    let gone = std::process::Command::new("umount").arg(place.at("mnt")).status().unwrap();
    assert!(gone.success());
    assert!(stopping.join().unwrap().contains("every page is encrypted"));
}

#[test]
fn a_file_cut_short_under_the_server_is_an_error_and_what_is_left_stays() {
    let place = Place::new();
    place.succeed("create region --size 256k --key-file key");
    let server = place.serve(SERVE);
    let file = open(&place);
    file.write_all_at(&[9; PAGE], 0).unwrap();
    file.sync_all().unwrap();
    let before = fs::read(place.at("region")).unwrap();
    File::options().write(true).open(place.at("region")).unwrap().set_len(8 * PAGE as u64).unwrap();
    let mut page = vec![0; PAGE];
    assert!(file.read_exact_at(&mut page, 40 * PAGE as u64).is_err());
    let written = file.write_all_at(&[8; PAGE], 0).and_then(|()| file.sync_all());
    assert!(written.is_err());
    assert!(place.succeed("status --socket socket").contains("the medium has failed"));
    drop(file);
    // It did not stop cleanly, and its exit code says so.
    let gone = std::process::Command::new("umount").arg(place.at("mnt")).status().unwrap();
    assert!(gone.success());
    assert!(!server.ended_with(3).contains("every page is encrypted"));
    assert_eq!(fs::read(place.at("region")).unwrap(), before[..8 * PAGE]);
    place.fail("recover region --key-file key", 2, "cut short");
    fs::write(place.at("region"), &before).unwrap();
    place.succeed("check region --key-file key");
}

/// A VMM that makes what it does not find, as QEMU does: with its own words, and QEMU itself where there is one.
fn start_a_vmm(place: &Place) -> bool {
    let path = place.at("mnt/region/pmem");
    let made = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let backend = format!("memory-backend-file,id=m,share=on,mem-path={},size=64k", path.display());
    let words =
        ["-M", "none", "-display", "none", "-monitor", "stdio", "-serial", "none", "-object", &backend];
    let mut qemu = match Command::new("qemu-system-x86_64")
        .args(words)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
    {
        Ok(child) => child,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "\nSKIPPED QEMU as a VMM without a server: {error}");
            return made.is_ok();
        }
    };
    // One that has ended takes no words.
    let _ = qemu.stdin.take().unwrap().write_all(b"quit\n");
    let started = qemu.wait().unwrap().success();
    assert_eq!(started, made.is_ok(), "QEMU and a plain open differ");
    started
}

/// Before the first server, behind one that has stopped, behind one that was killed, and behind `umount -l`: no file is made, nothing is in the
/// clear.
#[test]
fn a_vmm_that_starts_without_the_mount_makes_no_file() {
    let place = Place::new();
    place.succeed("create region --size 64k --key-file key");
    assert!(!start_a_vmm(&place), "before there was a server");
    let server = place.serve(SERVE);
    assert!(start_a_vmm(&place));
    server.stop();
    assert!(!start_a_vmm(&place), "the server has stopped");
    assert_eq!(fs::read_dir(place.at("mnt")).unwrap().count(), 0);
    place.serve(SERVE).kill();
    assert!(!start_a_vmm(&place), "the server was killed");
    // The dead mount goes by itself.
    let begun = std::time::Instant::now();
    while fs::read_link(place.at("mnt/region")).is_err() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "the dead mount is still there");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(!start_a_vmm(&place), "and its mount is gone");
    // Not even by somebody who makes the directory.
    assert!(fs::create_dir_all(place.at("mnt/region")).is_err());
    let server = place.serve(SERVE);
    let file = open(&place);
    assert!(Command::new("umount").arg("-l").arg(place.at("mnt")).status().unwrap().success());
    assert!(!start_a_vmm(&place), "taken away under a VMM");
    drop(file);
    server.ended();
    assert!(!start_a_vmm(&place));
    assert_eq!(fs::read_dir(place.at("mnt")).unwrap().count(), 0);
    place.succeed("check region --key-file key");
}
