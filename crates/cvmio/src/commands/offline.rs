//! What commands on a volume that is not attached have in common, and `dump`.

use std::path::Path;

use seal::slot::Credential;
use volume::dump::{CopyDump, Dump, Read, SlotDump, SuperblockDump};
use volume::policy::Policy;
use volume::{AttachOptions, Environment};

use crate::cli::{Offline, RuntimeArgs};
use cli::failure::Failure;
use cli::output;
use daemon::input::{self, Origin, VolumeFiles};
use daemon::runtime::Place;
use daemon::system;

/// What an offline command stands on.
pub struct Opened {
    pub environment: Environment,
    pub policy: Policy,
    pub credential: Credential,
}

/// Where the volume runs that `store` names, if it is no path. The name of an attached volume is one, whatever lies in the working directory; a
/// file of the same name is meant by `./NAME`.
pub fn running(store: &Path, runtime: &RuntimeArgs) -> Result<Option<Place>, Failure> {
    let Some(name) = store.to_str().and_then(|name| cli::input::parse_name(name).ok()) else {
        return Ok(None);
    };
    match (runtime.directory().map(|runtime| Place::new(&runtime, &name)), store.exists()) {
        (Ok(place), true) if !place.exists() => Ok(None),
        // Without a runtime directory nothing is attached.
        (Err(_), true) => Ok(None),
        (place, there) => {
            if there {
                output::warning(&format!(
                    "{name} is the attached volume; for the file of this name write ./{name}"
                ));
            }
            place.map(Some)
        }
    }
}

/// Refuses the name of an attached volume where only a path is taken: it is no path, whatever lies in the working directory. `attach` does not
/// ask: behind a kill the same command must work again, also on a store that is called as its volume.
pub fn refuse_attached_name(store: &Path) -> Result<(), Failure> {
    let Some(name) = store.to_str().and_then(|name| cli::input::parse_name(name).ok()) else { return Ok(()) };
    let Ok(runtime) = RuntimeArgs::of_environment().directory() else { return Ok(()) };
    if !Place::new(&runtime, &name).exists() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{name} is a volume that is attached, or whose daemon was killed, and this command is for the store of one that is not attached: \
         `cvmio volume detach {name}`, and give the path of its store (`cvmio volume list` shows it). For a file of this name write ./{name}"
    )))
}

/// Refuses what a daemon was told when the volume was attached, and cannot be told otherwise.
pub fn refuse_for_attached(
    store: &Path,
    policy: Option<&Path>,
    buffered: bool,
    force: bool,
) -> Result<(), Failure> {
    let given = [("--policy", policy.is_some()), ("--buffered", buffered), ("--force", force)];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((option, _)) => Err(Failure::usage(format!(
            "{option} is for a volume that is not attached; leave it out for {}",
            store.display()
        ))),
    }
}

/// Opens what the arguments name, for reading or for changing.
pub fn open(args: &Offline, write: bool) -> Result<Opened, Failure> {
    open_with(args, write, |files| files.refuse_same(&[]))
}

/// The same beside other files. `refuse_same` refuses what is given for two things; it is called before the anchor is opened.
pub fn open_with(
    args: &Offline,
    write: bool,
    refuse_same: impl FnOnce(VolumeFiles<'_>) -> Result<(), Failure>,
) -> Result<Opened, Failure> {
    system::protect()?.iter().for_each(|warning| output::warning(warning));
    let refuse_same = |files: VolumeFiles<'_>| refuse_same(files.opened_by(&args.credential));
    let (environment, policy) =
        open_both(&args.store, args.policy.as_deref(), (args.buffered, write), refuse_same)?;
    let credential = input::load(&args.credential, Origin::Known)?;
    Ok(Opened { environment, policy, credential })
}

/// Opens store and anchor for reading, where no secret is needed.
pub fn open_public(
    store: &Path,
    policy: Option<&Path>,
    buffered: bool,
) -> Result<(Environment, Policy), Failure> {
    open_both(store, policy, (buffered, false), |files| files.refuse_same(&[]))
}

fn open_both(
    store: &Path,
    policy: Option<&Path>,
    (buffered, write): (bool, bool),
    refuse_same: impl FnOnce(VolumeFiles<'_>) -> Result<(), Failure>,
) -> Result<(Environment, Policy), Failure> {
    let opened = if write {
        system::open_store(store, buffered)
    } else {
        system::open_store_read_only(store, buffered)
    }?;
    let path = input::default_policy(store, policy)?;
    let policy = input::read_policy(&path)?;
    refuse_same(VolumeFiles::known(store, &path, &policy))?;
    let anchor = if write { system::open_anchor(&policy) } else { system::open_anchor_read_only(&policy) }?;
    Ok((system::environment(opened, anchor), policy))
}

pub fn slot_line(slot: &SlotDump) -> String {
    let cost = match (slot.memory_kib, slot.passes, slot.lanes) {
        (Some(memory), Some(passes), Some(lanes)) => format!(
            " (Argon2id: {}, {passes} passes, {lanes} lanes)",
            output::bytes(u64::from(memory) * 1024)
        ),
        _ => String::new(),
    };
    format!("slot {:>2}  {}{cost}  {}", slot.index, slot.kind, slot.label).trim_end().to_string()
}

pub fn dump(args: &crate::cli::Dump) -> Result<(), Failure> {
    let args = &args.offline;
    let dump = if args.credential.is_named() {
        let Opened { environment, policy, credential } = open(args, false)?;
        volume::dump::dump(environment, Some(policy), Some(credential), AttachOptions::default())
    } else {
        // For trouble: a policy or an anchor that cannot be read is no reason to show nothing.
        let store = system::open_store_read_only(&args.store, args.buffered)?;
        let policy = input::default_policy(&args.store, args.policy.as_deref())
            .and_then(|path| input::read_policy(&path));
        let anchor = policy.and_then(|policy| system::open_anchor(&policy));
        if let Err(failure) = &anchor {
            output::warning(&format!("{failure}; going on without"));
        }
        volume::dump::dump(
            system::environment(store, anchor.ok().flatten()),
            None,
            None,
            AttachOptions::default(),
        )
    };
    let dump = dump?.block()?;
    if args.json {
        return output::print_json(&dump);
    }
    output::print(&dump_text(&dump));
    Ok(())
}

fn dump_text(dump: &Dump) -> String {
    let mut lines = vec![format!("{}: {} blocks", dump.store, output::count(dump.store_blocks))];
    for copy in &dump.copies {
        copy_text(copy, &mut lines);
    }
    match &dump.stamp {
        Some(stamp) => lines.push(format!(
            "stamp: {}, generation {}, claim {}\n  volume  {}\n  session {}\n  head    {}\n  header  {}",
            stamp.state,
            stamp.generation,
            stamp.claims,
            stamp.volume,
            stamp.session,
            stamp.head,
            stamp.header_digest
        )),
        None => lines.push("stamp: none".into()),
    }
    match &dump.superblocks {
        Some(superblocks) => {
            superblocks.iter().for_each(|superblock| superblock_text(superblock, &mut lines))
        }
        None => lines.push("superblocks: sealed; give a key file or a passphrase file to see them".into()),
    }
    lines.join("\n")
}

fn copy_text(copy: &CopyDump, lines: &mut Vec<String>) {
    let standing = match (copy.anchored, copy.verified) {
        (Some(false), _) => "NOT the one that the anchor vouches for",
        (Some(true), true) => "anchored, verified",
        (None, true) => "verified",
        (Some(true), false) => "anchored",
        (None, false) => "unverified",
    };
    let torn = if copy.whole == Some(false) { ", damaged or written in PART only" } else { "" };
    lines.push(format!("header at block {}: {standing}{torn}\n  digest  {}", copy.block, copy.digest));
    match &copy.header {
        Read::Ok(header) => {
            lines.push(format!(
            "  generation {}, volume {}\n  {}, confidentiality {}, integrity {}, freshness {}, {}\n  {} logical and {} physical blocks; \
             journal {} segments of {} blocks, bitmap from block {}, data from block {}",
            header.generation,
            header.volume,
            header.suite,
            header.confidentiality,
            header.integrity,
            header.freshness,
            header.provision,
            output::count(header.logical_blocks),
            output::count(header.physical_blocks),
            header.segments,
            header.segment_blocks,
            header.bitmap_start,
            header.data_start
        ));
            let growths = header.sizes.windows(2).map(|sizes| {
                let [(logical, physical), (more_logical, more_physical)] = [sizes[0], sizes[1]].map(|(logical, physical)| (output::count(logical), output::count(physical)));
                format!("  grown from {logical} logical and {physical} physical blocks to {more_logical} and {more_physical}")
            });
            lines.extend(growths);
        }
        Read::Malformed(why) => lines.push(format!("  unreadable: {why}")),
    }
    match &copy.slots {
        Read::Ok(slots) => lines.extend(slots.iter().map(|slot| format!("  {}", slot_line(slot)))),
        Read::Malformed(why) => lines.push(format!("  key slots unreadable: {why}")),
    }
}

fn superblock_text(superblock: &SuperblockDump, lines: &mut Vec<String>) {
    lines.push(format!(
        "superblock in slot {}: generation {}, claim {}, publication {}\n  session {}\n  head    {}\n  epoch {} (next {}), {} blocks mapped, {} units reserved, {} growths known",
        superblock.slot,
        superblock.generation,
        superblock.claims,
        superblock.publication,
        superblock.session,
        superblock.head,
        superblock.epoch,
        superblock.next_epoch,
        output::count(superblock.mapped_blocks),
        superblock.units.len(),
        superblock.growths
    ));
    for (name, root) in
        [("map", &superblock.map), ("salts", &superblock.salts), ("bitmap", &superblock.bitmap)]
    {
        lines.push(match root {
            Some(entry) => format!(
                "  {name:<7} root at block {}, epoch {}, nonce {}",
                entry.physical, entry.epoch, entry.nonce
            ),
            None => format!("  {name:<7} empty"),
        });
    }
    for leg in &superblock.legs {
        let last = leg.last.map_or("open".into(), |last| format!("to {last}"));
        lines.push(format!(
            "  journal from segment {} block {}: generation {} {last}",
            leg.segment, leg.block, leg.first
        ));
    }
}
