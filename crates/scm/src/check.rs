//! A look at every page that changes nothing.

use std::sync::Arc;

use seal::Random;
use seal::slot::Credential;

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

/// Checks header, roots, table and bitmap, and opens every encrypted page that no worker had under way. `progress` hears how many of all
/// pages were opened.
///
/// # Errors
/// As [`Engine::open`](crate::Engine::open).
pub fn check(
    medium: &dyn Medium,
    credential: &Credential,
    random: Arc<dyn Random>,
    progress: &dyn Fn(u64, u64),
) -> Result<Checked, Error> {
    let (unlocked, key) = unlock::unlock(medium, credential)?;
    let Header { suite, id, geometry, session, .. } = unlocked.header;
    let keys = Keys::new(key, suite, id, &geometry, random);
    let survey = recovery::survey(medium, &geometry, &keys, &session, &|_, _| {})?;
    let mut checked =
        Checked { report: survey.report(), corrupt: Vec::new(), unverified: Vec::new(), corrupt_pages: 0 };
    let size = usize::try_from(geometry.page_size()).expect("a page fits into memory");
    let (mut content, mut plain) = (vec![0; size], vec![0; size]);
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
            if !opened {
                checked.corrupt_pages += 1;
                if checked.corrupt.len() < MOST {
                    checked.corrupt.push(page);
                }
            }
        }
        progress(page + 1, geometry.pages());
    }
    Ok(checked)
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
