use proptest::prelude::*;

use super::*;

mod growth;

/// A size between two powers of two, all magnitudes alike, and often a power of two itself.
fn size(least_bits: u32, most_bits: u32) -> impl Strategy<Value = u64> {
    let power = (least_bits..=most_bits).prop_map(|bits| 1_u64 << bits);
    let between =
        (least_bits..most_bits, any::<u64>()).prop_map(|(bits, low)| (1 << bits) | (low & ((1 << bits) - 1)));
    prop_oneof![1 => power, 4 => between]
}

fn standard() -> impl Strategy<Value = Geometry> {
    let least = sizing::physical_for_full(Geometry::MIN_LOGICAL, &Shape::STANDARD);
    prop_oneof![
        size(12, 34).prop_map(|logical| Geometry::for_logical(logical, Shape::STANDARD)),
        size(13, 40).prop_map(|physical| Geometry::for_physical(physical, Shape::STANDARD)),
        (size(12, 34), size(12, 40)).prop_map(move |(logical, physical)| Geometry::thin(
            logical,
            physical.max(least),
            Shape::STANDARD
        )),
    ]
    .prop_map(|geometry| geometry.expect("within the limits"))
}

fn tiny() -> impl Strategy<Value = Geometry> {
    let full = |logical| Geometry::for_logical(logical, Shape::TINY).expect("within the limits");
    let thin = |(logical, more)| {
        let least = sizing::physical_for_full(Shape::TINY.min_logical, &Shape::TINY);
        Geometry::thin(logical, least + more, Shape::TINY).expect("within the limits")
    };
    prop_oneof![(64_u64..=65_536).prop_map(full), (64_u64..=65_536, 0_u64..200_000).prop_map(thin),]
}

/// Header, journal, bitmap and data stand one behind the other, and inside the store.
fn parts_join(geometry: &Geometry) {
    let journal = u64::from(geometry.segments) * u64::from(geometry.segment_blocks);
    assert_eq!(geometry.journal_start(), 8);
    assert_eq!(
        geometry.segment_start(geometry.segments - 1),
        8 + journal - u64::from(geometry.segment_blocks)
    );
    assert_eq!(geometry.bitmap_start(), 8 + journal);
    assert_eq!(geometry.data_start(), geometry.bitmap_start() + 4 * geometry.bitmap_nodes());
    assert!(geometry.data_start() + geometry.data_blocks() <= geometry.physical_blocks);
}

/// One more data block would not fit beside the bitmap that it needs.
fn no_space_is_lost(geometry: &Geometry) {
    let shape = geometry.shape();
    let occupied = |data| geometry.bitmap_start() + sizing::bitmap_blocks(data, &shape) + data;
    assert!(occupied(geometry.data_blocks()) <= geometry.physical_blocks);
    assert!(occupied(geometry.data_blocks() + 1) > geometry.physical_blocks);
}

/// Each level has just enough nodes for the one below, and the root is alone in the last.
fn trees_are_whole(geometry: &Geometry) {
    let inner = |bits: u8| (bits, bits);
    let trees = [
        (Tree::Map, geometry.logical_blocks, inner(geometry.fan_out_bits), geometry.map_levels()),
        (
            Tree::Salts,
            u64::from(geometry.last_epoch()) + 1,
            inner(geometry.salt_bits),
            geometry.salt_levels(),
        ),
        (
            Tree::Bitmap,
            geometry.data_blocks(),
            (geometry.bitmap_bits, geometry.fan_out_bits),
            geometry.bitmap_levels(),
        ),
    ];
    for (tree, items, (leaf_bits, inner_bits), levels) in trees {
        assert_eq!(geometry.levels(tree), levels);
        let mut below = items;
        for level in 0..levels {
            let fan_out = 1 << if level == 0 { leaf_bits } else { inner_bits };
            let nodes = geometry.nodes(tree, level);
            assert!(nodes * fan_out >= below && (nodes - 1) * fan_out < below, "{tree:?} {level}");
            assert_eq!(nodes == 1, level == levels - 1 || below == 1, "{tree:?} {level}");
            below = nodes;
        }
        assert_eq!(below, 1);
    }
    let sum = |tree| (0..geometry.levels(tree)).map(|level| geometry.nodes(tree, level)).sum::<u64>();
    assert_eq!((sum(Tree::Map), sum(Tree::Bitmap)), (geometry.map_nodes(), geometry.bitmap_nodes()));
}

/// Units are a partition of the data blocks, and none crosses a bitmap leaf.
fn units_join(geometry: &Geometry) {
    assert_eq!((1_u64 << geometry.bitmap_bits) % u64::from(geometry.unit_blocks), 0);
    let end = geometry.data_start() + geometry.data_blocks();
    let last = geometry.units() - 1;
    assert_eq!(geometry.unit_range(0).start, geometry.data_start());
    assert_eq!(geometry.unit_range(last).end, end);
    assert!(geometry.unit_range(geometry.units()).is_empty() && geometry.unit_range(u32::MAX).is_empty());
    for unit in [0, last / 3, last / 2, last] {
        let range = geometry.unit_range(unit);
        assert!(!range.is_empty() && (unit == last || range.end == geometry.unit_range(unit + 1).start));
        assert!(unit == last || range.end - range.start == u64::from(geometry.unit_blocks));
        assert_eq!((geometry.unit_of(range.start), geometry.unit_of(range.end - 1)), (unit, unit));
    }
    assert!(geometry.holds(end - 1) && !geometry.holds(end) && !geometry.holds(geometry.data_start() - 1));
}

/// What full provisioning promises, in the terms of `docs/semantics.md`.
fn has_room_for_all(geometry: &Geometry) -> bool {
    let need = geometry.logical_blocks
        + 2 * geometry.map_nodes()
        + 2 * geometry.shape().pinned.of(geometry.logical_blocks)
        + 2 * geometry.reserve_target()
        + geometry.salt_reserve();
    geometry.data_blocks() >= need
}

fn claim(geometry: &Geometry) -> Claim {
    let (logical_blocks, physical_blocks) = geometry.sizes().next().expect("the first");
    Claim {
        logical_blocks,
        physical_blocks,
        fan_out_bits: geometry.fan_out_bits,
        salt_bits: geometry.salt_bits,
        bitmap_bits: geometry.bitmap_bits,
        segment_blocks: geometry.segment_blocks,
        segments: geometry.segments,
        unit_blocks: geometry.unit_blocks,
        growths: geometry.sizes().skip(1).collect(),
    }
}

proptest! {
    #[test]
    fn places_follow_from_sizes(geometry in prop_oneof![standard(), tiny()]) {
        prop_assert_eq!(geometry.check(geometry.shape()), Ok(()));
        parts_join(&geometry);
        no_space_is_lost(&geometry);
        trees_are_whole(&geometry);
        units_join(&geometry);
        prop_assert!(!geometry.fully_provisioned() || has_room_for_all(&geometry));
        prop_assert_eq!(Geometry::from_header(&claim(&geometry), geometry.shape()), Ok(geometry));
    }

    #[test]
    fn limits_leave_room_to_work(geometry in prop_oneof![standard(), tiny()]) {
        let aside = 2 * geometry.pinned_limit() + 2 * geometry.reserve_target() + geometry.salt_reserve();
        prop_assert!(aside < geometry.data_blocks(), "{aside} of {}", geometry.data_blocks());
        prop_assert!(geometry.pinned_limit() <= geometry.data_blocks() / 8);
    }

    #[test]
    fn a_full_volume_is_no_larger_than_it_must(logical in size(12, 34)) {
        let geometry = Geometry::for_logical(logical, Shape::STANDARD).expect("within the limits");
        prop_assert!(geometry.fully_provisioned() && has_room_for_all(&geometry));
        let less = Geometry::thin(logical, geometry.physical_blocks - 1, Shape::STANDARD);
        prop_assert!(less.is_err() || less.is_ok_and(|less| !less.fully_provisioned()));
    }

    #[test]
    fn a_store_is_filled(physical in size(13, 40)) {
        let geometry = Geometry::for_physical(physical, Shape::STANDARD).expect("within the limits");
        prop_assert!(geometry.fully_provisioned() && geometry.physical_blocks == physical);
        let needed = Geometry::for_logical(geometry.logical_blocks, Shape::STANDARD).expect("within the limits");
        prop_assert!(needed.physical_blocks <= physical);
        let more = Geometry::thin(geometry.logical_blocks + 1, physical, Shape::STANDARD);
        prop_assert!(more.is_err() || more.is_ok_and(|more| !more.fully_provisioned()));
    }

    #[test]
    fn no_other_number_is_accepted(
        geometry in prop_oneof![standard(), tiny()],
        which in 0..6,
        number: u32,
    ) {
        let mut claim = claim(&geometry);
        let byte = number.to_le_bytes()[0];
        let changed = match which {
            0 => std::mem::replace(&mut claim.fan_out_bits, byte) != byte,
            1 => std::mem::replace(&mut claim.salt_bits, byte) != byte,
            2 => std::mem::replace(&mut claim.bitmap_bits, byte) != byte,
            3 => std::mem::replace(&mut claim.segment_blocks, number) != number,
            4 => std::mem::replace(&mut claim.segments, number) != number,
            _ => std::mem::replace(&mut claim.unit_blocks, number) != number,
        };
        prop_assert_eq!(Geometry::from_header(&claim, geometry.shape()).is_err(), changed);
        let hand_made = Geometry {
            fan_out_bits: claim.fan_out_bits,
            salt_bits: claim.salt_bits,
            bitmap_bits: claim.bitmap_bits,
            segment_blocks: claim.segment_blocks,
            segments: claim.segments,
            unit_blocks: claim.unit_blocks,
            ..geometry
        };
        prop_assert_eq!(hand_made.check(geometry.shape()).is_err(), changed);
    }

    #[test]
    fn claims_do_not_panic(sizes: (u64, u64), bits: (u8, u8, u8), numbers: (u32, u32, u32)) {
        let claim = Claim {
            logical_blocks: sizes.0,
            physical_blocks: sizes.1,
            fan_out_bits: bits.0,
            salt_bits: bits.1,
            bitmap_bits: bits.2,
            segment_blocks: numbers.0,
            segments: numbers.1,
            unit_blocks: numbers.2,
            growths: Vec::new(),
        };
        prop_assert!(Geometry::from_header(&claim, Shape::STANDARD).is_err());
    }
}

/// Every fixed place of one geometry is another block.
#[test]
fn bitmap_places_are_apart() {
    for geometry in
        [Geometry::for_logical(4096, Shape::TINY), Geometry::for_logical(1 << 30, Shape::STANDARD)]
    {
        let geometry = geometry.expect("within the limits");
        let mut next = geometry.bitmap_start();
        for level in 0..geometry.bitmap_levels() {
            for index in 0..geometry.nodes(Tree::Bitmap, level) {
                for copy in 0..BITMAP_COPIES {
                    assert_eq!(geometry.bitmap_place(level, index, copy), next);
                    next += 1;
                }
            }
        }
        assert_eq!(next, geometry.data_start());
    }
}

#[test]
fn shape_or_size_of_another_volume_is_refused() {
    let geometry = Geometry::for_logical(1 << 12, Shape::STANDARD).expect("within the limits");
    assert!(geometry.check(Shape::TINY).is_err());
    let field = |geometry: Geometry| geometry.check(Shape::STANDARD).expect_err("it must be refused").field;
    assert_eq!(field(Geometry { logical_blocks: 4095, ..geometry }), "logical blocks");
    assert_eq!(field(Geometry { logical_blocks: u64::MAX, ..geometry }), "logical blocks");
    assert_eq!(field(Geometry { physical_blocks: 0, ..geometry }), "physical blocks");
    assert_eq!(field(Geometry { physical_blocks: MAX_PHYSICAL + 1, ..geometry }), "physical blocks");
    assert_eq!(field(Geometry { physical_blocks: geometry.physical_blocks * 4, ..geometry }), "segments");
    assert_eq!(field(Geometry { segment_blocks: 32, segments: 8, ..geometry }), "segment blocks");
    assert_eq!(field(Geometry { data_blocks: geometry.data_blocks + 1, ..geometry }), "shape");
}

#[test]
fn sizes_outside_the_limits_are_refused() {
    let (least, most) = (Geometry::MIN_LOGICAL, Geometry::MAX_LOGICAL);
    assert_eq!((least << 12, most << 12), (16 << 20, 64 << 40));
    for asked in [0, least - 1, most + 1, u64::MAX] {
        let refused = Err(SizeError::Logical { asked, least, most });
        assert_eq!(Geometry::for_logical(asked, Shape::STANDARD), refused);
        assert_eq!(Geometry::thin(asked, 1 << 30, Shape::STANDARD), refused);
    }
    let smallest = Geometry::for_logical(least, Shape::STANDARD).expect("16 MiB").physical_blocks;
    for has in [0, smallest - 1, MAX_PHYSICAL + 1, u64::MAX] {
        let refused = Err(SizeError::Physical { has, least: smallest, most: MAX_PHYSICAL });
        assert_eq!(Geometry::for_physical(has, Shape::STANDARD), refused);
        assert_eq!(Geometry::thin(least, has, Shape::STANDARD), refused);
    }
    let largest = Geometry::for_physical(MAX_PHYSICAL, Shape::STANDARD).expect("4 PiB");
    assert_eq!(largest.logical_blocks, most);
    let message = Geometry::for_logical(0, Shape::STANDARD).expect_err("too small").to_string();
    assert_eq!(
        message,
        "a volume of 0 bytes is not possible; choose a size from 16777216 to 70368744177664 bytes"
    );
}

#[test]
fn the_tiny_shape_is_deep_and_short() {
    let geometry = Geometry::for_logical(4096, Shape::TINY).expect("within the limits");
    assert_eq!((geometry.map_levels(), geometry.salt_levels(), geometry.last_epoch()), (6, 4, 255));
    assert_eq!((geometry.segment_blocks, geometry.segments, geometry.unit_blocks), (4, 12, 16));
    assert!(geometry.bitmap_levels() >= 4);
}

#[test]
fn the_standard_shape_fills_its_nodes() {
    let shape = Shape::STANDARD;
    assert_eq!(32 << shape.fan_out_bits, BLOCK_SIZE);
    assert_eq!(1 << shape.bitmap_bits, BLOCK_SIZE * 8);
    assert_eq!(shape.salt_bits * shape.salt_levels, 24);
    let geometry = Geometry::for_logical(1 << 34, shape).expect("64 TiB");
    assert_eq!((geometry.map_levels(), geometry.last_epoch()), (5, (1 << 24) - 1));
}
