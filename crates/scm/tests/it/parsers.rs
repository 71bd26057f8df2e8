//! A region whose hidden part was changed at random: nothing panics, and it never gives a wrong byte as good. (Each parser by itself is held by
//! the targets `scm` and `scm-message` in `fuzz/`.)
//!
//! The changes are the same in every run; `FUZZ_MUTATIONS` says how many there are.

use std::sync::Arc;

use fastrand::Rng;
use scm::Error;
use scm::transition::Action;

use crate::campaign::{Campaign, PAGE};
use crate::crash_medium::CrashMedium;

fn mutations() -> usize {
    std::env::var("FUZZ_MUTATIONS").map_or(100_000, |text| text.parse().expect("a number"))
}

/// A region at rest, and one that crashed with pages open and under way; both with their hidden part changed.
#[test]
fn no_change_of_the_hidden_part_gives_a_wrong_byte_as_good() {
    let (mut campaign, image, _) = Campaign::new(8, 6, 2).unwrap();
    let medium = Arc::new(CrashMedium::new(&image));
    let contents: Vec<_> = (0..6).map(|_| campaign.content()).collect();
    let (engine, _) = campaign.open(&medium).unwrap();
    for (page, content) in (0..).zip(&contents) {
        engine.write(page, 0, content).unwrap();
    }
    let at_rest = medium.now();
    engine.open_page(0).unwrap();
    for (page, action) in [(1, Action::Open), (2, Action::Rewrite(&contents[2], false))] {
        let mut transition = engine.begin(page, action).unwrap().unwrap();
        (0..4).for_each(|_| assert!(transition.step().unwrap()));
        // Its worker stays under way.
        std::mem::forget(transition);
    }
    let crashed = medium.now();
    let hidden = usize::try_from(campaign.geometry.bitmap_at(0) / 8).unwrap();
    let mut random = Rng::with_seed(1);
    let (mut refused, mut served) = (0, 0);
    for round in 0..mutations() / 25 {
        let mut image = if round % 2 == 0 { at_rest.clone() } else { crashed.clone() };
        for _ in 0..random.usize(1..4) {
            // Of the words that hold something, and some others.
            let word = loop {
                let word = random.usize(hidden..image.len());
                if image[word] != 0 || random.u8(..16) == 0 {
                    break word;
                }
            };
            image[word] = if random.bool() { image[word] ^ 1 << random.u8(..64) } else { random.u64(..) };
        }
        match campaign.open(&Arc::new(CrashMedium::new(&image))) {
            Ok((engine, _)) => {
                served += 1;
                for (page, content) in (0..).zip(&contents) {
                    let mut found = [0; PAGE];
                    match engine.read(page, 0, &mut found) {
                        Ok(()) => assert!(
                            found == *content || engine.is_unverified(page),
                            "round {round}, page {page}"
                        ),
                        Err(Error::CorruptPage { .. }) => {}
                        Err(error) => panic!("round {round}: {error}"),
                    }
                }
            }
            Err(Error::CorruptRegion(_) | Error::Usage(_) | Error::Key(_)) => refused += 1,
            Err(error) => panic!("round {round}: {error}"),
        }
    }
    assert!(refused > 100 && served > 100, "{refused} refused, {served} served");
}
