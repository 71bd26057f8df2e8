//! Values of the format, with a liking for their bounds.

use proptest::array::{uniform16, uniform32};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::format::ad::Tree;
use crate::format::entry::Entry;
use crate::format::header::Header;
use crate::format::item::{ITEM_SIZE, Item, Units};
use crate::format::protections::{Freshness, Provision, SuiteCode, check_protections};
use crate::format::record::{RecordHeader, blocks_for};
use crate::format::rekeying::Rekeying;
use crate::format::superblock::{Leg, Superblock};
use crate::geometry::{Geometry, MAX_PHYSICAL, Shape};

/// A number from `least` to `most`, often one of the two.
pub fn bounded(least: u64, most: u64) -> impl Strategy<Value = u64> + Clone {
    prop_oneof![Just(least), Just(most), least..=most]
}

fn bounded_u32(least: u32, most: u32) -> impl Strategy<Value = u32> + Clone {
    prop_oneof![Just(least), Just(most), least..=most]
}

pub fn id() -> impl Strategy<Value = [u8; 16]> {
    uniform16(any::<u8>())
}

pub fn hash() -> impl Strategy<Value = [u8; 32]> {
    uniform32(any::<u8>())
}

pub fn present(epoch: u32, flags: u16) -> impl Strategy<Value = Entry> {
    let parts = (bounded(1, (1 << 40) - 1), bounded_u32(epoch, (1 << 24) - 1), bounded(0, (1 << 48) - 1));
    (parts, 0..=flags, id()).prop_map(|((physical, epoch, nonce), flags, tag)| Entry {
        physical,
        epoch,
        nonce,
        flags,
        tag,
    })
}

pub fn root(tree: Tree) -> impl Strategy<Value = Entry> {
    let present = present(1, if tree == Tree::Bitmap { u16::MAX } else { 0 });
    let present = present.prop_map(move |entry| match tree {
        Tree::Salts | Tree::OldSalts => Entry { epoch: 0, nonce: 0, ..entry },
        _ => entry,
    });
    prop_oneof![1 => Just(Entry::ABSENT), 4 => present]
}

pub fn geometry() -> impl Strategy<Value = Geometry> {
    let least = Geometry::for_logical(Geometry::MIN_LOGICAL, Shape::STANDARD).expect("within the limits");
    let sizes =
        (bounded(Geometry::MIN_LOGICAL, Geometry::MAX_LOGICAL), bounded(least.physical_blocks, MAX_PHYSICAL));
    let any =
        |(logical, physical)| Geometry::thin(logical, physical, Shape::STANDARD).expect("within the limits");
    let full = |logical| Geometry::for_logical(logical, Shape::STANDARD).expect("within the limits");
    let created = prop_oneof![
        sizes.prop_map(any),
        bounded(Geometry::MIN_LOGICAL, Geometry::MAX_LOGICAL).prop_map(full)
    ];
    (created, vec((bounded(0, 1 << 20), bounded(0, 1 << 24)), 0..=16)).prop_map(|(created, growths)| {
        let grow = |geometry: Geometry, (logical, physical)| {
            let sizes = (geometry.logical_blocks + logical, geometry.physical_blocks + physical);
            geometry.grown(sizes.0, sizes.1).unwrap_or(geometry)
        };
        growths.into_iter().fold(created, grow)
    })
}

fn rekeying() -> impl Strategy<Value = Option<Rekeying>> {
    let parts = (bounded_u32(1, (1 << 24) - 1), hash(), hash(), hash(), id());
    prop::option::of(parts.prop_map(|(boundary, superblock, salt, sealed, tag)| Rekeying {
        boundary,
        superblock,
        salt,
        sealed,
        tag,
    }))
}

pub fn header() -> impl Strategy<Value = Header> {
    let suite = prop::sample::select(SuiteCode::ALL);
    let freshness = prop::sample::select(Freshness::ALL);
    let protections = (suite, any::<bool>(), any::<bool>(), freshness)
        .prop_filter("a legal combination", |&(s, c, i, f)| check_protections(s, c, i, f).is_ok());
    (1..=u32::MAX, id(), protections, any::<bool>(), geometry(), rekeying()).prop_map(
        |(generation, volume, (suite, confidentiality, integrity, freshness), full, geometry, rekeying)| {
            Header {
                rekeying,
                generation,
                volume,
                suite,
                confidentiality,
                integrity,
                freshness,
                provision: if full && geometry.fully_provisioned() {
                    Provision::Full
                } else {
                    Provision::Thin
                },
                geometry,
            }
        },
    )
}

pub fn record_header() -> impl Strategy<Value = RecordHeader> {
    let items = prop_oneof![Just(0), Just(99), Just(100), 0..20_000_usize];
    let numbers =
        (bounded(1, u64::MAX - 1), any::<u32>(), bounded_u32(1, (1 << 24) - 1), bounded(0, (1 << 48) - 1));
    ((id(), id(), hash(), id()), items, any::<bool>(), numbers).prop_map(
        |((volume, session, salt, tag), items, last, (generation, next_segment, epoch, nonce))| {
            RecordHeader {
                volume,
                session,
                generation,
                payload_bytes: u32::try_from(items * ITEM_SIZE).expect("20,000 items are fewer bytes"),
                blocks: u16::try_from(blocks_for(items)).expect("20,000 items are fewer blocks"),
                last,
                next_segment,
                epoch,
                nonce,
                salt,
                tag,
            }
        },
    )
}

pub fn item() -> impl Strategy<Value = Item> {
    let argument = || bounded(0, (1 << 56) - 1);
    let tree = prop::sample::select(&[Tree::Map, Tree::Salts, Tree::Bitmap][..]);
    let units = vec(any::<u32>(), 1..=8).prop_map(|units| Units::new(&units).expect("1 to 8 units"));
    prop_oneof![
        (argument(), present(1, 0)).prop_map(|(logical, entry)| Item::Write { logical, entry }),
        (argument(), bounded(1, 1 << 60)).prop_map(|(logical, blocks)| Item::Discard { logical, blocks }),
        units.prop_map(Item::Reserve),
        (bounded_u32(1, (1 << 24) - 1), hash()).prop_map(|(epoch, salt)| Item::Epoch { epoch, salt }),
        (tree, any::<u8>()).prop_flat_map(|(tree, growths)| {
            root(tree).prop_map(move |entry| Item::Root { tree, growths, entry })
        }),
        any::<u64>().prop_map(Item::Mapped),
    ]
}

/// Legs that join, of which the last begins behind `generation`.
fn legs(generation: u64, head: [u8; 32]) -> impl Strategy<Value = Vec<Leg>> {
    let leg = (any::<u32>(), any::<u32>(), bounded(0, 1000), hash());
    vec(leg, 1..=24).prop_map(move |parts| {
        let mut next = generation + 1;
        let mut legs: Vec<Leg> = Vec::new();
        for (segment, block, records, before) in parts.into_iter().rev() {
            let last = if legs.is_empty() { Leg::OPEN } else { next - 1 };
            let first = if legs.is_empty() { next } else { next.saturating_sub(records).max(1) };
            let head = if legs.is_empty() { head } else { before };
            legs.push(Leg { segment, block, first, last, head });
            next = first;
        }
        legs.reverse();
        legs
    })
}

pub fn superblock() -> impl Strategy<Value = Superblock> {
    let chain = (bounded(0, u64::MAX - 2), hash())
        .prop_flat_map(|(generation, head)| (Just(generation), Just(head), legs(generation, head)));
    let epochs = bounded_u32(0, (1 << 24) - 1).prop_flat_map(|epoch| {
        let salt = if epoch == 0 { Just([0; 32]).boxed() } else { hash().boxed() };
        (Just(epoch), bounded_u32(epoch + 1, 1 << 24), salt)
    });
    let roots = (root(Tree::Map), root(Tree::Salts), root(Tree::Bitmap), root(Tree::OldSalts));
    let counts = (any::<u64>(), any::<u64>(), any::<u64>(), 0..2_u8);
    let units = prop_oneof![vec(any::<u32>(), 256), vec(any::<u32>(), 0..=256)];
    let units = (units, 0..=16_u8, any::<u32>());
    (chain, id(), epochs, roots, counts, units).prop_map(|(chain, session, epochs, roots, counts, units)| {
        Superblock {
            generation: chain.0,
            head: chain.1,
            legs: chain.2,
            session,
            epoch: epochs.0,
            next_epoch: epochs.1,
            epoch_salt: epochs.2,
            map: roots.0,
            salts: roots.1,
            bitmap: roots.2,
            old_salts: roots.3,
            claims: counts.0,
            mapped: counts.1,
            publication: counts.2,
            pair: counts.3,
            units: units.0,
            growths: units.1,
            next_segment: units.2,
        }
    })
}
