//! An anchor in memory.

use crate::{Anchor, AnchorFuture, Error, Stamp};
use std::sync::{Mutex, PoisonError};

/// An anchor that lives as long as the process: for tests, and for volumes without freshness.
#[derive(Debug, Default)]
pub struct MemoryAnchor {
    held: Mutex<Option<Stamp>>,
}

impl MemoryAnchor {
    /// An anchor that was never claimed.
    #[must_use]
    pub fn new() -> MemoryAnchor {
        MemoryAnchor::default()
    }

    /// An anchor that holds `stamp`.
    #[must_use]
    pub fn holding(stamp: Stamp) -> MemoryAnchor {
        MemoryAnchor { held: Mutex::new(Some(stamp)) }
    }
}

impl Anchor for MemoryAnchor {
    fn read(&self) -> AnchorFuture<'_, Option<Stamp>> {
        Box::pin(async { Ok(self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()) })
    }

    fn advance(&self, expected: Option<&Stamp>, new: &Stamp) -> AnchorFuture<'_, ()> {
        let (expected, new) = (expected.cloned(), new.clone());
        Box::pin(async move {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            swap(&mut held, expected.as_ref(), new)
        })
    }

    fn address(&self) -> String {
        "memory:".into()
    }
}

/// Compare-and-swap on a stamp in memory.
pub(crate) fn swap(held: &mut Option<Stamp>, expected: Option<&Stamp>, new: Stamp) -> Result<(), Error> {
    if held.as_ref() != expected {
        return Err(Error::Conflict(held.clone().map(Box::new)));
    }
    *held = Some(new);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::tests::sample;
    use futures::executor::block_on;

    #[test]
    fn it_moves_only_from_what_was_expected() {
        let anchor = MemoryAnchor::new();
        let (first, second) = (sample(1), sample(2));
        assert_eq!(block_on(anchor.read()), Ok(None));
        assert_eq!(block_on(anchor.advance(Some(&first), &second)), Err(Error::Conflict(None)));
        assert_eq!(block_on(anchor.advance(None, &first)), Ok(()));
        assert_eq!(
            block_on(anchor.advance(None, &second)),
            Err(Error::Conflict(Some(Box::new(first.clone()))))
        );
        assert_eq!(block_on(anchor.advance(Some(&first), &second)), Ok(()));
        assert_eq!(block_on(anchor.read()), Ok(Some(second)));
    }

    #[test]
    fn a_future_that_is_never_polled_moves_nothing() {
        let anchor = MemoryAnchor::holding(sample(1));
        drop(anchor.advance(Some(&sample(1)), &sample(2)));
        assert_eq!(block_on(anchor.read()), Ok(Some(sample(1))));
    }
}
