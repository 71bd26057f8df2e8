//! What a cluster has said before, as long as the process lives.
//!
//! A store's revision only grows, and a cluster keeps its id. A cluster whose members were restored from a backup has either
//! another id or an earlier revision. What was said before this process began is not known: see `docs/freshness.md`.

use anchor::{Address, Failure};

use crate::message::Header;

/// The newest that was seen.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    seen: Option<Header>,
    /// The revision at which the key was last changed.
    key: u64,
}

impl Memory {
    /// Cluster and revision.
    pub(crate) fn seen(&self) -> Option<(u64, u64)> {
        self.seen.map(|header| (header.cluster, header.revision))
    }

    /// Compares an answer with those before it.
    pub(crate) fn check(&mut self, address: &Address, now: Header) -> Result<(), Failure> {
        if let Some(before) = self.seen {
            if before.cluster != now.cluster {
                return Err(refused(
                    address,
                    format!("cluster {:x} answers, and it was {:x} before", now.cluster, before.cluster),
                ));
            }
            if now.revision < before.revision {
                return Err(refused(
                    address,
                    format!(
                        "its store is at revision {}, and was at {} before",
                        now.revision, before.revision
                    ),
                ));
            }
        }
        self.seen = Some(now);
        Ok(())
    }

    /// The same for the key alone.
    pub(crate) fn check_key(&mut self, address: &Address, modified: u64) -> Result<(), Failure> {
        if modified < self.key {
            let why = format!("the key was last changed at revision {modified}, and at {} before", self.key);
            return Err(refused(address, why));
        }
        self.note_key(modified);
        Ok(())
    }

    pub(crate) fn note_key(&mut self, modified: u64) {
        self.key = self.key.max(modified);
    }
}

fn refused(address: &Address, why: String) -> Failure {
    Failure::Refused(address.unusable(format_args!(
        "{why}. The cluster was rolled back, restored from a backup, or replaced; find out which before you trust it or the \
         volume's store, and set a new anchor with `cvmio volume reanchor`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(memory: &mut Memory, cluster: u64, revision: u64) -> bool {
        let address = Address::parse("etcd:x").expect("an address");
        memory.check(&address, Header { cluster, revision }).is_ok()
    }

    #[test]
    fn revisions_go_up_in_one_cluster() {
        let mut memory = Memory::default();
        assert!(ok(&mut memory, 1, 5) && ok(&mut memory, 1, 5) && ok(&mut memory, 1, 7));
        assert!(!ok(&mut memory, 1, 6) && !ok(&mut memory, 2, 9));
        // A refused answer is not what the next one is compared with.
        assert!(!ok(&mut memory, 1, 6) && ok(&mut memory, 1, 7));
        let address = Address::parse("etcd:x").expect("an address");
        assert!(memory.check_key(&address, 6).is_ok() && memory.check_key(&address, 5).is_err());
        memory.note_key(8);
        assert!(memory.check_key(&address, 7).is_err() && memory.check_key(&address, 8).is_ok());
    }
}
