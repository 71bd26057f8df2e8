//! What the owner does with an image that is not the volume: an older one, or one with a history of its own. Every command that moves the
//! anchor looks first, and refuses it as an attach does; nothing has moved then, and nothing was written.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use anchor::{Created, State};
use testkit::ScriptedAnchor;
use testkit::hostile::Session;
use volume::format::protections::{Freshness, Provision};
use volume::{
    AttachOptions, Driven, Error, Growth, KeyChange, Kind, Migration, Reading, RekeyOrder, attach_read_only,
    begin_rekey, change_keys, grow, migrate, restore_header,
};

use crate::attack::Attack;
use crate::audit::Audited;
use crate::creation::keep;
use crate::keyring::numbered;
use crate::simulation::{Failure, Outcomes, Simulation, say};

/// The commands that look, beside `attach`.
const COMMANDS: [&str; 6] = [
    "verifying the anchor",
    "adding a key",
    "growing",
    "giving a new key",
    "restoring the header",
    "moving to another anchor",
];

impl Simulation {
    /// Before somebody attaches what the host offers, the owner does something with it.
    pub(crate) fn owner_meets(&mut self, attack: &Attack) -> Outcomes {
        let refused = attack.is_other_image() && self.plan.create.freshness != Freshness::Off;
        if !refused || self.zombie.is_some() || self.tainted || !self.once_in(2) {
            return Ok(());
        }
        let what = COMMANDS[self.rng.usize(..COMMANDS.len())];
        if what == "restoring the header" && attack.is_mended_by_header() {
            return Ok(());
        }
        self.must_be_refused(what, attack)
    }

    /// A command meets an image that it must refuse.
    fn must_be_refused(&mut self, what: &str, attack: &Attack) -> Outcomes {
        let session = self.store.attach();
        let watched = self.audit.watch(&session);
        let new = Arc::new(ScriptedAnchor::new(None));
        let before = self.anchor.held();
        let Some(ended) = self.carry_out(what, (&session, &watched), &new)? else { return Ok(()) };
        let moved = self.anchor.held() != before || new.held().is_some() || self.anchor.pending() > 0;
        if moved || watched.writes() > 0 {
            return Err(Failure(format!(
                "{what} has moved an anchor, or written, on an image that is not the volume"
            )));
        }
        let Err(error) = ended else {
            return Err(Failure(format!("{what} was done on an image that is not the volume")));
        };
        say!(self, "{what} is refused: {error}");
        self.coverage.refused_commands += 1;
        // The backup may be of a header behind a growth, for which an old image is too short, or behind a new key, with which no superblock of an
        // old image opens.
        let not_for_it = what == "restoring the header" && matches!(error.kind(), Kind::Io | Kind::Usage);
        if not_for_it { Ok(()) } else { attack.judge(&error) }
    }

    /// Carries out a command; nothing, if it makes no sense for this volume.
    fn carry_out(
        &mut self,
        what: &str,
        (session, watched): (&Session, &Audited),
        new: &Arc<ScriptedAnchor>,
    ) -> Result<Option<Result<(), Error>>, Failure> {
        let (policy, options) = (self.owners_policy()?, self.plan.attach);
        let environment = self.environment(watched);
        let key = || numbered(0);
        Ok(match what {
            "verifying the anchor" => {
                let options = AttachOptions { reading: Reading::PinnedBesideWriter, ..options };
                self.end(session, attach_read_only(environment, policy, key(), options), what)?
            }
            "adding a key" => {
                let argon2 = self.plan.create.argon2;
                let change = KeyChange::Add { credential: numbered(240), label: "never".into(), argon2 };
                self.end(session, change_keys(environment, policy, key(), change, true, options), what)?
            }
            "growing" => {
                let refuse =
                    |_: u64, _: Provision| Err(Error::new(Kind::Defect, "the store was made longer"));
                let logical_blocks = Some(self.geometry.logical_blocks + 1);
                let growth =
                    Growth { logical_blocks, enlarge: Box::new(refuse), save: keep().0, force: true };
                self.end(session, grow(environment, policy, key(), growth, options), what)?
            }
            "giving a new key" => {
                let under_way = self.key_in_force().is_none_or(|(header, _)| header.rekeying.is_some());
                if under_way || self.plan.create.freshness == Freshness::Transaction {
                    return Ok(None);
                }
                let order = RekeyOrder { keep: Vec::new(), remove_others: true, force: true };
                self.end(session, begin_rekey(environment, policy, key(), order, options), what)?
            }
            "restoring the header" => {
                let digest = self.anchor.held().map(|stamp| stamp.header_digest);
                let in_force = self.header_backup.clone().filter(|backup| Some(backup.digest) == digest);
                let Some(backup) = in_force else { return Ok(None) };
                let bytes = backup.encode().to_vec();
                self.end(session, restore_header(environment, policy, key(), bytes, options), what)?
            }
            _ => {
                let order = order_of(new, keep().0, Rc::default());
                self.end(session, migrate(environment, policy, Arc::new(key()), order, options), what)?
            }
        })
    }

    /// Drives a command to its end.
    fn end<T>(
        &mut self,
        session: &Session,
        job: Result<Driven<Result<T, Error>>, Error>,
        what: &str,
    ) -> Result<Option<Result<(), Error>>, Failure> {
        let job = job.map_err(|error| Failure(format!("{what}: {error}")))?;
        Ok(self.drive_or_die(session, job, None, (what, 20_000))?.map(|ended| ended.map(drop)))
    }

    /// A move that was cut short behind the old anchor's end is done again, and the host offers an older image by then.
    pub(crate) fn move_again_on_an_old_image(&mut self, to: &Arc<ScriptedAnchor>) -> Outcomes {
        let ended = self.anchor.held().filter(|stamp| stamp.state == State::Terminal);
        let Some(stamp) = ended.filter(|_| self.is_idle() && self.anchor.pending() == 0) else {
            return Ok(());
        };
        self.let_late_writes_happen();
        self.store.complete_all();
        let older = self.snapshots.iter().find(|snapshot| {
            !snapshot.given_up
                && (snapshot.generation < stamp.generation || !snapshot.has_slots(&stamp.header_digest))
        });
        let Some(image) = older.map(|snapshot| snapshot.image.clone()) else { return Ok(()) };
        say!(self, "the host offers an old image to a move that was cut short");
        let genuine = self.store.snapshot();
        let attack = self.old_image(&image, genuine.clone());
        self.store.restore(&image);
        let (session, held) = (self.store.attach(), to.held());
        let watched = self.audit.watch(&session);
        let (save, kept) = keep();
        let opened = Rc::new(Cell::new(false));
        let order = order_of(to, save, Rc::clone(&opened));
        let (environment, policy) = (self.environment(&watched), self.owners_policy()?);
        let job = migrate(environment, policy, Arc::new(numbered(0)), order, self.plan.attach);
        let ended = self.end(&session, job, "moving again")?;
        let unmoved = to.held() == held && self.anchor.held().as_ref() == Some(&stamp) && !opened.get();
        if !unmoved || watched.writes() > 0 || kept.try_recv().is_ok() {
            return Err(Failure("a move that was cut short was ended on an old image".into()));
        }
        self.store.restore(&genuine);
        self.coverage.refused_second_moves += 1;
        match ended {
            Some(Err(error)) => attack.judge(&error),
            _ => Err(Failure("a move was done again on an old image".into())),
        }
    }
}

/// The order to move to an anchor; `opened` says whether it came to that.
pub(crate) fn order_of(
    to: &Arc<ScriptedAnchor>,
    save: volume::SavePolicy,
    opened: Rc<Cell<bool>>,
) -> Migration {
    let anchor = Arc::clone(to);
    let open = Box::new(move || {
        opened.set(true);
        Ok(Created { anchor: anchor as Arc<dyn anchor::Anchor>, undo: None, notes: Vec::new() })
    });
    Migration {
        to: anchor::Anchor::address(to.as_ref()),
        open,
        anchor_options: anchor::Options::default(),
        save,
        force: true,
    }
}
