//! The commands of the documents on anchors, typed as they stand there, one behind the other. Paths and addresses are those of the test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::cluster::Cluster;
use super::common::machine::{has, quietly, tell_skipped};
use super::common::pages::{commands, page, shell};
use super::common::{Desk, programs};
use super::tpm::{self, bed::Swtpm};

/// Types a command with what stands there replaced; what it says.
fn type_in(desk: &Desk, command: &str, places: &[(&str, String)]) -> String {
    let mut here = command.to_owned();
    for (there, place) in places {
        here = here.replace(there, place);
    }
    let programs = programs::cvmio().parent().unwrap().display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["-c", &here]).current_dir(desk.path("")).env("PATH", path).stdin(Stdio::null());
    let output = shell.env("CVMIO_RUNTIME_DIR", desk.path("run")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}\n{here}\n{said}{error}");
    said
}

/// A volume with an anchor in a file moves to a cluster, loses that, and is vouched for by a new one; another is made there.
#[test]
fn a_volume_moves_to_a_cluster_and_loses_it_as_the_page_on_freshness_says() {
    let cluster = Cluster::start();
    let desk = Desk::new();
    for directory in ["etc", "lib"] {
        fs::create_dir(desk.path(directory)).unwrap();
    }
    let at = |name: &str| desk.path(name).display().to_string();
    for ((_, from), to) in cluster.options().iter().zip(["etcd-ca.pem", "guest.pem", "guest.key"]) {
        fs::copy(from, desk.path("etc").join(to)).unwrap();
    }
    let endpoints = |from: u16| {
        let hosts: Vec<String> = (from..from + 3).map(|host| format!("https://h{host}:2379")).collect();
        format!("etcd:{}/cvmio/ledger", hosts.join(","))
    };
    let (first, second) = (endpoints(1), endpoints(4));
    let mut places = vec![
        (first.as_str(), cluster.address("cvmio/ledger")),
        // A new cluster, at the addresses of the old one.
        (second.as_str(), cluster.address("cvmio/ledger")),
        ("/dev/vdb", at("disk.img")),
        ("/etc/cvmio", at("etc")),
        ("/var/lib/cvmio", at("lib")),
    ];
    desk.write("etc/ledger.key", &[3; 32]);
    quietly(&format!("chmod 600 {}", at("etc/ledger.key")));
    let page = page("docs/freshness.md");
    let moving = commands(&page, "## Looking at anchors, and moving");
    assert_eq!(moving.len(), 4, "{moving:#?}");
    type_in(&desk, &moving[0], &places);
    type_in(
        &desk,
        "cvmio volume create /dev/vdb --size 16M --policy /etc/cvmio/ledger.toml --key-file /etc/cvmio/ledger.key --anchor file:/var/lib/cvmio/ledger.anchor",
        &places,
    );
    moving[1..].iter().for_each(|command| drop(type_in(&desk, command, &places)));
    let policy = || String::from_utf8(desk.read("etc/ledger.toml")).unwrap();
    assert!(policy().contains("etcd:"), "{}", policy());

    cluster.begin_anew();
    let lost = commands(&page, "## When an anchor is lost");
    assert_eq!(lost.len(), 2, "{lost:#?}");
    let shown = type_in(&desk, &format!("{} --json", lost[0]), &places);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let state = lost[1].split("--confirm ").nth(1).unwrap().trim().to_owned();
    places.push((&state, shown["chosen"].as_str().unwrap().to_owned()));
    type_in(&desk, &lost[0], &places);
    type_in(&desk, &lost[1], &places);
    type_in(&desk, &moving[2], &places);

    cluster.begin_anew();
    fs::remove_file(desk.path("etc/ledger.toml")).unwrap();
    let create = commands(&page, "## An etcd cluster").swap_remove(0);
    assert!(create.contains("volume create"), "{create}");
    type_in(&desk, &format!("{create} --size 16M --force"), &places);
    type_in(&desk, &moving[2], &places);
}

/// A volume on a mount of the test, put away however the test ends.
struct Ledger<'a>(&'a Desk);

impl Drop for Ledger<'_> {
    fn drop(&mut self) {
        quietly(&format!("umount {}", self.0.path("srv").display()));
        let _ = self.0.run("volume detach ledger");
    }
}

/// `init` names the key, and a volume by the TPM is made, mounted, committed and detached.
#[test]
fn a_volume_lives_by_a_tpm_as_its_page_says() {
    crate::skip_without_devices!();
    if !has("swtpm") {
        return tell_skipped("there is no swtpm");
    }
    let desk = Desk::new();
    for directory in ["etc", "host", "srv"] {
        fs::create_dir(desk.path(directory)).unwrap();
    }
    let swtpm = Swtpm::start(&desk.path("tpm"));
    let at = |name: &str| desk.path(name).display().to_string();
    let mut places = vec![
        ("/dev/tpmrm0", swtpm.socket().display().to_string()),
        ("/etc/cvmio", at("etc")),
        ("/mnt/host", at("host")),
        ("/srv/ledger", at("srv")),
        ("ledger.key", at("key")),
        ("100G", "64M".into()),
    ];
    let page = page("docs/tpm.md");
    let all: Vec<String> =
        shell(&page, "# An anchor in a TPM").into_iter().filter(|line| !line.starts_with('#')).collect();
    let [init, create, attach, mount, rest @ ..] = &all[..7] else { panic!("{all:#?}") };
    let key = tpm::endorsement_key(&swtpm);
    assert!(init.contains("anchor init"), "{all:#?}");
    type_in(&desk, &format!("! {init} 2> said && grep -q {key} said"), &places);
    places.push(("HEX", key));
    type_in(&desk, create, &places);
    let _ledger = Ledger(&desk);
    let said = type_in(&desk, attach, &places);
    let device = said.lines().find_map(|line| line.trim().strip_prefix("block device")).unwrap();
    places.push(("/dev/loop0", device.trim().to_owned()));
    type_in(&desk, mount, &places);
    assert!(rest[0].contains("volume commit") && rest[2].contains("volume detach"), "{rest:#?}");
    rest.iter().for_each(|command| drop(type_in(&desk, command, &places)));
}

/// The service, which ends with the test.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The service is made and started, a volume lives by it, the certificates are renewed, and the log is looked at.
#[test]
fn an_owner_s_service_lives_as_its_page_says() {
    let program = programs::cvmio().with_file_name("cvmio-owner");
    if !program.exists() {
        return tell_skipped("there is no cvmio-owner: cargo build -p cvmio --example cvmio-owner");
    }
    let desk = Desk::new();
    let at = |name: &str| desk.path(name).display().to_string();
    fs::create_dir(desk.path("etc")).unwrap();
    let page = page("docs/owner.md");
    let all = shell(&page, "# The owner's service");
    let position = |word: &str| {
        all.iter().position(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {all:#?}"))
    };
    let serve = position("cvmio-owner serve");
    let mut places = vec![
        ("--state /var/lib/cvmio-owner", format!("--state {}", at("state"))),
        ("--host owner.example", "--host 127.0.0.1".into()),
        ("/dev/vdb", at("disk.img")),
        ("100G", "16M".into()),
        ("/etc/cvmio/owner", at("ledger-client")),
    ];
    assert!(serve == 2, "{all:#?}");
    all[..serve].iter().for_each(|command| drop(type_in(&desk, command, &places)));
    let mut command = Command::new(program);
    let words =
        all[serve].replace("/var/lib/cvmio-owner", &at("state")).replace("0.0.0.0:7443", "127.0.0.1:0");
    command.args(words.split_whitespace().skip(1)).stdout(Stdio::piped());
    let mut service = Served(command.spawn().unwrap());
    let mut said = String::new();
    let mut lines = BufReader::new(service.0.stdout.take().unwrap());
    let address = loop {
        said.clear();
        assert!(lines.read_line(&mut said).unwrap() > 0, "it ended too early");
        if let Some((_, port)) = said.trim().split_once("127.0.0.1:") {
            let port: String = port.chars().take_while(char::is_ascii_digit).collect();
            break format!("127.0.0.1:{port}");
        }
    };
    places.push(("owner.example:7443", address));
    type_in(&desk, &all[position("cvmio volume create")], &places);
    type_in(&desk, "cvmio anchor verify /dev/vdb --key-file key", &places);
    // Those of the log that have no place of an entry in them, which only its owner knows.
    let typed = |line: &&String| {
        line.starts_with("cvmio-owner renew")
            || ["cvmio-owner audit show", "cvmio-owner audit verify  "]
                .iter()
                .any(|begin| line.starts_with(begin))
    };
    let later: Vec<&str> =
        all.iter().filter(typed).filter_map(|line| line.split('#').next()).map(str::trim).collect();
    assert!(later.len() == 5, "{later:#?}");
    for command in later {
        type_in(&desk, &format!("{command} --state /var/lib/cvmio-owner"), &places);
    }
    // By the new certificates, on both sides.
    type_in(&desk, "cvmio anchor verify /dev/vdb --key-file key", &places);
}
