//! A small region, a model of what must be in it, and what is checked after every crash.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use scm::entry::{ENTRY_SIZE, Entry};
use scm::{Engine, Error, Geometry, Medium, Report};
use seal::slot::Credential;
use seal::{Random, SecretBytes, Suite};

use crate::crash_medium::{Crash, CrashMedium};

/// Bytes of a page: eight words, so that all combinations of what survives can be tried.
pub const PAGE: usize = 64;

pub type Content = [u8; PAGE];

/// Random bytes from a seed. One for a whole campaign: two futures of the same past must not draw the same salts.
struct Seeded(Mutex<Rng>);

impl Random for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().expect("no poison").fill(bytes);
    }
}

pub struct Campaign {
    pub geometry: Geometry,
    pub random: Rng,
    salts: Arc<dyn Random>,
    /// What every nonce sealed.
    nonces: HashMap<([u8; 32], u64), (u64, [u8; 16])>,
}

/// What a page may hold.
#[derive(Debug, Clone)]
pub struct Page {
    /// Its content; and the one that it gets, while that is under way.
    pub contents: Vec<Content>,
    /// Whether each of its words may be of another content: somebody stores to it.
    pub torn: bool,
    pub open: bool,
    /// Whether a transition is under way.
    pub busy: bool,
    pub unverified: bool,
}

impl Page {
    fn zero() -> Page {
        Page { contents: vec![[0; PAGE]], torn: false, open: false, busy: false, unverified: false }
    }

    fn may_be(&self, content: &Content) -> bool {
        let word = |content: &Content, i: usize| content[i * 8..][..8].to_vec();
        let words_fit =
            || (0..PAGE / 8).all(|i| self.contents.iter().any(|known| word(known, i) == word(content, i)));
        self.contents.contains(content) || self.torn && words_fit()
    }
}

pub fn credential() -> Credential {
    Credential::KeyFile(SecretBytes::from_slice(&[5; 32]))
}

/// Why a check failed. What the engine says in the error's place.
pub fn told(doing: &str) -> impl FnOnce(Error) -> String + '_ {
    move |error| format!("{doing}: {error}")
}

impl Campaign {
    /// A new region with so many pages, and what is in it.
    pub fn new(seed: u64, pages: u64, workers: u32) -> Result<(Campaign, Vec<u64>, Vec<Page>), String> {
        let geometry = Geometry::new(PAGE as u64, pages, workers, 4096).expect("a shape that can be");
        let salts: Arc<dyn Random> = Arc::new(Seeded(Mutex::new(Rng::with_seed(!seed))));
        let random = Rng::with_seed(seed);
        let mut campaign = Campaign { geometry, random, salts: Arc::clone(&salts), nonces: HashMap::new() };
        let blank = vec![0; usize::try_from(geometry.file_len() / 8).expect("small")];
        let medium = CrashMedium::new(&blank);
        scm::create(&medium, &geometry, Suite::Aes256Gcm, credential(), &salts, &|_, _| {})
            .map_err(told("creating"))?;
        let image = medium.now();
        campaign.audit(&image)?;
        Ok((campaign, image, vec![Page::zero(); usize::try_from(pages).expect("small")]))
    }

    pub fn open(&self, medium: &Arc<CrashMedium>) -> Result<(Engine, Report), Error> {
        self.open_any(Arc::clone(medium) as Arc<dyn Medium>)
    }

    pub fn open_any(&self, medium: Arc<dyn Medium>) -> Result<(Engine, Report), Error> {
        Engine::open(medium, &credential(), Arc::clone(&self.salts), &|_, _| {})
    }

    /// A look at every page, which changes nothing.
    pub fn check(&self, image: &[u64]) -> Result<scm::check::Checked, Error> {
        let medium = CrashMedium::new(image);
        let checked = scm::check::check(&medium, &credential(), Arc::clone(&self.salts), &|_, _| {});
        assert_eq!(medium.operations(), 0, "a check changed the medium");
        checked
    }

    pub fn content(&mut self) -> Content {
        let mut content = [0; PAGE];
        self.random.fill(&mut content);
        content
    }

    /// What lies on the medium at any moment: no nonce twice, and no plaintext in a buffer.
    pub fn audit(&mut self, image: &[u64]) -> Result<(), String> {
        let geometry = self.geometry;
        let bytes = |at: u64, len: usize| -> Vec<u8> {
            let first = usize::try_from(at / 8).expect("small");
            image[first..first + len / 8].iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        for page in 0..geometry.pages() {
            let line: [u8; ENTRY_SIZE] =
                bytes(geometry.entry_at(page), ENTRY_SIZE).try_into().expect("64 bytes");
            // Torn entries have any mixture; of those only whole ones tell something, and only behind a recovery.
            let Some(entry) = Entry::decode(&line) else { continue };
            let sealed = (page, entry.tag);
            let before = self.nonces.insert((entry.salt, entry.nonce), sealed);
            if before.is_some_and(|before| before != sealed) {
                return Err(format!("nonce {} of page {page} was used before", entry.nonce));
            }
        }
        Ok(())
    }

    /// No buffer holds what a page holds in the clear, whatever of it a crash left.
    pub fn audit_buffers(&self, crash: &Crash, model: &[Page]) -> Result<(), String> {
        for worker in 0..self.geometry.workers() {
            let first = usize::try_from(self.geometry.buffer_at(worker) / 8).expect("small");
            for content in model.iter().flat_map(|page| &page.contents) {
                let (words, _) = content.as_chunks::<8>();
                let plain = |(i, word): (usize, &[u8; 8])| {
                    *word != [0; 8] && crash.values(first + i).contains(&u64::from_le_bytes(*word))
                };
                if words.iter().enumerate().any(plain) {
                    return Err(format!("the buffer of worker {worker} holds plaintext"));
                }
            }
        }
        Ok(())
    }

    /// Recovers what a crash left and holds every page against the model. Returns the image behind it, and what is in it.
    pub fn recover_and_check(
        &mut self,
        medium: &Arc<CrashMedium>,
        model: &[Page],
    ) -> Result<(Vec<u64>, Vec<Page>), String> {
        let (engine, report) = self.open(medium).map_err(told("recovering"))?;
        if report.corrupt != 0 {
            return Err(format!("{} pages are corrupt after a crash", report.corrupt));
        }
        let mut after = Vec::new();
        for (page, expected) in (0..).zip(model) {
            let mut content = [0; PAGE];
            engine.read(page, 0, &mut content).map_err(told("reading after recovery"))?;
            if !expected.may_be(&content) {
                return Err(format!("page {page} has lost what it held"));
            }
            let unverified = engine.is_unverified(page);
            if engine.is_open(page) {
                return Err(format!("page {page} is open after recovery"));
            }
            let settled = !expected.busy;
            if settled && unverified != (expected.open || expected.unverified) {
                return Err(format!("page {page} was open: {}, and is marked: {unverified}", expected.open));
            }
            let contents = vec![content];
            after.push(Page { contents, unverified, open: false, busy: false, torn: false });
        }
        drop(engine);
        let image = medium.now();
        self.audit(&image)?;
        // Nothing may be pending that counts: the next crash comes at once.
        if !medium.is_durable() {
            return Err("recovery ended before all that it did was durable".into());
        }
        Ok((image, after))
    }
}
