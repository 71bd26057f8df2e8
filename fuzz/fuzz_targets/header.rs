//! Any block as a header: refused, or laid out again to the byte, with places that stay inside the store.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volume::format::header::{Header, mac, put_mac};

fuzz_target!(|page: &[u8]| {
    let Ok(header) = Header::decode(page) else { return };
    let mut again = header.encode_unsigned();
    put_mac(&mut again, mac(page).expect("what was decoded is a block"));
    assert_eq!(again, page);
    let geometry = header.geometry;
    assert!(geometry.data_start() + geometry.data_blocks() <= geometry.physical_blocks);
    assert_eq!(geometry.unit_range(geometry.units() - 1).end, geometry.data_start() + geometry.data_blocks());
});
