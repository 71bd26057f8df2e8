//! What is typed, and what is answered.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guest::{DATA, Machine};
use crate::kill::serve;

/// What a command said, and its exit code.
fn run(directory: &Path, words: &str) -> (String, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cvmio-host"));
    let output = command.current_dir(directory).args(words.split(' ')).output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (text, output.status.code().unwrap())
}

#[test]
fn each_thing_that_cannot_be_served_is_a_clear_error() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| -> PathBuf { place.path().join(name) };
    fs::File::create(at("disk")).unwrap().set_len(1 << 20).unwrap();
    fs::write(at("tiny"), "x").unwrap();
    fs::create_dir(at("directory")).unwrap();
    fs::write(at("other"), "not a socket").unwrap();
    fs::write(at("bad.toml"), "[[disk]]\nsocket = \"s\"\nfile = \"disk\"\nspeed = 1\n").unwrap();
    fs::write(at("none.toml"), "cores = [0]\n").unwrap();
    for (words, expected, code) in [
        ("serve --socket s --disk nothing", "nothing: open failed: No such file", 2),
        ("serve --socket s --disk directory", "it is a directory", 2),
        ("serve --socket s --disk tiny", "tiny", 2),
        ("serve --socket s --disk /dev/null", "neither a file nor a block device", 2),
        ("serve --socket other --disk disk", "it is no socket", 2),
        ("serve --socket no/s --disk disk", "is its directory there", 3),
        ("serve --socket s --disk disk --core 9999", "core 9999 does not exist", 2),
        ("serve --socket s --disk disk --queues 65", "65 queues", 2),
        ("serve --socket s --disk disk --mode fast", "fast", 2),
        ("serve --socket s", "--disk", 2),
        ("serve", "--config", 2),
        ("serve --config nothing.toml", "nothing.toml", 3),
        ("serve --config bad.toml", "speed", 2),
        ("serve --config none.toml", "no disk to serve", 2),
        ("serve --config directory", "no file of settings", 2),
        ("status --control s", "is a server running", 3),
        ("cloud-hypervisor-args --socket a,b", "comma", 2),
    ] {
        let (said, ended) = run(place.path(), words);
        assert!(ended == code && said.contains(expected), "{words}: {ended} {said}");
    }
}

#[test]
fn a_server_says_how_its_disks_are_and_holds_them_alone() {
    let place = tempfile::tempdir().unwrap();
    fs::File::create(place.path().join("disk")).unwrap().set_len(1 << 20).unwrap();
    let mut server = serve(place.path(), "adaptive");
    let (said, code) = run(place.path(), "status --control control");
    assert!(code == 0 && said.contains("no VMM is connected; mode adaptive"), "{said}");
    let (said, code) = run(place.path(), "serve --socket other --disk disk --read-only");
    assert!(code == 2 && said.contains("disk: open failed"), "{said}");

    let mut machine = Machine::new(&place.path().join("sock"), 1);
    machine.start(0, 0);
    let mut disk = machine.driver(0);
    assert_eq!(disk.ask(virtqueue::block::Kind::Read, 0, &[(DATA, 4096)]), 0);
    let (said, _) = run(place.path(), "status --control control");
    assert!(
        said.contains("a VMM is connected, 1 queues are served") && said.contains("1 reads, 0 writes"),
        "{said}"
    );
    let (said, _) = run(place.path(), "status --control control --json");
    assert!(said.contains("\"read_bytes\": 4096"), "{said}");
    assert!(Command::new("kill").arg(server.id().to_string()).status().unwrap().success());
    assert!(server.wait().unwrap().success(), "SIGTERM is a clean end");
    assert!(!place.path().join("sock").exists() && !place.path().join("control").exists());
}

#[test]
fn command_lines_of_vmms_name_every_disk_of_a_file() {
    let place = tempfile::tempdir().unwrap();
    let disks = "[[disk]]\nsocket = \"/run/a\"\nfile = \"a\"\nqueues = 2\n[[disk]]\nsocket = \"/run/b\"\nfile = \"b\"\n";
    fs::write(place.path().join("host.toml"), disks).unwrap();
    let (said, code) = run(place.path(), "qemu-args --config host.toml --memory 1G --huge");
    assert_eq!(code, 0);
    for expected in
        ["path=/run/a,", "path=/run/b,", "num-queues=2,", "num-queues=4,", "hugetlb=on", "size=1G"]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let (said, _) = run(place.path(), "cloud-hypervisor-args --socket /run/a --queues 2");
    assert!(said.contains("--disk vhost_user=true,socket=/run/a,num_queues=2,queue_size=128"), "{said}");
}

#[test]
fn a_measurement_has_each_mode_and_says_when_it_is_worthless() {
    let place = tempfile::tempdir().unwrap();
    let (said, code) = run(place.path(), "bench --dir . --time 20ms --json");
    assert_eq!(code, 0, "{said}");
    for expected in ["\"poll\"", "\"adaptive\"", "\"interrupt\"", "\"depth\": 32", "no cores of their own"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(fs::read_dir(place.path()).unwrap().next().is_none(), "it leaves nothing");
}
