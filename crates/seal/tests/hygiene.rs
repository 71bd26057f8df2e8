//! Alone in this file, since it changes the whole test process for good.

use rustix::process::{DumpableBehavior, Resource, dumpable_behavior, getrlimit};
use seal::Secret;
use seal::hygiene::{Locking, locking, protect_process};

#[test]
fn a_protected_process_leaves_no_dump() {
    let told = protect_process().unwrap();
    assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    let core = getrlimit(Resource::Core);
    assert_eq!((core.current, core.maximum), (Some(0), Some(0)));
    let limit = getrlimit(Resource::Memlock);
    assert_eq!(limit.current, limit.maximum);
    let _key = Secret::from_bytes([1; 32]);
    assert_eq!(told, locking(), "one more key needs no more memory");
    let message = Locking::Some { unlocked: 16384, limit: Some(4096) }.to_string();
    assert!(message.contains("ulimit -l") && message.contains("4096"), "{message}");
    // Calling it again does no harm.
    assert_eq!(protect_process().unwrap(), told);
}
