//! Every command, and what it says to bad input.

use std::fs;

use crate::support::{PAGE, Place};

const CREATE: &str = "create region --size 256k --key-file key";

#[test]
fn a_region_is_made_looked_at_and_checked() {
    let place = Place::new();
    assert!(place.succeed(CREATE).contains("64 pages of 4096 bytes"));
    assert!(place.succeed("status region").contains("64 encrypted, 0 open, 0 unverified, 0 under way"));
    assert!(place.succeed("status region --json").contains("\"proven\":false"));
    assert!(place.succeed("check region --key-file key").contains("every encrypted page opens"));
    assert!(place.succeed("recover region --key-file key").contains("stopped cleanly"));
    let words = place.succeed("qemu-args region --mountpoint mnt");
    assert!(words.contains("mem-path=") && words.contains("/mnt/pmem,size=262144"), "{words}");
    assert!(words.contains("virtio-pmem-pci,memdev=scm0"), "{words}");
}

#[test]
fn huge_pages_are_pages_too() {
    let place = Place::new();
    assert!(
        place.succeed("create region --size 6m --page-size 2m --key-file key").contains("3 pages of 2097152")
    );
    assert!(place.succeed("check region --key-file key").contains("every encrypted page opens"));
}

#[test]
fn what_cannot_be_made_is_refused_and_leaves_nothing() {
    let place = Place::new();
    fs::write(place.at("short"), [1; 31]).unwrap();
    place.fail("create region --size 256k --key-file none", 2, "the key file none");
    place.fail("create region --size 256k --key-file short", 10, "key file");
    place.fail("create region --size 5000 --key-file key", 2, "no whole number of pages");
    place.fail("create region --size 256k --page-size 8k --key-file key", 2, "use 4k or 2m");
    place.fail("create region --size 256k --suite aes-256-xts --key-file key", 2, "authenticates nothing");
    place.fail("create region --size 256k --workers 9 --key-file key", 2, "between 1 and 8");
    place.fail("create none/region --size 256k --key-file key", 3, "none");
    assert!(!place.at("region").exists());
    place.succeed(CREATE);
    let before = fs::read(place.at("region")).unwrap();
    place.fail(CREATE, 3, "creating region");
    assert_eq!(fs::read(place.at("region")).unwrap(), before);
}

#[test]
fn a_region_that_is_not_ours_or_not_whole_is_refused_and_stays() {
    let place = Place::new();
    place.succeed(CREATE);
    fs::write(place.at("other"), [1; 64]).unwrap();
    place.fail("recover region --key-file other", 10, "no key slot opens");
    let whole = fs::read(place.at("region")).unwrap();
    let refused = |bytes: &[u8], code: i32, about: &str| {
        fs::write(place.at("region"), bytes).unwrap();
        for words in [
            "recover region --key-file key",
            "check region --key-file key",
            "serve region --key-file key --mode fuse --mountpoint mnt",
        ] {
            place.fail(words, code, about);
        }
        assert_eq!(fs::read(place.at("region")).unwrap(), bytes, "a refused region was changed");
    };
    refused(&whole[..whole.len() - PAGE], 2, "cut short");
    refused(&[&whole[..], &[0; PAGE]].concat(), 2, "made longer");
    refused(&[], 2, "no region");
    refused(&[7; 3], 2, "no region");
    let header = whole.len() - 16_384;
    let with = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] ^= value;
        bytes
    };
    refused(&with(header + 8, 2), 2, "format version 3");
    refused(&with(header + 72, 1), 4, "MAC is wrong");
    // An entry of the table: behind 64 data pages and one block of bitmap.
    refused(&with(65 * PAGE + 40, 1), 4, "no root vouches");
    fs::write(place.at("region"), &whole).unwrap();
    place.succeed("check region --key-file key");
}

#[test]
fn a_changed_page_is_named_and_the_others_are_served() {
    let place = Place::new();
    place.succeed(CREATE);
    let mut bytes = fs::read(place.at("region")).unwrap();
    bytes[5 * PAGE + 100] ^= 1;
    fs::write(place.at("region"), &bytes).unwrap();
    place.fail("check region --key-file key", 4, "corrupt pages: 5:");
    let server = place.serve("serve region --key-file key --mode fuse --mountpoint mnt --socket socket");
    let file = fs::File::open(place.at("mnt/pmem")).unwrap();
    let read = |page: usize| {
        let mut content = vec![1; PAGE];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut content, (page * PAGE) as u64).map(|()| content)
    };
    assert!(read(5).is_err());
    assert!(read(60).is_ok_and(|content| content == [0; PAGE]));
    drop(file);
    assert!(!place.succeed("status --socket socket").contains(" 0 corrupt"));
    server.stop();
}

#[test]
fn status_of_nothing_is_an_error() {
    let place = Place::new();
    place.fail("status region", 3, "opening region");
    place.fail("status --socket socket", 3, "no server answers on socket");
}

/// What `cvmio` asks of it for its own completions and manual pages.
#[test]
fn it_says_its_grammar_and_writes_its_manual() {
    let place = Place::new();
    let grammar = place.succeed("grammar");
    for word in ["accept", "qemu-args", "open-limit", "userfaultfd"] {
        assert!(grammar.contains(&format!("\"{word}\"")), "{word}: {grammar}");
    }
    assert!(!grammar.contains("\"grammar\""));
    place.succeed("man pages");
    let page = fs::read_to_string(place.at("pages/cvmio-scm-serve.1")).unwrap();
    assert!(page.contains("read\\-ahead") && page.contains("cvmio scm serve"), "{page}");
}
