//! What goes wrong in an operator's hands: one path for two things, a policy that cannot follow, limits of the shell, a daemon that does not
//! answer, and a host that is full.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::machine::{quietly, sh, tell_skipped, wait_for};
use crate::common::session::Session;
use crate::common::{Desk, Said};
use crate::skip_without_devices;
use serde_json::Value;

/// Runs a line of the shell in which `cvmio` is the program; what it said.
fn shell(desk: &Desk, line: &str) -> Said {
    let program = desk.command("");
    let mut command = Command::new("sh");
    command.args(["-c", &line.replace("cvmio", program.get_program().to_str().unwrap())]);
    command.current_dir(desk.path("")).env("CVMIO_RUNTIME_DIR", desk.path("run"));
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap_or(-1), out: text(output.stdout), error: text(output.stderr) }
}

#[test]
fn one_file_for_two_things_is_refused_and_nothing_is_written() {
    let desk = Desk::new();
    let anchor = format!("--anchor file:{}", desk.path("anchor").display());
    let key = desk.read("key");
    fs::hard_link(desk.path("key"), desk.path("same-key")).unwrap();
    let store = desk.path("disk.img");
    for (what, options) in [
        ("store and as the anchor", format!("--anchor file:{}", store.display())),
        ("store and as the policy", format!("{anchor} --force --policy disk.img")),
        ("policy and as the key file", format!("{anchor} --force --policy key")),
        ("policy and as the key file", format!("{anchor} --force --policy ./same-key")),
        ("policy and as the anchor", format!("{anchor} --policy anchor")),
    ] {
        let said = desk.run(&format!("volume create disk.img --size 16M --key-file key {options}"));
        assert!(said.code == 2 && said.error.contains(what), "{options}: {said:?}");
        assert!(!store.exists() && !desk.path("anchor").exists(), "{options}");
        assert_eq!(desk.read("key"), key);
    }
    let said =
        desk.run(&format!("volume import key --to disk.img --key-file key --stream-key-file other {anchor}"));
    assert!(said.code == 2 && said.error.contains("key file and as the stream"), "{said:?}");
}

#[test]
fn a_volume_does_not_grow_when_its_policy_cannot_follow() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let (policy, length) =
        (desk.read("disk.img.policy.toml"), fs::metadata(desk.path("disk.img")).unwrap().len());
    let path = desk.path("disk.img.policy.toml");
    // As the documents recommend for a container.
    if !quietly(&format!("mount --bind {0} {0}", path.display())) {
        return tell_skipped("nothing can be mounted here, or not by this user");
    }
    quietly(&format!("mount -o remount,bind,ro {}", path.display()));
    let refused = |said: Said| {
        assert!(said.code == 2 && said.error.contains("cannot be written"), "{said:?}");
        assert_eq!(fs::metadata(desk.path("disk.img")).unwrap().len(), length);
        assert_eq!(desk.read("disk.img.policy.toml"), policy);
    };
    refused(desk.run("volume grow disk.img --size 64M --key-file key"));
    let session = Session::attach(&desk, false);
    refused(desk.run("volume grow disk --size 64M --key-file key"));
    session.detach();
    sh(&format!("umount {}", path.display()));
    desk.done("volume grow disk.img --size 64M --key-file key");
    desk.done("volume check disk.img --key-file key");
}

#[test]
fn a_policy_that_is_a_link_stays_one_and_keeps_its_owner_and_mode() {
    let desk = Desk::new();
    desk.create("");
    fs::create_dir(desk.path("etc")).unwrap();
    fs::rename(desk.path("disk.img.policy.toml"), desk.path("etc/policy")).unwrap();
    fs::set_permissions(desk.path("etc/policy"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("etc/policy", desk.path("disk.img.policy.toml")).unwrap();
    // Only root can give a file away.
    let given = std::os::unix::fs::chown(desk.path("etc/policy"), Some(1234), Some(1235)).is_ok();
    desk.done("volume grow disk.img --size 64M --key-file key");
    assert!(desk.path("disk.img.policy.toml").symlink_metadata().unwrap().is_symlink());
    let metadata = fs::metadata(desk.path("etc/policy")).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o640);
    assert!(!given || (metadata.uid(), metadata.gid()) == (1234, 1235));
    desk.done("volume check disk.img --key-file key");
}

#[test]
fn what_cannot_write_to_its_store_claims_nothing() {
    skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    let anchor = desk.read("anchor");
    let made = shell(&desk, "losetup --find --show --read-only disk.img");
    let device = made.out.trim().to_string();
    let said =
        desk.run(&format!("volume attach {device} --policy disk.img.policy.toml --key-file key --name disk"));
    let reading = desk.run(&format!(
        "volume attach {device} --policy disk.img.policy.toml --key-file key --name disk --read-only"
    ));
    desk.run("volume detach disk");
    sh(&format!("losetup --detach {device}"));
    assert!(said.code == 2 && said.error.contains("write-protected"), "{said:?}");
    assert_eq!(desk.read("anchor"), anchor);
    assert_eq!(reading.code, 0, "{reading:?}");
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_not_the_end() {
    let desk = Desk::new();
    let anchor = desk.path("anchor");
    let said = shell(
        &desk,
        &format!(
            "ulimit -f 1024; cvmio volume create disk.img --size 16M --key-file key --anchor file:{}",
            anchor.display()
        ),
    );
    assert!(said.code == 2 || said.code == 3, "{said:?}");
    assert!(said.error.contains("too large") || said.error.contains("File"), "{said:?}");
}

#[test]
fn signals_that_mean_nothing_to_a_daemon_do_not_end_it() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let session = Session::attach(&desk, false);
    // The last three have no name that each shell knows: STKFLT, the first and the last of real time.
    for signal in ["USR1", "USR2", "ALRM", "VTALRM", "PROF", "XFSZ", "PIPE", "IO", "PWR", "16", "34", "64"] {
        sh(&format!("kill -{signal} {}", session.process));
    }
    desk.done("volume status disk");
    session.detach();
}

#[test]
fn a_daemon_that_was_stopped_is_not_called_dead_and_keeps_nobody_waiting() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let session = Session::attach(&desk, false);
    sh(&format!("kill -STOP {}", session.process));
    let begun = Instant::now();
    let list: Value = serde_json::from_str(&desk.done("volume list --json")).unwrap();
    let (text, status, detach) =
        (desk.done("volume list"), desk.run("volume status disk"), desk.run("volume detach disk"));
    let waited = begun.elapsed();
    sh(&format!("kill -CONT {}", session.process));
    assert_eq!((&list[0]["state"], &list[0]["stopped"]), (&"silent".into(), &true.into()), "{list}");
    assert!(text.contains("does not answer since"), "{text}");
    for said in [status, detach] {
        assert!(said.code == 3 && said.error.contains("does not answer since"), "{said:?}");
        assert!(said.error.contains("kill -CONT"), "{said:?}");
    }
    assert!(waited < Duration::from_secs(60), "{waited:?}");
    wait_for("an answer", || desk.run("volume status disk").code == 0);
    session.detach();
}

/// Another program has the anchor's lock, before the attach and then while a flush waits.
#[test]
fn a_daemon_that_waits_for_its_anchors_lock_is_not_called_dead() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let lock = fs::File::open(desk.path("anchor")).unwrap();
    // An attach that waits has no answers yet; a session whose flush waits has.
    let ask = |when: &str, silent: bool| {
        let begun = Instant::now();
        let list: Value = serde_json::from_str(&desk.done("volume list --json")).unwrap();
        let (text, status) = (desk.done("volume list"), desk.run("volume status disk"));
        assert!(begun.elapsed() < Duration::from_secs(60), "{when}: {:?}", begun.elapsed());
        assert_eq!(list[0]["name"], "disk", "{when}: {list}");
        if silent {
            assert_eq!(list[0]["state"], "silent", "{when}: {list}");
            assert!(text.contains("does not answer since"), "{when}: {text}");
            assert!(status.code == 3 && status.error.contains("does not answer since"), "{when}: {status:?}");
        } else {
            assert_eq!(
                (&list[0]["state"], status.code),
                (&"attached".into(), 0),
                "{when}: {list} {status:?}"
            );
        }
    };
    lock.lock().unwrap();
    let arguments = "volume attach disk.img --key-file key --memory 32M --as fuse --anchor-timeout 10m";
    let mut attach = desk.command(arguments).spawn().unwrap();
    wait_for("the daemon's name", || desk.path("run/disk").exists());
    ask("attaching", true);
    lock.unlock().unwrap();
    assert!(attach.wait().unwrap().success());
    lock.lock().unwrap();
    let disk = desk.path("run/disk/disk");
    let line = format!("dd if=/dev/zero of={} bs=4k count=1 conv=notrunc,fsync status=none", disk.display());
    let mut write = Command::new("sh").args(["-c", &line]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(write.try_wait().unwrap().is_none(), "a flush was answered before the anchor had moved");
    ask("flushing", false);
    lock.unlock().unwrap();
    assert!(write.wait().unwrap().success());
    desk.done("volume detach disk");
}

/// Another program has the anchor's lock and keeps it.
#[test]
fn a_lock_that_somebody_keeps_ends_an_attach_and_a_session_in_their_time() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let lock = fs::File::open(desk.path("anchor")).unwrap();
    lock.lock().unwrap();
    let who = format!("process {} (", std::process::id());
    for more in ["", "--read-only"] {
        let begun = Instant::now();
        let arguments =
            format!("volume attach disk.img --key-file key --memory 32M --anchor-timeout 500ms {more}");
        let said = desk.run(&arguments);
        assert_eq!(said.code, 8, "{more}: {said:?}");
        assert!(said.error.contains(&who) && said.error.contains("has it locked"), "{more}: {said:?}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{more}: {:?}", begun.elapsed());
    }
    lock.unlock().unwrap();
    let session = Session::attach_with(&desk, "--anchor-timeout 500ms");
    let file = fs::File::options().write(true).open(&session.file).unwrap();
    lock.lock().unwrap();
    file.write_all_at(&[7; 4096], 0).unwrap();
    assert!(file.sync_data().is_err(), "it has waited for long enough");
    let status: Value = serde_json::from_str(&desk.done("volume status disk --json")).unwrap();
    let failure = status["volume"]["failure"].as_str().expect("it failed");
    assert!(failure.contains("it has been away for") && failure.contains(&who), "{failure}");
    lock.unlock().unwrap();
    drop(file);
    session.kill();
    crate::common::session::clean_up(&desk);
    Session::attach_with(&desk, "--anchor-timeout 500ms").detach();
}

/// A file, and then a directory, of the volume's name lies in the working directory. Commands for an attached volume go to it, and say so;
/// those for a store refuse the name.
#[test]
fn an_attached_name_is_meant_whatever_lies_in_the_directory() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let session = Session::attach(&desk, false);
    let at = |name: &str| format!("file:{}", desk.path(name).display());
    let (key, stream) = ("--key-file key", "--stream-key-file other");
    let of_the_volume = [
        "volume check disk".to_owned(),
        format!("volume grow disk --size 32M {key}"),
        "volume key list disk".into(),
        format!("volume key add disk {key} --new-key-file other"),
        format!("volume key remove disk 1 {key}"),
        format!("volume rekey disk {key}"),
    ];
    let of_a_store = [
        "volume dump disk".to_owned(),
        format!("volume create disk --size 16M {key} --anchor {}", at("new")),
        format!("volume header restore disk key {key}"),
        format!("volume export disk {key} {stream} --to exported"),
        format!("volume import key --to disk {key} {stream} --anchor {}", at("new")),
        format!("volume reanchor disk {key}"),
        format!("anchor migrate disk {key} --to {}", at("new")),
        format!("anchor verify disk {key}"),
    ];
    for directory in [false, true] {
        if directory {
            fs::remove_file(desk.path("disk")).unwrap();
            fs::create_dir(desk.path("disk")).unwrap();
        } else {
            desk.write("disk", b"something else");
        }
        for command in &of_the_volume {
            let said = desk.run(command);
            assert!(said.code == 0 && said.error.contains("./disk"), "{command}: {said:?}");
        }
        let before = (desk.read("disk.img.policy.toml"), fs::read_dir(desk.path("")).unwrap().count());
        for command in &of_a_store {
            let said = desk.run(command);
            assert!(said.code == 2 && said.error.contains("./disk"), "{command}: {said:?}");
            assert!(said.error.contains("volume detach disk"), "{command}: {said:?}");
        }
        let after = (desk.read("disk.img.policy.toml"), fs::read_dir(desk.path("")).unwrap().count());
        assert!(before == after, "a command that was refused has left something");
    }
    fs::remove_dir(desk.path("disk")).unwrap();
    desk.write("disk", b"something else");
    let said = desk.run("volume check ./disk --key-file key --policy disk.img.policy.toml");
    assert_ne!(said.code, 0, "{said:?}");
    session.detach();
    assert_ne!(desk.run("volume check disk --key-file key").code, 0, "now it is the file");
}

#[test]
fn what_cannot_be_printed_is_an_error() {
    let desk = Desk::new();
    desk.create("");
    for line in [
        "cvmio volume list --json > /dev/full",
        "cvmio volume list >&-",
        "cvmio completions bash > /dev/full",
        "cvmio --help > /dev/full",
        "cvmio volume attach --help >&-",
        "cvmio --version > /dev/full",
        "timeout 10 cvmio volume top --interval 10ms > /dev/full",
        "timeout 10 cvmio volume top --interval 10ms >&-",
    ] {
        let said = shell(&desk, line);
        assert!(said.code == 3 && said.error.contains("standard output"), "{line}: {said:?}");
    }
    let said = shell(&desk, "cvmio volume export disk.img --to - --key-file key --stream-key-file other >&-");
    assert!(said.code == 2 && said.error.contains("closed"), "{said:?}");
    // Nobody reads any more: that is quiet, and an end.
    for line in [
        "cvmio volume list",
        "cvmio completions zsh",
        "cvmio --help",
        "timeout 10 cvmio volume top --interval 10ms",
    ] {
        let said = shell(&desk, &format!("{{ {line}; echo $? >&2; }} | true"));
        assert_eq!(said.error, "0\n", "{line}");
        assert_eq!(shell(&desk, &line.replace("10ms", "1ms --once > /dev/null")).code, 0, "{line}");
    }
}

#[test]
fn small_mistakes_are_refused_or_forgiven() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    // Something appended is somebody else's, and changes nothing.
    let mut image = desk.read("disk.img");
    image.push(7);
    desk.write("disk.img", &image);
    desk.done("volume check disk.img --key-file key");

    fs::create_dir(desk.path("full")).unwrap();
    desk.write("full/file", b"");
    desk.write("hook", b"#!/bin/sh\n");
    desk.write("text", b"echo alarm\n");
    fs::set_permissions(desk.path("text"), fs::Permissions::from_mode(0o755)).unwrap();
    let attach = "volume attach disk.img --key-file key";
    for (options, what) in [
        ("--mount full", "is not empty"),
        ("--tamper-hook hook", "chmod +x"),
        ("--tamper-hook text", "does not begin with `#!`"),
        ("--memory 1000T", "more than all memory"),
        ("--block-cache 1000T", "more than all memory"),
    ] {
        let said = desk.run(&format!("{attach} {options}"));
        assert!(said.code == 2 && said.error.contains(what), "{options}: {said:?}");
    }
    desk.write("typed", b"\xef\xbb\xbfopen sesame\r\n");
    desk.write("plain", b"open sesame\n");
    desk.done("volume key add disk.img --key-file key --new-passphrase-file typed");
    desk.done("volume check disk.img --passphrase-file plain");
    let dash = desk.run("volume create - --size 16M --key-file key --freshness off");
    assert!(dash.code == 2 && dash.error.contains("`./-`") && !desk.path("-").exists(), "{dash:?}");
    let marked = [b"\xef\xbb\xbf", &desk.read("disk.img.policy.toml")[..]].concat();
    desk.write("marked", &marked);
    desk.done("volume check disk.img --passphrase-file plain --policy marked");
}

/// Who comes second would wait for ever, or get nothing.
#[test]
fn what_can_be_read_once_is_not_for_two_secrets() {
    let desk = Desk::new();
    desk.create("");
    let add = "timeout 20 cvmio volume key add disk.img";
    for (line, what) in [
        (format!("{add} --key-file - --new-key-file - < key"), "standard input was read"),
        (format!("cat key | {add} --key-file - --new-key-file /dev/stdin"), "standard input was read"),
        (format!("cat key | {add} --key-file /dev/stdin --new-key-file -"), "standard input was read"),
        (
            format!("mkfifo pipe; cat key > pipe & {add} --key-file ./pipe --new-key-file pipe"),
            "pipe was read",
        ),
        (
            "cat key | cvmio volume import - --check --stream-key-file /dev/stdin".into(),
            "standard input was read",
        ),
        ("cat key | cvmio volume header restore disk.img - --key-file -".into(), "standard input was read"),
    ] {
        let said = shell(&desk, &line);
        assert!(said.code == 2 && said.error.contains(what), "{line}: {said:?}");
    }
    // One after the other they are fine.
    desk.done("volume check disk.img --key-file key");
    let said = shell(&desk, "cat key | cvmio volume check disk.img --key-file /dev/stdin");
    assert_eq!(said.code, 0, "{said:?}");
}

#[test]
fn a_secret_that_all_can_read_is_warned_of_also_in_json() {
    let desk = Desk::new();
    desk.create("");
    desk.write("word", b"open sesame\n");
    fs::set_permissions(desk.path("word"), fs::Permissions::from_mode(0o600)).unwrap();
    desk.done("volume key add disk.img --key-file key --new-passphrase-file word");
    for secret in ["--key-file key", "--passphrase-file word"] {
        let path = desk.path(secret.split(' ').nth(1).unwrap());
        assert_eq!(desk.run(&format!("volume check disk.img {secret}")).error, "");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let said = desk.run(&format!("volume check disk.img {secret}"));
        assert!(said.code == 0 && said.error.matches("chmod").count() == 1, "{said:?}");
        let ready = desk.done(&format!("volume attach disk.img {secret} --memory 32M --as nbd --json"));
        let ready: Value = serde_json::from_str(&ready).unwrap();
        desk.done("volume detach disk");
        let warnings = ready["warnings"].as_array().unwrap();
        let about = warnings.iter().filter(|warning| warning.as_str().unwrap().contains("chmod"));
        assert_eq!(about.count(), 1, "{ready}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
}
