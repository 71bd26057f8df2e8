//! Cuts at every store, write-back and fence.

use std::sync::Arc;

use scm::transition::{Action, Transition};
use scm::{Durability, Engine, Fault, Instruction, Mapping, Medium};

use crate::campaign::{Campaign, Content, PAGE, Page, told};
use crate::crash_medium::{CrashMedium, Order};

/// What the script of a single page's life does.
#[derive(Debug, Clone, Copy)]
pub enum Deed {
    Open,
    Store(Content),
    Close,
    Rewrite(Content),
}

/// Does one deed, and keeps the model in step: before it begins both outcomes are possible, behind it one.
pub fn act(
    engine: &Engine,
    medium: &dyn Medium,
    page: u64,
    deed: Deed,
    model: &mut Page,
) -> Result<(), scm::Error> {
    model.busy = true;
    match deed {
        Deed::Open => {
            engine.open_page(page)?;
            model.open = true;
        }
        Deed::Store(content) => {
            // The guest's own stores, which it makes durable itself.
            (model.busy, model.torn) = (false, true);
            model.contents.push(content);
            let at = engine.geometry().page_at(page);
            medium.write(at, &content)?;
            medium.write_back(at, PAGE as u64)?;
            medium.fence()?;
            (model.contents, model.torn) = (vec![content], false);
        }
        Deed::Close => {
            engine.close_page(page)?;
            model.open = false;
        }
        Deed::Rewrite(content) => {
            model.contents.push(content);
            engine.write(page, 0, &content)?;
            model.contents = vec![content];
            (model.open, model.unverified) = (false, false);
        }
    }
    model.busy = false;
    Ok(())
}

/// How much was tried.
#[derive(Debug, Default)]
pub struct Tried {
    pub cuts: u64,
    pub recoveries: u64,
    /// The most images that one cut may have left. Those that recovery and the checks behind it cannot tell apart are tried once.
    pub most_images: f64,
    /// The most of them that were told apart.
    pub most_tried: u64,
}

/// The life of one page, cut at every operation, with every image that can be left: none is left out. Recovery is cut at every operation as
/// well, from one of the images of each cut, with one of those that it can leave.
pub fn one_page(seed: u64) -> Result<Tried, String> {
    let (mut campaign, image, model) = Campaign::new(seed, 2, 1)?;
    // Both copies of the header are there from the second session on.
    let (image, model) = campaign.recover_and_check(&Arc::new(CrashMedium::new(&image)), &model)?;
    let deeds = [
        Deed::Open,
        Deed::Store(campaign.content()),
        Deed::Close,
        Deed::Rewrite(campaign.content()),
        Deed::Open,
        Deed::Close,
        Deed::Open,
        Deed::Rewrite(campaign.content()),
    ]
    .map(|deed| (0, deed));
    every_cut(&mut campaign, &image, &model, &deeds, 0, &|_| {})
}

/// Does the deeds again and again, cut at each operation from the first one on that counts. `prepare` gets each engine first.
pub fn every_cut(
    campaign: &mut Campaign,
    image: &[u64],
    model: &[Page],
    deeds: &[(usize, Deed)],
    first: u64,
    prepare: &dyn Fn(&Engine),
) -> Result<Tried, String> {
    let mut tried = Tried::default();
    for cut in first.. {
        let medium = Arc::new(CrashMedium::new(image).cut_at(cut));
        let mut model = model.to_vec();
        let ended = live(campaign, &medium, deeds, &mut model, prepare)?;
        let crash = medium.crash();
        campaign.audit_buffers(&crash, &model)?;
        let images = crash.each(|crashed| campaign.recover_and_check(crashed, &model).map(drop))?;
        tried.cuts += 1;
        tried.recoveries += images;
        tried.most_images = tried.most_images.max(crash.images());
        tried.most_tried = tried.most_tried.max(images);
        let chosen = crash.image(&mut campaign.random);
        tried.recoveries += recovery_cut(campaign, &chosen, &model)?;
        if ended {
            break;
        }
    }
    Ok(tried)
}

/// Whether it came to the end of the deeds; else the medium crashed.
fn live(
    campaign: &Campaign,
    medium: &Arc<CrashMedium>,
    deeds: &[(usize, Deed)],
    model: &mut [Page],
    prepare: &dyn Fn(&Engine),
) -> Result<bool, String> {
    let engine = match campaign.open(medium) {
        Ok((engine, _)) => engine,
        Err(scm::Error::Medium(_)) => return Ok(false),
        Err(error) => return Err(format!("opening: {error}")),
    };
    prepare(&engine);
    for &(page, deed) in deeds {
        match act(&engine, &**medium, page as u64, deed, &mut model[page]) {
            Ok(()) => {}
            Err(scm::Error::Medium(_)) => return Ok(false),
            Err(error) => return Err(format!("{deed:?}: {error}")),
        }
    }
    Ok(true)
}

/// Cuts recovery itself at every operation, and recovers from what is left.
fn recovery_cut(campaign: &mut Campaign, image: &[u64], model: &[Page]) -> Result<u64, String> {
    let mut recoveries = 0;
    for cut in 0.. {
        let medium = Arc::new(CrashMedium::new(image).cut_at(cut));
        match campaign.open(&medium) {
            Ok(_) => break,
            Err(scm::Error::Medium(_)) => {}
            Err(error) => return Err(format!("recovering: {error}")),
        }
        let chosen = medium.crash().image(&mut campaign.random);
        // Which of two recoveries marked a page is all one.
        let busy: Vec<Page> =
            model.iter().map(|page| Page { busy: page.busy || page.open, ..page.clone() }).collect();
        campaign.recover_and_check(&Arc::new(CrashMedium::new(&chosen)), &busy)?;
        recoveries += 1;
    }
    Ok(recoveries)
}

/// Many pages and workers, whose steps take turns by the seed; several crashes, one after the other.
pub fn many_pages(seed: u64) -> Result<(), String> {
    let (mut campaign, mut image, mut model) = Campaign::new(seed, 7, 3)?;
    for _ in 0..6 {
        let cut = if campaign.random.u8(..) < 32 {
            campaign.random.u64(..20)
        } else {
            campaign.random.u64(20..600)
        };
        let medium = Arc::new(CrashMedium::new(&image).cut_at(cut));
        let (engine, _) = match campaign.open(&medium) {
            Ok(opened) => opened,
            Err(scm::Error::Medium(_)) => {
                image = crash(&mut campaign, &medium, &mut model)?;
                continue;
            }
            Err(error) => return Err(format!("opening: {error}")),
        };
        let stopped = run(&mut campaign, &engine, &mut model, 120)?;
        drop(engine);
        if stopped {
            image = medium.now();
            plaintext_is_gone(&campaign, &image, &model)?;
        } else {
            image = crash(&mut campaign, &medium, &mut model)?;
        }
    }
    Ok(())
}

fn crash(campaign: &mut Campaign, medium: &CrashMedium, model: &mut Vec<Page>) -> Result<Vec<u64>, String> {
    let crash = medium.crash();
    campaign.audit_buffers(&crash, model)?;
    let crashed = crash.image(&mut campaign.random);
    recovery_cut(campaign, &crashed, model)?;
    let (image, after) = campaign.recover_and_check(&Arc::new(CrashMedium::new(&crashed)), model)?;
    *model = after;
    Ok(image)
}

/// Drives up to three transitions at a time. Whether it came to a clean stop; else the medium crashed.
fn run(campaign: &mut Campaign, engine: &Engine, model: &mut [Page], steps: u32) -> Result<bool, String> {
    let mut live: Vec<(Transition<'_>, usize, Option<Content>)> = Vec::new();
    let pages = model.len();
    for _ in 0..steps {
        let page = campaign.random.usize(..pages);
        if live.len() < 3 && campaign.random.bool() && !model[page].busy {
            let content = campaign.content();
            let action = match campaign.random.u8(..4) {
                0 => Action::Rewrite(&content, false),
                _ if model[page].open => Action::Close,
                _ => Action::Open,
            };
            let rewritten = matches!(action, Action::Rewrite(..)).then_some(content);
            if let Some(transition) = engine.begin(page as u64, action).map_err(told("beginning"))? {
                model[page].busy = true;
                model[page].contents.extend(rewritten);
                live.push((transition, page, rewritten));
            }
        } else if !live.is_empty() {
            let chosen = campaign.random.usize(..live.len());
            match live[chosen].0.step() {
                Ok(true) => {}
                Ok(false) => {
                    let (_, page, rewritten) = live.swap_remove(chosen);
                    end(engine, page, &mut model[page], rewritten);
                }
                Err(scm::Error::Medium(_)) => return Ok(false),
                Err(error) => return Err(format!("stepping: {error}")),
            }
        }
    }
    for (mut transition, page, rewritten) in live {
        loop {
            match transition.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => return Ok(false),
            }
        }
        drop(transition);
        end(engine, page, &mut model[page], rewritten);
    }
    for page in model.iter_mut().filter(|page| page.open) {
        page.busy = true;
    }
    if engine.stop().is_err() {
        return Ok(false);
    }
    for page in model.iter_mut() {
        (page.busy, page.open) = (false, false);
    }
    Ok(true)
}

fn end(engine: &Engine, page: usize, model: &mut Page, rewritten: Option<Content>) {
    model.busy = false;
    model.open = engine.is_open(page as u64);
    if let Some(content) = rewritten {
        model.contents = vec![content];
        model.unverified = false;
    }
}

/// Behind a clean stop no word of any page's content is on the medium.
fn plaintext_is_gone(campaign: &Campaign, image: &[u64], model: &[Page]) -> Result<(), String> {
    let contents = model.iter().flat_map(|page| &page.contents).filter(|content| **content != [0; PAGE]);
    for content in contents {
        let (words, _) = content.as_chunks::<8>();
        if words.iter().any(|word| image.contains(&u64::from_le_bytes(*word))) {
            return Err("plaintext is on the medium after a clean stop".into());
        }
    }
    let data = usize::try_from(campaign.geometry.data_len() / 8).expect("small");
    if image[..data].contains(&0) {
        return Err("a page is in the clear after a clean stop".into());
    }
    Ok(())
}

/// None of the images of a cut is left out: `Crash::each` has no bound and ends when it has had all. What this looks at is that there was
/// something to leave out.
#[test]
fn one_page_survives_a_crash_at_every_store() {
    let seed = 1;
    let tried = one_page(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    println!("{tried:?}");
    assert!(tried.cuts > 400 && tried.recoveries > 20_000, "{tried:?}");
    // The buffer and the log have 28 words, and one cut leaves each of them as it was or as it is to be; recovery looks at none of them then. The
    // most that it can tell apart are entry, root and bitmap: 13 words.
    assert!(tried.most_images >= f64::from(1 << 24) && tried.most_tried >= 1 << 12, "{tried:?}");
}

/// Says the seed of a panic, too.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it was seed {}", self.0);
        }
    }
}

/// `SCM_SEEDS` says how many. A failure names its seed.
#[test]
fn many_pages_survive_crashes_by_seed() {
    let seeds = std::env::var("SCM_SEEDS").map_or(60, |text| text.parse().expect("a number"));
    for seed in 0..seeds {
        let _named = Named(seed);
        many_pages(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// A real mapping and the model of it: every operation goes to both.
struct Both {
    real: Mapping,
    model: Arc<CrashMedium>,
}

impl Medium for Both {
    fn len(&self) -> u64 {
        self.model.len()
    }
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.real.read(at, out)
    }
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        // Word by word, so that a cut comes at the same one in both.
        let (words, _) = bytes.as_chunks::<8>();
        (at..).step_by(8).zip(words).try_for_each(|(at, word)| self.store(at, u64::from_le_bytes(*word)))
    }
    fn load(&self, at: u64) -> Result<u64, Fault> {
        self.real.load(at)
    }
    fn store(&self, at: u64, word: u64) -> Result<(), Fault> {
        self.model.store(at, word)?;
        self.real.store(at, word)
    }
    fn write_back(&self, at: u64, len: u64) -> Result<(), Fault> {
        self.model.write_back(at, len)?;
        self.real.write_back(at, len)
    }
    fn fence(&self) -> Result<(), Fault> {
        self.model.fence()?;
        self.real.fence()
    }
}

/// When a line that the instruction has written back is durable (SDM, volume 2: CLFLUSH is ordered before later stores, the others by a fence).
fn order(instruction: Instruction) -> Order {
    #[cfg(target_arch = "x86_64")]
    if instruction == Instruction::Clflush {
        return Order::AtOnce;
    }
    let _ = instruction;
    Order::AtFence
}

/// Each instruction that this processor has writes a real mapping back, in a page's life that is cut at each operation; what it leaves, by its
/// order, is recovered from.
#[test]
fn each_instruction_that_writes_back_is_enough() {
    let instructions = Instruction::of_this_processor();
    println!("{instructions:?}");
    for instruction in instructions {
        let (mut campaign, image, model) = Campaign::new(41, 2, 1).unwrap();
        let bytes: Vec<u8> = image.iter().flat_map(|word| word.to_le_bytes()).collect();
        let deeds =
            [Deed::Open, Deed::Store(campaign.content()), Deed::Close, Deed::Rewrite(campaign.content())];
        for cut in 0.. {
            let real = Mapping::memory(bytes.len() as u64).unwrap().with_instruction(instruction).unwrap();
            assert_eq!(real.durability(), Durability::CacheLines);
            real.write(0, &bytes).unwrap();
            let crashing = Arc::new(CrashMedium::new(&image).ordered(order(instruction)).cut_at(cut));
            let both = Arc::new(Both { real, model: Arc::clone(&crashing) });
            let mut model = model.clone();
            let mut ended = false;
            if let Ok((engine, _)) = campaign.open_any(Arc::clone(&both) as Arc<dyn Medium>) {
                let each = |deed| act(&engine, &*both, 0, deed, &mut model[0]).is_ok();
                ended = deeds.into_iter().all(each);
            }
            let mut found = vec![0; bytes.len()];
            both.real.read(0, &mut found).unwrap();
            let (words, _) = found.as_chunks::<8>();
            assert!(words.iter().map(|word| u64::from_le_bytes(*word)).eq(crashing.now()), "{instruction:?}");
            let crash = crashing.crash();
            campaign.audit_buffers(&crash, &model).unwrap();
            for _ in 0..4 {
                let left = Arc::new(CrashMedium::new(&crash.image(&mut campaign.random)));
                let checked = campaign.recover_and_check(&left, &model);
                checked.unwrap_or_else(|error| panic!("{instruction:?}, seed 41, cut {cut}: {error}"));
            }
            if ended {
                assert!(cut > 200, "{cut} operations");
                break;
            }
        }
    }
}

#[test]
fn every_image_of_a_crash_is_tried_once() {
    let medium = CrashMedium::new(&[0; 4]);
    medium.store(0, 1).and_then(|()| medium.store(8, 1)).and_then(|()| medium.store(8, 2)).unwrap();
    medium.store(16, 1).and_then(|()| medium.write_back(16, 8)).and_then(|()| medium.fence()).unwrap();
    // Word 2 shares its line with the others.
    let crash = medium.crash();
    assert!((crash.images() - 1.0).abs() < 0.1);
    medium.store(0, 5).and_then(|()| medium.store(8, 6)).and_then(|()| medium.store(8, 7)).unwrap();
    let crash = medium.crash();
    assert!((crash.images() - 6.0).abs() < 0.1);
    let mut seen = Vec::new();
    let all = |medium: &Arc<CrashMedium>| {
        seen.push([medium.load(8).unwrap(), medium.load(0).unwrap(), medium.load(16).unwrap()]);
        Ok(())
    };
    assert_eq!(crash.each(all), Ok(6));
    assert_eq!(seen, [[2, 1, 1], [2, 5, 1], [6, 1, 1], [6, 5, 1], [7, 1, 1], [7, 5, 1]]);
    // What is not looked at is not told apart, nor what is overwritten first.
    let one = |medium: &Arc<CrashMedium>| {
        medium.store(8, 9).map(|()| drop(medium.load(8))).map_err(|_| String::new())
    };
    assert_eq!(crash.each(one), Ok(1));
}
