//! Any block as a salt-table node: taken apart and put together again to the byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volume::format::salts::{assemble, check, put_salt, salt_at, split};

fuzz_target!(|page: &[u8]| {
    let Ok((own, payload)) = split(page) else { return };
    assert_eq!(assemble(own, payload), page);
    if check(payload).is_ok() {
        let mut again = [0; volume::format::salts::SALT_NODE_PAYLOAD];
        for index in 0..64 {
            put_salt(&mut again, index, &salt_at(payload, index).expect("a leaf has 64 salts"));
        }
        assert_eq!(&again, payload);
    }
});
