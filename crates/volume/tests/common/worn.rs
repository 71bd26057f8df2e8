//! A store that cannot read some of its blocks.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use store::{Error, ErrorKind, Operation, Store};
use testkit::{InterceptingStore, Interceptor, Verdict};

use super::Bench;

pub type Unreadable = Arc<Mutex<BTreeSet<u64>>>;

struct Worn(Unreadable);

/// Puts such a store in the place of the bench's. What is written to a block can be read again.
pub fn wear(bench: &mut Bench) -> Unreadable {
    let unreadable = Unreadable::default();
    let medium = Arc::clone(&bench.environment.store);
    bench.environment.store = InterceptingStore::new(medium, &Arc::new(Worn(Arc::clone(&unreadable))));
    unreadable
}

impl Interceptor for Worn {
    fn submitted(&self, _queue: usize, operation: &Operation, _medium: &dyn Store) -> Verdict {
        let mut unreadable = self.0.lock().expect("not poisoned");
        match operation {
            Operation::Read { block, buffer }
                if unreadable.range(*block..*block + buffer.blocks() as u64).next().is_some() =>
            {
                return Verdict::Fail(Error::new(
                    ErrorKind::Io,
                    "read",
                    "worn",
                    "the sectors cannot be read",
                ));
            }
            Operation::Write { block, buffer } => {
                unreadable.retain(|bad| !(*block..*block + buffer.blocks() as u64).contains(bad));
            }
            _ => {}
        }
        Verdict::Pass
    }
}
