use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::*;

/// How a volume is to grow: by so many logical and physical blocks, fully provisioned or as it comes.
type Step = (u64, u64, bool);

fn grow(geometry: Geometry, (logical, physical, full): Step) -> Geometry {
    let physical = (geometry.physical_blocks + physical).min(geometry.most_physical());
    let logical = match full {
        true => geometry.logical_to_grow(physical),
        false => geometry.logical_blocks + logical,
    };
    geometry.grown(logical, physical).unwrap_or(geometry)
}

fn steps(most_bits: u32) -> impl Strategy<Value = Vec<Step>> {
    let amount = move || (0..most_bits, any::<u64>()).prop_map(|(bits, low)| low & ((1 << bits) - 1));
    vec((amount(), amount(), any::<bool>()), 0..=20)
}

fn created(shape: Shape, bits: u32) -> impl Strategy<Value = Geometry> {
    let least = shape.min_logical;
    let more = (0..bits, any::<u64>()).prop_map(|(bits, low)| low & ((1 << bits) - 1));
    (more.clone(), more, any::<bool>()).prop_map(move |(logical, physical, full)| {
        let made = match full {
            true => Geometry::for_logical(least + logical, shape),
            false => {
                Geometry::thin(least + logical, sizing::physical_for_full(least, &shape) + physical, shape)
            }
        };
        made.expect("within the limits")
    })
}

fn standard() -> impl Strategy<Value = Geometry> {
    (created(Shape::STANDARD, 33), steps(36)).prop_map(|(made, steps)| steps.into_iter().fold(made, grow))
}

fn tiny() -> impl Strategy<Value = Geometry> {
    (created(Shape::TINY, 10), steps(10)).prop_map(|(made, steps)| steps.into_iter().fold(made, grow))
}

/// What a block is for.
#[derive(Debug, PartialEq, Eq)]
enum Role {
    Fixed,
    Place(u8, u64, u8),
    Data(u64),
}

/// The role of each block; a failure where one has two.
fn roles(geometry: &Geometry) -> HashMap<u64, Role> {
    let mut roles: HashMap<u64, Role> =
        (0..geometry.bitmap_start()).map(|block| (block, Role::Fixed)).collect();
    let mut give = |block: u64, role: Role| {
        assert!(block < geometry.physical_blocks, "{role:?} stands behind the end");
        let shown = format!("{role:?}");
        let other = roles.insert(block, role);
        assert_eq!(other, None, "block {block} is {shown}, too");
    };
    for level in 0..geometry.bitmap_levels() {
        for index in 0..geometry.nodes(Tree::Bitmap, level) {
            for copy in 0..BITMAP_COPIES {
                let place = geometry.bitmap_place(level, index, copy);
                assert!(geometry.is_bitmap_place(place) && !geometry.holds(place));
                give(place, Role::Place(level, index, copy));
            }
        }
    }
    for unit in 0..geometry.units() {
        let range = geometry.unit_range(unit);
        assert!(!range.is_empty() && range.end - range.start <= geometry.unit_blocks.into());
        let leaf = |block: u64| geometry.bit_of(block) >> geometry.bitmap_bits;
        assert_eq!(leaf(range.start), leaf(range.end - 1), "unit {unit}");
        for block in range {
            assert!(geometry.holds(block) && geometry.unit_of(block) == unit);
            assert!(!geometry.is_bitmap_place(block));
            give(block, Role::Data(geometry.bit_of(block)));
        }
    }
    roles
}

proptest! {
    /// Of a grown volume each block has one role, whatever came before, and growing once more changes none.
    #[test]
    fn every_block_has_one_role_and_keeps_it(geometry in tiny(), step in steps(10)) {
        let now = roles(&geometry);
        let data = now.values().filter(|role| matches!(role, Role::Data(_))).count() as u64;
        prop_assert_eq!(data, geometry.data_blocks());
        let mut bits: Vec<u64> = now.values().filter_map(|role| match role {
            Role::Data(bit) => Some(*bit),
            _ => None,
        }).collect();
        bits.sort_unstable();
        bits.dedup();
        prop_assert_eq!(bits.len() as u64, geometry.data_blocks());
        prop_assert!(bits.last().is_some_and(|last| *last < 1 << (geometry.bitmap_bits + geometry.fan_out_bits * (geometry.bitmap_levels() - 1))));
        // What no extent has a use for is less than a node takes, for each new level once.
        let unused = geometry.physical_blocks - now.len() as u64;
        prop_assert!(unused <= (geometry.growths() as u64 + 1) * 4 * u64::from(geometry.bitmap_levels()), "{} unused", unused);
        let later = roles(&step.into_iter().fold(geometry, grow));
        for (block, role) in &now {
            prop_assert_eq!(later.get(block), Some(role));
        }
    }

    #[test]
    fn the_header_says_it_and_nothing_else(geometry in prop_oneof![standard(), tiny()], which: prop::sample::Index, by in 1_u64..1 << 30, physical: bool) {
        prop_assert_eq!(geometry.check(geometry.shape()), Ok(()));
        let mut claim = super::claim(&geometry);
        prop_assert_eq!(Geometry::from_header(&claim, geometry.shape()), Ok(geometry));
        if !claim.growths.is_empty() {
            let (logical, blocks) = which.get_mut(&mut claim.growths);
            *if physical { blocks } else { logical } += by;
            prop_assert_ne!(Geometry::from_header(&claim, geometry.shape()), Ok(geometry));
        }
    }

    #[test]
    fn earlier_sizes_are_kept(geometry in prop_oneof![standard(), tiny()]) {
        let sizes: Vec<_> = geometry.sizes().collect();
        for (growths, size) in sizes.iter().enumerate() {
            let earlier = geometry.as_of(growths);
            prop_assert_eq!((earlier.growths(), (earlier.logical_blocks, earlier.physical_blocks)), (growths, *size));
            prop_assert_eq!(earlier.check(geometry.shape()), Ok(()));
            prop_assert!(earlier.map_levels() <= geometry.map_levels() && earlier.bitmap_levels() <= geometry.bitmap_levels());
            for level in 0..earlier.bitmap_levels() {
                let last = earlier.nodes(Tree::Bitmap, level) - 1;
                for index in [0, last / 2, last] {
                    prop_assert_eq!(earlier.bitmap_place(level, index, 0), geometry.bitmap_place(level, index, 0));
                }
            }
        }
        prop_assert_eq!(geometry.as_of(sizes.len()), geometry);
    }

    /// What the tests of created volumes say of limits and rooms holds for grown ones.
    #[test]
    fn limits_leave_room_to_work(geometry in prop_oneof![standard(), tiny()]) {
        let aside = 2 * geometry.pinned_limit() + 2 * geometry.reserve_target() + geometry.salt_reserve();
        prop_assert!(aside < geometry.data_blocks(), "{} of {}", aside, geometry.data_blocks());
        prop_assert!(!geometry.fully_provisioned() || super::has_room_for_all(&geometry));
    }

    #[test]
    fn full_growth_takes_no_more_than_it_must(geometry in created(Shape::STANDARD, 33), more in 1_u64..1 << 34) {
        let logical = geometry.logical_blocks + more;
        let Ok(physical) = geometry.physical_to_grow(logical) else { return Ok(()) };
        let grown = geometry.grown(logical, physical).expect("it said so");
        prop_assert!(grown.fully_provisioned());
        prop_assert!(grown.logical_blocks <= geometry.logical_to_grow(physical));
        if physical > geometry.physical_blocks {
            let less = geometry.grown(logical, physical - 1);
            prop_assert!(less.is_err() || less.is_ok_and(|less| !less.fully_provisioned()));
        }
    }
}

#[test]
fn what_a_volume_cannot_become_is_refused() {
    let shape = Shape::STANDARD;
    let made = Geometry::for_logical(1 << 18, shape).expect("1 GiB");
    let (logical, physical) = (made.logical_blocks, made.physical_blocks);
    let most = 64 * physical;
    assert_eq!(
        made.grown(logical - 1, physical * 2),
        Err(GrowthError::Smaller { has: logical, asked: logical - 1 })
    );
    assert_eq!(
        made.grown(logical, physical - 1),
        Err(GrowthError::Physical { has: physical, asked: physical - 1 })
    );
    assert_eq!(made.grown(logical, physical), Err(GrowthError::Nothing));
    assert_eq!(made.grown(logical, physical + 1), Err(GrowthError::TooLittle));
    assert_eq!(made.grown(logical, most + 1), Err(GrowthError::TooFar { asked: most + 1, most }));
    assert!(matches!(made.grown((1 << 34) + 1, most), Err(GrowthError::Size(SizeError::Logical { .. }))));
    assert!(matches!(made.physical_to_grow(80 * logical), Err(GrowthError::TooFar { .. })));
    let mut grown = made;
    for _ in 0..MAX_GROWTHS {
        grown = grown.grown(grown.logical_blocks + 1, grown.physical_blocks).expect("only the promise");
    }
    assert_eq!(grown.grown(logical * 2, physical * 2), Err(GrowthError::TooOften));
    assert_eq!(grown.data_blocks(), made.data_blocks());
    // One that has the largest units from the start may become as large as any.
    let large = Geometry::for_logical(1 << 23, shape).expect("32 GiB");
    assert_eq!(large.most_physical(), MAX_PHYSICAL);
    assert!(large.grown(1 << 34, MAX_PHYSICAL).is_ok());
}

#[test]
fn the_places_of_new_nodes_stand_at_the_head_of_their_extent() {
    let made = Geometry::for_logical(4096, Shape::STANDARD).expect("16 MiB");
    assert_eq!((made.bitmap_levels(), made.map_levels()), (1, 2));
    let end = made.physical_blocks;
    let grown = made.grown(1 << 16, 100_000).expect("it grows");
    // Three leaves and a root are new.
    assert_eq!((grown.bitmap_levels(), grown.nodes(Tree::Bitmap, 0)), (2, 4));
    assert_eq!(grown.bitmap_place(0, 0, 0), made.bitmap_start());
    let places: Vec<u64> =
        [(0, 1), (0, 2), (0, 3), (1, 0)].map(|(level, index)| grown.bitmap_place(level, index, 0)).into();
    assert_eq!(places, [end, end + 4, end + 8, end + 12]);
    assert_eq!(
        grown.data().collect::<Vec<_>>(),
        [made.data_start()..made.data_start() + made.data_blocks(), end + 16..100_000]
    );
    let first_new = made.units();
    assert_eq!(grown.unit_range(first_new).start, end + 16);
    assert_eq!(grown.bit_of(end + 16), u64::from(first_new) * u64::from(made.unit_blocks));
}
