//! Sectors that the store cannot read, in what a volume has more than one copy of.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::medium::image;
use crate::common::rekeying::reseal;
use crate::common::worn::{Unreadable, wear};
use crate::common::{Bench, credential, options, options_at};
use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential};
use volume::format::protections::Freshness;
use volume::geometry::Shape;
use volume::policy::Policy;
use volume::{
    CheckReport, CreateOptions, KeyChange, Kind, RekeyOrder, Result, attach_read_only, begin_rekey,
    change_keys,
};

/// Of the header's copies A and B, and of the superblocks.
const HEADERS: std::ops::Range<u64> = 0..4;
const SUPERBLOCKS: std::ops::Range<u64> = 4..8;

struct Case {
    bench: Bench,
    policy: Policy,
    unreadable: Unreadable,
}

impl Case {
    /// A volume with 64 blocks that hold 7, after more than one session.
    fn new(freshness: Freshness) -> Self {
        Self::of(options_at(freshness))
    }

    fn of(options: CreateOptions) -> Self {
        let mut bench = Bench::new(options, 16_384);
        let unreadable = wear(&mut bench);
        let policy = bench.create();
        for fill in [6, 7] {
            let mut session = bench.attach(&policy).expect("attached");
            session.write(0, 64, fill).expect("written");
            session.detach().expect("detached");
        }
        Self { bench, policy, unreadable }
    }

    fn wear_out(&self, blocks: impl IntoIterator<Item = u64>) {
        let mut unreadable = self.unreadable.lock().expect("not poisoned");
        unreadable.clear();
        unreadable.extend(blocks);
    }

    fn is_worn(&self) -> bool {
        !self.unreadable.lock().expect("not poisoned").is_empty()
    }

    /// Reads the volume, in a session of its own that writes it as well.
    fn use_it(&self) -> Result<()> {
        let mut session = self.bench.attach(&self.policy)?;
        assert_eq!(session.read(5, 1)?[0], 7);
        session.write(5, 1, 7)?;
        session.detach()
    }
}

#[test]
fn a_copy_of_the_header_that_cannot_be_read_keeps_nobody_out_and_is_mended_by_the_next_change() {
    for block in HEADERS {
        let case = Case::new(Freshness::Strict);
        case.wear_out([block]);
        case.use_it().unwrap_or_else(|error| panic!("block {block}: {error}"));
        let change = KeyChange::Add {
            credential: Credential::Passphrase(SecretBytes::from_slice(b"open sesame")),
            label: "other".into(),
            argon2: Argon2Params { memory_kib: 8, passes: 1, lanes: 1 },
        };
        let (environment, policy) = (case.bench.environment.clone(), case.policy.clone());
        let changing = change_keys(environment, policy, credential(), change, false, case.bench.attach);
        assert_eq!(changing.expect("a queue").block().expect("changed").slots.len(), 2);
        assert!(!case.is_worn(), "block {block} was not written");
        case.use_it().expect("both copies are there");
    }
}

/// It would sound like an attack, and nobody knows whether it is one.
#[test]
fn where_nothing_that_can_be_read_counts_the_store_is_to_blame() {
    let case = Case::new(Freshness::Strict);
    for blocks in [[0, 2], [1, 3], [0, 3]] {
        case.wear_out(blocks);
        assert_eq!(case.use_it().expect_err("no header").kind(), Kind::Io, "{blocks:?}");
    }
    // The older copy is one that the anchor does not vouch for.
    let stale = Case::new(Freshness::Strict);
    let old = stale.bench.image();
    let change = KeyChange::Add {
        credential: Credential::KeyFile(SecretBytes::from_slice(&[3; 64])),
        label: "other".into(),
        argon2: Argon2Params { memory_kib: 8, passes: 1, lanes: 1 },
    };
    let (environment, policy) = (stale.bench.environment.clone(), stale.policy.clone());
    change_keys(environment, policy, credential(), change, false, stale.bench.attach)
        .expect("a queue")
        .block()
        .expect("changed");
    crate::common::medium::put(&*stale.bench.environment.store, 2, &old[2..4].concat());
    stale.wear_out([0]);
    assert_eq!(stale.use_it().expect_err("only the old one").kind(), Kind::Io);
}

/// The anchor says whether those that can be read lead to the state that counts. Older ones do as long as nothing took the place of their
/// journal.
#[test]
fn of_the_superblocks_one_that_leads_to_the_state_that_counts_is_enough() {
    let mut refused = 0;
    for slots in (0..16).map(|bits| SUPERBLOCKS.filter(move |slot| bits >> (slot - 4) & 1 == 1)) {
        let case = Case::of(options(2000, Shape::TINY));
        let mut session = case.bench.attach(&case.policy).expect("attached");
        // The journal comes round.
        for block in 64..264 {
            session.write(block, 1, 1).expect("written");
            session.flush().expect("flushed");
        }
        session.detach().expect("detached");
        case.wear_out(slots.clone());
        match case.use_it() {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), Kind::Io, "{:?}: {error}", slots.collect::<Vec<_>>());
                refused += 1;
            }
        }
        case.wear_out([]);
        case.use_it().expect("it is readable again");
    }
    // Two of four are of the last session.
    assert!((2..=8).contains(&refused), "{refused}");
}

/// Nothing says there whether what can be read is the newest.
#[test]
fn without_freshness_every_copy_must_be_readable() {
    let case = Case::new(Freshness::Off);
    for block in HEADERS.chain(SUPERBLOCKS) {
        case.wear_out([block]);
        assert_eq!(case.use_it().expect_err("who knows").kind(), Kind::Io, "block {block}");
    }
    case.wear_out([]);
    case.use_it().expect("readable");
}

#[test]
fn a_check_goes_on_behind_blocks_that_cannot_be_read_and_names_them() {
    let case = Case::new(Freshness::Strict);
    let start = case.bench.options.geometry(16_384).expect("it fits").data_start();
    let image = image(&*case.bench.environment.store);
    let written = |block: &[u8]| block.iter().any(|byte| *byte != 0);
    let places = (0_u64..).zip(&image).filter(|(place, block)| *place >= start && written(block));
    let check = || -> Result<CheckReport> {
        let (environment, policy) = (case.bench.environment.clone(), case.policy.clone());
        let volume = attach_read_only(environment, policy, credential(), case.bench.attach)?.block()?;
        volume.check(0, 1, Arc::default())?.block()
    };
    let (mut named, mut nodes) = (BTreeSet::new(), 0);
    for (place, _) in places {
        case.wear_out([place]);
        match check() {
            // It holds nothing any more.
            Ok(report) if report.unreadable_blocks == 0 => assert_eq!(report.blocks, 64),
            Ok(report) => {
                assert_eq!((report.unreadable_blocks, report.blocks, report.damaged_blocks), (1, 63, 0));
                named.insert(report.unreadable[0].start);
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Io, "{error}");
                nodes += 1;
            }
        }
    }
    assert!(named == (0..64).collect() && nodes > 0, "{named:?}, {nodes} nodes");
}

#[test]
fn a_block_that_cannot_be_read_keeps_no_other_under_the_old_key() {
    let case = Case::new(Freshness::Strict);
    let environment = || case.bench.environment.clone();
    let (order, options) = (RekeyOrder::default(), case.bench.attach);
    let begun =
        begin_rekey(environment(), case.policy.clone(), credential(), order, options).expect("a queue");
    begun.block().expect("begun");
    // The one of all places that block 9 is read from.
    let is_of_it = |place: &u64| {
        case.wear_out([*place]);
        let Ok(mut session) = case.bench.attach_reading(&case.policy) else { return false };
        session.read(9, 1).is_err_and(|error| error.kind() == Kind::Io) && session.read(8, 1).is_ok()
    };
    let start = case.bench.options.geometry(16_384).expect("it fits").data_start();
    let image = image(&*case.bench.environment.store);
    let written = |place: &u64| image[usize::try_from(*place).expect("small")].iter().any(|byte| *byte != 0);
    let place = (start..16_384).filter(written).find(is_of_it).expect("it lies somewhere");
    case.wear_out([place]);
    let mut session = case.bench.attach(&case.policy).expect("attached");
    let report = reseal(&mut session);
    assert!(!report.ended && report.resealed == 63, "{report:?}");
    assert_eq!((report.damage.unreadable_blocks, report.damage.unreadable[0].clone()), (1, 9..10));
    // As the error advises.
    session.write(9, 1, 8).expect("written");
    assert!(reseal(&mut session).ended);
    session.detach().expect("detached");
}

/// What could be read before is not taken for changed.
#[test]
fn superblocks_that_cannot_be_read_from_some_moment_on_make_no_change_of_key_cry_wolf() {
    let (mut begun, mut refused) = (0, 0);
    for slots in SUPERBLOCKS.map(|slot| slot..slot + 1).chain([SUPERBLOCKS]) {
        for polls in 0.. {
            let case = Case::new(Freshness::Strict);
            let (environment, options) = (case.bench.environment.clone(), case.bench.attach);
            let order = RekeyOrder::default();
            let mut job =
                begin_rekey(environment, case.policy.clone(), credential(), order, options).expect("a queue");
            if (0..polls).any(|_| job.poll().is_some()) {
                break;
            }
            case.wear_out(slots.clone());
            match job.block() {
                Ok(_) => begun += 1,
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Io, "{slots:?} after {polls} polls: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(begun > 0 && refused > 0, "{begun} have begun, {refused} were refused");
}
