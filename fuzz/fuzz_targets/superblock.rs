//! Any bytes as a superblock, sealed and opened: refused, or laid out again to the byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volume::format::superblock::{Superblock, assemble, split};
use volume::geometry::{Geometry, Shape};

fuzz_target!(|bytes: &[u8]| {
    // A whole block is taken apart first, and its payload read as if it had opened.
    let payload = match split(bytes) {
        Ok((salt, sealed, tag)) => {
            assert_eq!(assemble(salt, sealed, tag), bytes);
            &sealed[..]
        }
        Err(_) => bytes,
    };
    let Ok(superblock) = Superblock::decode(payload) else { return };
    assert_eq!(superblock.encode().expect("what was decoded is valid"), payload);
    let geometry = Geometry::for_logical(Geometry::MIN_LOGICAL, Shape::STANDARD).expect("the least size");
    if superblock.check(&geometry).is_ok() {
        assert!(superblock.legs.iter().all(|leg| leg.segment < geometry.segments));
    }
});
