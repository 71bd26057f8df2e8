//! What somebody can do who has the medium while nothing runs.

use std::sync::Arc;

use scm::{Error, Fault, Geometry, Medium};

use crate::campaign::{Campaign, Content, PAGE, told};
use crate::crash_medium::CrashMedium;

/// Copies a range from one image into another.
fn plant(from: &[u64], to: &mut [u64], at: u64, len: u64) {
    let range = usize::try_from(at / 8).expect("small")..usize::try_from((at + len) / 8).expect("small");
    to[range.clone()].copy_from_slice(&from[range]);
}

fn read(campaign: &Campaign, image: &[u64], page: u64) -> Result<Content, Error> {
    let medium = Arc::new(CrashMedium::new(image));
    let (engine, _) = campaign.open(&medium)?;
    let mut content = [0; PAGE];
    engine.read(page, 0, &mut content)?;
    // Opened in place it must tell the same.
    engine.open_page(page)?;
    Ok(content)
}

/// Writes a content to page 0, and returns the image behind a clean stop.
fn write(campaign: &mut Campaign, image: &[u64]) -> Result<Vec<u64>, String> {
    let medium = Arc::new(CrashMedium::new(image));
    let (engine, _) = campaign.open(&medium).map_err(told("opening"))?;
    for page in 0..2 {
        let content = campaign.content();
        engine.write(page, 0, &content).map_err(told("writing"))?;
        engine.open_page(page).map_err(told("opening a page"))?;
    }
    engine.stop().map_err(told("stopping"))?;
    drop(engine);
    let image = medium.now();
    campaign.audit(&image)?;
    Ok(image)
}

fn is_caught<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::CorruptPage { .. } | Error::CorruptRegion(_)))
}

/// Every attack, each against a clean region with two states in its past.
pub fn all() -> Result<(), String> {
    let (mut campaign, fresh, _) = Campaign::new(3, 4, 2)?;
    let old = write(&mut campaign, &fresh)?;
    let now = write(&mut campaign, &old)?;
    let Geometry { .. } = campaign.geometry;
    let geometry = campaign.geometry;
    let mut failed = Vec::new();
    let mut attack = |name: &str, image: Vec<u64>, caught: bool| {
        let result = read(&campaign, &image, 0);
        if is_caught(&result) != caught {
            failed.push(format!(
                "{name}: {}",
                result.map_or_else(|error| error.to_string(), |_| "read as good".into())
            ));
        }
    };
    let page = |n: u64| (geometry.page_at(n), PAGE as u64);
    let entry = |n: u64| (geometry.entry_at(n), 64);
    let with = |from: &[u64], parts: &[(u64, u64)]| {
        let mut image = now.clone();
        parts.iter().for_each(|(at, len)| plant(from, &mut image, *at, *len));
        image
    };
    attack("nothing", now.clone(), false);
    let mut flipped = now.clone();
    flipped[usize::try_from(geometry.page_at(0) / 8).expect("small")] ^= 1 << 17;
    attack("a bit flipped", flipped, true);
    attack("a page replayed", with(&old, &[page(0)]), true);
    attack("a page replayed with its entry", with(&old, &[page(0), entry(0)]), true);
    let bitmap = (geometry.bitmap_at(0), 8);
    attack("all but the roots replayed", with(&old, &[page(0), entry(0), page(1), entry(1), bitmap]), true);
    let mut swapped = now.clone();
    for (to, from) in [(page(0), page(1)), (entry(0), entry(1))] {
        let (to, from) =
            (usize::try_from(to.0 / 8).expect("small"), usize::try_from(from.0 / 8).expect("small"));
        let moved: Vec<u64> = now[from..from + 8].to_vec();
        swapped[to..to + 8].copy_from_slice(&moved);
    }
    attack("a page moved with its entry", swapped, true);
    let mut opened = now.clone();
    opened[usize::try_from(geometry.bitmap_at(0) / 8).expect("small")] &= !1;
    attack("an encrypted page called open", opened, true);
    let roots = (geometry.root_at(0), geometry.root_at(2) - geometry.root_at(0));
    attack("the roots replayed", with(&old, &[roots]), true);
    // There is no anchor: a whole old region cannot be told from the latest.
    attack("the whole region replayed", old.clone(), false);
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

/// A page that was sealed for one place opens in no other, even where the root is made to agree: by the engine itself, which moved it.
pub fn forged_log() -> Result<(), String> {
    let (mut campaign, fresh, _) = Campaign::new(4, 4, 2)?;
    let old = write(&mut campaign, &fresh)?;
    let now = write(&mut campaign, &old)?;
    let geometry = campaign.geometry;
    let word = |at: u64| usize::try_from(at / 8).expect("small");
    // "Worker 0 was about to write the old content again": progress, log and buffer, all of genuine parts.
    let mut forged = now.clone();
    let worker = geometry.worker_at(0);
    forged[word(worker)] = 0b101;
    for i in 0..8 {
        forged[word(worker + 64) + i] = now[word(geometry.entry_at(0)) + i];
        forged[word(worker + 128) + i] = old[word(geometry.entry_at(0)) + i];
        forged[word(geometry.buffer_at(0)) + i] = old[word(geometry.page_at(0)) + i];
    }
    match read(&campaign, &forged, 0) {
        Err(Error::CorruptRegion(_)) => Ok(()),
        Err(error) => Err(format!("a forged log: {error}")),
        Ok(_) => Err("a forged log brought old content back".into()),
    }
}

/// "Page 0 was under way" is written into a worker block behind a clean stop, and other bytes into the page: nobody needs a key for that. The
/// adversary may have seen the medium before.
pub fn forged_progress() -> Result<(), String> {
    let (mut campaign, fresh, _) = Campaign::new(7, 4, 2)?;
    let old = write(&mut campaign, &fresh)?;
    let now = write(&mut campaign, &old)?;
    let geometry = campaign.geometry;
    let word = |at: u64| usize::try_from(at / 8).expect("small");
    let (page, worker, buffer) = (geometry.page_at(0), geometry.worker_at(0), geometry.buffer_at(0));
    let planted = |image: &mut Vec<u64>, at: u64, value: u64| image[word(at)..][..PAGE / 8].fill(value);
    let progress = |direction: u64| {
        let mut image = now.clone();
        image[word(worker)] = direction | 1;
        planted(&mut image, page, 0x4141_4141_4141_4141);
        planted(&mut image, buffer, 0x4242_4242_4242_4242);
        image
    };
    // It was being opened: its present entry, and 96 zeros.
    let mut opening = progress(0);
    plant(&now, &mut opening, geometry.entry_at(0), 64);
    let entry: Vec<u64> = now[word(geometry.entry_at(0))..][..8].to_vec();
    opening[word(worker + 64)..][..8].copy_from_slice(&entry);
    opening[word(worker + 128)..][..12].fill(0);
    // It was being encrypted: each log that a worker has left behind is genuine. The last one that names the page counts.
    let mut images = vec![("a page called under way, to be opened", opening)];
    for from in 0..2 {
        let mut left = progress(4);
        plant(&now, &mut left, geometry.worker_at(from) + 64, 160);
        let log: Vec<u64> = now[word(geometry.worker_at(from) + 64)..][..20].to_vec();
        left[word(worker + 64)..][..20].copy_from_slice(&log);
        images.push(("a log that was left behind", left.clone()));
        // With the page as it was before that step.
        plant(&old, &mut left, page, PAGE as u64);
        images.push(("a log that was left behind, and the page before it", left));
    }
    // The root before the last one vouched for the last page that the stop encrypted as open.
    for lost in 0..2 {
        for pages in 0..2 {
            let mut image = now.clone();
            image[word(geometry.root_at(lost))..][..5].fill(0);
            image[word(geometry.bitmap_at(0))] &= !(1 << pages);
            planted(&mut image, geometry.page_at(pages), 0x4343_4343_4343_4343);
            images.push(("the root before the last one", image));
        }
    }
    for (name, image) in images {
        for page in 0..2 {
            if let Ok(content) = read(&campaign, &image, page)
                && [0x41, 0x42, 0x43].iter().any(|byte| content == [*byte; PAGE])
            {
                return Err(format!("{name}: page {page} is read as what nobody wrote"));
            }
        }
        let found = campaign.check(&image);
        if found.is_ok_and(|found| found.corrupt_pages == 0) {
            return Err(format!("{name}: a check found nothing"));
        }
    }
    Ok(())
}

/// The page as it was before the last write, with the log of that write, which its worker has left behind.
pub fn replayed_write() -> Result<(), String> {
    let (mut campaign, fresh, _) = Campaign::new(9, 4, 1)?;
    let written = |campaign: &mut Campaign, image: &[u64]| {
        let medium = Arc::new(CrashMedium::new(image));
        let (engine, _) = campaign.open(&medium).map_err(told("opening"))?;
        let content = campaign.content();
        engine.write(0, 0, &content).map_err(told("writing"))?;
        engine.stop().map_err(told("stopping"))?;
        Ok::<_, String>((medium.now(), content))
    };
    let (old, content) = written(&mut campaign, &fresh)?;
    let (mut forged, _) = written(&mut campaign, &old)?;
    let geometry = campaign.geometry;
    plant(&old, &mut forged, geometry.page_at(0), PAGE as u64);
    let word = |at: u64| usize::try_from(at / 8).expect("small");
    forged[word(geometry.worker_at(0))] = 0b101;
    forged[word(geometry.buffer_at(0))] ^= 1;
    match read(&campaign, &forged, 0) {
        Ok(found) if found == content => Err("the content before the last write was brought back".into()),
        _ => Ok(()),
    }
}

/// A write was given up at a crash: its log was whole, and nothing said that the buffer counts. In the next session the log is none any more, also
/// if the header of its session is put back.
pub fn given_up_write() -> Result<(), String> {
    let (mut campaign, fresh, _) = Campaign::new(8, 4, 1)?;
    let base = write(&mut campaign, &fresh)?;
    let mut given_up = campaign.content();
    given_up[0] = 0x47;
    let medium = Arc::new(CrashMedium::new(&base));
    let (engine, _) = campaign.open(&medium).map_err(told("opening"))?;
    let action = scm::transition::Action::Rewrite(&given_up, false);
    let begun = engine.begin(0, action).map_err(told("beginning"))?;
    begun.expect("a page can always be written").step().map_err(told("duplicating"))?;
    drop(engine);
    let crashed = medium.now();
    let (engine, _) = campaign.open(&medium).map_err(told("opening again"))?;
    let content = campaign.content();
    engine.write(1, 0, &content).map_err(told("writing"))?;
    engine.stop().map_err(told("stopping"))?;
    drop(engine);
    let mut forged = medium.now();
    let geometry = campaign.geometry;
    for (at, len) in
        [(geometry.header_at(0), 16_384), (geometry.worker_at(0), 4096), (geometry.buffer_at(0), PAGE as u64)]
    {
        plant(&crashed, &mut forged, at, len);
    }
    forged[usize::try_from(geometry.worker_at(0) / 8).expect("small")] = 0b101;
    match read(&campaign, &forged, 0) {
        Ok(content) if content == given_up => Err("a write that was given up was finished".into()),
        _ => Ok(()),
    }
}

/// A copy of the region is put back and used again: no nonce that the other future used is used again.
pub fn two_futures() -> Result<(), String> {
    let (mut campaign, fresh, _) = Campaign::new(5, 4, 2)?;
    write(&mut campaign, &fresh)?;
    write(&mut campaign, &fresh)?;
    Ok(())
}

/// The wrong key, a region of another length, no region.
#[test]
fn what_is_no_region_of_ours_is_refused_and_stays_as_it_was() {
    let (campaign, image, _) = Campaign::new(6, 2, 1).unwrap();
    let refused = |image: &[u64]| {
        let medium = Arc::new(CrashMedium::new(image));
        let error = campaign.open(&medium).map(drop).unwrap_err();
        assert_eq!(medium.operations(), 0, "{error}");
        error
    };
    let other = seal::slot::Credential::KeyFile(seal::SecretBytes::from_slice(&[6; 32]));
    let medium: Arc<dyn scm::Medium> = Arc::new(CrashMedium::new(&image));
    let wrong = scm::Engine::open(medium, &other, Arc::new(seal::SystemRandom), &|_, _| {});
    assert!(matches!(wrong, Err(Error::Key(_))));
    assert!(refused(&[0; 4096]).to_string().contains("there is no region"));
    assert!(refused(&[0; 8]).to_string().contains("there is no region"));
    assert!(refused(&image[..image.len() - 512]).to_string().contains("there is no region"));
    // The tail is there, but not at its place: the file grew in the middle.
    let tail = image.len() - 2048;
    let longer = [&image[..tail], &[0; 512], &image[tail..]].concat();
    assert!(refused(&longer).to_string().contains("bytes and has"), "{}", refused(&longer));
    let header = usize::try_from(campaign.geometry.header_at(0) / 8).unwrap();
    let mut version = image.clone();
    version[header + 1] += 1;
    assert!(refused(&version).to_string().contains("format version 3"));
    let mut session = image.clone();
    session[header + 9] ^= 1;
    assert!(matches!(refused(&session), Error::CorruptRegion(_)));
    let mut slots = image.clone();
    slots[header + 512] ^= 1 << 40;
    assert!(matches!(refused(&slots), Error::CorruptRegion(_)));
}

#[test]
fn changes_and_replays_are_found() {
    all().unwrap();
    forged_log().unwrap();
    forged_progress().unwrap();
    given_up_write().unwrap();
    replayed_write().unwrap();
    two_futures().unwrap();
}

#[test]
fn a_page_that_was_accepted_is_vouched_for_again() {
    let (mut campaign, image, _) = Campaign::new(21, 4, 1).unwrap();
    let medium = Arc::new(CrashMedium::new(&image));
    let contents: Vec<_> = (0..4).map(|_| campaign.content()).collect();
    let (engine, _) = campaign.open(&medium).unwrap();
    for (page, content) in (0..).zip(&contents) {
        engine.write(page, 0, content).unwrap();
    }
    engine.open_page(1).unwrap();
    engine.open_page(2).unwrap();
    // A crash.
    drop(engine);
    let (engine, report) = campaign.open(&medium).unwrap();
    assert_eq!((report.open, engine.status().unverified), (2, 2));
    assert!(engine.accept(1).unwrap());
    assert!(!engine.accept(1).unwrap() && !engine.accept(0).unwrap());
    drop(engine);
    let (engine, report) = campaign.open(&medium).unwrap();
    assert_eq!(report.unverified, 1);
    assert!(!engine.is_unverified(1) && engine.is_unverified(2));
    for (page, content) in (0..).zip(&contents) {
        let mut found = [0; PAGE];
        engine.read(page, 0, &mut found).unwrap();
        assert_eq!(found, *content, "page {page}");
    }
    // What was changed outside cannot be accepted.
    let mut image = medium.now();
    image[2 * PAGE / 8] ^= 1;
    let (engine, _) = campaign.open(&Arc::new(CrashMedium::new(&image))).unwrap();
    assert!(matches!(engine.accept(2), Err(Error::CorruptPage { page: 2 })));
    assert!(engine.is_unverified(2));
}

/// A medium whose pages fail from some access on, as SIGBUS tells of it.
pub struct Failing {
    pub medium: Arc<dyn Medium>,
    pub bad: std::ops::Range<u64>,
    /// Accesses until then.
    pub left: std::sync::atomic::AtomicU64,
}

impl Failing {
    fn check(&self, at: u64, len: u64) -> Result<(), Fault> {
        use std::sync::atomic::Ordering;
        if at < self.bad.end && self.bad.start < at + len {
            let left =
                self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            left.map_err(|_| Fault::Lost { offset: at })?;
        }
        Ok(())
    }
}

impl Medium for Failing {
    fn len(&self) -> u64 {
        self.medium.len()
    }
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.medium.read(at, out)?;
        self.check(at, out.len() as u64)
    }
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.check(at, bytes.len() as u64)?;
        self.medium.write(at, bytes)
    }
    fn load(&self, at: u64) -> Result<u64, Fault> {
        self.check(at, 8)?;
        self.medium.load(at)
    }
    fn store(&self, at: u64, word: u64) -> Result<(), Fault> {
        self.check(at, 8)?;
        self.medium.store(at, word)
    }
    fn write_back(&self, at: u64, len: u64) -> Result<(), Fault> {
        self.check(at, len)?;
        self.medium.write_back(at, len)
    }
    fn fence(&self) -> Result<(), Fault> {
        self.medium.fence()
    }
}

/// A page of the data, and any part of the hidden one, fails at its first, second, ... access while pages are opened, encrypted and written.
#[test]
fn a_medium_that_fails_stops_the_engine_and_no_other_page_is_lost() {
    let (mut campaign, image, _) = Campaign::new(22, 4, 1).unwrap();
    let start = Arc::new(CrashMedium::new(&image));
    let contents: Vec<_> = (0..4).map(|_| campaign.content()).collect();
    let (engine, _) = campaign.open(&start).unwrap();
    for (page, content) in (0..).zip(&contents) {
        engine.write(page, 0, content).unwrap();
    }
    drop(engine);
    let whole = start.now();
    let geometry = campaign.geometry;
    let mut failures = 0;
    for bad in [geometry.page_at(1)..geometry.page_at(2), geometry.data_len()..geometry.header_at(0)] {
        for left in 0..40 {
            let medium = Arc::new(CrashMedium::new(&whole));
            let (engine, _) = campaign.open(&medium).unwrap();
            drop(engine);
            let failing = Failing {
                medium: Arc::clone(&medium) as Arc<dyn Medium>,
                bad: bad.clone(),
                left: (u64::MAX).into(),
            };
            let failing = Arc::new(failing);
            let dynamic: Arc<dyn Medium> = Arc::clone(&failing) as Arc<dyn Medium>;
            let (engine, _) = campaign.open_any(dynamic).unwrap();
            failing.left.store(left, std::sync::atomic::Ordering::Relaxed);
            let mut found = [0; PAGE];
            let done = engine
                .open_page(1)
                .and_then(|_| engine.close_page(1))
                .and_then(|_| engine.write(1, 0, &contents[1]))
                .and_then(|()| engine.read(1, 0, &mut found));
            if let Err(error) = done {
                failures += 1;
                assert!(matches!(error, Error::Medium(Fault::Lost { .. })), "{error}");
                assert!(matches!(engine.read(0, 0, &mut found), Err(Error::Stopped)));
                assert!(engine.status().stopped);
            }
            drop(engine);
            // The medium is mended, with what it had.
            let (engine, report) = campaign.open(&medium).unwrap();
            assert_eq!(report.corrupt, 0);
            for (page, content) in (0..).zip(&contents) {
                engine.read(page, 0, &mut found).unwrap();
                assert_eq!(found, *content, "page {page}, access {left}");
            }
        }
    }
    assert!(failures > 20, "{failures} failures");
}
