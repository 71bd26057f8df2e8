//! A check of everything, beside a guest's users.

use std::sync::Arc;

use volume::{CheckReport, Kind};

use crate::simulation::{Failure, Outcomes, Simulation, say};

impl Simulation {
    /// The owner has everything read, if nobody does so already.
    pub(crate) fn begin_scrub(&mut self) -> Outcomes {
        let Some(guest) = self.guest.as_mut().filter(|guest| guest.scrub.is_none() && !guest.stopping) else {
            return Ok(());
        };
        say!(self, "guest {} begins a scrub", guest.name);
        let job = guest.volume.check(0, 1, Arc::default());
        guest.scrub = Some(job.map_err(|error| Failure(format!("a scrub: {error}")))?);
        Ok(())
    }

    /// Moves that on.
    pub(crate) fn poll_scrub(&mut self) -> Outcomes {
        let Some(guest) = &mut self.guest else { return Ok(()) };
        let Some(ended) = guest.scrub.as_mut().and_then(volume::Driven::poll) else { return Ok(()) };
        guest.scrub = None;
        let (name, failed, stopping) = (guest.name, guest.volume.failure().is_some(), guest.stopping);
        match ended {
            Ok(report) => self.scrubbed(name, &report),
            Err(error) => {
                say!(self, "guest {name}: the scrub ends: {error}");
                if failed || stopping { Ok(()) } else { self.expect(&error, "the scrub") }
            }
        }
    }

    /// What is lost must have a reason.
    fn scrubbed(&mut self, name: u64, report: &CheckReport) -> Outcomes {
        say!(self, "guest {name} has scrubbed {} blocks: {report:?}", report.blocks);
        self.coverage.scrubs += 1;
        if self.explains(report.damaged_blocks, Kind::Corrupt)
            && self.explains(report.unreadable_blocks, Kind::Io)
        {
            return Ok(());
        }
        Err(Failure(format!("a scrub finds damage, and nobody did any: {report:?}")))
    }

    /// Whether blocks may be lost to such an error.
    pub(crate) fn explains(&self, blocks: u64, kind: Kind) -> bool {
        blocks == 0 || self.excused.contains(&kind)
    }
}
