//! A guest that is believed dead, and is not.

use memory::{BLOCK_SIZE, Buffer};
use volume::Kind;
use volume::format::protections::Freshness;

use crate::answers::version_of;
use crate::guest::{Asked, Guest, Outstanding};
use crate::simulation::{Failure, Outcomes, Simulation, say};

impl Simulation {
    /// The guest is believed dead, and sleeps.
    pub(crate) fn let_sleep(&mut self) {
        if self.rng.bool()
            && let Some(guest) = &self.guest
        {
            // In the middle of a checkpoint, perhaps.
            let before = self.anchor.held();
            guest.volume.checkpoint_soon();
            let mut left = 40;
            while left > 0 && self.poll_maintenance().is_ok() {
                // Behind the commit, before the superblock, or a little later.
                left = if self.anchor.held() == before { left } else { self.rng.u32(..left.min(8)) };
                left = left.saturating_sub(1);
                let _ = self.store.complete_some();
                self.move_anchor();
            }
        }
        let deep = self.rng.bool();
        if let Some(guest) = self.guest.take() {
            say!(self, "guest {} falls asleep and is believed dead", guest.name);
            self.coverage.zombies += 1;
            self.zombie = Some(Guest { deep, wakes_busy: deep && self.rng.bool(), scrub: None, ..guest });
        }
    }

    /// An answer to a guest that has been replaced. It may read what was there before, and must not be told that something is safe.
    pub(crate) fn answered_late(
        &mut self,
        outstanding: Outstanding,
        success: bool,
        buffer: Option<&Buffer>,
        what: &str,
    ) -> Outcomes {
        let freshness = self.plan.create.freshness;
        let count = self.contents_count();
        let Some(guest) = &mut self.zombie else { return Ok(()) };
        let anchors = matches!(freshness, Freshness::Strict | Freshness::Write);
        if !success {
            return Ok(());
        }
        let broken = match outstanding.asked {
            Asked::Allocation { .. } => false,
            Asked::Read { .. } if !count => false,
            Asked::Read { block, .. } => {
                let bytes = buffer.and_then(Buffer::private).unwrap_or_default();
                for (block, page) in (block..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
                    version_of(block, page).map_err(|wrong| Failure(format!("{what}: {wrong}")))?;
                }
                false
            }
            Asked::Write { fua, .. } => {
                // What was committed before it was answered leaves nothing for a later flush.
                if !(fua || freshness == Freshness::Write) {
                    guest.changed = self.model.tick();
                }
                outstanding.late && ((fua && anchors) || freshness == Freshness::Write)
            }
            Asked::Discard { .. } => {
                if freshness != Freshness::Write {
                    guest.changed = self.model.tick();
                }
                outstanding.late && freshness == Freshness::Write
            }
            Asked::Flush | Asked::Commit => {
                // One that was made in time may have been anchored in time, and a later one with nothing to add is right to succeed.
                if !outstanding.late {
                    guest.flushed = guest.flushed.max(outstanding.begin);
                }
                let timely = |other: &Outstanding| {
                    !other.late
                        && matches!(
                            other.asked,
                            Asked::Flush | Asked::Commit | Asked::Write { fua: true, .. }
                        )
                };
                let explained =
                    guest.outstanding.values().any(timely) || outstanding.changed <= guest.flushed;
                let anchors = match outstanding.asked {
                    Asked::Flush => anchors,
                    _ => freshness != Freshness::Off,
                };
                outstanding.late && anchors && !explained
            }
        };
        if broken {
            return Err(Failure(format!("{what} succeeded, although another session has the volume")));
        }
        Ok(())
    }

    /// The guest that is believed dead goes on.
    pub(crate) fn zombie_step(&mut self) -> Outcomes {
        let Some(guest) = &mut self.zombie else { return Ok(()) };
        match self.rng.u32(..11) {
            10 => {
                // Whatever it says, a guest that was replaced has nothing to say.
                drop(guest.poll_reseal());
                Ok(())
            }
            0..=2 => self.request(true),
            3..=4 => {
                let queue = self.rng.usize(..self.plan.queues);
                let (completions, _) = guest.poll_queue(queue);
                completions.into_iter().try_for_each(|completion| self.answered(true, completion))
            }
            5..=6 => {
                let _ = guest.session.complete_some();
                Ok(())
            }
            7 => {
                guest.volume.checkpoint_soon();
                Ok(())
            }
            _ => {
                let ended = guest.poll_maintenance();
                match ended {
                    Some(Err(error)) if matches!(error.kind(), Kind::Fenced | Kind::Corrupt) => {
                        say!(self, "the sleeper's maintenance job ends: {error}");
                        Ok(())
                    }
                    Some(Err(error)) => self.expect(&error, "the sleeper's maintenance job"),
                    _ => Ok(()),
                }
            }
        }
    }

    /// For a guest that has been replaced: it has no say, but what it writes may be found where nothing is promised.
    pub(crate) fn begin_late(&mut self, asked: Asked) -> u64 {
        if let Asked::Write { block, blocks, first_version, .. } = asked {
            self.model.note_late(block, blocks, first_version);
        }
        self.model.tick()
    }
}
