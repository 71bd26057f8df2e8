//! Where keys are while a volume is attached: in locked memory that is not dumped, and nowhere else.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use crate::common::Desk;
use crate::common::derived::epoch_keys;
use crate::common::machine::{content, sh, tell_skipped, wait_for};
use crate::common::memory::{NEEDLE, find, regions, secrets};
use crate::common::session::leave_nothing;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use seal::slot::{AREA_SIZE, Credential, KeySlots, SlotLimits};
use seal::{SecretBytes, VolumeKey};

const PASSPHRASE: &str = "nine wet hens ordered soup at Gdansk";
const SPARE: &str = "eleven dry geese left Lodz by night train";
const KEY_FILE: [u8; 64] = *b"8rKZ2qL0vTn5cXwY7hJm4dPfUe1sGbAoN3iQz6RtVyWkClHxBpMjDgSaFuEO9I_-";

/// What is written to the volume; a daemon may keep it in ordinary memory.
fn plaintext() -> Vec<u8> {
    content(1, 4 << 20)
}

/// A daemon in the foreground, and the volume that it serves.
struct Served {
    desk: Desk,
    daemon: Child,
}

impl Served {
    /// With a slot for the key file; and, what takes a while, one for the passphrase, which is used then.
    fn new(options: &str, with_passphrase: bool) -> Self {
        let desk = Desk::new();
        desk.write("key", &KEY_FILE);
        desk.create(options);
        let mut credential = "--key-file key";
        if with_passphrase {
            desk.write("passphrase", PASSPHRASE.as_bytes());
            desk.done("volume key add disk.img --key-file key --new-passphrase-file passphrase");
            credential = "--passphrase-file passphrase";
        }
        let mut command = desk.command(&format!("volume attach disk.img {credential} --foreground"));
        let said = || fs::File::options().create(true).append(true).open(desk.path("said")).unwrap();
        let daemon = command.stdout(said()).stderr(said()).spawn().unwrap();
        let served = Self { desk, daemon };
        wait_for("the device", || served.desk.path("run/disk/disk").exists());
        let device = served.desk.path("run/disk/disk");
        let file = fs::File::options().read(true).write(true).open(device).unwrap();
        let bytes = plaintext();
        file.write_all_at(&bytes, 0).unwrap();
        file.sync_all().unwrap();
        // What is read comes from the store, not from the kernel's cache of the file.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut back = vec![0; bytes.len()];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == bytes);
        served
    }

    /// The slots of the daemon's protected memory.
    fn protected(&self) -> Vec<[u8; 64]> {
        let regions = regions(self.daemon.id()).into_iter().filter(|(region, _)| region.is_protected());
        regions.flat_map(|(_, bytes)| bytes.as_chunks::<64>().0.to_vec()).collect()
    }

    /// The volume key's bytes, from the daemon's memory: `seal` does not give them away.
    fn volume_key_bytes(&self) -> [u8; 32] {
        let key = self.volume_key();
        let mut starts = self.protected().into_iter().map(|slot| <[u8; 32]>::try_from(&slot[..32]).unwrap());
        starts
            .find(|start| VolumeKey::from_bytes(*start) == key)
            .expect("the volume key is in protected memory")
    }

    /// The volume key, the same way that the daemon got it.
    fn volume_key(&self) -> VolumeKey {
        let disk = self.desk.read("disk.img");
        let header = volume::format::header::Header::decode(&disk[..4096]).unwrap();
        let slots: &[u8; AREA_SIZE] = disk[4096..8192].try_into().unwrap();
        let credential = Credential::KeyFile(SecretBytes::from_slice(&KEY_FILE));
        KeySlots::decode(slots).unwrap().unlock(&header.volume, &credential, &SlotLimits::default()).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        leave_nothing(&self.desk);
    }
}

fn needle(bytes: &[u8]) -> [u8; NEEDLE] {
    bytes[..NEEDLE].try_into().unwrap()
}

#[test]
fn keys_lie_in_protected_memory_only() {
    crate::skip_without_devices!();
    for (options, with_passphrase) in [
        ("", true),
        ("--no-confidentiality", false),
        ("--suite aegis-128x2", false),
        ("--suite aegis-256x2", false),
        ("--no-integrity --freshness off", false),
    ] {
        let served = Served::new(options, with_passphrase);
        let mut keys = BTreeSet::from([PASSPHRASE.as_bytes(), &KEY_FILE].map(needle));
        if with_passphrase {
            // The daemon gets the secrets once more, and another volume key.
            keys.insert(needle(&served.volume_key_bytes()));
            served.desk.done("volume rekey disk --passphrase-file passphrase --keep-key-file key");
            // And one that it has never heard of.
            keys.insert(needle(SPARE.as_bytes()));
            served.desk.write("spare", SPARE.as_bytes());
            served.desk.done("volume key add disk --passphrase-file passphrase --new-passphrase-file spare");
        }
        keys.insert(needle(&served.volume_key_bytes()));
        if options.contains("aegis") {
            // Whatever else is in protected memory, too. Of AES, that would be the hash keys of GCM, which aws-lc copies to the stack.
            keys.extend(secrets(served.protected().as_flattened()));
        }
        // The keys that the daemon seals with now. Prepared for AES they begin their schedule; and that is where it is looked for first, so
        // that a key derived wrongly does not pass for one that is nowhere.
        let protected = served.protected();
        for (name, key) in epoch_keys(&served.desk.read("disk.img"), &served.volume_key_bytes()) {
            let parts: BTreeSet<_> = key.chunks_exact(NEEDLE).map(needle).collect();
            let found = find(protected.as_flattened(), &parts);
            assert!(found.len() >= parts.len(), "{options}: the {name} key is not in protected memory");
            keys.extend(parts);
        }
        // The search finds what is there.
        let marker = plaintext().chunks_exact(4096).map(needle).collect();
        let mut marked = 0;
        for (region, bytes) in regions(served.daemon.id()).iter().filter(|(region, _)| !region.is_protected())
        {
            let found = find(bytes, &keys);
            assert!(found.is_empty(), "{options}: keys in {region:?} at {found:x?}");
            marked += find(bytes, &marker).len();
        }
        assert!(marked > 0, "{options}: not even plaintext was found");
    }
}

#[test]
fn nothing_that_people_see_has_a_secret_in_it() {
    crate::skip_without_devices!();
    let served = Served::new("", true);
    let process = served.daemon.id();
    let status = served.desk.done("volume status disk --json") + &served.desk.done("volume status disk");
    let dump = served.desk.run("volume dump disk.img --passphrase-file passphrase --json");
    let read = |path: &str| fs::read(format!("/proc/{process}/{path}")).unwrap();
    let mut seen = vec![
        ("status", status.into_bytes()),
        ("dump", (dump.out + &dump.error).into_bytes()),
        ("cmdline", read("cmdline")),
        ("environ", read("environ")),
        ("what it said", served.desk.read("said")),
    ];
    let log = served.desk.path("run/disk/log");
    seen.push(("log", fs::read(log).unwrap_or_default()));
    let volume_key = served.volume_key_bytes();
    let secrets: [&[u8]; 3] = [PASSPHRASE.as_bytes(), &KEY_FILE, &volume_key];
    for (what, bytes) in &seen {
        for secret in secrets {
            let hex: String = secret[..NEEDLE].iter().map(|byte| format!("{byte:02x}")).collect();
            let text = String::from_utf8_lossy(bytes).to_lowercase();
            let raw = bytes.windows(NEEDLE).any(|window| window == &secret[..NEEDLE]);
            assert!(!raw && !text.contains(&hex), "there is a secret in: {what}");
        }
    }
    // The search would have found what is there.
    assert!(seen[2].1.windows(10).any(|window| window == b"passphrase"));
}

#[test]
fn a_daemon_that_aborts_leaves_no_core() {
    crate::skip_without_devices!();
    // A process that may be dumped is dumped here; else this would show nothing.
    let desk = Desk::new();
    let mut control = Command::new("sh");
    control.args(["-c", "ulimit -c unlimited; kill -ABRT $$"]).current_dir(desk.path(""));
    let control = control.stdin(Stdio::null()).status().unwrap();
    assert_eq!(control.signal(), Some(Signal::ABORT.as_raw()));
    if !control.core_dumped() {
        return tell_skipped("this machine writes no core dumps");
    }
    let mut served = Served::new("", false);
    let process = Pid::from_child(&served.daemon);
    // Root can take the limit away that the daemon has set for itself (unless it is root in a container). That it may not be dumped,
    // nobody can take away.
    let unlimited = Rlimit { current: None, maximum: None };
    match rustix::process::prlimit(Some(process), Resource::Core, unlimited) {
        Ok(_) => assert!(limits(served.daemon.id()).contains("unlimited")),
        Err(_) => assert_eq!(limits(served.daemon.id()).split_whitespace().nth(4), Some("0")),
    }
    rustix::process::kill_process(process, Signal::ABORT).unwrap();
    let end = served.daemon.wait().unwrap();
    assert_eq!(end.signal(), Some(Signal::ABORT.as_raw()));
    assert!(!end.core_dumped(), "a core was dumped");
    let files = fs::read_dir(served.desk.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!files.into_iter().any(|name| name.to_string_lossy().starts_with("core")));
}

/// The line about core files.
fn limits(process: u32) -> String {
    sh(&format!("grep 'Max core file size' /proc/{process}/limits"))
}
