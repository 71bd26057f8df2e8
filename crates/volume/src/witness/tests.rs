#![expect(clippy::disallowed_methods, reason = "a network that moves an anchor of its own")]

use std::collections::VecDeque;
use std::sync::Mutex;

use anchor::{AnchorFuture, MemoryAnchor};
use futures::FutureExt;

use super::*;

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
        async { Err(AnchorError::Io("no answer".into())) }.boxed()
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
    let ended = swap(&network, Some(&stamp(5)), &stamp(6)).now_or_never().unwrap();
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
