//! Any text as an attach policy: refused, or one that is written and read again as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volume::policy::Policy;

fuzz_target!(|text: &str| {
    let Ok(policy) = Policy::parse(text) else { return };
    let again = policy.to_toml().expect("what was parsed is valid");
    assert_eq!(Policy::parse(&again), Ok(policy));
});
