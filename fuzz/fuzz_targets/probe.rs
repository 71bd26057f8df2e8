//! Any start of a store: blank exactly if it is all zeros.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volume::format::probe::Probe;

fuzz_target!(|start: &[u8]| {
    assert_eq!(Probe::of(start) == Probe::Blank, start.iter().all(|&byte| byte == 0));
});
