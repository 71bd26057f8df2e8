use super::*;
use crate::State as StampState;
use crate::memory::swap;
use crate::stamp::tests::sample;
use futures::FutureExt;
use futures::executor::block_on;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What becomes of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Prompt,
    /// Nothing arrives.
    Lost,
    /// It arrives, and the answer is lost.
    Unheard,
    /// The answer is lost, and it arrives just before the attempt after the next.
    Late,
    Setup,
    Refused,
}

#[derive(Default)]
struct Peer {
    held: Option<Stamp>,
    fates: VecDeque<Fate>,
    late: Vec<(Option<Stamp>, Stamp)>,
    advances: usize,
    reads: usize,
}

/// A peer behind a network, shared with the test.
#[derive(Clone, Default)]
struct Network(Arc<Mutex<Peer>>);

impl Network {
    fn peer(&self) -> MutexGuard<'_, Peer> {
        self.0.lock().unwrap()
    }

    fn next_fate(peer: &mut Peer) -> Fate {
        peer.fates.pop_front().unwrap_or(Fate::Prompt)
    }
}

fn lost() -> Failure {
    Failure::Away("no answer".into())
}

impl BlockingAnchor for Network {
    fn read(&mut self) -> Result<Option<Stamp>, Failure> {
        let mut peer = self.peer();
        peer.reads += 1;
        match Network::next_fate(&mut peer) {
            Fate::Prompt => Ok(peer.held.clone()),
            Fate::Setup => Err(Failure::Setup("the certificate has expired".into())),
            Fate::Refused => Err(Failure::Refused(Error::Unusable("not an anchor".into()))),
            _ => Err(lost()),
        }
    }

    fn advance(&mut self, expected: Option<&Stamp>, new: &Stamp) -> Result<(), Failure> {
        let mut peer = self.peer();
        peer.advances += 1;
        for (expected, new) in std::mem::take(&mut peer.late) {
            let _ = swap(&mut peer.held, expected.as_ref(), new);
        }
        match Network::next_fate(&mut peer) {
            Fate::Prompt => Ok(swap(&mut peer.held, expected, new.clone())?),
            Fate::Unheard => {
                let _ = swap(&mut peer.held, expected, new.clone());
                Err(lost())
            }
            Fate::Late => {
                peer.late.push((expected.cloned(), new.clone()));
                Err(lost())
            }
            Fate::Setup => Err(Failure::Setup("the certificate has expired".into())),
            Fate::Refused => Err(Failure::Refused(Error::Unusable("not an anchor".into()))),
            Fate::Lost => Err(lost()),
        }
    }

    fn address(&self) -> String {
        "network:test".into()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("reads", self.peer().reads.to_string())]
    }
}

const QUICK: Limits = Limits {
    timeout: None,
    first_contact: Duration::from_millis(50),
    first_pause: Duration::from_millis(1),
    longest_pause: Duration::from_millis(4),
};

fn over(network: &Network, limits: Limits) -> Arc<Threaded> {
    Threaded::spawn(network.clone(), limits).unwrap()
}

fn holding(stamp: Option<Stamp>, fates: &[Fate]) -> (Network, Arc<Threaded>) {
    let network = Network::default();
    network.peer().held = stamp;
    let anchor = over(&network, QUICK);
    block_on(anchor.read()).unwrap();
    // A session has moved it before; that it holds something else is an answer, too.
    let refused = block_on(anchor.advance(Some(&sample(999)), &sample(1000)));
    assert!(matches!(refused, Err(Error::Conflict(_))));
    {
        let mut peer = network.peer();
        peer.fates = fates.iter().copied().collect();
        (peer.advances, peer.reads) = (0, 0);
    }
    (network, anchor)
}

#[test]
fn it_reads_and_swaps_like_any_anchor() {
    let (_, anchor) = holding(None, &[]);
    let (first, second) = (sample(1), sample(2));
    assert_eq!(block_on(anchor.advance(Some(&first), &second)), Err(Error::Conflict(None)));
    assert_eq!(block_on(anchor.advance(None, &first)), Ok(()));
    assert_eq!(block_on(anchor.advance(None, &second)), Err(Error::Conflict(Some(Box::new(first.clone())))));
    assert_eq!(block_on(anchor.advance(Some(&first), &second)), Ok(()));
    assert_eq!(block_on(anchor.read()), Ok(Some(second)));
    assert_eq!(anchor.address(), "network:test");
    assert_eq!(anchor.health().away, None);
    assert_eq!(anchor.health().facts[0].0, "reads");
}

/// Each row: what becomes of the attempts (reads and moves in turn), and how many moves may be sent.
#[test]
fn a_lost_answer_is_resolved_by_reading() {
    use Fate::{Late, Lost, Prompt, Unheard};
    for (fates, moves) in [
        (&[Unheard] as &[Fate], 1),
        (&[Unheard, Lost, Lost], 1),
        (&[Lost], 2),
        (&[Lost, Lost, Lost], 2),
        // It comes after the read, and before the second one, which then finds its own stamp.
        (&[Late], 2),
        (&[Lost, Prompt, Late], 3),
        (&[Lost, Prompt, Unheard, Lost], 2),
    ] {
        let (network, anchor) = holding(Some(sample(1)), fates);
        assert_eq!(block_on(anchor.advance(Some(&sample(1)), &sample(2))), Ok(()), "{fates:?}");
        assert_eq!(network.peer().held, Some(sample(2)), "{fates:?}");
        assert_eq!(network.peer().advances, moves, "{fates:?}");
    }
}

#[test]
fn a_late_move_undoes_nothing() {
    let (network, anchor) = holding(Some(sample(1)), &[Fate::Late]);
    let abandoned = anchor.advance(Some(&sample(1)), &sample(2)).now_or_never();
    assert!(abandoned.is_none());
    while network.peer().late.is_empty() {
        std::thread::yield_now();
    }
    // Whatever became of the abandoned one: the next owner reads first.
    let now = block_on(anchor.read()).unwrap();
    let late = std::mem::take(&mut network.peer().late);
    block_on(anchor.advance(now.as_ref(), &sample(3))).unwrap();
    network.peer().late = late;
    block_on(anchor.advance(Some(&sample(3)), &sample(4))).unwrap();
    assert_eq!(network.peer().held, Some(sample(4)));
}

#[test]
fn somebody_elses_move_is_a_conflict_also_after_a_lost_answer() {
    let other = Stamp { claims: 6, session: [9; 16], ..sample(2) };
    let (network, anchor) = holding(Some(sample(1)), &[Fate::Lost]);
    network.peer().late = vec![(Some(sample(1)), other.clone())];
    let ended = block_on(anchor.advance(Some(&sample(1)), &sample(2)));
    assert_eq!(ended, Err(Error::Conflict(Some(Box::new(other)))));
    assert_eq!(network.peer().advances, 1);
}

#[test]
fn an_older_answer_is_a_rollback() {
    let newest = Stamp { claims: 7, ..sample(20) };
    let released = Stamp { state: StampState::Released, ..newest.clone() };
    let terminal = Stamp { state: StampState::Terminal, ..newest.clone() };
    for (known, found, refused) in [
        (&newest, None, true),
        (&newest, Some(Stamp { claims: 6, generation: 99, ..newest.clone() }), true),
        (&newest, Some(Stamp { generation: 19, ..newest.clone() }), true),
        (&released, Some(newest.clone()), true),
        (&terminal, Some(Stamp { claims: 9, ..newest.clone() }), true),
        (&newest, Some(released.clone()), false),
        (&newest, Some(terminal.clone()), false),
        (&newest, Some(Stamp { claims: 8, generation: 1, ..newest.clone() }), false),
        // The owner has chosen an earlier state: another session, as many claims.
        (&newest, Some(Stamp { session: [9; 16], generation: 1, ..newest.clone() }), false),
    ] {
        let (network, anchor) = holding(Some(known.clone()), &[]);
        network.peer().held = found.clone();
        let said = block_on(anchor.read());
        assert_eq!(said.is_err(), refused, "{known:?} {found:?}");
        match said {
            Ok(said) => assert_eq!(said, found),
            Err(Error::Unusable(why)) => assert!(why.contains("rolled back"), "{why}"),
            Err(other) => panic!("{other}"),
        }
        // A move fails on it in the same way, and not as if somebody had claimed the volume.
        let moved = block_on(anchor.advance(Some(known), &Stamp { claims: 9, ..sample(30) }));
        let is_rollback = matches!(moved, Err(Error::Unusable(_)));
        assert_eq!(is_rollback, refused, "{known:?} {found:?} {moved:?}");
    }
}

#[test]
fn an_anchor_that_is_away_says_so_and_comes_back() {
    let (network, anchor) = holding(Some(sample(1)), &[Fate::Lost; 40]);
    let mut moving = anchor.advance(Some(&sample(1)), &sample(2));
    assert!((&mut moving).now_or_never().is_none());
    let away = loop {
        match anchor.health().away {
            Some(away) if away.attempts >= 3 => break away,
            _ => std::thread::yield_now(),
        }
    };
    assert_eq!(away.error, "no answer");
    network.peer().fates.clear();
    assert_eq!(block_on(moving), Ok(()));
    assert_eq!(anchor.health().away, None);
}

#[test]
fn the_timeout_counts_from_when_it_went_away() {
    let network = Network::default();
    let anchor = over(&network, Limits { timeout: Some(Duration::from_millis(60)), ..QUICK });
    block_on(anchor.read()).unwrap();
    network.peer().fates = std::iter::repeat_n(Fate::Lost, 100_000).collect();
    let begun = Instant::now();
    let Err(Error::Io(why)) = block_on(anchor.advance(None, &sample(1))) else { panic!("no Io") };
    assert!(why.contains("no answer"), "{why}");
    let first = begun.elapsed();
    assert!(first >= Duration::from_millis(60), "{first:?}");
    // It has been away for long enough: one attempt, and no other wait.
    let attempts = anchor.health().away.unwrap().attempts;
    assert!(matches!(block_on(anchor.read()), Err(Error::Io(_))));
    assert_eq!(anchor.health().away.unwrap().attempts, attempts + 1);
    network.peer().fates.clear();
    assert_eq!(block_on(anchor.read()), Ok(None));
}

/// As a database whose space is used up: each look is answered, and no move.
fn refuses_moves(network: &Network) {
    network.peer().fates = [Fate::Lost, Fate::Prompt].into_iter().cycle().take(200_000).collect();
}

#[test]
fn an_anchor_that_answers_reads_and_refuses_moves_is_away() {
    let network = Network::default();
    let anchor = over(&network, Limits { timeout: Some(Duration::from_millis(60)), ..QUICK });
    block_on(anchor.read()).unwrap();
    refuses_moves(&network);
    let begun = Instant::now();
    let Err(Error::Io(why)) = block_on(anchor.advance(None, &sample(1))) else { panic!("no Io") };
    assert!(why.contains("no answer") && begun.elapsed() >= Duration::from_millis(60), "{why}");
    let away = anchor.health().away.unwrap();
    assert!(away.attempts > 1 && away.duration >= Duration::from_millis(60), "{away:?}");
    // A read says nothing of moves.
    network.peer().fates.clear();
    assert_eq!(block_on(anchor.read()), Ok(None));
    assert!(anchor.health().away.is_some());
    assert_eq!(block_on(anchor.advance(None, &sample(1))), Ok(()));
    assert_eq!(anchor.health().away, None);
}

#[test]
fn a_first_move_is_waited_for_as_long_as_a_first_answer_and_a_later_one_for_ever() {
    let network = Network::default();
    let anchor = over(&network, QUICK);
    block_on(anchor.read()).unwrap();
    refuses_moves(&network);
    assert!(matches!(block_on(anchor.advance(None, &sample(1))), Err(Error::Io(_))));

    let (network, anchor) = holding(None, &[]);
    refuses_moves(&network);
    let mut moving = anchor.advance(None, &sample(1));
    assert!((&mut moving).now_or_never().is_none());
    let long = 2 * QUICK.first_contact;
    while anchor.health().away.is_none_or(|away| away.duration < long) {
        std::thread::yield_now();
    }
    network.peer().fates.clear();
    assert_eq!(block_on(moving), Ok(()));
    assert_eq!(anchor.health().away, None);
}

#[test]
fn a_mistake_ends_the_opening_and_a_session_waits_for_its_mending() {
    let network = Network::default();
    network.peer().fates = [Fate::Setup].into();
    let expired = Err(Error::Unusable("the certificate has expired".into()));
    assert_eq!(block_on(over(&network, QUICK).read()), expired);

    let (_, anchor) = holding(Some(sample(1)), &[Fate::Setup, Fate::Setup, Fate::Setup]);
    assert_eq!(block_on(anchor.advance(Some(&sample(1)), &sample(2))), Ok(()));

    let (_, anchor) = holding(Some(sample(1)), &[Fate::Refused]);
    let refused = block_on(anchor.advance(Some(&sample(1)), &sample(2)));
    assert_eq!(refused, Err(Error::Unusable("not an anchor".into())));
}

#[test]
fn first_contact_is_waited_for_as_long_as_a_person_would() {
    let network = Network::default();
    network.peer().fates = std::iter::repeat_n(Fate::Lost, 100_000).collect();
    let anchor = over(&network, QUICK);
    assert!(matches!(block_on(anchor.read()), Err(Error::Io(_))));
}

/// An anchor that waits for the test in each call, and breaks when it is told to.
struct Stuck {
    entered: Sender<()>,
    release: Receiver<bool>,
}

impl BlockingAnchor for Stuck {
    fn read(&mut self) -> Result<Option<Stamp>, Failure> {
        self.entered.send(()).unwrap();
        match self.release.recv() {
            Ok(true) => panic!("a defect of this kind of anchor"),
            _ => Ok(None),
        }
    }

    fn advance(&mut self, _: Option<&Stamp>, _: &Stamp) -> Result<(), Failure> {
        Err(lost())
    }

    fn address(&self) -> String {
        "stuck:".into()
    }
}

#[test]
fn no_caller_blocks_and_none_waits_for_a_thread_that_is_gone() {
    let (entered, inside) = channel();
    let (let_go, release) = channel();
    let anchor = Threaded::spawn(Stuck { entered, release }, QUICK).unwrap();
    let mut first = anchor.read();
    let mut second = anchor.read();
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut second).now_or_never().is_none());
    inside.recv().unwrap();
    assert!((&mut first).now_or_never().is_none());
    let_go.send(false).unwrap();
    assert_eq!(block_on(first), Ok(None));
    inside.recv().unwrap();
    let mut third = anchor.read();
    assert!((&mut third).now_or_never().is_none());
    let_go.send(true).unwrap();
    assert_eq!(block_on(second), Err(gone()));
    assert_eq!(block_on(third), Err(gone()));
    assert_eq!(block_on(anchor.read()), Err(gone()));
}

#[test]
fn a_future_that_is_never_polled_asks_nothing() {
    let (network, anchor) = holding(Some(sample(1)), &[]);
    drop(anchor.advance(Some(&sample(1)), &sample(2)));
    assert_eq!(block_on(anchor.read()), Ok(Some(sample(1))));
    assert_eq!(network.peer().advances, 0);
}

#[test]
fn the_thread_ends_with_its_anchor() {
    let (network, anchor) = holding(Some(sample(1)), &[Fate::Lost; 1000]);
    assert!(anchor.advance(Some(&sample(1)), &sample(2)).now_or_never().is_none());
    drop(anchor);
    // The test's own reference is the last one.
    while Arc::strong_count(&network.0) > 1 {
        std::thread::yield_now();
    }
    assert!(network.peer().fates.len() > 900);
}

#[test]
fn a_pause_ends_in_time_or_when_something_is_asked() {
    let (_, anchor) = holding(None, &[]);
    let begun = Instant::now();
    assert_eq!(block_on(anchor.pause(Duration::from_millis(20))), Ok(()));
    assert!(begun.elapsed() >= Duration::from_millis(20));
    let mut long = anchor.pause(Duration::from_secs(3600));
    assert!((&mut long).now_or_never().is_none());
    assert_eq!(block_on(anchor.read()), Ok(None));
    assert_eq!(block_on(long), Ok(()));
}
