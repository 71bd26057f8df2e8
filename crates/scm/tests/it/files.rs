//! Regions in real files.

use std::sync::Arc;

use scm::{Access, Durability, Engine, Error, Fault, Geometry, Mapping, Medium};
use seal::{Random, Suite, SystemRandom};

use crate::campaign::credential;
use crate::forbidden::{install, statement};
use crate::starting;

fn region(directory: &std::path::Path, page_size: u64, pages: u64) -> std::path::PathBuf {
    let path = directory.join("region");
    let geometry = Geometry::new(page_size, pages, 2, Mapping::granule(directory).unwrap()).unwrap();
    let random: Arc<dyn Random> = Arc::new(SystemRandom);
    let mapping = Mapping::create(&path, geometry.file_len()).unwrap();
    scm::create(&mapping, &geometry, Suite::Aes256Gcm, credential(), &random, &|_, _| {}).unwrap();
    path
}

fn open(path: &std::path::Path) -> Result<(Engine, Arc<Mapping>), Error> {
    let mapping = Arc::new(starting::open(path, Access::Exclusive)?);
    let medium: Arc<dyn Medium> = Arc::clone(&mapping) as Arc<dyn Medium>;
    let (engine, _) = Engine::open(medium, &credential(), Arc::new(SystemRandom), &|_, _| {})?;
    Ok((engine, mapping))
}

/// tmpfs, and the file system of the temporary directory, which may be another.
fn directories() -> Vec<tempfile::TempDir> {
    vec![tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap()]
}

#[test]
fn both_page_sizes_keep_their_content_on_every_file_system() {
    for directory in directories() {
        for (page_size, pages) in [(4096, 20), (2 << 20, 3)] {
            let path = region(directory.path(), page_size, pages);
            let bytes = usize::try_from(page_size).unwrap();
            let content: Vec<u8> = (0..=250).cycle().take(bytes).collect();
            {
                let (engine, _mapping) = open(&path).unwrap();
                engine.write(1, 0, &content).unwrap();
                engine.write(2, 512, &content[..1024]).unwrap();
                assert!(engine.open_page(1).unwrap());
                assert!(!engine.open_page(1).unwrap());
                assert_eq!(engine.status().open, 1);
                assert_eq!(engine.stop().unwrap(), 1);
            }
            let file = std::fs::read(&path).unwrap();
            assert!(!file.windows(64).any(|window| window == &content[..64]), "plaintext on the medium");
            let (engine, _mapping) = open(&path).unwrap();
            let mut read = vec![0; bytes];
            engine.read(1, 0, &mut read).unwrap();
            assert_eq!(read, content);
            engine.read(2, 0, &mut read).unwrap();
            assert_eq!(read[512..1536], content[..1024]);
            assert!(read[..512].iter().chain(&read[1536..]).all(|byte| *byte == 0));
            drop(engine);
            std::fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn a_region_has_one_server() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = region(directory.path(), 4096, 4);
    let served = open(&path).unwrap();
    assert!(matches!(open(&path), Err(Error::Busy(_))));
    assert!(matches!(starting::open(&path, Access::ReadOnly), Err(Error::Busy(_))));
    assert!(starting::open(&path, Access::Peek).is_ok());
    drop(served);
    assert!(open(&path).is_ok());
}

#[test]
fn a_file_cut_short_under_the_mapping_stops_the_engine_and_nothing_else() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = region(directory.path(), 4096, 64);
    let whole = std::fs::read(&path).unwrap();
    let (engine, mapping) = open(&path).unwrap();
    engine.write(3, 0, &[7; 4096]).unwrap();
    let before = std::fs::read(&path).unwrap();
    mapping.file().set_len(20 * 4096).unwrap();
    let mut page = [0; 4096];
    let lost = engine.read(40, 0, &mut page).unwrap_err();
    assert!(matches!(lost, Error::Medium(Fault::Lost { offset: 163_840 })), "{lost}");
    assert!(lost.to_string().contains("cut short"), "{lost}");
    assert!(matches!(engine.read(3, 0, &mut page), Err(Error::Stopped)));
    assert!(matches!(engine.write(3, 0, &page), Err(Error::Stopped)));
    assert!(matches!(engine.stop(), Err(Error::Stopped)), "a stop behind a failure is none");
    drop((engine, mapping));
    // What is left of the file is as it was; put together again, it is a region with all its pages.
    let left = std::fs::read(&path).unwrap();
    assert_eq!(left, before[..20 * 4096]);
    assert_eq!(whole.len(), before.len());
    std::fs::write(&path, &before).unwrap();
    let (engine, _mapping) = open(&path).unwrap();
    engine.read(3, 0, &mut page).unwrap();
    assert_eq!(page, [7; 4096]);
}

/// MAP_SYNC is refused everywhere here. Memory needs no more than cache lines; anything else needs msync(2), and what that answers counts.
#[test]
fn where_a_mapping_is_not_synchronous_durability_is_that_of_the_file_system() {
    for directory in directories() {
        let path = region(directory.path(), 4096, 8);
        let is_memory = rustix::fs::statfs(directory.path()).unwrap().f_type == 0x0102_1994;
        let (engine, mapping) = open(&path).unwrap();
        let expected = if is_memory { Durability::CacheLines } else { Durability::Msync };
        assert_eq!(mapping.durability(), expected, "{}", path.display());
        engine.write(2, 0, &[2; 4096]).unwrap();
        // The system cannot write back any more.
        let failed = std::thread::scope(|scope| {
            let writing = || {
                forbid_msync();
                engine.write(2, 0, &[3; 4096])
            };
            scope.spawn(writing).join().unwrap()
        });
        let mut page = [0; 4096];
        if is_memory {
            failed.unwrap();
            engine.read(2, 0, &mut page).unwrap();
            assert_eq!(page, [3; 4096]);
            continue;
        }
        let error = failed.unwrap_err();
        assert!(matches!(error, Error::Medium(Fault::Sync(_))), "{error}");
        assert!(error.to_string().contains("cannot be written back"), "{error}");
        assert!(matches!(engine.write(2, 0, &[4; 4096]), Err(Error::Stopped)));
        assert!(engine.status().stopped);
        drop((engine, mapping));
        let (engine, _mapping) = open(&path).unwrap();
        engine.read(2, 0, &mut page).unwrap();
        assert!(page == [2; 4096] || page == [3; 4096], "the page is torn");
        assert_eq!(engine.status().corrupt, 0);
    }
}

/// msync(2) fails on this thread from now on, as on a disk that fails.
fn forbid_msync() {
    let msync = u32::try_from(libc::SYS_msync).unwrap();
    let failure = libc::SECCOMP_RET_ERRNO | libc::EIO.cast_unsigned();
    let filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (0, 1), msync),
        statement(libc::BPF_RET | libc::BPF_K, (0, 0), failure),
        statement(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    install(filter).unwrap();
}

#[test]
fn threads_share_an_engine() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = region(directory.path(), 4096, 32);
    let (engine, _mapping) = open(&path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let engine = &engine;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread.into());
                // Each thread has its own pages, and all have the same workers, locks and root.
                for round in 0..200_u8 {
                    let page = u64::from(thread) + 4 * random.u64(..8);
                    engine.write(page, 0, &[round; 4096]).unwrap();
                    engine.open_page(page).unwrap();
                    let mut content = [0; 4096];
                    engine.read(page, 0, &mut content).unwrap();
                    assert_eq!(content, [round; 4096]);
                    engine.close_page(page).unwrap();
                }
            });
        }
    });
    assert_eq!(engine.status().open, 0);
    drop(engine);
    drop(_mapping);
    let (engine, _mapping) = open(&path).unwrap();
    assert_eq!(engine.status().unverified, 0);
}

/// A sparse restore and a punched hole: what lies behind the hole does not count, and the whole file is not searched for one.
#[test]
fn a_range_is_whole_where_the_file_has_memory_for_all_of_it() {
    let mapping = Mapping::memory(64 * 4096).unwrap();
    (0..64).for_each(|page| mapping.store(page * 4096, 1).unwrap());
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(mapping.file(), flags, 9 * 4096, 4096).unwrap();
    for (page, pages, is_whole) in
        [(0, 9, true), (0, 10, false), (9, 1, false), (8, 3, false), (10, 54, true)]
    {
        assert_eq!(mapping.is_whole(page * 4096, pages * 4096), is_whole, "{page}, {pages}");
    }
}
