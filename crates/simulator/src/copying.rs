//! Another volume of the owner's, with which nothing goes wrong: this one is to become its copy.

use std::sync::Arc;

use anchor::Anchor;
use testkit::ScriptedAnchor;
use testkit::hostile::{Faults, HostileStore};
use volume::format::protections::{Freshness, Provision};
use volume::geometry::Geometry;
use volume::{Completion, CreateOptions, Driven, Environment, Error, Kind, Volume, attach, attach_read_only};

use crate::creation::keep;
use crate::exporting::export_all;
use crate::guest::Asked;
use crate::importing::Wanted;
use crate::requests::request_of;
use crate::simulation::{Failure, Outcomes, Simulation};

fn fault(error: Error) -> Failure {
    Failure(format!("the other volume: {error}"))
}

/// Drives a job to its end on a disk that is only slow.
fn finish<T>(store: &HostileStore, mut job: Driven<Result<T, Error>>) -> Result<T, Failure> {
    for _ in 0..20_000 {
        if let Some(ended) = job.poll() {
            return ended.map_err(fault);
        }
        store.complete_all();
    }
    Err(Failure("the other volume: a job does not end".into()))
}

impl Simulation {
    /// The volume is made for the content of another one.
    pub(crate) fn perhaps_copy(&mut self) -> Outcomes {
        if !self.plan.copy {
            return Ok(());
        }
        let blocks = self.rng.u64(self.plan.create.shape.min_logical..=self.geometry.logical_blocks);
        let create = CreateOptions {
            logical_blocks: Some(blocks),
            provision: Provision::Full,
            force: false,
            ..self.plan.create.clone()
        };
        let size = Geometry::for_logical(blocks, create.shape)
            .map_err(|error| Failure(format!("the other volume: {error}")))?;
        let store = HostileStore::new(size.physical_blocks, self.rng.u64(..), Faults::default());
        let bare = self.bare_environment();
        let anchor = bare.anchor.is_some().then(|| Arc::new(ScriptedAnchor::new(None)) as Arc<dyn Anchor>);
        let environment = Environment { store: Arc::new(store.clone()), anchor, ..bare };
        let (save, _kept) = keep();
        let made = volume::create(environment.clone(), create, Self::credential(), save).map_err(fault)?;
        let policy = finish(&store, made)?;
        let job = attach(environment.clone(), policy.clone(), Self::credential(), self.plan.attach)
            .map_err(fault)?;
        let volume = finish(&store, job)?;
        self.fill(&volume, &store)?;
        drop(volume);
        let job =
            attach_read_only(environment, policy, Self::credential(), self.plan.attach).map_err(fault)?;
        let volume = finish(&store, job)?;
        let stream = export_all(&volume, self.random.as_ref(), |job| finish(&store, job))?;
        self.stream = Some(stream.clone());
        self.wanted = Some(Wanted { stream, begun: false });
        Ok(())
    }

    /// Writes here and there, and detaches.
    fn fill(&mut self, volume: &Volume, store: &HostileStore) -> Outcomes {
        let mut queue = volume.queue(8).map_err(fault)?;
        let mut maintenance = volume.maintenance().map_err(fault)?;
        let transaction = self.plan.create.freshness == Freshness::Transaction;
        let writes = self.rng.usize(..8);
        let mut asked: Vec<Asked> = (0..writes).map(|_| self.a_write(volume)).collect();
        asked.push(Asked::Commit);
        for (token, asked) in (0..).zip(asked) {
            queue.submit(token, request_of(asked));
            let mut ended = Vec::new();
            while ended.is_empty() {
                queue.poll(&mut ended);
                let _ = maintenance.poll();
                store.complete_all();
            }
            for Completion { result, .. } in ended {
                match result {
                    // A transaction keeps the state before it, beside which a large one need not fit.
                    Err(error) if error.kind() == Kind::NoSpace && transaction => {}
                    result => result.map_err(fault)?,
                }
            }
        }
        volume.stop();
        drop(queue);
        finish(store, maintenance)
    }

    fn a_write(&mut self, volume: &Volume) -> Asked {
        let block = self.rng.u64(..volume.blocks());
        let blocks = self.rng.u64(1..=64).min(volume.largest_change()).min(volume.blocks() - block);
        let first_version = self.next_version;
        self.next_version += blocks;
        Asked::Write { block, blocks, fua: false, first_version }
    }
}
