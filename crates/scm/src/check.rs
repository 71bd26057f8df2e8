//! A look at every page that changes nothing.

use std::sync::Arc;

use seal::Random;
use seal::slot::Credential;
use zeroize::Zeroizing;

use crate::Error;
use crate::entry::{ENTRY_SIZE, Entry};
use crate::header::Header;
use crate::keys::Keys;
use crate::medium::Medium;
use crate::recovery::{self, Report};
use crate::unlock;

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// What recovery would do.
    pub report: Report,
    /// Pages that do not open, at most [`MOST`]: changed or replayed on the medium.
    pub corrupt: Vec<u64>,
    /// Pages that are marked `Unverified`, at most [`MOST`].
    pub unverified: Vec<u64>,
    /// How many there are in all.
    pub corrupt_pages: u64,
}

/// Most pages of a kind that are named.
pub const MOST: usize = 100;

/// Checks header, roots, table and bitmap, and opens every encrypted page, also those that a worker had under way. `progress` hears how many of
/// all pages were opened.
///
/// # Errors
/// As [`Engine::open`](crate::Engine::open).
pub fn check(
    medium: &dyn Medium,
    credential: &Credential,
    random: Arc<dyn Random>,
    progress: &dyn Fn(u64, u64),
) -> Result<Checked, Error> {
    let (headers, key) = unlock::unlock(medium, credential)?;
    let keys = Keys::of(key, &headers, random);
    let (unlocked, survey) = recovery::find(medium, headers, &keys, &|_, _| {})?;
    let geometry = unlocked.header.geometry;
    let mut checked =
        Checked { report: survey.report(), corrupt: Vec::new(), unverified: Vec::new(), corrupt_pages: 0 };
    for (page, outcome) in survey.outcomes(medium, &geometry, &keys)? {
        checked.count_corrupt(outcome.is_corrupt.then_some(page));
        checked.report.open += u64::from(outcome.state.is_none());
    }
    let size = usize::try_from(geometry.page_size()).expect("a page fits into memory");
    let (mut content, mut plain) = (vec![0; size], Zeroizing::new(vec![0; size]));
    for page in 0..geometry.pages() {
        if survey.is_settled_and_encrypted(page) {
            let mut line = [0; ENTRY_SIZE];
            medium.read(geometry.entry_at(page), &mut line)?;
            medium.read(geometry.page_at(page), &mut content)?;
            let entry = Entry::decode(&line);
            if entry.is_some_and(|entry| entry.unverified) && checked.unverified.len() < MOST {
                checked.unverified.push(page);
            }
            let opened = entry.is_some_and(|entry| keys.open(page, &entry, &content, &mut plain).is_ok());
            checked.count_corrupt((!opened).then_some(page));
        }
        progress(page + 1, geometry.pages());
    }
    checked.corrupt.sort_unstable();
    Ok(checked)
}

impl Checked {
    fn count_corrupt(&mut self, page: Option<u64>) {
        let Some(page) = page else { return };
        self.corrupt_pages += 1;
        if self.corrupt.len() < MOST {
            self.corrupt.push(page);
        }
    }
}

/// What was salvaged of a region.
#[derive(Debug)]
pub struct Salvaged {
    /// Bytes of data.
    pub length: u64,
    /// Pages that open.
    pub opened: u64,
    /// Pages that do not, at most [`MOST`].
    pub lost: Vec<u64>,
    /// How many there are in all.
    pub lost_pages: u64,
    /// Why the region as a whole is not as it was left, if it is not.
    pub damage: Option<Error>,
}

/// Opens each page by its table entry alone, and hands its place and content to `write`: a root, a bitmap, a progress field or an entry that is
/// damaged costs no other page. Each page that opens was sealed for its place in this region; without a root nothing tells its latest content from
/// an older one. `progress` hears how many of all pages were looked at.
///
/// # Errors
/// As [`Engine::open`](crate::Engine::open), but not for damage of what it does not need; [`Error::Io`] of `write`.
pub fn salvage(
    medium: &dyn Medium,
    credential: &Credential,
    random: Arc<dyn Random>,
    write: &mut dyn FnMut(u64, &[u8]) -> std::io::Result<()>,
    progress: &dyn Fn(u64, u64),
) -> Result<Salvaged, Error> {
    let (headers, key) = unlock::unlock(medium, credential)?;
    let keys = Keys::of(key, &headers, random);
    let geometry = headers[0].header.geometry;
    let damage = match recovery::find(medium, headers, &keys, &|_, _| {}) {
        Ok(_) => None,
        Err(error @ Error::CorruptRegion(_)) => Some(error),
        Err(error) => return Err(error),
    };
    let mut found =
        Salvaged { length: geometry.data_len(), opened: 0, lost: Vec::new(), lost_pages: 0, damage };
    let size = usize::try_from(geometry.page_size()).expect("a page fits into memory");
    let (mut content, mut plain) = (vec![0; size], Zeroizing::new(vec![0; size]));
    for page in 0..geometry.pages() {
        let mut line = [0; ENTRY_SIZE];
        medium.read(geometry.entry_at(page), &mut line)?;
        medium.read(geometry.page_at(page), &mut content)?;
        let opened =
            Entry::decode(&line).is_some_and(|entry| keys.open(page, &entry, &content, &mut plain).is_ok());
        if opened {
            found.opened += 1;
            write(geometry.page_at(page), &plain)
                .map_err(|error| Error::io(format!("writing page {page}"), error))?;
        } else {
            found.lost_pages += 1;
            if found.lost.len() < MOST {
                found.lost.push(page);
            }
        }
        progress(page + 1, geometry.pages());
    }
    Ok(found)
}

/// What the bitmap of a region says, without a key: nothing of it is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimed {
    /// Pages that are open.
    pub open: u64,
    /// Pages that are marked `Unverified`.
    pub unverified: u64,
    /// Workers that had a page under way.
    pub under_way: u64,
}

impl Claimed {
    /// As Prometheus reads it, of a region with so many pages.
    #[must_use]
    pub fn metrics(&self, pages: u64) -> String {
        let gauge =
            |(name, value): (&str, u64)| format!("# TYPE cvmio_scm_{name} gauge\ncvmio_scm_{name} {value}\n");
        let all = [
            ("pages_open", self.open),
            ("pages_encrypted", pages - self.open),
            ("pages_unverified", self.unverified),
            ("pages_under_way", self.under_way),
        ];
        all.map(gauge).concat()
    }
}

/// Counts the bitmap, the table's marks and the progress fields.
///
/// # Errors
/// [`Error::Medium`].
pub fn claimed(medium: &dyn Medium, header: &Header) -> Result<Claimed, Error> {
    let geometry = &header.geometry;
    let mut counts = Claimed { open: 0, unverified: 0, under_way: 0 };
    for page in 0..geometry.pages() {
        if medium.load(geometry.bitmap_at(page))? >> (page % 64) & 1 == 0 {
            counts.open += 1;
        } else if medium.load(geometry.entry_at(page) + 32)? >> 48 & 1 == 1 {
            counts.unverified += 1;
        }
    }
    for worker in 0..geometry.workers() {
        counts.under_way += u64::from(medium.load(geometry.worker_at(worker))? != 0);
    }
    Ok(counts)
}
