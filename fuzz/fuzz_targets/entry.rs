//! Any page as a node: each entry is refused, or laid out again to the byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volume::format::entry::{ENTRY_SIZE, entry_at, put_entry};

fuzz_target!(|page: &[u8]| {
    let mut again = page.to_vec();
    for index in 0..page.len() / ENTRY_SIZE {
        if let Ok(entry) = entry_at(page, index) {
            put_entry(&mut again, index, &entry);
        }
    }
    assert_eq!(again, page);
    assert!(entry_at(page, page.len() / ENTRY_SIZE).is_err());
});
