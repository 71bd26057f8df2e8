//! `docs/disk-format.md` is all that it takes to read a volume: a reader that was written from it alone (`reader/read_volume.py`) finds what
//! this program finds, also after a crash. And what the first version wrote (`golden/`) is read by every later one.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use crate::common::Desk;
use crate::common::machine::{content, quietly, sh, tell, tell_skipped};
use crate::common::session::{Session, leave_nothing};
use fastrand::Rng;

const SIZE: usize = 16 << 20;
const BLOCK: usize = 4096;

/// An interpreter that has what the reader needs.
fn python() -> Option<&'static str> {
    let has =
        |python: &str| quietly(&format!("{python} -c 'import cryptography.hazmat.primitives.ciphers.aead'"));
    ["/usr/bin/python3", "python3"].into_iter().find(|python| has(python))
}

/// What the reader makes of `disk.img` as it stands.
fn read_alone(desk: &Desk, python: &str) -> Vec<u8> {
    let reader = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reader/read_volume.py");
    let output = Command::new(python)
        .arg(reader)
        .args(["disk.img.policy.toml", "disk.img", "key", "content"].map(|name| desk.path(name)))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    desk.read("content")
}

/// Overwrites and discards here and there, some of it flushed, and ends in the middle.
fn scribble(file: &Path, rng: &mut Rng) {
    let device = OpenOptions::new().write(true).open(file).unwrap();
    let blocks = SIZE / BLOCK;
    for step in 0..rng.usize(3..500) {
        let length = [1, 1, 2, 8, 64][rng.usize(..5)];
        let at = (rng.usize(..blocks - length) * BLOCK) as u64;
        if rng.u32(..20) == 0 {
            discard(file, at, length * BLOCK);
        } else {
            device.write_all_at(&content(rng.u64(..), length * BLOCK), at).unwrap();
        }
        if step % 11 == 5 {
            device.sync_all().unwrap();
        }
    }
}

fn discard(file: &Path, at: u64, length: usize) {
    sh(&format!("fallocate --punch-hole --offset {at} --length {length} {}", file.display()));
}

#[test]
fn who_knows_only_the_document_reads_the_same_after_each_crash() {
    crate::skip_without_devices!();
    let Some(python) = python() else {
        tell_skipped("no python3 with the package cryptography");
        return;
    };
    for (seed, level) in [(1, "strict"), (2, "interval"), (3, "write")] {
        let desk = Rc::new(Desk::new());
        desk.create(&format!("--freshness {level}"));
        let mut rng = Rng::with_seed(seed);
        let mut crashes = 0;
        for round in 0..5 {
            let session = Session::attach(&desk, false);
            scribble(&session.file, &mut rng);
            if rng.u32(..4) == 0 {
                session.detach();
            } else {
                session.kill();
                leave_nothing(&desk);
                crashes += 1;
            }
            let alone = read_alone(&desk, python);
            let session = Session::attach(&desk, false);
            assert!(fs::read(&session.file).unwrap() == alone, "{level}, seed {seed}, round {round}");
            session.detach();
            assert!(read_alone(&desk, python) == alone, "{level}, seed {seed}, round {round}: detached");
        }
        assert!(crashes > 0, "{level}: nothing was killed");
    }
}

/// What the golden volume went through, block by block: what a checkpoint has, and then overwrites and a discard that only its journal has.
fn golden() -> [Vec<(usize, Option<Vec<u8>>)>; 2] {
    let page = |block: usize, seed| (block, Some(content(seed + block as u64, BLOCK)));
    let before = [0, 1, 127, 128, 2000, 4095].map(|block| page(block, 1));
    let after = [1, 129, 3000].map(|block| page(block, 10_000));
    [before.into(), after.into_iter().chain([(127, None)]).collect()]
}

fn golden_content() -> Vec<u8> {
    let mut expected = vec![0; SIZE];
    for (block, page) in golden().into_iter().flatten() {
        let page = page.unwrap_or_else(|| vec![0; BLOCK]);
        expected[block * BLOCK..][..BLOCK].copy_from_slice(&page);
    }
    expected
}

fn golden_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Makes the golden volume anew: for another version of the format, and never for this one.
fn make_golden() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    for (crash, changes) in [false, true].into_iter().zip(golden()) {
        let session = Session::attach(&desk, false);
        let device = OpenOptions::new().write(true).open(&session.file).unwrap();
        for (block, page) in changes {
            let at = (block * BLOCK) as u64;
            match page {
                Some(page) => device.write_all_at(&page, at).unwrap(),
                None => discard(&session.file, at, BLOCK),
            }
        }
        device.sync_all().unwrap();
        drop(device);
        if crash {
            session.kill();
            leave_nothing(&desk);
        } else {
            session.detach();
        }
    }
    let image = desk.read("disk.img");
    let mut blocks = Vec::new();
    for (number, block) in
        (0u64..).zip(image.chunks(BLOCK)).filter(|(_, block)| block.iter().any(|byte| *byte != 0))
    {
        blocks.extend(number.to_le_bytes());
        blocks.extend(block);
    }
    fs::create_dir_all(golden_file("")).unwrap();
    fs::write(golden_file("v1.blocks"), blocks).unwrap();
    fs::write(golden_file("v1.length"), format!("{}\n", image.len())).unwrap();
    fs::copy(desk.path("anchor"), golden_file("v1.anchor")).unwrap();
    let policy = String::from_utf8(desk.read("disk.img.policy.toml")).unwrap();
    let anchor = format!("file:{}", desk.path("anchor").display());
    fs::write(golden_file("v1.policy.toml"), policy.replace(&anchor, "file:/anchor")).unwrap();
}

/// The golden volume on a desk; its key is the desk's. Of the image the blocks that are not zero are kept, each behind its number.
fn unpack() -> Rc<Desk> {
    let desk = Rc::new(Desk::new());
    let length: u64 = fs::read_to_string(golden_file("v1.length")).unwrap().trim().parse().unwrap();
    let image = File::create(desk.path("disk.img")).unwrap();
    image.set_len(length).unwrap();
    for block in fs::read(golden_file("v1.blocks")).unwrap().chunks(8 + BLOCK) {
        let number = u64::from_le_bytes(block[..8].try_into().unwrap());
        image.write_all_at(&block[8..], number * BLOCK as u64).unwrap();
    }
    fs::copy(golden_file("v1.anchor"), desk.path("anchor")).unwrap();
    let policy = fs::read_to_string(golden_file("v1.policy.toml")).unwrap();
    let anchor = format!("file:{}", desk.path("anchor").display());
    desk.write("disk.img.policy.toml", policy.replace("file:/anchor", &anchor).as_bytes());
    desk
}

#[test]
fn what_the_first_version_wrote_is_read_and_gone_on_with() {
    crate::skip_without_devices!();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        make_golden();
    }
    let expected = golden_content();
    let desk = unpack();
    let session = Session::attach_with(&desk, "--read-only --force");
    assert!(fs::read(&session.file).unwrap() == expected, "read only");
    session.detach();
    match python() {
        Some(python) => assert!(read_alone(&desk, python) == expected, "the second reader"),
        None => tell(
            "the golden volume is not read by the second reader: no python3 with the package cryptography",
        ),
    }
    let session = Session::attach(&desk, false);
    assert!(fs::read(&session.file).unwrap() == expected, "attached");
    let device = OpenOptions::new().write(true).open(&session.file).unwrap();
    let page = content(7, BLOCK);
    device.write_all_at(&page, 5 * BLOCK as u64).unwrap();
    drop(device);
    session.detach();
    let session = Session::attach(&desk, false);
    let found = fs::read(&session.file).unwrap();
    assert!(
        found[5 * BLOCK..6 * BLOCK] == page && found[6 * BLOCK..] == expected[6 * BLOCK..],
        "gone on with"
    );
    session.detach();
}
