//! A move of the anchor that arrives when who sent it is dead.

use std::sync::Arc;

use futures::FutureExt;
use testkit::ScriptedAnchor;
use volume::{Driven, Kind, Result};

use super::Bench;

/// More than any change of a header takes.
const TURNS: usize = 100_000;

/// Puts an anchor in the place of the bench's that holds the same stamp, and keeps what is sent to it.
pub fn keep_moves(bench: &mut Bench) -> Arc<ScriptedAnchor> {
    let stamp = bench.environment.anchor.as_ref().and_then(|anchor| anchor.read().now_or_never());
    let anchor = Arc::new(ScriptedAnchor::new(stamp.expect("at once").expect("a stamp")));
    anchor.hold(true);
    bench.environment.anchor = Some(anchor.clone());
    anchor
}

/// Kills a change of the header when copy B is written, and the move that would vouch for it is on the way.
pub fn kill_on_its_way<T>(bench: &Bench, anchor: &ScriptedAnchor, mut change: Driven<Result<T>>) {
    for _ in 0..TURNS {
        assert!(change.poll().is_none(), "it ended, and its move was never on the way");
        let image = bench.image();
        let written = image[..2] != image[2..4];
        match (written, anchor.pending()) {
            (true, 1) => return,
            (false, _) => drop(anchor.complete_next()),
            (true, _) => {}
        }
    }
    panic!("no move is on the way");
}

/// Lets the late move arrive when `second` has read the stamp of before and sends a move of its own: that one comes too late.
pub fn comes_too_late<T>(anchor: &ScriptedAnchor, mut second: Driven<Result<T>>) {
    for _ in 0..TURNS {
        if anchor.pending() > 1 {
            break;
        }
        assert!(second.poll().is_none(), "it ended beside a move that was on the way");
    }
    let moves = std::iter::repeat_with(|| anchor.complete_next()).take_while(|moved| *moved).count();
    assert_eq!(moves, 2);
    let ended = (0..TURNS).find_map(|_| second.poll()).expect("an end");
    assert_eq!(ended.err().expect("the other was first").kind(), Kind::Fenced);
    anchor.hold(false);
}
