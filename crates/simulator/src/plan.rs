//! What a seed chooses before its run begins.

use std::time::Duration;

use fastrand::Rng;
use seal::slot::{Argon2Params, SlotLimits};
use testkit::hostile::Faults;
use volume::format::protections::{Freshness, Provision, SuiteCode, check_protections};
use volume::geometry::{Geometry, Shape};
use volume::{AttachOptions, CreateOptions, Window};

/// The version of all that a seed decides. Raise it when a seed's run changes because the simulator does: what another version reports
/// cannot be replayed here.
pub const VERSION: u32 = 13;

/// What may go wrong beyond crashes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Mischief {
    /// The host changes single blocks, while the volume is attached or not.
    pub(crate) tamper: bool,
    /// The host puts whole older images back.
    pub(crate) rollback: bool,
    /// The host runs a copy.
    pub(crate) fork: bool,
    /// The disk lies: flushes that do nothing, lost and misdirected writes, reads that change.
    pub(crate) lies: bool,
    /// The disk fails honestly.
    pub(crate) errors: bool,
    /// The anchor fails, before or after it moved, or answers with an older stamp.
    pub(crate) anchor: bool,
    /// Guests that are believed dead go on.
    pub(crate) zombies: bool,
    /// They go on even when yet another guest has taken over.
    pub(crate) undead: bool,
    /// Writes of dead guests happen late.
    pub(crate) late: bool,
    /// The clock jumps.
    pub(crate) clock: bool,
    /// The owner changes the key slots.
    pub(crate) keys: bool,
    /// The owner gives the volume new keys.
    pub(crate) rekey: bool,
}

/// How often each kind of request is made, relative to the others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) read: u32,
    pub(crate) write: u32,
    pub(crate) flush: u32,
    pub(crate) discard: u32,
    pub(crate) allocation: u32,
    pub(crate) commit: u32,
}

/// One run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) create: CreateOptions,
    pub(crate) attach: AttachOptions,
    pub(crate) store_blocks: u64,
    pub(crate) queues: usize,
    pub(crate) mischief: Mischief,
    pub(crate) faults: Faults,
    pub(crate) mix: Mix,
    /// Most blocks of a write.
    pub(crate) longest: u64,
    /// Blocks that most requests go to, from the volume's start.
    pub(crate) hot: u64,
    /// One in so many requests is followed by a crash.
    pub(crate) crash_every: u32,
    /// Whether anchor moves take their time.
    pub(crate) slow_anchor: bool,
    /// Whether crashes prefer moments at which a superblock is on its way.
    pub(crate) crashes_when_publishing: bool,
    /// Whether guests that are believed dead only write, so that nothing tells them that they have been replaced.
    pub(crate) quiet_zombies: bool,
    /// How often the making of the volume is cut short.
    pub(crate) cut_creations: u32,
    /// How often the volume grows.
    pub(crate) growths: u32,
    /// Whether the owner backs the header up, and the host destroys it.
    pub(crate) backups: bool,
    /// Whether everything is checked now and then.
    pub(crate) scrubs: bool,
    /// Whether the owner moves the volume to other anchors.
    pub(crate) moves: bool,
    /// Whether the owner exports the volume, and imports streams into it.
    pub(crate) streams: bool,
    /// Whether the volume begins as a copy of another one.
    pub(crate) copy: bool,
    /// Whether the disk shares its room with others, who take it and give it back.
    pub(crate) scarce: bool,
    /// Whether the disk says how much room it has left, and which blocks it has given.
    pub(crate) told: bool,
    /// Whether the owner has named the volume before there is one.
    pub(crate) named: bool,
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

impl Plan {
    pub(crate) fn of(rng: &mut Rng) -> Self {
        let (suite, confidentiality, integrity, freshness) = protections(rng);
        let provision = pick(rng, Provision::ALL);
        let shape = Shape::TINY;
        let logical = match rng.u32(..10) {
            0 => 4096,
            1..=3 => rng.u64(256..1500),
            _ => rng.u64(64..256),
        };
        let full = Geometry::for_logical(logical, shape).expect("a legal size");
        let (logical, store_blocks) = match provision {
            Provision::Full => (logical, full.physical_blocks + rng.u64(..8)),
            Provision::Thin => (logical * rng.u64(1..5), full.physical_blocks),
        };
        let anchored = freshness != Freshness::Off;
        let mischief = mischief(rng, anchored);
        // What came into the plans later has a line of its own, so that the other seeds go as before.
        let mut later = Rng::with_seed(rng.clone().u64(..) ^ 0x6d6f_7665);
        Self {
            create: CreateOptions {
                suite,
                confidentiality,
                integrity,
                freshness,
                provision,
                logical_blocks: Some(logical),
                force: false,
                shape,
                argon2: Argon2Params { memory_kib: 8, passes: 1, lanes: 1 },
                label: "simulator".into(),
                anchor_options: anchor::Options::default(),
            },
            attach: AttachOptions {
                follows: None,
                memory: pick(rng, &[1 << 12, 1 << 15, 1 << 17, 1 << 19]),
                block_cache: pick(rng, &[0, 0, 1 << 16, 1 << 18]),
                behind: pick(rng, &[0, 1, 8, 64, 4096]),
                discard: pick(&mut later, &[None, None, Some(false)]),
                window: Window {
                    time: Duration::from_millis(pick(rng, &[10, 1000, 100_000])),
                    bytes: pick(rng, &[1 << 14, 1 << 20, 1 << 30]),
                    commits: pick(rng, &[1, 4, 100, 1000]),
                },
                slot_limits: SlotLimits::default(),
                reading: volume::Reading::default(),
                shape,
            },
            store_blocks,
            queues: rng.usize(2..4),
            mischief,
            faults: faults(rng, mischief),
            mix: Mix {
                read: rng.u32(1..20),
                write: rng.u32(10..30),
                flush: rng.u32(0..10),
                discard: rng.u32(0..6),
                allocation: rng.u32(0..4),
                commit: if freshness == Freshness::Transaction { rng.u32(1..8) } else { rng.u32(0..2) },
            },
            longest: pick(rng, &[1, 4, 40, 160]),
            hot: pick(rng, &[8, 64, logical, logical]).min(logical),
            crash_every: pick(rng, &[15, 40, 40, 100]),
            slow_anchor: rng.bool(),
            crashes_when_publishing: rng.u32(..3) == 0,
            quiet_zombies: rng.bool(),
            cut_creations: if rng.u32(..4) == 0 { rng.u32(1..4) } else { 0 },
            growths: if rng.u32(..3) == 0 { pick(rng, &[1, 2, 4, 20]) } else { 0 },
            backups: rng.u32(..4) == 0,
            scrubs: rng.u32(..3) == 0,
            moves: anchored && later.u32(..4) == 0,
            streams: later.u32(..4) == 0,
            copy: later.u32(..8) == 0,
            named: later.u32(..4) == 0,
            scarce: provision == Provision::Thin && later.u32(..2) == 0,
            told: later.bool(),
        }
    }
}

/// A legal combination, the levels with freshness more often than their share.
pub(crate) fn protections(rng: &mut Rng) -> (SuiteCode, bool, bool, Freshness) {
    loop {
        let suite = pick(rng, SuiteCode::ALL);
        let (confidentiality, integrity) = (rng.u32(..4) > 0, rng.u32(..4) > 0);
        let freshness = pick(rng, Freshness::ALL);
        if possible(suite, confidentiality, integrity, freshness) {
            return (suite, confidentiality, integrity, freshness);
        }
    }
}

fn possible(suite: SuiteCode, confidentiality: bool, integrity: bool, freshness: Freshness) -> bool {
    // Of the authenticated ciphers, only one has a mode that leaves the plaintext in the clear.
    let only_integrity = integrity && !confidentiality;
    check_protections(suite, confidentiality, integrity, freshness).is_ok()
        && (!only_integrity || suite == SuiteCode::Aes256Gcm)
}

fn mischief(rng: &mut Rng, anchored: bool) -> Mischief {
    let mut mischief = Mischief::default();
    match rng.u32(..20) {
        0..=2 => {}
        3..=7 => {
            mischief.zombies = true;
            mischief.undead = !anchored || rng.u32(..4) == 0;
        }
        8 => mischief.late = true,
        9..=10 => mischief.tamper = true,
        11..=13 => mischief.rollback = true,
        14 => mischief.fork = anchored,
        15 => mischief.lies = true,
        16..=17 => mischief.errors = true,
        _ => mischief.anchor = anchored,
    }
    mischief.clock = rng.u32(..4) == 0;
    mischief.keys = rng.u32(..3) == 0;
    mischief.rekey = rng.u32(..4) == 0;
    mischief
}

fn faults(rng: &mut Rng, mischief: Mischief) -> Faults {
    let mut faults = Faults::default();
    if mischief.errors {
        let fields =
            [&mut faults.read_error, &mut faults.write_error, &mut faults.no_space, &mut faults.flush_error];
        for field in fields {
            *field = if rng.bool() { 0.01 } else { 0.0 };
        }
    }
    if mischief.lies {
        let fields = [
            &mut faults.lying_flush,
            &mut faults.lost_write,
            &mut faults.torn_write,
            &mut faults.misdirected_write,
            &mut faults.unstable_read,
        ];
        let one = rng.usize(..fields.len());
        for (at, field) in fields.into_iter().enumerate() {
            *field = if at == one { pick(rng, &[0.002, 0.02, 0.2]) } else { 0.0 };
        }
    }
    if mischief.late {
        faults.late_write = 0.3;
    }
    if !mischief.lies && rng.u32(..4) == 0 {
        faults.slow_write = pick(rng, &[0.01, 0.1]);
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over the plans of a hundred seeds. When it changes, raise `VERSION`, unless all that changed is a field that no seed draws.
    const FINGERPRINT: (u32, u64) = (13, 709360686377723312);

    #[test]
    fn a_plan_that_changes_is_another_version() {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for seed in 0..100 {
            for byte in format!("{:?}", Plan::of(&mut Rng::with_seed(seed))).bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        assert_eq!((VERSION, hash), FINGERPRINT, "raise the version of the seeds, and note both here");
    }
}
