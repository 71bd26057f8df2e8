//! An adversary who has the medium behind a clean stop or a crash, and may write everything: genuine parts of earlier states, parts of other
//! places, and bytes of its own. What it cannot make is a root's MAC, and it has none from before: that would be an older state as a whole, which
//! nothing tells from the latest.

use std::sync::Arc;

use fastrand::Rng;
use scm::{Engine, Error};

use crate::campaign::{Campaign, Content, PAGE, Page, told};
use crate::crash::{Deed, act};
use crate::crash_medium::CrashMedium;

const PAGES: u64 = 5;
const WORKERS: u32 = 2;

/// What a page may be read as.
#[derive(Debug, Clone)]
struct Allowed {
    contents: Vec<Content>,
    /// Whether it was open, so that nothing vouches for it: then it may be anything, with the mark.
    unvouched: bool,
}

impl Allowed {
    fn of(page: &Page) -> Allowed {
        Allowed { contents: page.contents.clone(), unvouched: page.open || page.busy || page.unverified }
    }
}

/// A life of a region, with the adversary behind each of its ends.
pub fn life(seed: u64) -> Result<(), String> {
    let (mut campaign, mut image, mut model) = Campaign::new(seed, PAGES, WORKERS)?;
    let mut history = vec![image.clone()];
    for _ in 0..5 {
        let cut = if campaign.random.bool() { u64::MAX } else { campaign.random.u64(..700) };
        let medium = Arc::new(CrashMedium::new(&image).cut_at(cut));
        let mut before = Vec::new();
        let stopped = live(&mut campaign, &medium, &mut model, &mut before)?;
        let left = if stopped { medium.now() } else { medium.crash().image(&mut campaign.random) };
        let mut allowed: Vec<Allowed> = model.iter().map(Allowed::of).collect();
        // Whoever destroys the root in force takes the last step back: the one that was under way, or if that had no root yet, the one before.
        for (page, Allowed { contents, unvouched }) in before.into_iter().rev().take(2).filter(|_| !stopped) {
            allowed[page].contents.extend(contents);
            allowed[page].unvouched |= unvouched;
        }
        for _ in 0..6 {
            let mut forged = left.clone();
            let deeds = (0..campaign.random.usize(1..6))
                .map(|_| forge(&campaign.geometry, &mut campaign.random, &mut forged, &left, &history))
                .collect::<Vec<_>>();
            let end = if stopped { "a clean stop" } else { "a crash" };
            look(&campaign, &forged, &allowed).map_err(|error| format!("{deeds:?} behind {end}: {error}"))?;
        }
        history.push(left.clone());
        (image, model) = campaign.recover_and_check(&Arc::new(CrashMedium::new(&left)), &model)?;
        history.push(image.clone());
    }
    Ok(())
}

/// Whether it came to a clean stop; else the medium crashed. `before` gets what the page of each step was before it.
fn live(
    campaign: &mut Campaign,
    medium: &Arc<CrashMedium>,
    model: &mut [Page],
    before: &mut Vec<(usize, Allowed)>,
) -> Result<bool, String> {
    let crashed = |error| match error {
        Error::Medium(_) => Ok(false),
        error => Err(format!("living: {error}")),
    };
    let (engine, _) = match campaign.open(medium) {
        Ok(opened) => opened,
        Err(error) => return crashed(error),
    };
    for _ in 0..campaign.random.usize(..16) {
        let page = campaign.random.usize(..model.len());
        let deed = match campaign.random.u8(..5) {
            0 => Deed::Rewrite(campaign.content()),
            1 | 2 if model[page].open => Deed::Store(campaign.content()),
            3 if model[page].open => Deed::Close,
            _ => Deed::Open,
        };
        // Others move no root.
        if matches!(deed, Deed::Rewrite(_) | Deed::Close) || matches!(deed, Deed::Open) && !model[page].open {
            before.push((page, Allowed::of(&model[page])));
        }
        if let Err(error) = act(&engine, &**medium, page as u64, deed, &mut model[page]) {
            return crashed(error);
        }
    }
    stop(&engine, model).or_else(crashed)
}

fn stop(engine: &Engine, model: &mut [Page]) -> Result<bool, Error> {
    // A crash leaves some of them encrypted.
    model.iter_mut().for_each(|page| page.busy |= page.open);
    engine.stop()?;
    model.iter_mut().for_each(|page| (page.open, page.busy) = (false, false));
    Ok(true)
}

/// Changes one part of an image.
fn forge(
    geometry: &scm::Geometry,
    random: &mut Rng,
    image: &mut [u64],
    now: &[u64],
    history: &[Vec<u64>],
) -> String {
    let word = |at: u64| usize::try_from(at / 8).expect("small");
    let (page, other, worker) = (random.u64(..PAGES), random.u64(..PAGES), random.u32(..WORKERS));
    let old = &history[random.usize(..history.len())];
    let source = if random.bool() { now } else { &old[..] };
    let parts = [
        (geometry.page_at(page), PAGE as u64),
        (geometry.entry_at(page), 64),
        (geometry.buffer_at(worker), PAGE as u64),
        (geometry.worker_at(worker), 256),
        (geometry.worker_at(worker) + 64, 160),
        (geometry.bitmap_at(0), 8),
        (geometry.header_at(0), 8192),
        (geometry.header_at(1), 8192),
        (geometry.header_at(0), 16_384),
    ];
    let (at, len) = parts[random.usize(..parts.len())];
    let range = word(at)..word(at + len);
    match random.u8(..10) {
        0 | 1 => {
            let crypto = if random.bool() { 2 } else { 0 };
            let direction = if random.bool() { 4 } else { 0 };
            image[word(geometry.worker_at(worker))] = page << 12 | direction | crypto | 1;
            format!("worker {worker} has page {page} under way, direction {direction}")
        }
        2 => {
            // A log of genuine entries, or of none.
            let log = word(geometry.worker_at(worker)) + 8;
            for (i, from) in [now, &old[..]].into_iter().enumerate() {
                let entry = word(geometry.entry_at(page));
                match random.u8(..3) {
                    0 => image[log + i * 8..][..8].fill(0),
                    _ => image[log + i * 8..][..8].copy_from_slice(&from[entry..][..8]),
                }
            }
            if random.bool() {
                image[log + 16..][..4].fill(0);
            }
            format!("worker {worker} has a log of page {page}")
        }
        3 => {
            image[word(geometry.bitmap_at(0))] ^= 1 << page;
            format!("page {page} changes its bit")
        }
        4 => {
            image[word(geometry.root_at(random.u64(..2)))] ^= 1 << random.u8(..3);
            "a root is of another generation".into()
        }
        5 => {
            let places = [(geometry.page_at(page), geometry.page_at(other)), {
                (geometry.buffer_at(worker), geometry.page_at(page))
            }];
            let (to, from) = places[random.usize(..2)];
            let moved: Vec<u64> = source[word(from)..][..PAGE / 8].to_vec();
            image[word(to)..][..PAGE / 8].copy_from_slice(&moved);
            format!("what was at {from} is put to {to}")
        }
        6 => {
            let value = random.u64(..);
            image[range].fill(value);
            format!("{len} bytes at {at} are overwritten")
        }
        _ => {
            image[range.clone()].copy_from_slice(&source[range]);
            format!("{len} bytes at {at} are put back")
        }
    }
}

/// Every page is what it may be, or an error.
fn look(campaign: &Campaign, image: &[u64], allowed: &[Allowed]) -> Result<(), String> {
    let medium = Arc::new(CrashMedium::new(image));
    let engine = match campaign.open(&medium) {
        Ok((engine, _)) => engine,
        Err(Error::CorruptRegion(_) | Error::Usage(_) | Error::Key(_)) => return Ok(()),
        Err(error) => return Err(format!("opening: {error}")),
    };
    for (page, allowed) in (0..).zip(allowed) {
        let mut content = [0; PAGE];
        match engine.read(page, 0, &mut content) {
            Ok(()) => {}
            Err(Error::CorruptPage { .. }) => continue,
            Err(error) => return Err(told("reading")(error)),
        }
        let is_told = allowed.unvouched && engine.is_unverified(page);
        if !allowed.contents.contains(&content) && !is_told {
            return Err(format!(
                "page {page} is read as {content:?}, marked: {}, where {allowed:?} is possible",
                engine.is_unverified(page)
            ));
        }
    }
    Ok(())
}

#[test]
fn who_has_the_medium_chooses_no_content() {
    for seed in 0..200 {
        life(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}
