//! Plaintext in the server's memory: gone when the page is encrypted, and when a request has ended.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::memory::{NEEDLE, find, regions};
use crate::preload::{Vmm, wait_until};
use crate::support::{PAGE, Place, Server};

/// Letters, so that a VMM's script can store them, too.
fn letters(seed: u64, len: usize) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.alphanumeric()).collect()
}

/// Every piece of a content: what is left of a buffer may begin anywhere.
fn needles(content: &[u8]) -> BTreeSet<[u8; NEEDLE]> {
    content.chunks_exact(NEEDLE).map(|piece| piece.try_into().unwrap()).collect()
}

/// How much of it is in the memory of a server, and where.
fn found(server: &Server, content: &[u8]) -> (usize, Vec<String>) {
    let needles = needles(content);
    let all = regions(server.id());
    assert!(!all.is_empty(), "nothing can be read: this needs root");
    let places = all.iter().filter_map(|(region, bytes)| {
        let found = find(bytes, &needles);
        (!found.is_empty()).then(|| (found.len(), format!("{} pieces in {region:?}", found.len())))
    });
    let (counts, names): (Vec<usize>, Vec<String>) = places.unzip();
    (counts.iter().sum(), names)
}

#[test]
fn what_a_vmm_has_stored_is_gone_when_its_pages_are_encrypted() {
    const PAGES: u32 = 64;
    let place = Place::new();
    place.succeed("create region --size 256k --key-file key");
    let serve = "serve region --key-file key --mode userfaultfd --socket socket --io-ms 0 --idle-ms 500";
    let server = place.serve(serve);
    let content = letters(1, PAGES as usize * PAGE);
    let text = |page: u32| &content[page as usize * PAGE..][..PAGE];
    for round in 0..2 {
        let mut vmm = Vmm::start(&place);
        for page in 0..PAGES {
            if round == 0 {
                vmm.put(page, text(page));
            }
            assert_eq!(vmm.get(page, PAGE), text(page));
        }
        // The search finds what is there: open pages, in the server's mapping. One may have been encrypted before it was looked for.
        let is_seen = |_| {
            let _ = vmm.get(0, PAGE);
            found(&server, text(0).as_bytes()).0 > 0
        };
        assert!((0..20).any(is_seen), "not even an open page was found");
        vmm.end();
        wait_until(&place, "64 encrypted, 0 open");
        let (count, names) = found(&server, content.as_bytes());
        assert_eq!(count, 0, "round {round}: {names:?}");
    }
    server.stop();
}

#[test]
fn what_was_written_and_read_by_fuse_is_gone_when_it_is_answered() {
    let place = Place::new();
    place.succeed("create region --size 4m --key-file key");
    let server = place.serve("serve region --key-file key --mode fuse --mountpoint mnt --threads 1");
    let file = File::options().read(true).write(true).open(place.at("mnt/region/pmem")).unwrap();
    let content = letters(2, 256 << 10);
    let other = letters(3, 1 << 20);
    let write = |text: &str, at: u64| {
        file.write_all_at(text.as_bytes(), at).unwrap();
        file.sync_all().unwrap();
    };
    write(&content, 0);
    // Parts of pages, too.
    write(&content[..6000], (1 << 20) + 100);
    // What is read comes from the server, not from the kernel's cache.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for (at, len) in [(0, content.len()), ((1 << 20) + 100, 6000)] {
        let mut read = vec![0; len];
        file.read_exact_at(&mut read, at).unwrap();
        assert!(read == content.as_bytes()[..len], "at {at}");
    }
    write(&other, 2 << 20);
    for text in [&content, &other] {
        let (count, names) = found(&server, text.as_bytes());
        assert_eq!(count, 0, "{names:?}");
    }
    // The search finds what is there: the path of the program.
    assert!(found(&server, env!("CARGO_BIN_EXE_cvmio-scm").as_bytes()).0 > 0);
    drop(file);
    server.stop();
}
