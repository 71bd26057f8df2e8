//! Any bytes as an opened record's items: those before the first malformed one are laid out again to the byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volume::format::record::items;
use volume::geometry::{Geometry, Shape};

fuzz_target!(|payload: &[u8]| {
    let geometry = Geometry::for_logical(Geometry::MIN_LOGICAL, Shape::STANDARD).expect("the least size");
    let mut again = Vec::new();
    for item in items(payload) {
        let Ok(item) = item else { break };
        let _ = item.check(&geometry);
        item.encode_into(&mut again);
    }
    assert!(payload.starts_with(&again));
});
