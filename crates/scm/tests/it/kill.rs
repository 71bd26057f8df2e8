//! A process that does nothing but change pages is killed, again and again. Stores in shared memory survive that, each of them, so this cuts at
//! instructions where the crash model cuts at stores.
//!
//! `SCM_KILLS` says how often. What the process has begun and done is in another file, which the kill leaves alone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use scm::{Access, Engine, Geometry, Mapping, Medium};
use seal::{Random, Suite, SystemRandom};

use crate::campaign::credential;
use crate::starting;

const PAGES: u64 = 32;
const SIZE: usize = 4096;
/// Tells the test below that it is the one to be killed, and where it works.
const VICTIM: &str = "SCM_VICTIM";

/// Whole versions, and the guest's stores of one word: each as (begun, done), four words for each page.
const WHOLE: u64 = 0;
const WORD: u64 = 16;
/// Where the guest's word is in the page.
const WORD_AT: u64 = 16;

fn content(page: u64, version: u64) -> Vec<u8> {
    let mut content = vec![0; SIZE];
    if version > 0 {
        fastrand::Rng::with_seed(page << 32 | version).fill(&mut content);
        content[..8].copy_from_slice(&version.to_le_bytes());
    }
    content[16..24].fill(0);
    content
}

fn open(directory: &Path) -> (Engine, Arc<Mapping>, scm::Report) {
    let mapping = Arc::new(starting::open(&directory.join("region"), Access::Exclusive).unwrap());
    let medium: Arc<dyn Medium> = Arc::clone(&mapping) as Arc<dyn Medium>;
    let (engine, report) = Engine::open(medium, &credential(), Arc::new(SystemRandom), &|_, _| {}).unwrap();
    (engine, mapping, report)
}

struct Notes(File);

impl Notes {
    fn get(&self, page: u64, at: u64) -> u64 {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, page * 32 + at).unwrap();
        u64::from_le_bytes(word)
    }

    fn put(&self, page: u64, at: u64, value: u64) {
        self.0.write_all_at(&value.to_le_bytes(), page * 32 + at).unwrap();
    }
}

fn notes(directory: &Path) -> Notes {
    Notes(File::options().read(true).write(true).open(directory.join("notes")).unwrap())
}

/// Rewrites, opens, stores and closes until it is killed.
fn victim(directory: &Path) {
    let (engine, mapping, _) = open(directory);
    std::fs::write(directory.join("ready"), "").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (engine, mapping) = (&engine, &mapping);
            scope.spawn(move || {
                let notes = notes(directory);
                let mut random = fastrand::Rng::new();
                let begun = Instant::now();
                // It ends by itself should nobody kill it.
                while begun.elapsed() < Duration::from_secs(20) {
                    let page = thread + 2 * random.u64(..PAGES / 2);
                    match random.u8(..4) {
                        0 => {
                            let version = notes.get(page, WHOLE) + 1;
                            notes.put(page, WHOLE, version);
                            // With the word that the guest has stored.
                            let mut whole = content(page, version);
                            whole[16..24].copy_from_slice(&notes.get(page, WORD).to_le_bytes());
                            engine.write(page, 0, &whole).unwrap();
                            notes.put(page, WHOLE + 8, version);
                        }
                        1 if engine.is_open(page) => {
                            let count = notes.get(page, WORD) + 1;
                            notes.put(page, WORD, count);
                            mapping.store(page * SIZE as u64 + WORD_AT, count).unwrap();
                            notes.put(page, WORD + 8, count);
                        }
                        _ if engine.is_open(page) => drop(engine.close_page(page).unwrap()),
                        _ => drop(engine.open_page(page).unwrap()),
                    }
                }
            });
        }
    });
}

fn verify(directory: &Path, round: u32) -> scm::Report {
    let (engine, _mapping, report) = open(directory);
    assert_eq!(report.corrupt, 0);
    let notes = notes(directory);
    for page in 0..PAGES {
        let mut found = vec![0; SIZE];
        engine.read(page, 0, &mut found).unwrap();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| found[at + i]));
        let (version, stored) = (word(0), word(16));
        let whole = (notes.get(page, WHOLE + 8), notes.get(page, WHOLE));
        assert!(
            (whole.0..=whole.1).contains(&version),
            "round {round}, page {page}: {version} and {whole:?}"
        );
        let words = (notes.get(page, WORD + 8), notes.get(page, WORD));
        let fits = (words.0..=words.1).contains(&stored);
        assert!(fits, "round {round}, page {page}: the guest's word is {stored}, {words:?}");
        found[16..24].fill(0);
        assert!(found == content(page, version), "round {round}, page {page} is torn");
        assert!(!engine.is_open(page));
        for (at, value) in [(WHOLE, version), (WHOLE + 8, version), (WORD, stored), (WORD + 8, stored)] {
            notes.put(page, at, value);
        }
    }
    report
}

#[test]
fn kills_at_any_instruction_leave_every_page_whole() {
    if let Some(directory) = std::env::var_os(VICTIM) {
        return victim(Path::new(&directory));
    }
    let rounds: u32 = std::env::var("SCM_KILLS").map_or(100, |text| text.parse().expect("a number"));
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let geometry = Geometry::new(SIZE as u64, PAGES, 3, 4096).unwrap();
    let random: Arc<dyn Random> = Arc::new(SystemRandom);
    let mapping = Mapping::create(&place.path().join("region"), geometry.file_len()).unwrap();
    scm::create(&mapping, &geometry, Suite::Aes256Gcm, credential(), &random, &|_, _| {}).unwrap();
    drop(mapping);
    std::fs::write(place.path().join("notes"), vec![0; usize::try_from(PAGES).unwrap() * 32]).unwrap();
    let (mut under_way, mut open_pages) = (0, 0);
    for round in 0..rounds {
        let ready = place.path().join("ready");
        let mut victim = Command::new(std::env::current_exe().unwrap());
        victim
            .args(["--exact", "kill::kills_at_any_instruction_leave_every_page_whole", "--nocapture"])
            .env(VICTIM, place.path())
            .stdout(Stdio::null());
        // Its parent goes on before it has given back the files, and with them the locks, that it had for a moment. When it runs, it has.
        let mut child = starting::start(|| {
            let mut child = victim.spawn().unwrap();
            while !ready.exists() {
                assert!(child.try_wait().unwrap().is_none(), "the victim has ended by itself");
                std::thread::sleep(Duration::from_millis(1));
            }
            child
        });
        std::thread::sleep(Duration::from_micros(fastrand::u64(..8000)));
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_file(&ready).unwrap();
        let report = verify(place.path(), round);
        under_way += report.finished + report.undone;
        open_pages += report.open;
    }
    println!("{rounds} kills, {under_way} pages under way, {open_pages} open");
    assert!(under_way > 0 && open_pages > 0, "the kills hit nothing");
}
