//! A volume as real NBD clients see it: libnbd's tools, QEMU's, fio and Python.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Desk;
use crate::common::machine::damage_middle;
use crate::common::machine::{content, has, has_ended, quietly, sh, tell_skipped, wait_for};
use serde_json::Value;

/// Ends a test that this machine lacks the programs for.
macro_rules! need {
    ($($program:literal),*) => {
        if let Some(missing) = [$($program),*].into_iter().find(|program| !has(program)) {
            tell_skipped(&format!("there is no {missing}"));
            return;
        }
    };
}

/// An attached volume.
struct Attached<'a> {
    desk: &'a Desk,
    process: u32,
    uri: String,
}

impl<'a> Attached<'a> {
    fn new(desk: &'a Desk, more: &str) -> Self {
        let command = format!("volume attach disk.img --key-file key --as nbd --json {more}");
        let ready: Value = serde_json::from_str(&desk.done(&command)).unwrap();
        assert_eq!(ready["front-end"], "nbd");
        let here = desk.path("").display().to_string();
        let uri = ready["uri"].as_str().unwrap().replace("[DIR]", here.trim_end_matches('/'));
        Self { desk, process: u32::try_from(ready["process"].as_u64().unwrap()).unwrap(), uri }
    }

    fn detach(self) {
        // A client that just ended may still be on its way out.
        wait_for("the volume to be put away", || self.desk.run("volume detach disk").code == 0);
        wait_for("the daemon's end", || has_ended(self.process));
        assert!(!self.desk.path("run/disk").exists(), "nothing is left");
    }

    /// A client that stays connected as long as its input is open.
    fn client(&self) -> Child {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", &self.uri]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = command.spawn().unwrap();
        client.stdin.as_mut().unwrap().write_all(b"read 0 512\n").unwrap();
        let mut said = String::new();
        let mut output = BufReader::new(client.stdout.as_mut().unwrap());
        while !said.contains("512/512") {
            assert!(output.read_line(&mut said).unwrap() > 0, "{said}");
        }
        client
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if !has_ended(self.process) {
            quietly(&format!("kill {}", self.process));
            let begun = Instant::now();
            while !has_ended(self.process) && begun.elapsed() < Duration::from_secs(15) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn what_is_copied_in_is_copied_out_also_after_a_detach() {
    need!("nbdinfo", "nbdcopy");
    let desk = Desk::new();
    desk.create("");
    let volume = Attached::new(&desk, "");
    let told: Value = serde_json::from_str(&sh(&format!("nbdinfo --json '{}'", volume.uri))).unwrap();
    let export = &told["exports"][0];
    assert_eq!(told["structured"], true, "{told}");
    assert_eq!(
        (&export["export-size"], &export["export-name"]),
        (&(16 << 20).into(), &"disk".into()),
        "{told}"
    );
    for can in ["can_multi_conn", "can_flush", "can_fua", "can_trim", "can_zero", "can_fast_zero", "can_df"] {
        assert_eq!(export[can], true, "{can}: {told}");
    }
    assert_eq!(export["contexts"][0], "base:allocation");
    assert_eq!(export["block_size_preferred"], 4096);

    let bytes = content(1, 10 << 20);
    desk.write("in", &bytes);
    let (from, to) = (desk.path("in"), desk.path("out"));
    sh(&format!("nbdcopy --flush {} '{}'", from.display(), volume.uri));
    let map: Value = serde_json::from_str(&sh(&format!("nbdinfo --map --json '{}'", volume.uri))).unwrap();
    let extents: Vec<_> =
        map.as_array().unwrap().iter().map(|one| (one["offset"].as_u64(), one["type"].as_u64())).collect();
    assert_eq!(extents, [(Some(0), Some(0)), (Some(10 << 20), Some(3))], "{map}");
    volume.detach();

    let volume = Attached::new(&desk, "");
    sh(&format!("nbdcopy '{}' {}", volume.uri, to.display()));
    let out = desk.read("out");
    assert!(out[..bytes.len()] == bytes && out[bytes.len()..].iter().all(|&byte| byte == 0));
    let status = desk.done("volume status disk");
    assert!(status.contains("nbd+unix:///?socket=[DIR]/run/disk/nbd.sock"), "{status}");
    assert!(desk.done("volume list").contains("nbd+unix:///"));
    volume.detach();
}

#[test]
fn qemu_writes_discards_and_converts() {
    need!("qemu-io", "qemu-img", "nbdinfo");
    let desk = Desk::new();
    desk.create("");
    let volume = Attached::new(&desk, "");
    let io = |commands: &[&str]| {
        let commands: String = commands.iter().map(|command| format!(" -c '{command}'")).collect();
        let said = sh(&format!("qemu-io -f raw{commands} '{}'", volume.uri));
        assert!(!said.contains("failed"), "{said}");
    };
    io(&["write -P 7 1000 5000", "read -P 7 1000 5000", "read -P 0 0 1000", "flush"]);
    io(&[
        "write -f -P 8 1M 1M",
        "write -P 9 3M 4M",
        "discard 1M 64k",
        "read -P 0 1M 64k",
        "read -P 8 1088k 960k",
    ]);
    io(&["write -z -u 4M 1M", "read -P 0 4M 1M", "write -z 6M 64k", "read -P 0 6M 64k", "read -P 9 5M 1M"]);
    let map = sh(&format!("nbdinfo --map '{}'", volume.uri));
    let holes: Vec<Vec<&str>> = map
        .lines()
        .filter(|line| line.contains("hole"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    // From the first write's last block to 1M, the discard, what was before 3M, zeros without space, and the end. Zeros that keep
    // their space are none.
    let places: Vec<(&str, &str)> = holes.iter().map(|hole| (hole[0], hole[1])).collect();
    let expected =
        [("8192", "1105920"), ("2097152", "1048576"), ("4194304", "1048576"), ("7340032", "9437184")];
    assert_eq!(places, expected, "{map}");

    let copy = desk.path("copy.qcow2");
    sh(&format!("qemu-img convert -f raw -O qcow2 '{}' {}", volume.uri, copy.display()));
    sh(&format!("qemu-img compare -f raw -F qcow2 '{}' {}", volume.uri, copy.display()));
    sh(&format!("qemu-io -f raw -c 'write -P 1 0 16M' '{}'", volume.uri));
    sh(&format!("qemu-img convert -n -f qcow2 -O raw {} '{}'", copy.display(), volume.uri));
    sh(&format!("qemu-img compare -f raw -F qcow2 '{}' {}", volume.uri, copy.display()));
    volume.detach();
}

#[test]
fn python_asks_for_what_only_structured_replies_can_tell() {
    need!("/usr/bin/nbdsh");
    let desk = Desk::new();
    desk.create("");
    let volume = Attached::new(&desk, "");
    let script = "
h.add_meta_context('base:allocation')
h.connect_uri(uri)
assert h.get_structured_replies_negotiated() and h.can_df() and h.can_meta_context('base:allocation')
data = bytes(range(256)) * 400
h.pwrite(data, 1234567)
assert h.pread(len(data), 1234567) == data
chunks = []
assert h.pread_structured(4096, 1232896, lambda *chunk: chunks.append(chunk[1:3]), nbd.CMD_FLAG_DF)[1671:] == data[:2425]
assert chunks == [(1232896, nbd.READ_DATA)], chunks
extents = []
h.block_status(1 << 20, 1 << 20, lambda context, offset, found, error: extents.extend(found))
assert extents == [184320, 3, 106496, 0, 757760, 3], extents
# Many at once, in any order.
cookies = [h.aio_pwrite(bytearray([n]) * 700, n * 700) for n in range(64)]
while cookies:
    h.poll(-1)
    cookies = [cookie for cookie in cookies if not h.aio_command_completed(cookie)]
assert h.pread(64 * 700, 0) == b''.join(bytes([n]) * 700 for n in range(64))
h.set_strict_mode(0)
for ask, errno in [(lambda: h.pread(1, 16 << 20), 22), (lambda: h.pwrite(b'x', 16 << 20), 28), (lambda: h.zero(512, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE), 95)]:
    try:
        ask()
    except nbd.Error as error:
        assert error.errnum == errno, error
    else:
        assert False
h.flush()
h.shutdown()
";
    desk.write(
        "script.py",
        format!("import nbd\nh = nbd.NBD()\nuri = '{}'\n{script}", volume.uri).as_bytes(),
    );
    sh(&format!("/usr/bin/python3 {}", desk.path("script.py").display()));
    volume.detach();
}

#[test]
fn a_volume_that_grows_is_larger_for_who_connects_then() {
    need!("qemu-io", "nbdinfo");
    let desk = Desk::new();
    desk.create("");
    let volume = Attached::new(&desk, "");
    let size = || sh(&format!("nbdinfo --size '{}'", volume.uri)).trim().parse::<u64>().unwrap();
    assert_eq!(size(), 16 << 20);
    let mut client = volume.client();
    let said = desk.done("volume grow disk --size 64M --key-file key");
    assert!(said.contains("connect again"), "{said}");
    assert_eq!(size(), 64 << 20);
    // Who was connected goes on, in what he was told.
    client.stdin.take().unwrap().write_all(b"length\nwrite -P 7 0 4096\nread -P 7 0 4096\n").unwrap();
    let mut rest = String::new();
    client.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert!(client.wait().unwrap().success(), "{rest}");
    assert!(rest.contains("16 MiB") && rest.contains("read 4096/4096"), "{rest}");
    let end = (64 << 20) - 4096;
    sh(&format!("qemu-io -f raw -c 'write -P 9 {end} 4096' -c 'read -P 9 {end} 4096' '{}'", volume.uri));
    volume.detach();
    desk.done("volume check disk.img --key-file key");
}

#[test]
fn many_read_and_a_damaged_block_is_an_error_for_itself_alone() {
    need!("/usr/bin/nbdsh");
    let desk = Desk::new();
    desk.create("");
    let before = desk.read("disk.img");
    let volume = Attached::new(&desk, "");
    // Debian's Python, which has the module, and no other of this machine.
    let shell = |uri: &str, script: &str| sh(&format!("PATH=/usr/bin:/bin nbdsh -u '{uri}' -c '{script}'"));
    shell(&volume.uri, r#"h.pwrite(b"x" * (1 << 20), 0); h.flush()"#);
    volume.detach();
    damage_middle(&desk, &before);
    let read_all = r#"
assert h.is_read_only()
failed = []
for block in range(256):
    try:
        assert h.pread(4096, block * 4096) == b"x" * 4096
    except nbd.Error as error:
        failed.append((block, error.errno))
assert len(failed) == 1 and failed[0][1] == "EIO", failed
h.set_strict_mode(0)
try:
    h.pwrite(b"y" * 4096, 0)
except nbd.Error as error:
    assert error.errno == "EPERM", error
else:
    assert False
"#;
    let (store, anchor) = (desk.read("disk.img"), desk.read("anchor"));
    let reader = |name: &str| {
        let attach =
            format!("volume attach disk.img --key-file key --as nbd --read-only --name {name} --json");
        let ready: Value = serde_json::from_str(&desk.done(&attach)).unwrap();
        ready["uri"].as_str().unwrap().replace("[DIR]", desk.path("").to_str().unwrap().trim_end_matches('/'))
    };
    let uris = ["first", "second"].map(reader);
    for uri in &uris {
        shell(uri, read_all);
    }
    for name in ["first", "second"] {
        wait_for("the volume to be put away", || desk.run(&format!("volume detach {name}")).code == 0);
    }
    assert!(desk.read("disk.img") == store && desk.read("anchor") == anchor, "a reader has written");
}

#[test]
fn fio_verifies_what_it_wrote() {
    need!("fio");
    if !sh("fio --enghelp").contains("nbd") {
        return tell_skipped("this fio has no NBD engine");
    }
    let desk = Desk::new();
    desk.create("");
    let volume = Attached::new(&desk, "");
    let said = sh(&format!(
        "cd {} && fio --name=nbd --ioengine=nbd --uri='{}' --rw=randrw --bsrange=512-128k --blockalign=512 --size=12m --iodepth=16 \
         --fsync=8 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse",
        desk.path("").display(),
        volume.uri
    ));
    assert!(said.contains("nbd;0;0;"), "{said}");
    volume.detach();
}

#[test]
fn a_volume_in_use_is_not_put_away_and_a_signal_leaves_time() {
    need!("qemu-io");
    let desk = Desk::new();
    desk.create("");
    let volume = Attached::new(&desk, "");
    let mut client = volume.client();
    let said = desk.run("volume detach disk");
    let who = format!("process {} (qemu-io) is connected", client.id());
    assert!(said.code == 2 && said.error.contains(&who), "{}", said.error);
    sh(&format!("kill {}", volume.process));
    wait_for("the daemon to have noticed", || {
        fs::read_to_string(desk.path("run/disk/log")).is_ok_and(|log| log.contains(&who))
    });
    assert!(!has_ended(volume.process), "it waits for the client");
    writeln!(client.stdin.take().unwrap(), "write -P 7 0 64k\nflush").unwrap();
    client.wait().unwrap();
    let begun = Instant::now();
    wait_for("the daemon's end", || has_ended(volume.process));
    assert!(begun.elapsed() < Duration::from_secs(5), "it waits no longer than it must");
    assert!(!desk.path("run/disk").exists());
    let volume = Attached::new(&desk, "");
    let read = sh(&format!("qemu-io -f raw -r -c 'read -P 7 0 64k' '{}'", volume.uri));
    assert!(read.contains("read 65536/65536") && !read.contains("failed"), "what it did meanwhile: {read}");
    volume.detach();
}

/// A client that only connected has nothing to lose. A client that chose the export has the device.
#[test]
fn only_who_has_chosen_the_export_holds_a_detach_up() {
    let desk = Desk::new();
    desk.create("");
    let volume = Attached::new(&desk, "");
    let connect = || {
        let mut client = UnixStream::connect(desk.path("run/disk/nbd.sock")).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The greeting of the server, which now waits for what this client wants.
        client.read_exact(&mut [0; 18]).unwrap();
        client
    };
    let (silent, mut asks, mut uses) = (connect(), connect(), connect());
    // Half of an option.
    asks.write_all(b"\0\0\0\x03IHAVEOPT\0\0").unwrap();
    // The whole of one: NBD_OPT_EXPORT_NAME, with no name.
    uses.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    uses.read_exact(&mut [0; 10]).unwrap();
    let said = desk.run("volume detach disk");
    let who = format!("process {} (", std::process::id());
    assert!(said.code == 2 && said.error.matches(&who).count() == 1, "{said:?}");
    assert!(said.error.contains("is connected"), "{said:?}");
    drop(uses);
    let begun = Instant::now();
    volume.detach();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    for mut client in [silent, asks] {
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "hung up on");
    }
}

#[test]
fn what_was_flushed_is_there_after_a_kill_and_the_socket_is_no_hindrance() {
    need!("nbdcopy");
    let desk = Desk::new();
    desk.create("");
    let volume = Attached::new(&desk, "");
    desk.write("in", &content(2, 16 << 20));
    sh(&format!("nbdcopy --flush {} '{}'", desk.path("in").display(), volume.uri));
    sh(&format!("kill -9 {}", volume.process));
    wait_for("the daemon's end", || has_ended(volume.process));
    assert!(desk.path("run/disk/nbd.sock").exists());
    let volume = Attached::new(&desk, "");
    sh(&format!("nbdcopy '{}' {}", volume.uri, desk.path("out").display()));
    assert!(desk.read("out") == desk.read("in"));
    volume.detach();
}

/// Certificates of an authority for a server on loopback and a client, and of another authority for a stranger.
fn certificates(desk: &Desk) {
    let new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    let sign = |who: &str, name: &str| {
        format!(
            "mkdir -p {who} && {new} -CA ca.pem -CAkey ca.key -subj /CN={name} -addext subjectAltName=IP:127.0.0.1 \
             -addext basicConstraints=critical,CA:FALSE -keyout {who}/key.pem -out {who}/cert.pem"
        )
    };
    let layout = "for d in client stranger; do cp ca.pem $d/ca-cert.pem; mv $d/key.pem $d/client-key.pem; mv $d/cert.pem $d/client-cert.pem; done
        mkdir nobody && cp ca.pem nobody/ca-cert.pem";
    let authority = |name: &str| {
        format!("{new} -subj /CN={name} -addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.pem")
    };
    sh(&format!(
        "cd {} && exec 2>&1 && {} && {} && mv ca.pem other.pem && {} && {} && {} && {layout}",
        desk.path("").display(),
        authority("other"),
        sign("stranger", "stranger"),
        authority("ours"),
        sign("server", "server"),
        sign("client", "client"),
    ));
}

#[test]
fn over_tls_only_who_has_a_certificate_comes_in() {
    need!("openssl", "nbdinfo", "nbdcopy");
    let desk = Desk::new();
    desk.create("");
    certificates(&desk);
    let tls = "--tls-cert server/cert.pem --tls-key server/key.pem --tls-ca ca.pem";
    let volume = Attached::new(&desk, &format!("--listen 127.0.0.1:0 {tls}"));
    let address = volume.uri.strip_prefix("nbds://").unwrap();
    let with = |who: &str| format!("nbds://{address}?tls-certificates={}", desk.path(who).display());
    desk.write("in", &content(3, 16 << 20));
    let (from, to) = (desk.path("in"), desk.path("out"));
    sh(&format!("nbdcopy {} '{}'", from.display(), with("client")));
    sh(&format!("nbdcopy '{}' {}", with("client"), to.display()));
    assert!(desk.read("out") == desk.read("in"));
    assert!(sh(&format!("nbdinfo '{}'", with("client"))).contains("with TLS"));
    for refused in [with("stranger"), with("nobody"), format!("nbd://{address}")] {
        assert!(!quietly(&format!("timeout 20 nbdinfo '{refused}'")), "{refused}");
    }
    volume.detach();
    // Beyond loopback as well.
    let volume = Attached::new(&desk, &format!("--listen 0.0.0.0:0 {tls}"));
    assert!(volume.uri.starts_with("nbds://0.0.0.0:"));
    volume.detach();
}

#[test]
fn what_would_show_the_host_everything_is_refused() {
    let desk = Desk::new();
    desk.create("");
    for (arguments, word) in [
        ("--as nbd --listen 0.0.0.0:10809", "the host sees"),
        ("--as nbd --listen [::]:10809", "the host sees"),
        ("--as nbd --loop", "--loop is for --as fuse only"),
        ("--as nbd --mount .", "--mount is for --as fuse only"),
        ("--listen 127.0.0.1:0", "--listen is for --as nbd only"),
        ("--tls-cert key --tls-key key", "--tls-cert is for --as nbd only"),
        ("--as nbd --tls-cert key", "--tls-key"),
        ("--as nbd --tls-ca key", "--tls-cert"),
        ("--as nbd --tls-cert key --tls-key key", "holds no certificate in PEM form"),
        ("--as nbd --tls-cert none --tls-key key", "none: No such file"),
        ("--as nbd --listen localhost", "invalid"),
    ] {
        let said = desk.run(&format!("volume attach disk.img --key-file key {arguments}"));
        assert!(said.code == 2 && said.error.contains(word), "{arguments}: {} {}", said.code, said.error);
    }
    assert_eq!(desk.done("volume list"), "no volume is attached\n");
    let volume = Attached::new(&desk, "--listen 127.0.0.1:0");
    let warned = desk.done("volume status disk");
    assert!(warned.contains("every user of this machine may connect"), "{warned}");
    volume.detach();
}
