//! What somebody can do who has the medium while nothing runs.

use std::sync::Arc;

use scm::{Error, Geometry};

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
    assert!(refused(&version).to_string().contains("format version 2"));
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
    two_futures().unwrap();
}
