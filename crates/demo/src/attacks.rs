//! What a host can try, one function each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use seal::slot::{Argon2Params, Credential, KeySlots};
use seal::{SecretBytes, SystemRandom, VolumeKey};
use volume::format::protections::Freshness;
use volume::policy::Policy;

use super::guest::{Attach, Guest, io_failure};
use super::host::{self, Image, copy};
use super::table::Attempt;
use super::work;
use cli::failure::Failure;

/// Who holds what: files under `guest/` are out of the host's reach, those under `host/` are its own.
pub struct World {
    /// The disk.
    pub image: PathBuf,
    /// What the host kept of it, oldest first.
    pub empty_image: PathBuf,
    pub old_heads: PathBuf,
    pub old_image: PathBuf,
    pub good_image: PathBuf,
    pub policy: PathBuf,
    pub key: PathBuf,
    /// A key that opened the volume once.
    pub thief_key: PathBuf,
    pub anchor: PathBuf,
    pub old_anchor: PathBuf,
    pub good_anchor: PathBuf,
    /// SHA-256 of the files as the guest wrote them first, and last.
    pub first: RefCell<BTreeMap<PathBuf, [u8; 32]>>,
    pub expected: BTreeMap<PathBuf, [u8; 32]>,
}

impl World {
    pub fn new(guest: &Guest) -> Self {
        let path = |name: &str| guest.path(name);
        Self {
            image: path("host/disk.img"),
            empty_image: path("host/copy-0.img"),
            old_heads: path("host/copy-0.heads"),
            old_image: path("host/copy-1.img"),
            good_image: path("host/copy-2.img"),
            policy: path("guest/policy.toml"),
            key: path("guest/key"),
            thief_key: path("guest/old-key"),
            anchor: path("guest/anchor"),
            old_anchor: path("guest/anchor-1"),
            good_anchor: path("guest/anchor-2"),
            first: RefCell::default(),
            expected: BTreeMap::new(),
        }
    }

    fn open(&self) -> Result<Image, Failure> {
        Image::open(&self.image)
    }

    /// The state that the guest left, disk and anchor: each attack begins with it.
    fn restore(&self, guest: &Guest) -> Result<Image, Failure> {
        copy(guest, &self.good_image, &self.image)?;
        copy(guest, &self.good_anchor, &self.anchor)?;
        self.open()
    }
}

/// An attack on the disk that the guest detached.
pub type Attack = fn(&World, &mut Guest) -> Result<Attempt, Failure>;

/// All of them.
pub const ALL: &[Attack] = &[
    flip,
    swap,
    replay,
    rollback,
    fork,
    removed_key,
    no_encryption,
    no_freshness,
    blank,
    no_slots,
    forged_slots,
];

/// Looks for what the guest wrote. Begins while the volume is attached: the same search must find all of it there.
pub fn search(world: &World, guest: &mut Guest, snippets: &[Vec<u8>]) -> Result<Attempt, Failure> {
    let mut texts = snippets.to_vec();
    texts.extend(
        [work::MARKER, "SQLite format 3", "CREATE TABLE", work::SECRET_FILE]
            .map(|text| text.as_bytes().to_vec()),
    );
    let (inside, _) = host::search(guest.file()?, &texts, guest)?;
    if inside < texts.len() {
        return Err(Failure::internal(format!(
            "the search is no good: of {} texts it finds {inside} in what the guest sees",
            texts.len()
        )));
    }
    guest.detach()?;
    let (outside, used) = host::search(&world.image, &texts, guest)?;
    Ok(Attempt {
        attack: "read the disk",
        host: format!(
            "looked through {} of the image for {} pieces of text that are in the guest's files",
            cli::output::bytes(used),
            texts.len()
        ),
        guest: format!("the host found {outside} of them; the guest finds all {inside} on its device"),
        caught: outside == 0,
    })
}

/// Attaches, which must be refused with one of these exit codes.
pub fn refused(
    world: &World,
    guest: &mut Guest,
    attack: &'static str,
    did: &str,
    key: &Path,
    codes: &[i32],
) -> Result<Attempt, Failure> {
    let outcome = guest.attach(&world.image, &world.policy, key)?;
    let (saw, caught) = match outcome {
        Attach::Refused(code, words) => (refusal(world, code, &words), codes.contains(&code)),
        Attach::Done => {
            guest.detach()?;
            ("attached as if nothing had happened".into(), false)
        }
    };
    Ok(Attempt { attack, host: did.into(), guest: shorten(&saw), caught })
}

/// What an attach says that refuses. The column has no room for where the demonstration's disk lies.
fn refusal(world: &World, code: i32, words: &str) -> String {
    let words = words.replace(&world.image.display().to_string(), "disk.img");
    format!("attach refused, exit code {code}: {words}")
}

/// Attaches and reads everything: some of it must fail, and nothing may be wrong.
fn damaged(world: &World, guest: &mut Guest, attack: &'static str, did: String) -> Result<Attempt, Failure> {
    if let Attach::Refused(code, words) = guest.attach(&world.image, &world.policy, &world.key)? {
        let saw = shorten(&refusal(world, code, &words));
        return Ok(Attempt { attack, host: did, guest: saw, caught: code == CORRUPT });
    }
    guest.mount(true)?;
    let reading = work::read_all(&guest.mountpoint(), &guest.interrupt)?;
    let corrupt = guest.corrupt_blocks();
    guest.detach()?;
    let wrong = reading.hashes.iter().filter(|(name, hash)| world.expected.get(*name) != Some(*hash)).count();
    let saw = match reading.failed.first() {
        Some((name, error)) => format!(
            "reading {}: {error}. {} other files are whole, {wrong} wrong ones were returned; \
             the volume counted {corrupt} reads that did not verify",
            name.display(),
            reading.hashes.len() - wrong
        ),
        None => format!("every read succeeded; {wrong} files have wrong content"),
    };
    let caught = wrong == 0 && !reading.failed.is_empty() && corrupt > 0;
    Ok(Attempt { attack, host: did, guest: saw, caught })
}

const CORRUPT: i32 = 4;
const STALE: i32 = 5;
const FORKED: i32 = 6;
const LOCKED: i32 = 10;
const POLICY: i32 = 11;

/// The first sentences of a message, for the table.
pub fn shorten(text: &str) -> String {
    const MOST: usize = 230;
    if text.chars().count() <= MOST {
        return text.into();
    }
    let mut short: String = text.chars().take(MOST).collect();
    short.push_str(" ...");
    short
}

/// The middle of the stretch that the guest wrote last: blocks of its secret file.
fn target(world: &World, image: &Image) -> Result<u64, Failure> {
    let stretch = image.longest_change(&Image::open(&world.old_image)?)?;
    Ok(stretch.start + (stretch.end - stretch.start) / 2)
}

fn flip(world: &World, guest: &mut Guest) -> Result<Attempt, Failure> {
    let image = world.restore(guest)?;
    let block = target(world, &image)?;
    image.flip_bit(block)?;
    damaged(
        world,
        guest,
        "flip a bit",
        format!("flipped one bit of block {block}, which the guest had written to"),
    )
}

fn swap(world: &World, guest: &mut Guest) -> Result<Attempt, Failure> {
    let image = world.restore(guest)?;
    let block = target(world, &image)?;
    image.write(block, &image.read(block + 8, 1)?)?;
    damaged(
        world,
        guest,
        "move a block",
        format!("copied sealed block {} over sealed block {block}", block + 8),
    )
}

fn replay(world: &World, guest: &mut Guest) -> Result<Attempt, Failure> {
    let image = world.restore(guest)?;
    let old = Image::open(&world.old_image)?;
    let stretch = old.longest_change(&Image::open(&world.empty_image)?)?;
    let (from, to) = (stretch.start + (stretch.end - stretch.start) / 2, target(world, &image)?);
    image.write(to, &old.read(from, 1)?)?;
    let did = format!(
        "put the file's sealed content from before it was overwritten (block {from}) into the place of the new (block {to})"
    );
    damaged(world, guest, "put an old block back", did)
}

fn rollback(world: &World, guest: &mut Guest) -> Result<Attempt, Failure> {
    world.restore(guest)?;
    copy(guest, &world.old_image, &world.image)?;
    refused(
        world,
        guest,
        "roll the disk back",
        "put back its complete copy of the disk from an hour ago",
        &world.key,
        &[STALE],
    )
}

/// A second guest, on copies of disk and anchor, whose history the first is then offered.
fn fork(world: &World, guest: &mut Guest) -> Result<Attempt, Failure> {
    world.restore(guest)?;
    copy(guest, &world.old_image, &world.image)?;
    let (anchor, policy) = (guest.path("guest/clone-anchor"), guest.path("guest/clone-policy.toml"));
    copy(guest, &world.old_anchor, &anchor)?;
    let text = fs::read_to_string(&world.policy).map_err(|error| io_failure(&world.policy, &error))?;
    let clone = Policy { anchor: Some(format!("file:{}", anchor.display())), ..Policy::parse(&text)? };
    fs::write(&policy, clone.to_toml()?).map_err(|error| io_failure(&policy, &error))?;
    guest.attach_good(&world.image, &policy, &world.key)?;
    guest.mount(false)?;
    let mut database = work::open(&guest.mountpoint())?;
    work::transact(&mut database, 100, &guest.interrupt)?;
    drop(database);
    guest.detach()?;
    let did = "cloned the guest an hour ago, its anchor too, let the clone go on working, and now gives the clone's disk to the original";
    refused(world, guest, "fork the history", did, &world.key, &[FORKED])
}

fn no_encryption(world: &World, guest: &mut Guest) -> Result<Attempt, Failure> {
    world.restore(guest)?.forge_header(|header| header.confidentiality = false)?;
    let did = "changed the header: this volume is not encrypted, please write plaintext";
    refused(world, guest, "turn encryption off", did, &world.key, &[POLICY])
}

fn no_freshness(world: &World, guest: &mut Guest) -> Result<Attempt, Failure> {
    world.restore(guest)?.forge_header(|header| header.freshness = Freshness::Off)?;
    let did = "changed the header: this volume needs no anchor";
    refused(world, guest, "turn freshness off", did, &world.key, &[POLICY])
}

fn blank(world: &World, guest: &mut Guest) -> Result<Attempt, Failure> {
    const USAGE: i32 = 2;
    let image = world.restore(guest)?;
    image.wipe()?;
    let did = "put an empty disk in its place, so that the guest may format it";
    let codes = [USAGE, CORRUPT, STALE];
    let mut attempt = refused(world, guest, "offer an empty disk", did, &world.key, &codes)?;
    if !image.is_blank()? {
        attempt.guest.push_str("; and the guest wrote to it");
        attempt.caught = false;
    }
    Ok(attempt)
}

fn no_slots(world: &World, guest: &mut Guest) -> Result<Attempt, Failure> {
    world.restore(guest)?.put_slots(&KeySlots::new().encode())?;
    let did = "emptied all key slots, so that the guest may make new ones";
    refused(world, guest, "remove the key slots", did, &world.key, &[CORRUPT, STALE, LOCKED])
}

/// A volume key of the host's own, in a slot for the guest's credential: as if the host knew that.
fn forged_slots(world: &World, guest: &mut Guest) -> Result<Attempt, Failure> {
    let image = world.restore(guest)?;
    let header = volume::format::header::Header::decode(&image.read(0, 1)?)
        .map_err(|error| Failure::internal(format!("the demo's own header: {error}")))?;
    let key = fs::read(&world.key).map_err(|error| io_failure(&world.key, &error))?;
    let mut slots = KeySlots::new();
    slots
        .add(
            &header.volume,
            &VolumeKey::generate(&SystemRandom),
            Credential::KeyFile(SecretBytes::from_vec(key)),
            "forged",
            Argon2Params::default(),
            &SystemRandom,
        )
        .map_err(|error| Failure::internal(format!("a forged key slot: {error}")))?;
    image.put_slots(&slots.encode())?;
    let did =
        "stole the guest's key file, and put a key slot in that leads to a volume key which the host knows";
    refused(world, guest, "forge a key slot", did, &world.key, &[CORRUPT, STALE, FORKED, POLICY])
}

/// Gives a key to somebody and takes it back; the host keeps the header from in between.
pub fn lend_key(world: &World, guest: &Guest) -> Result<(), Failure> {
    let change = |arguments: &[&OsStr]| {
        let volume: [&OsStr; 5] = [
            "--policy".as_ref(),
            world.policy.as_ref(),
            "--key-file".as_ref(),
            world.key.as_ref(),
            world.image.as_ref(),
        ];
        guest.command(&[&["volume".as_ref(), "key".as_ref()], arguments, &volume].concat())
    };
    change(&["add".as_ref(), "--new-key-file".as_ref(), world.thief_key.as_ref(), "--label=lent".as_ref()])?;
    let heads = world.open()?.heads()?;
    fs::write(&world.old_heads, heads).map_err(|error| io_failure(&world.old_heads, &error))?;
    let slot = "1";
    let volume: [&OsStr; 9] = [
        "volume".as_ref(),
        "key".as_ref(),
        "remove".as_ref(),
        "--policy".as_ref(),
        world.policy.as_ref(),
        "--key-file".as_ref(),
        world.key.as_ref(),
        world.image.as_ref(),
        slot.as_ref(),
    ];
    guest.command(&volume).map(drop)
}

fn removed_key(world: &World, guest: &mut Guest) -> Result<Attempt, Failure> {
    let heads = fs::read(&world.old_heads).map_err(|error| io_failure(&world.old_heads, &error))?;
    world.restore(guest)?.write(0, &heads)?;
    let did =
        "put the header back that still had a key slot which the guest has removed since, and has its key";
    refused(world, guest, "revive a removed key", did, &world.thief_key, &[STALE])
}
