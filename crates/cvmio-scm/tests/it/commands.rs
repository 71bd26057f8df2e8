//! Every command, and what it says to bad input.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use crate::support::{PAGE, Place};

const CREATE: &str = "create region --size 256k --key-file key";

#[test]
fn a_region_is_made_looked_at_and_checked() {
    let place = Place::new();
    assert!(place.succeed(CREATE).contains("64 pages of 4096 bytes"));
    assert!(place.succeed("status region").contains("64 encrypted, 0 open, 0 unverified, 0 under way"));
    assert!(place.succeed("status region --json").contains("\"proven\":false"));
    assert!(place.succeed("status region --metrics").contains("\ncvmio_scm_pages_encrypted 64\n"));
    assert!(place.succeed("check region --key-file key").contains("every encrypted page opens"));
    assert!(place.succeed("recover region --key-file key").contains("stopped cleanly"));
}

/// By FUSE and by userfaultfd; and what would have QEMU use something else than the region.
#[test]
fn arguments_for_qemu_are_of_a_region_that_is_served() {
    let place = Place::new();
    place.succeed(CREATE);
    let expected = |path: &str| {
        let path = place.at(path).display().to_string();
        format!(
            "-object memory-backend-file,id=scm0,share=on,mem-path={path},size=262144 -device virtio-pmem-pci,memdev=scm0,id=pmem0\n"
        )
    };
    // A plain file is none that is served, whoever has made it.
    let nobody = "no region is served there: start `cvmio scm serve --mode fuse`";
    place.fail("qemu-args --mountpoint mnt", 2, nobody);
    place.fail("qemu-args --mountpoint none", 2, nobody);
    place.fail("qemu-args --mountpoint key", 2, nobody);
    fs::create_dir(place.at("mnt/region")).unwrap();
    fs::write(place.at("mnt/region/pmem"), vec![0; 64 * PAGE]).unwrap();
    place.fail("qemu-args --mountpoint mnt", 2, nobody);
    fs::remove_dir_all(place.at("mnt/region")).unwrap();
    for name in ["a,b", "white\tspace"] {
        fs::create_dir(place.at(name)).unwrap();
    }
    let server = place.serve("serve region --key-file key --mode fuse --mountpoint a,b --socket socket");
    assert_eq!(place.succeed("qemu-args --mountpoint a,b"), expected("a,,b/region/pmem"));
    place.fail("qemu-args --socket socket", 2, "gives its region by FUSE");
    server.stop();
    // The path is one under the socket: there is no such file.
    let server = place.serve("serve region --key-file key --mode userfaultfd --socket a,b/socket");
    assert_eq!(place.succeed("qemu-args --socket a,b/socket"), expected("a,,b/socket/pmem"));
    assert!(!place.at("a,b/socket/pmem").exists());
    server.stop();
    let server = place.serve("serve region --key-file key --mode userfaultfd --socket white\tspace/socket");
    place.fail("qemu-args --socket white\tspace/socket", 2, "cannot be in arguments for QEMU");
    server.stop();
    place.fail("qemu-args", 2, "--mountpoint");
    place.fail("qemu-args --mountpoint", 2, "a value is required");
    place.fail("qemu-args --socket socket", 3, "the server on");
    place.fail("qemu-args --mountpoint mnt --socket socket", 2, "cannot be used with");
}

/// A group of its own may connect, and nobody else.
#[test]
fn a_socket_is_for_its_server_s_user_and_for_those_who_are_named() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    place.succeed(CREATE);
    let serve = "serve region --key-file key --mode userfaultfd --socket socket";
    let found = || {
        let found = fs::metadata(place.at("socket")).unwrap();
        (found.mode() & 0o777, found.uid(), found.gid())
    };
    let ours = fs::metadata(place.at("key")).unwrap();
    let server = place.serve(serve);
    assert_eq!(found(), (0o600, ours.uid(), ours.gid()));
    server.stop();
    let server = place.serve(&format!("{serve} --socket-mode 660"));
    assert_eq!(found(), (0o660, ours.uid(), ours.gid()));
    server.stop();
    // Only root gives sockets away.
    if ours.uid() == 0 {
        let server = place.serve(&format!("{serve} --socket-owner 65534:65533"));
        assert_eq!(found(), (0o600, 65534, 65533));
        server.stop();
    }
    place.fail(&format!("{serve} --open-limit 20k"), 2, "give it at least 24576");
}

/// One bit of a root, of the bitmap, of an entry: all other pages open, and are written to a file.
#[test]
fn what_still_opens_of_a_damaged_region_is_salvaged() {
    let place = Place::new();
    place.succeed(CREATE);
    let server = place.serve("serve region --key-file key --mode fuse --mountpoint mnt");
    let content: Vec<u8> = (0..=250).cycle().take(64 * PAGE).collect();
    fs::OpenOptions::new()
        .write(true)
        .open(place.at("mnt/region/pmem"))
        .unwrap()
        .write_all(&content)
        .unwrap();
    server.stop();
    let whole = fs::read(place.at("region")).unwrap();
    // Behind 64 data pages: bitmap, table, roots.
    for (at, lost) in
        [(64 * PAGE, None), (65 * PAGE + 7 * 64 + 40, Some(7)), (66 * PAGE, None), (66 * PAGE + 2048, None)]
    {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        if at >= 66 * PAGE {
            // The other root vouches for the same.
            bytes[66 * PAGE + 8] ^= 1;
            bytes[66 * PAGE + 2048 + 8] ^= 1;
        }
        fs::write(place.at("region"), &bytes).unwrap();
        place.fail("check region --key-file key", 4, "no root vouches");
        place.fail("check region --key-file key --salvage out", 4, "nothing says that it is the latest");
        let found = fs::read(place.at("out")).unwrap();
        let mut expected = content.clone();
        if let Some(page) = lost {
            expected[page * PAGE..][..PAGE].fill(0);
        }
        assert!(found == expected, "a bit at {at}");
        assert_eq!(fs::metadata(place.at("out")).unwrap().permissions().mode() & 0o777, 0o600);
        place.fail("check region --key-file key --salvage out", 3, "out");
        fs::remove_file(place.at("out")).unwrap();
        assert!(fs::read(place.at("region")).unwrap() == bytes, "a damaged region was changed");
    }
    fs::write(place.at("region"), &whole).unwrap();
    assert!(place.succeed("check region --key-file key --salvage out").contains("64 pages are there"));
}

/// Progress is for a terminal: nothing of it is in a pipe, and what is on standard output is the same.
#[test]
fn progress_is_shown_on_a_terminal_and_nowhere_else() {
    let place = Place::new();
    let create = "create region --size 4m --key-file key";
    for (words, label) in [
        (create, "encrypting"),
        ("recover region --key-file key", "looking at"),
        ("check region --key-file key", "opening"),
        ("accept region --key-file key --all", "looking at"),
    ] {
        let (piped, on_terminal, seen) = {
            let piped = place.run(words);
            if words == create {
                fs::remove_file(place.at("region")).unwrap();
            }
            let (on_terminal, seen) = with_terminal(place.command(words));
            (piped, on_terminal, seen)
        };
        assert_eq!((piped.code, piped.errors.as_str()), (Some(0), ""), "{words}");
        assert_eq!(piped.text, on_terminal, "{words}");
        assert!(seen.contains(label) && seen.contains("1024/1024 pages"), "{words}: {seen:?}");
        assert!(seen.contains(" left"), "{words}: {seen:?}");
        // It is gone at the end: the cursor is at the beginning of an empty line.
        assert!(seen.ends_with("\u{1b}[2K"), "{words}: {seen:?}");
    }
}

/// Runs a command whose standard error is a terminal. Returns its standard output, and what was on the terminal.
fn with_terminal(mut command: std::process::Command) -> (String, String) {
    use std::os::fd::{FromRawFd, OwnedFd};
    let (mut master, mut slave) = (0, 0);
    let size = libc::winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    let (name, modes) = (std::ptr::null_mut(), std::ptr::null());
    // SAFETY: both descriptors are written by the call, new, and ours; name and modes may be null.
    let (master, slave) = unsafe {
        assert_eq!(libc::openpty(&raw mut master, &raw mut slave, name, modes, &raw const size), 0);
        (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    };
    let reader = std::thread::spawn(move || {
        let (mut seen, mut some) = (Vec::new(), [0; 4096]);
        // EIO when nobody has the terminal any more.
        while let Ok(count) = rustix::io::read(&master, &mut some) {
            seen.extend_from_slice(&some[..count]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    });
    command.env("TERM", "xterm").stdout(std::process::Stdio::piped()).stderr(slave);
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert!(output.status.success());
    drop(command);
    (String::from_utf8_lossy(&output.stdout).into_owned(), reader.join().unwrap())
}

#[test]
fn huge_pages_are_pages_too() {
    let place = Place::new();
    assert!(
        place.succeed("create region --size 6m --page-size 2m --key-file key").contains("3 pages of 2097152")
    );
    assert!(place.succeed("check region --key-file key").contains("every encrypted page opens"));
}

#[test]
fn what_cannot_be_made_is_refused_and_leaves_nothing() {
    let place = Place::new();
    fs::write(place.at("short"), [1; 31]).unwrap();
    place.fail("create region --size 256k --key-file none", 2, "the key file none");
    place.fail("create region --size 256k --key-file short", 10, "key file");
    place.fail("create region --size 5000 --key-file key", 2, "no whole number of pages");
    place.fail("create region --size 256k --page-size 8k --key-file key", 2, "use 4k or 2m");
    place.fail("create region --size 256k --suite aes-256-xts --key-file key", 2, "authenticates nothing");
    place.fail("create region --size 256k --workers 9 --key-file key", 2, "between 1 and 8");
    place.fail("create none/region --size 256k --key-file key", 3, "none");
    assert!(!place.at("region").exists());
    place.succeed(CREATE);
    let before = fs::read(place.at("region")).unwrap();
    place.fail(CREATE, 3, "creating region");
    assert_eq!(fs::read(place.at("region")).unwrap(), before);
}

#[test]
fn a_region_that_is_not_ours_or_not_whole_is_refused_and_stays() {
    let place = Place::new();
    place.succeed(CREATE);
    fs::write(place.at("other"), [1; 64]).unwrap();
    place.fail("recover region --key-file other", 10, "no key slot opens");
    let whole = fs::read(place.at("region")).unwrap();
    let refused = |bytes: &[u8], code: i32, about: &str| {
        fs::write(place.at("region"), bytes).unwrap();
        for words in [
            "recover region --key-file key",
            "check region --key-file key",
            "serve region --key-file key --mode fuse --mountpoint mnt",
        ] {
            place.fail(words, code, about);
        }
        assert_eq!(fs::read(place.at("region")).unwrap(), bytes, "a refused region was changed");
    };
    refused(&whole[..whole.len() - PAGE], 2, "cut short");
    refused(&[&whole[..], &[0; PAGE]].concat(), 2, "made longer");
    refused(&[], 2, "no region");
    refused(&[7; 3], 2, "no region");
    let header = whole.len() - 16_384;
    let with = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] ^= value;
        bytes
    };
    refused(&with(header + 8, 1), 2, "format version 3");
    refused(&with(header + 72, 1), 4, "MAC is wrong");
    // An entry of the table: behind 64 data pages and one block of bitmap.
    refused(&with(65 * PAGE + 40, 1), 4, "no root vouches");
    fs::write(place.at("region"), &whole).unwrap();
    place.succeed("check region --key-file key");
}

#[test]
fn a_changed_page_is_named_and_the_others_are_served() {
    let place = Place::new();
    place.succeed(CREATE);
    let mut bytes = fs::read(place.at("region")).unwrap();
    bytes[5 * PAGE + 100] ^= 1;
    fs::write(place.at("region"), &bytes).unwrap();
    place.fail("check region --key-file key", 4, "corrupt pages: 5:");
    let server = place.serve("serve region --key-file key --mode fuse --mountpoint mnt --socket socket");
    let file = fs::File::open(place.at("mnt/region/pmem")).unwrap();
    let read = |page: usize| {
        let mut content = vec![1; PAGE];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut content, (page * PAGE) as u64).map(|()| content)
    };
    assert!(read(5).is_err());
    assert!(read(60).is_ok_and(|content| content == [0; PAGE]));
    drop(file);
    assert!(!place.succeed("status --socket socket").contains(" 0 corrupt"));
    server.stop();
}

#[test]
fn status_of_nothing_is_an_error() {
    let place = Place::new();
    place.fail("status region", 3, "opening region");
    place.fail("status --socket socket", 3, "no server answers on socket");
}

/// What `cvmio` asks of it for its own completions and manual pages.
#[test]
fn it_says_its_grammar_and_writes_its_manual() {
    let place = Place::new();
    let grammar = place.succeed("grammar");
    for word in ["accept", "qemu-args", "open-limit", "userfaultfd"] {
        assert!(grammar.contains(&format!("\"{word}\"")), "{word}: {grammar}");
    }
    assert!(!grammar.contains("\"grammar\""));
    place.succeed("man pages");
    let page = fs::read_to_string(place.at("pages/cvmio-scm-serve.1")).unwrap();
    assert!(page.contains("read\\-ahead") && page.contains("cvmio scm serve"), "{page}");
}

/// As every program of this project does it.
#[test]
fn a_failure_is_told_a_program_with_its_code_and_the_name_of_its_kind() {
    let place = Place::new();
    let said = place.run("status none --json");
    let told: serde_json::Value = serde_json::from_str(&said.text).unwrap();
    assert!(said.code == Some(3) && told["error"]["code"] == 3 && told["error"]["kind"] == "io", "{told}");
    assert_eq!(said.errors, format!("cvmio: error: {}\n", told["error"]["message"].as_str().unwrap()));
}

/// As with `cvmio scm status region | head -0`.
#[test]
fn a_reader_that_has_gone_away_is_no_failure() {
    let place = Place::new();
    place.succeed(CREATE);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = place.command("status region").stdout(writer).status().unwrap();
    assert!(ended.success(), "{ended}");
}

/// As for a volume: from a file or from standard input, with a warning of a file that everybody can read, and with words for one that is none.
#[test]
fn a_key_is_read_as_that_of_a_volume_is() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    fs::set_permissions(place.at("key"), fs::Permissions::from_mode(0o644)).unwrap();
    let said = place.run(CREATE);
    assert!(
        said.code == Some(0) && said.errors.contains("every user of this machine can read the key file key")
    );
    fs::set_permissions(place.at("key"), fs::Permissions::from_mode(0o600)).unwrap();
    let said = place.run("check region --key-file key");
    assert_eq!((said.code, said.errors.as_str()), (Some(0), ""));
    let piped = |name: &str| {
        let key = fs::File::open(place.at(name)).unwrap();
        place.command("check region --key-file -").stdin(key).output().unwrap()
    };
    assert!(piped("key").status.success());
    fs::write(place.at("other"), [1; 64]).unwrap();
    assert_eq!(piped("other").status.code(), Some(10));
    place.fail("check region --key-file none", 2, "the key file none cannot be read: No such file");
    fs::write(place.at("huge"), vec![1; 65_537]).unwrap();
    place.fail("check region --key-file huge", 2, "longer than 65536 bytes; name the right one");
}
