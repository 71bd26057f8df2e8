//! The end of an epoch: its nonces are used up, and the next one begins with another salt.

use std::sync::Arc;

use scm::Engine;
use scm::entry::{ENTRY_SIZE, EPOCH_LIMIT, Entry};

use crate::campaign::{Campaign, PAGE, Page, told};
use crate::crash::{Deed, act, every_cut};
use crate::crash_medium::CrashMedium;

/// Two nonces are left.
fn at_the_end(engine: &Engine) {
    engine.skip_nonces(EPOCH_LIMIT - 2);
}

/// Four pages are sealed anew, one of them in place: two with the last nonces of an epoch, two with the first ones of the next.
fn deeds(campaign: &mut Campaign) -> [(usize, Deed); 5] {
    let mut rewrite = |page| (page, Deed::Rewrite(campaign.content()));
    [rewrite(0), rewrite(1), rewrite(2), (3, Deed::Open), (3, Deed::Close)]
}

fn entry(campaign: &Campaign, image: &[u64], page: u64) -> Entry {
    let first = usize::try_from(campaign.geometry.entry_at(page) / 8).expect("small");
    let bytes: Vec<u8> =
        image[first..][..ENTRY_SIZE / 8].iter().flat_map(|word| word.to_le_bytes()).collect();
    Entry::decode(&bytes.try_into().expect("64 bytes")).expect("an encrypted page has an entry")
}

/// Crosses the end of an epoch, and stops. Returns the image, and how many operations it took until the first page of the next epoch.
fn cross(campaign: &mut Campaign, image: &[u64], model: &[Page]) -> Result<(Vec<u64>, u64), String> {
    let medium = Arc::new(CrashMedium::new(image));
    let mut model = model.to_vec();
    let (engine, _) = campaign.open(&medium).map_err(told("opening"))?;
    at_the_end(&engine);
    let mut before = 0;
    for (page, deed) in deeds(campaign) {
        if page == 2 {
            before = medium.operations();
        }
        act(&engine, &*medium, page as u64, deed, &mut model[page]).map_err(told("living"))?;
    }
    for (page, expected) in (0..).zip(&model) {
        let mut content = [0; PAGE];
        engine.read(page, 0, &mut content).map_err(told("reading"))?;
        if expected.contents != [content] {
            return Err(format!("page {page} has another content behind the end of an epoch"));
        }
    }
    drop(engine);
    let image = medium.now();
    campaign.audit(&image)?;
    campaign.recover_and_check(&Arc::new(CrashMedium::new(&image)), &model)?;
    Ok((image, before))
}

/// A copy of a region is put back, and each of the two futures crosses the end of its epoch; one of them, again.
pub fn two_futures() -> Result<(), String> {
    let (mut campaign, copy, model) = Campaign::new(31, 4, 1)?;
    let (one, _) = cross(&mut campaign, &copy, &model)?;
    let (other, _) = cross(&mut campaign, &copy, &model)?;
    for image in [&one, &other] {
        let [first, second, third, fourth] = [0, 1, 2, 3].map(|page| entry(&campaign, image, page));
        let nonces = [first, second, third, fourth].map(|entry| entry.nonce);
        if nonces != [EPOCH_LIMIT - 2, EPOCH_LIMIT - 1, 0, 1] {
            return Err(format!("the nonces at the end of an epoch are {nonces:?}"));
        }
        if first.salt != second.salt || third.salt != fourth.salt || second.salt == third.salt {
            return Err("an epoch's salt is not that of its pages alone".into());
        }
    }
    let salts = [&one, &other].map(|image| [0, 2].map(|page| entry(&campaign, image, page).salt));
    if salts[0].iter().any(|salt| salts[1].contains(salt)) {
        return Err("two futures of a copy have an epoch in common".into());
    }
    Ok(())
}

#[test]
fn nonces_do_not_repeat_behind_the_end_of_an_epoch() {
    two_futures().unwrap();
}

/// Cut at every operation of the first page of the next epoch, with every image: each time from the same copy of the region.
#[test]
fn a_crash_at_the_end_of_an_epoch_loses_nothing() {
    let seed = 32;
    let crossed = || {
        let (mut campaign, image, model) = Campaign::new(seed, 4, 1)?;
        let (_, before) = cross(&mut campaign, &image, &model)?;
        let deeds = deeds(&mut campaign);
        every_cut(&mut campaign, &image, &model, &deeds[..3], before, &at_the_end)
    };
    let tried = crossed().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    println!("{tried:?}");
    assert!(tried.cuts > 50 && tried.recoveries > 5000, "{tried:?}");
}
