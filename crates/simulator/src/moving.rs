//! The owner moves the volume to another anchor, because he wants to or because the old one is lost; while nobody has it, or while somebody
//! is believed dead, and perhaps not to the end.

use std::rc::Rc;
use std::sync::Arc;

use anchor::{Anchor, Stamp, State};
use seal::VolumeKey;
use testkit::ScriptedAnchor;
use testkit::hostile::Faults;
use volume::format::header::Header;
use volume::format::protections::Freshness;
use volume::policy::Policy;
use volume::{
    Choice, Environment, Error, Kind, Migrated, Reanchor, StateName, attach, attach_read_only, migrate,
    reanchor, survey,
};

use crate::creation::keep;
use crate::keyring::numbered;
use crate::looking::order_of;
use crate::simulation::{Failure, Outcomes, Simulation, say};

/// How often a move is tried before something must be wrong.
const ATTEMPTS: u32 = 20;

/// An anchor that the volume has moved away from, and the policy that names it.
pub(crate) struct LeftBehind {
    anchor: Arc<ScriptedAnchor>,
    policy: Policy,
}

/// The state that counts from then on, and the policy that names its anchor.
type Moved = Result<(StateName, Policy), Error>;

/// A move that the owner has in mind.
struct Move {
    to: Arc<ScriptedAnchor>,
    /// What the new anchor held at first.
    taken: Option<Stamp>,
    /// The old anchor is not at hand.
    lost: bool,
    /// The owner looks at the state, and names it; else the volume moves as it is.
    named: bool,
}

impl Simulation {
    /// The generation that counts from then on, if the volume has moved.
    pub(crate) fn perhaps_move(&mut self) -> Result<Option<u64>, Failure> {
        self.try_left_behind()?;
        let possible = self.guest.is_none() && !self.tainted && self.prepared.is_none() && self.guests > 0;
        if !self.plan.moves || !possible || !self.once_in(3) {
            return Ok(None);
        }
        if self.once_in(4) {
            self.try_a_taken_anchor()?;
        }
        self.check_latest()?;
        let lost = self.zombie.is_none() && self.anchor.pending() == 0 && self.once_in(4);
        let moving = self.begin_move(None, lost);
        let transaction = self.plan.create.freshness == Freshness::Transaction;
        say!(
            self,
            "the owner moves the volume to another anchor; the old one is {}",
            if lost { "lost" } else { "there" }
        );
        for attempt in 0..ATTEMPTS {
            if attempt == 6 {
                self.store.set_faults(Faults::default());
                if let Some(zombie) = &mut self.zombie {
                    // As long as it moves the old anchor all the time, it wins.
                    zombie.deep = true;
                }
            }
            let dies = (attempt < 4 && self.once_in(2)).then(|| self.rng.u32(..12));
            let moved = match moving.named {
                true => self.move_once(&moving, dies)?,
                false => self.migrate_once(&moving, attempt < 4)?,
            };
            self.no_two_anchors(&moving)?;
            match moved {
                Some(Ok((state, policy))) => {
                    self.begin_faults();
                    return self.moved(moving, state, policy).map(Some);
                }
                // Without the anchor, the end of a transaction that had not ended may be the latest, with half of its nodes.
                Some(Err(error))
                    if lost && transaction && error.to_string().contains("no session can go on") =>
                {
                    say!(self, "the owner finds the old anchor: {error}");
                    self.begin_faults();
                    self.next_anchor = None;
                    return Ok(None);
                }
                Some(Err(error)) => self.move_failed(&error)?,
                None => {
                    say!(self, "the move is cut short");
                    self.coverage.cut_moves += 1;
                    if !lost {
                        self.move_again_on_an_old_image(&moving.to)?;
                    }
                }
            }
        }
        Err(Failure(format!("{ATTEMPTS} moves in a row did not succeed")))
    }

    fn begin_move(&mut self, taken: Option<Stamp>, lost: bool) -> Move {
        let named = lost || self.once_in(3);
        let to = Arc::new(ScriptedAnchor::new(taken.clone()));
        to.hold(self.plan.slow_anchor || self.plan.mischief.anchor);
        self.next_anchor = Some(Arc::clone(&to));
        Move { to, taken, lost, named }
    }

    /// One move, from a look at what there is; nothing, if the machine dies before it ends.
    fn move_once(&mut self, moving: &Move, dies: Option<u32>) -> Result<Option<Moved>, Failure> {
        let policy = self.owners_policy()?;
        let before = self.anchor.held();
        let choice = self.choice(moving);
        let begin = |error| Failure(format!("moving: {error}"));
        let session = self.store.attach();
        let environment = self.moving_environment(&session, moving);
        let job =
            survey(environment.clone(), policy.clone(), Arc::new(numbered(0)), choice, self.plan.attach)
                .map_err(begin)?;
        let found = match self.drive_or_die(&session, job, None, ("surveying", 20_000))? {
            Some(Ok((found, _))) => found,
            Some(Err(error)) => return Ok(Some(Err(error))),
            None => return Ok(None),
        };
        if self.anchor.held() != before {
            return Ok(Some(Err(Error::new(Kind::Fenced, "somebody lives, and has moved the old anchor"))));
        }
        let state = found.chosen;
        let (save, kept) = keep();
        let anchor = Some(Arc::clone(&moving.to) as Arc<dyn Anchor>);
        let order = Reanchor { state, anchor, anchor_options: Default::default(), save };
        let job =
            reanchor(environment, policy, Arc::new(numbered(0)), order, self.plan.attach).map_err(begin)?;
        let ended = self.drive_or_die(&session, job, dies, ("moving", 20_000))?;
        Ok(match (ended, kept.try_recv().ok()) {
            // Where it died does not matter once the policy was kept.
            (Some(Ok(_)) | None, Some(policy)) => Some(Ok((state, policy))),
            (Some(Ok(_)), None) => {
                return Err(Failure("a move ended, and nobody was given its policy".into()));
            }
            (Some(Err(error)), _) => Some(Err(error)),
            (None, None) => None,
        })
    }

    /// One move of the volume as it is; nothing, if the machine dies before it ends. It may do so anywhere, and best between the anchors.
    fn migrate_once(&mut self, moving: &Move, mortal: bool) -> Result<Option<Moved>, Failure> {
        let (session, policy) = (self.store.attach(), self.owners_policy()?);
        let environment = self.environment(&self.audit.watch(&session));
        let (save, kept) = keep();
        let order = order_of(&moving.to, save, Rc::default());
        let job = migrate(environment, policy, Arc::new(numbered(0)), order, self.plan.attach)
            .map_err(|error| Failure(format!("moving: {error}")))?;
        let anywhere = (mortal && self.once_in(3)).then(|| self.rng.u32(..40));
        let between = mortal && self.once_in(2);
        let dies = |simulation: &mut Self, round| {
            let ended = simulation.anchor.held().is_some_and(|stamp| stamp.state == State::Terminal);
            anywhere == Some(round) || (between && ended && simulation.once_in(3))
        };
        let ended = self.drive_until(&session, job, dies, ("moving", 20_000))?;
        Ok(match (ended, kept.try_recv().ok()) {
            (Some(Ok(Migrated { state, .. })), Some(policy)) => Some(Ok((state, policy))),
            // Where it died does not matter once the policy was kept.
            (None, Some(policy)) => moving.to.held().map(|stamp| Ok((name_of(&stamp), policy))),
            (Some(Ok(_)), None) => {
                return Err(Failure("a move ended, and nobody was given its policy".into()));
            }
            (Some(Err(error)), _) => Some(Err(error)),
            (None, None) => None,
        })
    }

    /// The state that is offered to the owner as the latest is the one that an attach would begin from.
    fn check_latest(&mut self) -> Outcomes {
        let still = self.zombie.as_ref().is_none_or(|zombie| zombie.deep);
        if !still || self.plan.mischief.errors || self.plan.mischief.anchor || !self.once_in(2) {
            return Ok(());
        }
        self.let_late_writes_happen();
        self.store.complete_all();
        while self.move_anchor() {}
        let (policy, fault) = (self.owners_policy()?, |error| Failure(format!("looking: {error}")));
        let session = self.store.attach();
        let environment = self.environment(&self.audit.watch(&session));
        let (key, options) = (Arc::new(numbered(0)), self.plan.attach);
        let job = survey(environment.clone(), policy.clone(), key, Choice::Latest, options).map_err(fault)?;
        let offered = self.drive_or_die(&session, job, None, ("surveying", 20_000))?;
        let job = attach_read_only(environment, policy, numbered(0), options).map_err(fault)?;
        let found = self.drive_or_die(&session, job, None, ("attaching for reading", 20_000))?;
        match (offered, found) {
            (Some(Ok((offered, _))), Some(Ok(found))) => {
                let (offered, found) = (offered.chosen.generation, found.status().generation);
                self.coverage.looks += 1;
                if offered == found {
                    return Ok(());
                }
                Err(Failure(format!(
                    "generation {offered} is offered as the latest, and an attach would begin from {found}"
                )))
            }
            (offered, found) => {
                let errors = [offered.and_then(Result::err), found.and_then(Result::err)];
                errors
                    .iter()
                    .flatten()
                    .try_for_each(|error| self.expect(error, "looking at the latest state"))
            }
        }
    }

    /// A move that was cut short goes on with the state that the new anchor has by then.
    fn choice(&self, moving: &Move) -> Choice {
        let claimed = moving.to.held().filter(|_| moving.taken.is_none());
        claimed.map_or(Choice::Latest, |stamp| Choice::State(name_of(&stamp)))
    }

    fn moving_environment(&self, session: &testkit::hostile::Session, moving: &Move) -> Environment {
        let environment = self.environment(&self.audit.watch(session));
        Environment { anchor: environment.anchor.filter(|_| !moving.lost), ..environment }
    }

    /// Errors that have a reason: the host's, or a guest's that lives and moves the anchor.
    fn move_failed(&mut self, error: &Error) -> Outcomes {
        say!(self, "the move fails: {error}");
        // What a guest that lives gives up and uses again cannot be looked at any more, or is offered no more.
        let beside = matches!(error.kind(), Kind::Corrupt | Kind::Usage) && self.zombie.is_some();
        if beside || error.kind() == Kind::Fenced { Ok(()) } else { self.expect(error, "moving") }
    }

    /// The new anchor vouches for nothing while the old one still does.
    fn no_two_anchors(&self, moving: &Move) -> Outcomes {
        let ended = self.anchor.held().is_some_and(|stamp| stamp.state == State::Terminal);
        if moving.to.held() == moving.taken || ended || moving.lost {
            return Ok(());
        }
        Err(Failure("two anchors vouch for the volume at once".into()))
    }

    fn moved(&mut self, moving: Move, state: StateName, policy: Policy) -> Result<u64, Failure> {
        let stamp =
            moving.to.held().filter(|stamp| name_of(stamp) == state && stamp.state == State::Released);
        let Some(stamp) = stamp.filter(|_| policy.anchor == Some(moving.to.address())) else {
            return Err(Failure("the policy names an anchor that does not vouch for the volume".into()));
        };
        if stamp.generation < self.anchored() {
            return Err(Failure(format!(
                "the old anchor vouched for generation {}, and the new one does for {}",
                self.anchored(),
                stamp.generation
            )));
        }
        say!(self, "the new anchor stands at generation {}", stamp.generation);
        // Whoever is alive and asks the old one is told at once.
        self.anchor.hold(false);
        while self.anchor.complete_next() {}
        let key = self.key_in_force();
        let old = std::mem::replace(&mut self.anchor, moving.to);
        self.next_anchor = None;
        let before = self.policy.replace(policy);
        if moving.lost {
            self.coverage.lost_anchors += 1;
            self.has_perhaps_new_key(key);
        } else {
            self.left_behind = before.map(|policy| LeftBehind { anchor: old, policy });
        }
        if let Some(zombie) = &mut self.zombie {
            zombie.claimed_away = true;
            self.coverage.moves_under_zombies += 1;
        }
        self.coverage.moves += 1;
        Ok(stamp.generation)
    }

    /// Without the anchor nobody can tell that a change of key had not begun. It has now.
    fn has_perhaps_new_key(&mut self, before: Option<(Header, VolumeKey)>) {
        let now = self.key_in_force();
        if let (Some((_, old)), Some((_, new))) = (before, now)
            && old != new
        {
            self.old_keys.push(old);
        }
    }

    /// An anchor that another volume lives by is left alone, and so is the volume's own.
    fn try_a_taken_anchor(&mut self) -> Outcomes {
        let Some(held) = self.anchor.held() else { return Ok(()) };
        let mut other = held.clone();
        self.rng.fill(&mut other.volume);
        let moving = self.begin_move(Some(other), false);
        let moved = match moving.named {
            true => self.move_once(&moving, None)?,
            false => self.migrate_once(&moving, false)?,
        };
        self.next_anchor = None;
        if moving.to.held() != moving.taken {
            return Err(Failure("a move has written to another volume's anchor".into()));
        }
        match moved {
            Some(Err(error)) if error.kind() == Kind::Anchor => {
                say!(self, "the owner names another volume's anchor: {error}");
                self.coverage.taken_anchors += 1;
                Ok(())
            }
            Some(Err(error)) => self.move_failed(&error),
            _ => Err(Failure("the volume has moved to another volume's anchor".into())),
        }
    }

    /// Whoever still has the old policy is refused, whatever has become of the volume since.
    fn try_left_behind(&mut self) -> Outcomes {
        let Some(LeftBehind { anchor, policy }) = &self.left_behind else { return Ok(()) };
        let (anchor, policy, held) = (Arc::clone(anchor), policy.clone(), anchor.held());
        if held.as_ref().is_none_or(|stamp| stamp.state != State::Terminal) {
            return Err(Failure("the anchor that the volume left goes on".into()));
        }
        if !self.is_idle() || !self.once_in(3) {
            return Ok(());
        }
        say!(self, "somebody attaches by the old policy");
        let session = self.store.attach();
        let watched = self.audit.watch(&session);
        let old = Arc::clone(&anchor) as Arc<dyn Anchor>;
        let environment = Environment { anchor: Some(old), ..self.environment(&watched) };
        let job = attach(environment, policy, numbered(0), self.plan.attach)
            .map_err(|error| Failure(format!("attaching by an old policy: {error}")))?;
        match self.drive_or_die(&session, job, None, ("attaching by an old policy", 20_000))? {
            Some(Err(error))
                if error.kind() == Kind::Anchor && watched.writes() == 0 && anchor.held() == held =>
            {
                self.coverage.left_anchors += 1;
                Ok(())
            }
            Some(Err(error)) => self.expect(&error, "attaching by an old policy"),
            _ => Err(Failure("a volume was attached by the anchor that it had left".into())),
        }
    }
}

fn name_of(stamp: &Stamp) -> StateName {
    let mut head = [0; 8];
    head.copy_from_slice(&stamp.head[..8]);
    StateName { generation: stamp.generation, head }
}
