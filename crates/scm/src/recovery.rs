//! From whatever a crash left to a region in which every page is whole.
//!
//! [`find`] reads and changes nothing. It finds what each page's state is, as the root vouches for it: the table and the bitmap for pages that
//! no worker had under way, and for each of the others one of the states that its log allows. There are at most eight workers and three
//! states for each, so all combinations are tried against both roots.
//!
//! [`Survey::settle`] finishes what was being encrypted and undoes what was being decrypted. In both cases that means to put the buffer in
//! place, since it holds ciphertext. It may be cut short anywhere and done again: it changes a page before its entry, that before the root,
//! and clears the progress fields last; and the states that it makes are among those that a log allows.
//!
//! The medium may say anything: progress fields, logs, buffers, the bitmap and which copy of the header is there are claims. What is believed is what
//! adds up to a root's MAC, and of a log that encrypts the step for which it has a MAC. A page for which the root vouches as encrypted stays
//! encrypted: if neither its buffer nor its place opens, it is corrupt.
//!
//! What the root does not vouch for is marked `Unverified`: a page whose encryption from the open state was under way, and one that was being
//! opened when the root had moved already. Everything else that was under way keeps its mark: the root vouches for the state before, and the
//! log's MAC for the step.

use zeroize::Zeroizing;

use crate::Error;
use crate::engine::{OPEN, UNVERIFIED};
use crate::entry::{ENTRY_SIZE, Entry};
use crate::geometry::Geometry;
use crate::header::Header;
use crate::keys::{Keys, Sum};
use crate::medium::Medium;
use crate::mutation::{Mutation, mutated};
use crate::progress::{Direction, LOG_AT, LOG_SIZE, Log, Progress, State};
use crate::root::{self, Root};
use crate::unlock::Unlocked;

/// What recovery found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Pages that a worker had under way and that are encrypted now.
    pub finished: u64,
    /// Pages whose opening was undone.
    pub undone: u64,
    /// Pages that were open: they are encrypted now, and `Unverified`.
    pub open: u64,
    /// Pages that nothing can make whole: the medium was changed from outside.
    pub corrupt: u64,
    /// All pages that are `Unverified`, also from before.
    pub unverified: u64,
}

impl Report {
    /// Whether the region had been stopped cleanly.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.finished + self.undone + self.open + self.corrupt == 0
    }
}

/// What a worker had under way, and the state that the root vouches for.
struct InFlight {
    worker: u32,
    page: u64,
    direction: Direction,
    old: State,
    new: State,
    vouched: State,
}

impl InFlight {
    /// The states that the page can have, as far as the root is concerned.
    fn states(&self) -> [State; 3] {
        match self.direction {
            Direction::Encrypt => [self.old, self.new, self.new.map(Entry::as_unverified)],
            Direction::Decrypt => [self.old, self.new, self.old.map(Entry::as_unverified)],
        }
    }

    /// The state that recovery makes.
    fn outcome(&self) -> State {
        let marked = |state: State| {
            if mutated(Mutation::UnverifiedForgotten) { state } else { state.map(Entry::as_unverified) }
        };
        match self.direction {
            Direction::Encrypt if self.vouched == self.old && self.old.is_none() => marked(self.new),
            Direction::Encrypt if self.vouched == self.old => self.new,
            Direction::Decrypt if self.vouched.is_none() => marked(self.old),
            _ => self.vouched,
        }
    }
}

/// A region as it was found.
pub(crate) struct Survey {
    /// For each page [`OPEN`] and [`UNVERIFIED`]; of pages under way, nothing.
    states: Vec<u8>,
    /// The sum without pages under way.
    rest: Sum,
    generation: u64,
    in_flight: Vec<InFlight>,
}

/// Finds the header in force, and reads everything but the pages: a header is in force if a root that belongs to its session vouches for the
/// table. The later one is tried first. The other one is in force if a session was about to begin at a crash.
///
/// # Errors
/// [`Error::CorruptRegion`], [`Error::Medium`].
pub(crate) fn find(
    medium: &dyn Medium,
    headers: Vec<Unlocked>,
    keys: &Keys,
    progress: &dyn Fn(u64, u64),
) -> Result<(Unlocked, Survey), Error> {
    let mut first = None;
    for unlocked in headers {
        match survey(medium, &unlocked.header, keys, progress) {
            Ok(survey) => return Ok((unlocked, survey)),
            Err(error @ Error::CorruptRegion(_)) => first = first.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Err(first.unwrap_or_else(|| Error::CorruptRegion("it has no header".into())))
}

/// Reads everything but the pages, and finds the root that vouches for it.
fn survey(
    medium: &dyn Medium,
    header: &Header,
    keys: &Keys,
    progress: &dyn Fn(u64, u64),
) -> Result<Survey, Error> {
    let Header { geometry, session, .. } = header;
    let in_flight = in_flight(medium, geometry, keys, session)?;
    let (states, rest) = table(medium, geometry, keys, &in_flight, progress)?;
    let mut survey = Survey { states, rest, generation: 0, in_flight };
    for claim in root::claims(medium, geometry)? {
        let fits = |sum: &Sum| keys.sign_root(header.roots_session(), claim.generation, sum) == claim.mac;
        if survey.vouch(keys, &fits) || mutated(Mutation::RootUnchecked) {
            survey.generation = claim.generation;
            return Ok(survey);
        }
    }
    Err(Error::CorruptRegion(
        "no root vouches for its table: entries, bitmap or progress fields were changed or replayed".into(),
    ))
}

fn in_flight(
    medium: &dyn Medium,
    geometry: &Geometry,
    keys: &Keys,
    session: &[u8; 32],
) -> Result<Vec<InFlight>, Error> {
    let mut found: Vec<InFlight> = Vec::new();
    for worker in 0..geometry.workers() {
        let corrupt = |what: String| Error::CorruptRegion(format!("worker {worker}: {what}"));
        let word = medium.load(geometry.worker_at(worker))?;
        let Some(Progress { page, direction, .. }) = Progress::decode(word).map_err(corrupt)? else {
            continue;
        };
        if page >= geometry.pages() || found.iter().any(|other| other.page == page) {
            return Err(corrupt(format!("its progress field names page {page}, which cannot be")));
        }
        let mut bytes = [0; LOG_SIZE];
        medium.read(geometry.worker_at(worker) + LOG_AT, &mut bytes)?;
        let Log { old, new, mac } = Log::decode(&bytes).map_err(corrupt)?;
        let authentic = match direction {
            Direction::Encrypt => new.is_some() && keys.verify_log(session, worker, page, &old, &new, &mac),
            Direction::Decrypt => old.is_some() && new.is_none(),
        };
        if !authentic {
            return Err(corrupt(format!("its log for page {page} is none that this session wrote")));
        }
        found.push(InFlight { worker, page, direction, old, new, vouched: None });
    }
    Ok(found)
}

/// The states of all pages that are not under way, and what they add up to.
fn table(
    medium: &dyn Medium,
    geometry: &Geometry,
    keys: &Keys,
    in_flight: &[InFlight],
    progress: &dyn Fn(u64, u64),
) -> Result<(Vec<u8>, Sum), Error> {
    let (mut states, mut sum) = (Vec::new(), Sum::default());
    let mut lines = [0; 64 * ENTRY_SIZE];
    for first in (0..geometry.pages()).step_by(64) {
        let count = usize::try_from(geometry.pages() - first).map_or(64, |left| left.min(64));
        let word = medium.load(geometry.bitmap_at(first))?;
        medium.read(geometry.entry_at(first), &mut lines[..count * ENTRY_SIZE])?;
        let (entries, _) = lines.as_chunks::<ENTRY_SIZE>();
        for (page, entry) in (first..).zip(&entries[..count]) {
            if in_flight.iter().any(|other| other.page == page) {
                states.push(0);
            } else if word >> (page % 64) & 1 == 0 {
                states.push(OPEN);
            } else {
                let entry = Entry::decode(entry).ok_or_else(|| {
                    Error::CorruptRegion(format!(
                        "the table has no entry for page {page}, which is encrypted"
                    ))
                })?;
                sum ^= keys.share(page, &Some(entry));
                states.push(if entry.unverified { UNVERIFIED } else { 0 });
            }
        }
        progress(first + count as u64, geometry.pages());
    }
    Ok((states, sum))
}

impl Survey {
    /// Looks for states of the pages under way with which everything adds up to what a root vouches for.
    fn vouch(&mut self, keys: &Keys, fits: &dyn Fn(&Sum) -> bool) -> bool {
        let choices: Vec<[(State, Sum); 3]> = self
            .in_flight
            .iter()
            .map(|it| it.states().map(|state| (state, keys.share(it.page, &state))))
            .collect();
        let combinations = 3_usize.pow(u32::try_from(choices.len()).unwrap_or(u32::MAX));
        // At most eight workers, so the last place is the seventh.
        let digit = |combination: usize, place: usize| (0..place).fold(combination, |rest, _| rest / 3) % 3;
        let found = (0..combinations).find(|combination| {
            let mut sum = self.rest;
            choices.iter().enumerate().for_each(|(i, choice)| sum ^= choice[digit(*combination, i)].1);
            fits(&sum)
        });
        if let Some(combination) = found {
            for (i, it) in self.in_flight.iter_mut().enumerate() {
                it.vouched = choices[i][digit(combination, i)].0;
            }
        }
        found.is_some()
    }

    /// Whether a page is encrypted, and no worker had it under way.
    pub(crate) fn is_settled_and_encrypted(&self, page: u64) -> bool {
        let state = usize::try_from(page).ok().and_then(|index| self.states.get(index));
        state.is_some_and(|state| state & OPEN == 0) && self.in_flight.iter().all(|it| it.page != page)
    }

    /// What becomes of each page that was under way.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub(crate) fn outcomes(
        &self,
        medium: &dyn Medium,
        geometry: &Geometry,
        keys: &Keys,
    ) -> Result<Vec<(u64, Outcome)>, Error> {
        self.in_flight.iter().map(|it| Ok((it.page, resolve(medium, geometry, keys, it)?))).collect()
    }

    /// How it stands before anything is done.
    pub(crate) fn report(&self) -> Report {
        let count = |flag| self.states.iter().filter(|state| **state & flag != 0).count() as u64;
        let of = |direction| self.in_flight.iter().filter(|it| it.direction == direction).count() as u64;
        Report {
            finished: of(Direction::Encrypt),
            undone: of(Direction::Decrypt),
            open: count(OPEN),
            corrupt: 0,
            unverified: count(UNVERIFIED),
        }
    }

    /// Finishes and undoes what was under way. Returns the root in force, and the state of each page.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub(crate) fn settle(
        mut self,
        medium: &dyn Medium,
        header: &Header,
        keys: &Keys,
        report: &mut Report,
    ) -> Result<(Root, Vec<u8>), Error> {
        let geometry = &header.geometry;
        let mut root = Root { generation: self.generation, sum: self.rest };
        if self.in_flight.is_empty() {
            report.unverified += report.open;
            return Ok((root, self.states));
        }
        let clear_first = mutated(Mutation::RecoveryClearsFirst);
        if clear_first {
            self.clear(medium, geometry)?;
        }
        for it in &self.in_flight {
            let state = put_in_place(medium, geometry, keys, it, report)?;
            root.sum ^= keys.share(it.page, &state);
            let index = usize::try_from(it.page).expect("64-bit, as seal demands");
            self.states[index] = match &state {
                None => OPEN,
                Some(entry) if entry.unverified => UNVERIFIED,
                Some(_) => 0,
            };
        }
        medium.fence()?;
        root.generation += 1;
        root.store(medium, geometry, keys, header.roots_session())?;
        medium.fence()?;
        if !clear_first {
            self.clear(medium, geometry)?;
        }
        report.unverified = self.states.iter().filter(|state| **state != 0).count() as u64;
        Ok((root, self.states))
    }

    fn clear(&self, medium: &dyn Medium, geometry: &Geometry) -> Result<(), Error> {
        for it in &self.in_flight {
            let at = geometry.worker_at(it.worker);
            medium.store(at, 0)?;
            medium.write_back(at, 8)?;
        }
        Ok(medium.fence()?)
    }
}

/// What becomes of a page that was under way.
pub(crate) struct Outcome {
    /// Its state.
    pub(crate) state: State,
    /// The ciphertext to put in place, if it is not there.
    sealed: Option<Vec<u8>>,
    /// Whether it is encrypted, and nothing opens.
    pub(crate) is_corrupt: bool,
}

/// Finds what becomes of a page that was under way. A crash leaves a buffer that opens. Where it does not, somebody else wrote to the medium, and
/// only a page that opens in the state for which the root vouches is believed: the progress field that calls it under way proves nothing.
///
/// # Errors
/// [`Error::Medium`].
fn resolve(medium: &dyn Medium, geometry: &Geometry, keys: &Keys, it: &InFlight) -> Result<Outcome, Error> {
    let size = usize::try_from(geometry.page_size()).expect("a page fits into memory");
    let (mut content, mut plain) = (vec![0; size], Zeroizing::new(vec![0; size]));
    let mut opens = |at: u64, state: &State| -> Result<Option<Vec<u8>>, Error> {
        let Some(entry) = state else { return Ok(None) };
        medium.read(at, &mut content)?;
        let opened = keys.open(it.page, entry, &content, &mut plain);
        Ok(opened.is_ok().then(|| content.clone()))
    };
    let (outcome, page_at) = (it.outcome(), geometry.page_at(it.page));
    if let Some(sealed) = opens(geometry.buffer_at(it.worker), &outcome)? {
        return Ok(Outcome { state: outcome, sealed: Some(sealed), is_corrupt: false });
    }
    let mut possible = vec![outcome, it.vouched];
    if mutated(Mutation::OldStateBelieved) {
        possible.push(it.old);
    }
    for state in possible {
        if opens(page_at, &state)?.is_some() {
            return Ok(Outcome { state, sealed: None, is_corrupt: false });
        }
    }
    let called_open = mutated(Mutation::CorruptCalledOpen) && it.direction == Direction::Decrypt;
    if it.vouched.is_none() || called_open {
        // The root says that it is open, so nothing vouches for its content: it will be marked.
        return Ok(Outcome { state: None, sealed: None, is_corrupt: false });
    }
    Ok(Outcome { state: it.vouched, sealed: None, is_corrupt: true })
}

/// Puts the buffer's ciphertext in place, and entry and bitmap with it; without a fence. Returns the state that the page has then.
fn put_in_place(
    medium: &dyn Medium,
    geometry: &Geometry,
    keys: &Keys,
    it: &InFlight,
    report: &mut Report,
) -> Result<State, Error> {
    let Outcome { state, sealed, is_corrupt } = resolve(medium, geometry, keys, it)?;
    if let Some(sealed) = sealed {
        medium.write(geometry.page_at(it.page), &sealed)?;
        medium.write_back(geometry.page_at(it.page), geometry.page_size())?;
    }
    report.corrupt += u64::from(is_corrupt);
    if let Some(entry) = &state {
        medium.write(geometry.entry_at(it.page), &entry.encode())?;
        medium.write_back(geometry.entry_at(it.page), ENTRY_SIZE as u64)?;
    } else {
        report.open += 1;
    }
    let (at, bit) = (geometry.bitmap_at(it.page), 1 << (it.page % 64));
    let word = medium.load(at)?;
    medium.store(at, if state.is_some() { word | bit } else { word & !bit })?;
    medium.write_back(at, 8)?;
    Ok(state)
}
