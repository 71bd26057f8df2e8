//! Moving the anchor, whose answers may be lost.

use anchor::{Anchor, Error, Stamp};

use crate::error::Result;

/// Moves an anchor. When it is unknown whether it moved, asks it, and tries once more.
pub(crate) async fn advance(anchor: &dyn Anchor, old: Option<&Stamp>, new: &Stamp) -> Result<()> {
    let reason = match anchor.advance(old, new).await {
        Err(Error::Io(reason)) => reason,
        other => return Ok(other?),
    };
    let now = anchor.read().await.map_err(|_| Error::Io(reason))?;
    if now.as_ref() == Some(new) {
        return Ok(());
    }
    if now.as_ref() != old {
        return Err(Error::Conflict(None).into());
    }
    match anchor.advance(old, new).await {
        // The first one was on its way still, and came before this one.
        Err(Error::Conflict(_)) if anchor.read().await.is_ok_and(|now| now.as_ref() == Some(new)) => Ok(()),
        other => Ok(other?),
    }
}

/// The same stamp, but for its number of claims: it vouches for nothing else, and whoever expects the one before moves the anchor no more. By
/// two, so that the claim that follows is odd to the session's own (see the superblock's slots).
pub(crate) fn overtaking(key: &seal::MacKey, stamp: &Stamp) -> Stamp {
    sign_stamp(key, Stamp { claims: stamp.claims + 2, ..stamp.clone() })
}

/// The stamp with its MAC.
pub(crate) fn sign_stamp(key: &seal::MacKey, mut stamp: Stamp) -> Stamp {
    stamp.mac = [0; 32];
    stamp.mac = key.sign(&[&stamp.authenticated_bytes()]);
    stamp
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use anchor::{AnchorFuture, MemoryAnchor, State};
    use futures::FutureExt;

    use super::*;
    use crate::error::Kind;

    /// What becomes of the caller's move, and what else arrives with it.
    enum Answer {
        /// The network says nothing, and the move is lost.
        Lost,
        /// It says nothing, and the move arrives.
        Unheard,
        /// It says nothing, and the move arrives right before the next one.
        Late,
        /// The same, but for somebody else's move.
        Overtaken,
        Prompt,
    }

    struct Network {
        anchor: MemoryAnchor,
        answers: Mutex<VecDeque<Answer>>,
        late: Mutex<Option<Stamp>>,
    }

    impl Anchor for Network {
        fn read(&self) -> AnchorFuture<'_, Option<Stamp>> {
            self.anchor.read()
        }

        fn advance(&self, expected: Option<&Stamp>, new: &Stamp) -> AnchorFuture<'_, ()> {
            if let Some(late) = self.late.lock().unwrap().take() {
                self.anchor.advance(expected, &late).now_or_never().unwrap().unwrap();
            }
            let answer = self.answers.lock().unwrap().pop_front();
            match answer.unwrap_or(Answer::Prompt) {
                Answer::Prompt => return self.anchor.advance(expected, new),
                Answer::Lost => {}
                Answer::Unheard => self.anchor.advance(expected, new).now_or_never().unwrap().unwrap(),
                Answer::Late => *self.late.lock().unwrap() = Some(new.clone()),
                Answer::Overtaken => *self.late.lock().unwrap() = Some(stamp(77)),
            }
            async { Err(Error::Io("no answer".into())) }.boxed()
        }

        fn address(&self) -> String {
            "network".into()
        }
    }

    fn stamp(generation: u64) -> Stamp {
        Stamp {
            volume: [1; 16],
            generation,
            claims: 1,
            session: [2; 16],
            head: [3; 32],
            header_digest: [4; 32],
            state: State::Claimed,
            moved_to: [0; 32],
            mac: [0; 32],
        }
    }

    /// How a move from 5 to 6 ends, and where the anchor is then.
    fn moved(answers: impl IntoIterator<Item = Answer>) -> (Option<Kind>, u64) {
        let anchor = MemoryAnchor::new();
        anchor.advance(None, &stamp(5)).now_or_never().unwrap().unwrap();
        let network =
            Network { anchor, answers: Mutex::new(answers.into_iter().collect()), late: Mutex::default() };
        let ended = advance(&network, Some(&stamp(5)), &stamp(6)).now_or_never().unwrap();
        let now = network.read().now_or_never().unwrap().unwrap().unwrap();
        (ended.err().map(|error| error.kind()), now.generation)
    }

    #[test]
    fn a_move_counts_once_whatever_becomes_of_the_answers() {
        assert_eq!(moved([Answer::Prompt]), (None, 6));
        assert_eq!(moved([Answer::Unheard]), (None, 6));
        assert_eq!(moved([Answer::Lost]), (None, 6));
        assert_eq!(moved([Answer::Late]), (None, 6));
        assert_eq!(moved([Answer::Lost, Answer::Lost]), (Some(Kind::Anchor), 5));
        assert_eq!(moved([Answer::Overtaken]), (Some(Kind::Fenced), 77));
    }
}
