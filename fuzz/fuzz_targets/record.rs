//! Any bytes as a journal record: refused, or laid out again to the byte, with a payload that is inside.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volume::format::record::{RECORD_HEADER, RecordHeader};

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = RecordHeader::decode(bytes) else { return };
    assert_eq!(header.encode(), bytes[..RECORD_HEADER]);
    assert_eq!(header.associated_data(&[7; 32])[..112], bytes[..112]);
    if let Ok(sealed) = header.sealed(bytes) {
        assert_eq!(sealed.len(), usize::try_from(header.payload_bytes).expect("64 bits"));
    }
});
