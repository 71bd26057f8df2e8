//! The host rolls the disk back together with all that it holds, and the anchor catches it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::attacks::{self, World};
use super::guest::{self, Guest};
use super::host::copy;
use super::root::{Kind, Root};
use super::table::Attempt;
use super::{DemoArgs, say, step, work};
use cli::failure::Failure;

/// Each transaction moves the anchor, which takes milliseconds.
const TRANSACTIONS: u32 = 50;
const STALE: i32 = 5;
const ANCHOR: i32 = 8;

/// Everything that the host holds, as it was at one moment.
struct Kept {
    image: PathBuf,
    /// What the host holds beside the disk, if that is something.
    beside: PathBuf,
}

/// Plays both sides with a real anchor.
pub fn play(args: &DemoArgs, guest: &mut Guest, root: &mut Root) -> Result<Vec<Attempt>, Failure> {
    let world = World::new(guest);
    let transactions = args.transactions.min(TRANSACTIONS);
    say("The guest puts a volume to work.");
    create(&world, guest, root)?;
    guest.attach_good(&world.image, &world.policy, &world.key)?;
    guest.format()?;
    guest.mount(false)?;
    let mut database = work::open(&guest.mountpoint())?;
    work::transact(&mut database, transactions, &guest.interrupt)?;
    drop(database);
    work::write_secret(&guest.mountpoint(), 1)?;
    step(&format!("made a file system on it, and ran {transactions} transactions in SQLite"));
    put_away(guest)?;
    let old = keep(guest, root, &world, "old")?;
    step("synced, unmounted, committed, detached; the host has copied all that it holds");

    guest.attach_good(&world.image, &world.policy, &world.key)?;
    guest.mount(false)?;
    work::write_secret(&guest.mountpoint(), 2)?;
    let expected = work::read_all(&guest.mountpoint(), &guest.interrupt)?.hashes;
    put_away(guest)?;
    let new = keep(guest, root, &world, "new")?;
    step(&format!("came back, and overwrote {}", work::SECRET_FILE));

    say("The host has its turn. It puts back what it holds.");
    let mut attempts = Vec::new();
    let mut note = |attempt: Attempt| {
        step(&format!("{}: {}", attempt.attack, if attempt.caught { "caught" } else { "GOT THROUGH" }));
        attempts.push(attempt);
    };
    copy(guest, &old.image, &world.image)?;
    note(attacks::refused(
        &world,
        guest,
        "roll the disk back",
        "put the disk back as it was a session ago",
        &world.key,
        &[STALE],
    )?);
    note(roll_back_all(guest, root, &world, &old)?);

    put_back(guest, root, &world, &new)?;
    guest.attach_good(&world.image, &world.policy, &world.key)?;
    guest.mount(true)?;
    let reading = work::read_all(&guest.mountpoint(), &guest.interrupt)?;
    guest.detach()?;
    if !reading.failed.is_empty() || reading.hashes != expected {
        return Err(Failure::internal("what the guest wrote is not what it reads after the attacks"));
    }
    step("with the newest disk in its place the guest attaches, and every file is as it left it");
    Ok(attempts)
}

/// Makes the volume. Key, policy and the secrets of the anchor are the guest's.
fn create(world: &World, guest: &Guest, root: &Root) -> Result<(), Failure> {
    guest::make_key(&world.key)?;
    let mut words: Vec<OsString> = vec!["volume".into(), "create".into(), world.image.clone().into()];
    words.extend(["--size=64M".into(), "--policy".into(), world.policy.clone().into()]);
    words.extend(["--key-file".into(), world.key.clone().into()]);
    words.extend(root.arguments.iter().cloned());
    // A TPM wears out: what it protects is committed by name.
    if root.kind != Kind::Tpm {
        words.push("--freshness=strict".into());
    }
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    guest.command(&words)?;
    let what = match root.kind {
        Kind::File => "a file",
        Kind::Etcd => "a cluster of three etcd members, over TLS",
        Kind::Tpm => "a TPM (emulated, in the place of one that the host cannot copy)",
        Kind::Owner => "the owner's service, which has an anchor of its own",
    };
    step(&format!("created a volume of 64 MiB, whose anchor is in {what}"));
    Ok(())
}

/// Unmounts, commits, detaches.
fn put_away(guest: &mut Guest) -> Result<(), Failure> {
    guest.unmount()?;
    guest.commit()?;
    guest.detach()
}

/// What the host holds beside the disk: one member's data, the companion file, or the disk of the owner's service.
fn beside(guest: &Guest, root: &Root) -> PathBuf {
    match root.kind {
        Kind::File => guest.path("host/nothing"),
        Kind::Etcd => root.member(),
        Kind::Tpm => Root::companion(guest),
        Kind::Owner => root.state(),
    }
}

fn copy_all(guest: &Guest, from: &Path, to: &Path) -> Result<(), Failure> {
    guest.tool("rm", &["-rf".as_ref(), to.as_ref()])?;
    guest.tool("cp", &["-a".as_ref(), from.as_ref(), to.as_ref()])
}

/// The host copies all that it holds.
fn keep(guest: &Guest, root: &Root, world: &World, name: &str) -> Result<Kept, Failure> {
    let kept =
        Kept { image: guest.path(&format!("host/{name}.img")), beside: guest.path(&format!("host/{name}")) };
    copy(guest, &world.image, &kept.image)?;
    copy_all(guest, &beside(guest, root), &kept.beside)?;
    Ok(kept)
}

/// The host puts all of it back; what runs on it is started again.
fn put_back(guest: &Guest, root: &mut Root, world: &World, kept: &Kept) -> Result<(), Failure> {
    copy(guest, &kept.image, &world.image)?;
    let beside = beside(guest, root);
    match root.kind {
        Kind::File | Kind::Tpm => copy_all(guest, &kept.beside, &beside),
        Kind::Etcd => {
            root.stop_member()?;
            copy_all(guest, &kept.beside, &beside)?;
            root.start_member()?;
            root.wait_for_cluster(guest)
        }
        Kind::Owner => {
            root.kill();
            copy_all(guest, &kept.beside, &beside)?;
            root.serve()
        }
    }
}

fn roll_back_all(guest: &mut Guest, root: &mut Root, world: &World, old: &Kept) -> Result<Attempt, Failure> {
    let (attack, did, codes): (_, _, &[i32]) = match root.kind {
        Kind::File => ("roll all back", "put the disk back", &[STALE]),
        Kind::Etcd => (
            "roll all back",
            "put the disk back, and the data of the cluster's member that runs on it, which it started again",
            &[STALE],
        ),
        Kind::Tpm => {
            ("roll all back", "put the disk back, and the anchor's companion file", &[STALE, ANCHOR])
        }
        Kind::Owner => {
            let did = "put the disk back, and the disk of the owner's service, which it started again";
            return Ok(match put_back(guest, root, world, old) {
                Err(failure) => Attempt {
                    attack: "roll all back",
                    host: did.into(),
                    guest: attacks::shorten(&format!("the service does not start, {failure}")),
                    caught: failure.to_string().starts_with(&format!("exit code {STALE}:")),
                },
                Ok(()) => attacks::refused(world, guest, "roll all back", did, &world.key, &[])?,
            });
        }
    };
    put_back(guest, root, world, old)?;
    attacks::refused(world, guest, attack, did, &world.key, codes)
}
