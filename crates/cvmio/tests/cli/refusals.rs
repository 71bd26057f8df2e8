//! What cannot be done is refused with a word on what to do now, with the right exit code, and the store's bytes stay as they are.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::common::{Desk, snapshot};
use volume::format::header;

const ATTACH: &str = "volume attach disk.img --key-file key";

/// One thing that is wrong: made so after the volume was created, and then found by a command.
struct Case {
    name: &'static str,
    create: &'static str,
    spoil: fn(&Desk),
    command: &'static str,
    code: i32,
}

const fn case(name: &'static str, spoil: fn(&Desk), command: &'static str, code: i32) -> Case {
    Case { name, create: "", spoil, command, code }
}

fn nothing(_: &Desk) {}

fn poke(desk: &Desk, name: &str, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(desk.path(name)).unwrap().write_all_at(bytes, offset).unwrap();
}

fn resize(desk: &Desk, by: i64) {
    let file = OpenOptions::new().write(true).open(desk.path("disk.img")).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length.checked_add_signed(by).unwrap()).unwrap();
}

fn policy(desk: &Desk, from: &str, to: &str) {
    let text = String::from_utf8(desk.read("disk.img.policy.toml")).unwrap();
    assert!(text.contains(from), "{text}");
    desk.write("disk.img.policy.toml", text.replace(from, to).as_bytes());
}

fn fill(desk: &Desk, byte: u8) {
    let length = desk.read("disk.img").len();
    desk.write("disk.img", &vec![byte; length]);
}

/// Both copies of the header or the key slots.
fn poke_both(desk: &Desk, offset: u64, bytes: &[u8]) {
    poke(desk, "disk.img", offset, bytes);
    poke(desk, "disk.img", offset + 8192, bytes);
    // A host knows how header and key slots are said to belong together.
    let content = desk.read("disk.img");
    for pair in [0, 8192] {
        let (page, rest) = content[pair..].split_first_chunk().unwrap();
        let mut page = *page;
        header::put_digest(&mut page, &rest[..4096]);
        poke(desk, "disk.img", pair as u64, &page);
    }
}

fn other_volume(desk: &Desk) {
    let anchor = desk.path("other.anchor");
    desk.done(&format!(
        "volume create other.img --size 16M --key-file other --anchor file:{}",
        anchor.display()
    ));
}

const CASES: &[Case] = &[
    case("wrong key", nothing, "volume attach disk.img --key-file other", 10),
    case("missing key file", nothing, "volume attach disk.img --key-file none", 2),
    case(
        "huge key file",
        |desk| desk.write("huge", &[1; 70_000]),
        "volume attach disk.img --key-file huge",
        2,
    ),
    case("ublk with a loop device", nothing, "volume attach disk.img --key-file key --as ublk --loop", 2),
    case("more cache than memory", nothing, "volume attach disk.img --key-file key --block-cache 8P", 2),
    case("no store", nothing, "volume attach none.img --key-file key", 2),
    case(
        "directory",
        |desk| fs::create_dir(desk.path("d")).unwrap(),
        "volume attach d --key-file key --policy disk.img.policy.toml",
        2,
    ),
    case("empty file", |desk| desk.write("disk.img", b""), ATTACH, 2),
    case("blank file", |desk| fill(desk, 0), ATTACH, 2),
    case("unknown content", |desk| fill(desk, 0x5a), ATTACH, 2),
    case(
        "file system",
        |desk| {
            fill(desk, 0);
            poke(desk, "disk.img", 1080, b"\x53\xef")
        },
        ATTACH,
        2,
    ),
    case("cut by a block", |desk| resize(desk, -4096), ATTACH, 3),
    case("cut inside the header", |desk| desk.write("disk.img", &desk.read("disk.img")[..4096]), ATTACH, 3),
    case("cut to a part of a block", |desk| resize(desk, -1), ATTACH, 3),
    case("unknown version", |desk| poke_both(desk, 8, &[9]), ATTACH, 4),
    case(
        "unknown version, checked",
        |desk| poke_both(desk, 8, &[9]),
        "volume check disk.img --key-file key",
        4,
    ),
    case("unknown version, keys listed", |desk| poke_both(desk, 8, &[9]), "volume key list disk.img", 4),
    case("changed reserved byte", |desk| poke_both(desk, 200, &[1]), ATTACH, 4),
    case("changed key slot", |desk| poke_both(desk, 4096 + 30, &[1, 2, 3]), ATTACH, 5),
    case("superblocks gone", |desk| poke(desk, "disk.img", 4 * 4096, &[0; 4 * 4096]), ATTACH, 4),
    case("anchor missing", |desk| fs::remove_file(desk.path("anchor")).unwrap(), ATTACH, 8),
    case(
        "anchor of another volume",
        |desk| {
            other_volume(desk);
            fs::copy(desk.path("other.anchor"), desk.path("anchor")).map(drop).unwrap()
        },
        ATTACH,
        8,
    ),
    case("anchor is nonsense", |desk| desk.write("anchor", &[3; 8192]), ATTACH, 8),
    case(
        "anchor is a directory",
        |desk| {
            fs::remove_file(desk.path("anchor")).unwrap();
            fs::create_dir(desk.path("anchor")).unwrap()
        },
        ATTACH,
        8,
    ),
    case("mount point missing", nothing, "volume attach disk.img --key-file key --mount nowhere", 2),
    case("policy missing", |desk| fs::remove_file(desk.path("disk.img.policy.toml")).unwrap(), ATTACH, 11),
    case("policy is nonsense", |desk| desk.write("disk.img.policy.toml", b"hello"), ATTACH, 11),
    case("policy is not text", |desk| desk.write("disk.img.policy.toml", &[0xff; 10]), ATTACH, 11),
    case("policy is huge", |desk| desk.write("disk.img.policy.toml", &[b'#'; 70_000]), ATTACH, 11),
    case(
        "policy has an unknown key",
        |desk| policy(desk, "version = 1", "version = 1\ncolour = \"red\""),
        ATTACH,
        11,
    ),
    case("policy of another version", |desk| policy(desk, "version = 1", "version = 2"), ATTACH, 11),
    case(
        "policy of another volume",
        |desk| {
            other_volume(desk);
            fs::copy(desk.path("other.img.policy.toml"), desk.path("disk.img.policy.toml")).map(drop).unwrap()
        },
        ATTACH,
        11,
    ),
    case(
        "policy is a directory",
        |desk| {
            fs::remove_file(desk.path("disk.img.policy.toml")).unwrap();
            fs::create_dir(desk.path("disk.img.policy.toml")).unwrap()
        },
        ATTACH,
        11,
    ),
    Case {
        name: "policy with confidentiality, header without",
        create: "--no-confidentiality",
        spoil: |desk| policy(desk, "confidentiality = false", "confidentiality = true"),
        command: ATTACH,
        code: 11,
    },
    case("policy with another size", |desk| policy(desk, "size = 16777216", "size = 33554432"), ATTACH, 11),
    case("policy with another cipher", |desk| policy(desk, "aes-256-gcm", "aegis-128x2"), ATTACH, 11),
    case("policy with more freshness", |desk| policy(desk, "strict", "write"), ATTACH, 11),
    case("policy without anchor", |desk| policy(desk, "anchor = \"file:", "# \"file:"), ATTACH, 11),
    case(
        "policy with a strange anchor",
        |desk| policy(desk, "anchor = \"file:", "anchor = \"ftp:"),
        ATTACH,
        2,
    ),
    Case {
        name: "key slot that eats all memory",
        create: "--freshness off --passphrase-file key",
        spoil: |desk| poke_both(desk, 4096 + 8, &u32::MAX.to_le_bytes()),
        command: "volume attach disk.img --passphrase-file key",
        code: 10,
    },
    case(
        "create over a volume",
        |desk| fs::remove_file(desk.path("disk.img.policy.toml")).unwrap(),
        "volume create disk.img --size 16M --key-file key --freshness off",
        2,
    ),
    case(
        "create over a file system",
        |desk| {
            fill(desk, 0);
            poke(desk, "disk.img", 1080, b"\x53\xef")
        },
        "volume create disk.img --size 16M --key-file key --freshness off --policy p",
        2,
    ),
    case(
        "create over a partition table",
        |desk| {
            fill(desk, 0);
            // One entry of type Linux, and the signature.
            poke(desk, "disk.img", 446, &[0, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0]);
            poke(desk, "disk.img", 510, &[0x55, 0xaa])
        },
        "volume create disk.img --size 16M --key-file key --freshness off --policy p",
        2,
    ),
    case(
        "create over a partition table of type GPT",
        |desk| {
            fill(desk, 0);
            poke(desk, "disk.img", 512, b"EFI PART")
        },
        "volume create disk.img --size 16M --key-file key --freshness off --policy p",
        2,
    ),
    case(
        "create on an empty file",
        |desk| desk.write("n", b""),
        "volume create n --key-file key --freshness off",
        2,
    ),
    case(
        "create over a policy",
        nothing,
        "volume create disk.img --size 16M --key-file key --freshness off",
        2,
    ),
    case(
        "create with a size of no whole blocks",
        nothing,
        "volume create n.img --size 16777217 --key-file key --freshness off",
        2,
    ),
    case("create too small", nothing, "volume create n.img --size 1M --key-file key --freshness off", 2),
    case("create too large", nothing, "volume create n.img --size 1P --key-file key --freshness off", 2),
    case("create without size", nothing, "volume create n.img --key-file key --freshness off", 2),
    case("create without anchor", nothing, "volume create n.img --size 16M --key-file key", 2),
    case(
        "create with an anchor in use",
        nothing,
        "volume create n.img --size 16M --key-file key --anchor file:[DIR]/anchor",
        8,
    ),
    case(
        "create with a relative anchor",
        nothing,
        "volume create n.img --size 16M --key-file key --anchor file:a",
        2,
    ),
    case(
        "create with freshness but no integrity",
        nothing,
        "volume create n.img --size 16M --key-file key --no-integrity --anchor file:/a",
        2,
    ),
    case(
        "create with integrity and XTS",
        nothing,
        "volume create n.img --size 16M --key-file key --suite aes-256-xts --freshness off",
        2,
    ),
    case(
        "create with a short key",
        |desk| desk.write("short", b"hello"),
        "volume create n.img --size 16M --key-file short --freshness off",
        2,
    ),
    case(
        "create with an empty passphrase",
        |desk| desk.write("short", b"\n"),
        "volume create n.img --size 16M --passphrase-file short --freshness off",
        2,
    ),
    case(
        "create where no directory is",
        nothing,
        "volume create none/n.img --size 16M --key-file key --freshness off --policy p",
        2,
    ),
    case(
        "create with a policy where no directory is",
        nothing,
        "volume create n.img --size 16M --key-file key --freshness off --policy none/p",
        2,
    ),
    case(
        "create with an anchor where no directory is",
        nothing,
        "volume create n.img --size 16M --key-file key --anchor file:[DIR]/none/anchor",
        8,
    ),
    case(
        "back up the header to where no directory is",
        nothing,
        "volume header backup disk.img none/backup --key-file key",
        2,
    ),
    case(
        "export to where no directory is",
        nothing,
        "volume export disk.img --key-file key --to none/stream --stream-key-file key",
        2,
    ),
    case("create without a terminal", nothing, "volume create n.img --size 16M --freshness off", 2),
    case("remove the last key", nothing, "volume key remove disk.img 0 --key-file key", 2),
    case("remove a key that is not there", nothing, "volume key remove disk.img 7 --key-file key", 2),
    case(
        "add a key with a wrong key",
        nothing,
        "volume key add disk.img --key-file other --new-key-file key",
        10,
    ),
    case(
        "add a short key",
        |desk| desk.write("short", b"hello"),
        "volume key add disk.img --key-file key --new-key-file short",
        2,
    ),
    case("check with a wrong key", nothing, "volume check disk.img --key-file other", 10),
    case("check what is nowhere", nothing, "volume check nowhere --key-file key", 2),
    case("status of what is not attached", nothing, "volume status nowhere", 2),
    case("detach what is not attached", nothing, "volume detach nowhere", 2),
];

/// A text in which the ids of volumes, which are drawn, are called that.
fn without_ids(text: &str) -> String {
    let is_id = |word: &str| word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = text.split_inclusive(|one: char| !one.is_ascii_alphanumeric());
    words
        .map(|word| {
            let end = word.trim_end_matches(|one: char| !one.is_ascii_alphanumeric()).len();
            if is_id(&word[..end]) { format!("[ID]{}", &word[end..]) } else { word.into() }
        })
        .collect()
}

/// All files of a desk, and a digest of what is in them.
fn everything(desk: &Desk) -> BTreeMap<PathBuf, u64> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(desk.path("")).unwrap().map(Result::unwrap) {
        let mut hasher = DefaultHasher::new();
        // A directory has no content of its own, and the runtime directory is looked at elsewhere.
        fs::read(entry.path()).ok().hash(&mut hasher);
        if entry.file_name() != "run" {
            files.insert(entry.path(), hasher.finish());
        }
    }
    files
}

#[test]
fn refusals_say_why_and_change_nothing() {
    let mut all = String::new();
    for Case { name, create, spoil, command, code } in CASES {
        let desk = Desk::new();
        desk.create(create);
        spoil(&desk);
        let before = everything(&desk);
        let here = desk.path("").to_str().unwrap().trim_end_matches('/').to_string();
        // Without a session of its own it would ask on the terminal of whoever runs the tests.
        let said = desk.run_without_terminal(&command.replace("[DIR]", &here));
        let after = everything(&desk);
        let names = |files: &BTreeMap<PathBuf, u64>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&after), names(&before), "{name}: something was left, or is gone");
        assert!(after == before, "{name}: store, anchor, policy or key was changed");
        assert!(said.error.contains("cvmio: error: ") && said.out.is_empty(), "{name}: {said:?}");
        let error = without_ids(said.error.trim_end()).replace('\n', "\n  ");
        all += &format!("{name}: {}\n  {error}\n", said.code);
        assert_eq!(said.code, *code, "{name}: {}", said.error);
        let left = fs::read_dir(desk.path("run")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{name}: something is left in the runtime directory");
    }
    snapshot("refusals.txt", &all);
}

#[test]
fn a_store_that_somebody_has_open_is_refused() {
    let desk = Desk::new();
    desk.create("");
    let file = fs::File::open(desk.path("disk.img")).unwrap();
    file.lock().unwrap();
    let said = desk.run(ATTACH);
    assert_eq!(said.code, 2, "{}", said.error);
    assert!(said.error.contains("attached already"), "{}", said.error);
}

#[test]
fn a_runtime_directory_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let desk = Desk::new();
    desk.create("");
    fs::create_dir_all(desk.path("run/disk")).unwrap();
    fs::set_permissions(desk.path("run/disk"), fs::Permissions::from_mode(0o777)).unwrap();
    let said = desk.run(ATTACH);
    assert_eq!(said.code, 2, "{}", said.error);
    assert!(said.error.contains("others can write to it"), "{}", said.error);
}

#[test]
fn what_is_refused_before_it_begins_leaves_nothing() {
    let desk = Desk::new();
    desk.write("short", b"x");
    let anchor = desk.path("y");
    let create =
        format!("volume create y.img --size 16M --key-file short --anchor file:{}", anchor.display());
    assert_eq!(desk.run(&create).code, 2);
    assert!(!desk.path("y.img").exists() && !anchor.exists() && !desk.path("y.img.policy.toml").exists());
}

#[test]
fn keys_change_what_opens_the_volume() {
    let desk = Desk::new();
    desk.create("");
    desk.done("volume key add disk.img --key-file key --new-key-file other --label second");
    let list = desk.done("volume key list disk.img");
    assert_eq!(list, "slot  0  key-file  first\nslot  1  key-file  second\n");
    desk.done("volume key remove disk.img 0 --key-file other");
    assert_eq!(desk.run("volume check disk.img --key-file key").code, 10);
    assert_eq!(desk.done("volume check disk.img --key-file other"), "0 blocks checked, all whole\n");
    let json: serde_json::Value =
        serde_json::from_str(&desk.done("volume dump disk.img --key-file other --json")).unwrap();
    assert_eq!(json["copies"][0]["slots"]["ok"][0]["label"], "second");
    assert_eq!(json["stamp"]["state"], "released");
    assert!(!json.to_string().contains(&"0808".repeat(4)), "a key is shown");
}

#[test]
fn a_terabyte_takes_a_few_megabytes_and_no_time() {
    use std::os::unix::fs::MetadataExt;
    let desk = Desk::new();
    // The quickest of some: what a disk that others use adds is not the program's.
    let took = (0..5).map(|number| {
        let begun = std::time::Instant::now();
        let name = format!("big{number}.img");
        desk.done(&format!("volume create {name} --size 1T --provision thin --key-file key --freshness off"));
        let took = begun.elapsed();
        let metadata = fs::metadata(desk.path(&name)).unwrap();
        assert!(
            metadata.len() >= 1 << 40 && metadata.blocks() * 512 < 4 << 20,
            "{} blocks",
            metadata.blocks()
        );
        took
    });
    let quickest = took.min().unwrap();
    assert!(quickest.as_secs_f64() < 1.0, "{quickest:?}");
}

#[test]
fn a_fully_provisioned_volume_has_its_space_or_is_not_made() {
    use std::os::unix::fs::MetadataExt;
    let desk = Desk::new();
    desk.done("volume create disk.img --size 16M --provision full --key-file key --freshness off");
    let metadata = fs::metadata(desk.path("disk.img")).unwrap();
    assert!(
        metadata.blocks() * 512 >= metadata.len(),
        "{} of {} bytes",
        metadata.blocks() * 512,
        metadata.len()
    );
    let refused =
        desk.run("volume create huge.img --size 8T --provision full --key-file key --freshness off");
    assert_eq!(refused.code, 2, "{}", refused.error);
    assert!(refused.error.contains("--provision thin"), "{}", refused.error);
    assert!(!desk.path("huge.img").exists() && !desk.path("huge.img.policy").exists());
    // A file that was there before.
    fs::File::create(desk.path("sparse.img")).unwrap().set_len(32 << 20).unwrap();
    let anchor = desk.path("sparse.anchor");
    desk.done(&format!("volume create sparse.img --key-file key --anchor file:{}", anchor.display()));
    let metadata = fs::metadata(desk.path("sparse.img")).unwrap();
    assert!(metadata.blocks() * 512 >= metadata.len(), "{} bytes", metadata.blocks() * 512);
}
