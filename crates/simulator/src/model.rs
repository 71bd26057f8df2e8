//! What a correct volume may answer.
//!
//! Per logical block the model keeps every change since the last recovery, with the moments at which it was asked for and at which it
//! was answered. A value is *dead* at a moment when some later change (asked for after the value's own was answered) was answered by
//! then. A read may return what is not dead when it begins and was asked for before it ends. A crash may leave what no later change
//! that is known to be durable has killed. After a recovery everything is read, and the model knows one value per block again.

use volume::format::protections::Freshness;

/// What may be lost at a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// What was flushed stays.
    Flushed,
    /// What was flushed stays as far as journal record `n` (level `interval`, when the host discards what the anchor does not cover).
    Anchored(u64),
    /// Any content that a block ever had (level `off`, when the host is dishonest).
    Whatever,
}

#[derive(Debug, Clone)]
struct Change {
    /// Version, 0 for zeros.
    version: u64,
    begin: u64,
    end: Option<u64>,
    /// It happened; else it may have happened (failed, or cut off by a crash).
    certain: bool,
    /// It was durable when it was answered; the journal's generation then.
    durable: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Flush {
    begin: u64,
    /// The journal's generation when it was answered: its own commit is not behind that.
    generation: u64,
}

#[derive(Debug, Clone, Copy)]
struct Commit {
    begin: u64,
    end: Option<u64>,
    certain: bool,
}

/// The reference model of one volume.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    freshness: Freshness,
    now: u64,
    blocks: Vec<Vec<Change>>,
    /// All versions that each block ever had.
    ever: Vec<Vec<u64>>,
    flushes: Vec<Flush>,
    commits: Vec<Commit>,
}

impl Model {
    pub(crate) fn new(blocks: u64, freshness: Freshness) -> Self {
        let count = usize::try_from(blocks).expect("a simulated volume is small");
        let zero = Change { version: 0, begin: 0, end: Some(0), certain: true, durable: Some(0) };
        Self {
            freshness,
            now: 0,
            blocks: vec![vec![zero]; count],
            ever: vec![vec![0]; count],
            flushes: Vec::new(),
            commits: vec![Commit { begin: 0, end: Some(0), certain: true }],
        }
    }

    /// The volume has grown: what is new is zeros, and has never been anything else.
    pub(crate) fn grow(&mut self, blocks: u64) {
        let count = usize::try_from(blocks).expect("a simulated volume is small");
        let zero = Change { version: 0, begin: 0, end: Some(0), certain: true, durable: Some(0) };
        self.blocks.resize(count, vec![zero]);
        self.ever.resize(count, vec![0]);
    }

    /// A new moment.
    pub(crate) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn at(&mut self, block: u64) -> &mut Vec<Change> {
        &mut self.blocks[usize::try_from(block).expect("in range")]
    }

    /// A write or discard was asked for: block `first + i` gets `versions(i)`. The moment names it from now on.
    pub(crate) fn begin_change(&mut self, first: u64, blocks: u64, version: impl Fn(u64) -> u64) -> u64 {
        let begin = self.tick();
        for offset in 0..blocks {
            let version = version(offset);
            self.at(first + offset).push(Change { version, begin, end: None, certain: false, durable: None });
            self.ever[usize::try_from(first + offset).expect("in range")].push(version);
        }
        begin
    }

    /// Somebody who has no say any more writes: block `first + i` gets version `version + i`.
    pub(crate) fn note_late(&mut self, first: u64, blocks: u64, version: u64) {
        for offset in 0..blocks {
            self.ever[usize::try_from(first + offset).expect("in range")].push(version + offset);
        }
    }

    /// It was answered: with success or not, and durable or not.
    pub(crate) fn end_change(
        &mut self,
        first: u64,
        blocks: u64,
        begin: u64,
        success: bool,
        durable: Option<u64>,
    ) {
        let end = self.tick();
        for block in first..first + blocks {
            for change in self.at(block).iter_mut().filter(|change| change.begin == begin) {
                change.end = Some(end);
                change.certain = success;
                change.durable = durable.filter(|_| success);
            }
        }
    }

    pub(crate) fn end_flush(&mut self, begin: u64, generation: u64) {
        self.flushes.push(Flush { begin, generation });
    }

    pub(crate) fn begin_commit(&mut self) -> u64 {
        let begin = self.tick();
        self.commits.push(Commit { begin, end: None, certain: false });
        begin
    }

    pub(crate) fn end_commit(&mut self, begin: u64, success: bool) {
        let end = self.tick();
        for commit in self.commits.iter_mut().filter(|commit| commit.begin == begin) {
            commit.end = Some(end);
            commit.certain = success;
        }
    }

    /// Whether a read that began at `begin` and ends now may have returned `version`; else what it might have.
    pub(crate) fn check_read(&self, block: u64, version: u64, begin: u64) -> Result<(), String> {
        let legal = self.legal(block, begin);
        if legal.contains(&version) {
            return Ok(());
        }
        Err(format!("block {block} reads as {}, expected {}", name(version), names(&legal)))
    }

    /// The same for whether something is there.
    pub(crate) fn check_allocation(&self, block: u64, allocated: bool, begin: u64) -> Result<(), String> {
        let legal = self.legal(block, begin);
        if legal.iter().any(|version| (*version != 0) == allocated) {
            return Ok(());
        }
        let told = if allocated { "something" } else { "nothing" };
        Err(format!("block {block} is said to hold {told}, and it is {}", names(&legal)))
    }

    /// Whether it has had this version and no other since.
    pub(crate) fn is_settled(&self, block: u64, version: u64, begin: u64) -> bool {
        self.legal(block, begin).iter().all(|legal| *legal == version)
    }

    /// Whether each of these blocks has held something at each moment between `begin` and now.
    pub(crate) fn all_held_something(&self, first: u64, blocks: u64, begin: u64) -> bool {
        (first..first + blocks).all(|block| self.legal(block, begin).iter().all(|version| *version != 0))
    }

    /// The versions that a block may have had at a moment between `begin` and now.
    fn legal(&self, block: u64, begin: u64) -> Vec<u64> {
        let changes = &self.blocks[usize::try_from(block).expect("in range")];
        let alive = |change: &Change| {
            !changes.iter().any(|killer| {
                killer.certain
                    && killer.end.is_some_and(|end| end <= begin)
                    && change.end.is_some_and(|end| killer.begin > end)
            })
        };
        changes.iter().filter(|change| alive(change)).map(|change| change.version).collect()
    }

    /// Whether the block ever had this version.
    pub(crate) fn ever_had(&self, block: u64, version: u64) -> bool {
        self.ever[usize::try_from(block).expect("in range")].contains(&version)
    }

    /// Compares what was found after a crash (`None`: unreadable), and believes it from now on.
    pub(crate) fn recover(&mut self, found: &[Option<u64>], promise: Promise) -> Result<(), String> {
        match (promise, self.freshness) {
            (Promise::Whatever, _) => self.check_ever(found)?,
            (_, Freshness::Transaction) => self.check_transaction(found)?,
            _ => self.check_flushed(found, promise)?,
        }
        let now = self.tick();
        for (changes, version) in self.blocks.iter_mut().zip(found) {
            if let Some(version) = *version {
                changes.clear();
                changes.push(Change { version, begin: now, end: Some(now), certain: true, durable: Some(0) });
            } else {
                for change in changes {
                    change.certain = false;
                    change.end.get_or_insert(now);
                }
            }
        }
        self.flushes.clear();
        self.commits = vec![Commit { begin: now, end: Some(now), certain: true }];
        Ok(())
    }

    fn check_ever(&self, found: &[Option<u64>]) -> Result<(), String> {
        for (block, version) in (0u64..).zip(found) {
            if let Some(version) = version.filter(|version| !self.ever_had(block, *version)) {
                return Err(format!("block {block} reads as {}, which it never was", name(version)));
            }
        }
        Ok(())
    }

    fn check_flushed(&self, found: &[Option<u64>], promise: Promise) -> Result<(), String> {
        let covered = |generation: u64| match promise {
            Promise::Anchored(anchored) => generation <= anchored,
            _ => true,
        };
        let floor = self
            .flushes
            .iter()
            .filter(|flush| covered(flush.generation))
            .map(|flush| flush.begin)
            .max()
            .unwrap_or(0);
        let floor = floor.max(self.latest(found));
        for (block, (changes, version)) in (0u64..).zip(self.blocks.iter().zip(found)) {
            let Some(version) = *version else { continue };
            let alive = |change: &Change| {
                !changes.iter().any(|killer| {
                    let durable =
                        killer.durable.is_some_and(covered) || killer.end.is_some_and(|end| end <= floor);
                    killer.certain && durable && change.end.is_some_and(|end| killer.begin > end)
                })
            };
            let legal: Vec<u64> =
                changes.iter().filter(|change| alive(change)).map(|change| change.version).collect();
            if !legal.contains(&version) {
                return Err(format!(
                    "after recovery block {block} is {}, expected {} ({promise:?}, flushed up to moment {floor})",
                    name(version),
                    names(&legal)
                ));
            }
        }
        Ok(())
    }

    /// The moment at which the latest change was asked for that was found. What had been answered by then is there as well, flushed or
    /// not: a state is one that existed.
    fn latest(&self, found: &[Option<u64>]) -> u64 {
        let blocks = self.blocks.iter().zip(found);
        let begins = blocks.filter_map(|(changes, version)| {
            let version = (*version)?;
            // A version that several changes made may be the oldest of them.
            changes.iter().filter(|change| change.version == version).map(|change| change.begin).min()
        });
        begins.max().unwrap_or(0)
    }

    /// All blocks must be as one commit left them: the last that was answered, or one that was under way.
    fn check_transaction(&self, found: &[Option<u64>]) -> Result<(), String> {
        let done = || self.commits.iter().filter(|commit| commit.certain);
        let floor = done().map(|commit| commit.begin).max().unwrap_or(0);
        let ceiling = done().filter_map(|commit| commit.end).max().unwrap_or(0);
        let mut candidates = vec![(floor, ceiling)];
        let open = self.commits.iter().filter(|commit| !commit.certain);
        candidates.extend(open.map(|commit| (floor.max(commit.begin), commit.end.unwrap_or(u64::MAX))));
        let mut complaints = Vec::new();
        for (floor, ceiling) in candidates {
            match self.check_cut(found, floor, ceiling) {
                Ok(()) => return Ok(()),
                Err(complaint) => complaints.push(complaint),
            }
        }
        Err(format!("after recovery no commit explains the content: {}", complaints.join("; ")))
    }

    /// The state at some moment between `floor` and `ceiling`.
    fn check_cut(&self, found: &[Option<u64>], floor: u64, ceiling: u64) -> Result<(), String> {
        for (block, (changes, version)) in (0u64..).zip(self.blocks.iter().zip(found)) {
            let Some(version) = *version else { continue };
            let legal: Vec<u64> = changes
                .iter()
                .filter(|change| {
                    change.begin <= ceiling
                        && !changes.iter().any(|killer| {
                            killer.certain
                                && killer.end.is_some_and(|end| end <= floor)
                                && change.end.is_some_and(|end| killer.begin > end)
                        })
                })
                .map(|change| change.version)
                .collect();
            if !legal.contains(&version) {
                return Err(format!(
                    "block {block} is {}, the commit of moment {floor} to {ceiling} left {}",
                    name(version),
                    names(&legal)
                ));
            }
        }
        Ok(())
    }
}

fn name(version: u64) -> String {
    if version == 0 { "zeros".into() } else { format!("version {version}") }
}

fn names(versions: &[u64]) -> String {
    let names: Vec<String> = versions.iter().map(|version| name(*version)).collect();
    if names.is_empty() { "nothing".into() } else { names.join(" or ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(freshness: Freshness) -> Model {
        Model::new(2, freshness)
    }

    fn write(model: &mut Model, version: u64) -> u64 {
        let begin = model.begin_change(0, 1, |_| version);
        model.end_change(0, 1, begin, true, None);
        begin
    }

    #[test]
    fn a_read_returns_the_last_write_or_one_in_flight() {
        let mut model = model(Freshness::Strict);
        write(&mut model, 1);
        write(&mut model, 2);
        model.begin_change(0, 1, |_| 3);
        let now = model.tick();
        assert!(model.check_read(0, 2, now).is_ok());
        assert!(model.check_read(0, 3, now).is_ok());
        assert!(model.check_read(0, 1, now).is_err());
        assert!(model.check_read(0, 0, now).is_err());
    }

    #[test]
    fn a_crash_keeps_what_was_flushed_and_perhaps_more() {
        for (found, legal) in [(0, false), (1, false), (2, true), (3, true), (9, false)] {
            let mut model = model(Freshness::Strict);
            write(&mut model, 1);
            write(&mut model, 2);
            let flush = model.tick();
            model.end_flush(flush, 5);
            write(&mut model, 3);
            let result = model.recover(&[Some(found), Some(0)], Promise::Flushed);
            assert_eq!(result.is_ok(), legal, "{found}: {result:?}");
        }
    }

    #[test]
    fn what_the_anchor_does_not_cover_may_go_when_the_host_is_dishonest() {
        let mut model = model(Freshness::Interval);
        write(&mut model, 1);
        let flush = model.tick();
        model.end_flush(flush, 5);
        assert!(model.clone().recover(&[Some(0), Some(0)], Promise::Anchored(4)).is_ok());
        assert!(model.clone().recover(&[Some(0), Some(0)], Promise::Anchored(5)).is_err());
        assert!(model.recover(&[Some(0), Some(0)], Promise::Flushed).is_err());
    }

    #[test]
    fn a_transaction_is_all_or_nothing() {
        let mut model = model(Freshness::Transaction);
        for block in [0, 1] {
            let begin = model.begin_change(block, 1, |_| 7 + block);
            model.end_change(block, 1, begin, true, None);
        }
        assert!(
            model.clone().recover(&[Some(7), Some(8)], Promise::Flushed).is_err(),
            "nothing was committed"
        );
        assert!(model.clone().recover(&[Some(0), Some(0)], Promise::Flushed).is_ok());
        let commit = model.begin_commit();
        assert!(model.clone().recover(&[Some(7), Some(8)], Promise::Flushed).is_ok());
        assert!(model.clone().recover(&[Some(7), Some(0)], Promise::Flushed).is_err(), "half a transaction");
        model.end_commit(commit, true);
        assert!(model.clone().recover(&[Some(0), Some(0)], Promise::Flushed).is_err(), "a commit was lost");
    }
}
