use std::fs;
use std::os::unix::fs::symlink;

use tar::{Builder, EntryType, Header};

use super::*;

const ROOM: Room = Room { bytes: 1 << 20 };

/// A stream with one entry whose header is set byte by byte, as a liar would.
fn stream(name: &str, kind: EntryType, link: Option<&str>, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_old();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    if let Some(link) = link {
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    }
    header.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&header, content).unwrap();
    builder.into_inner().unwrap()
}

fn tree() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join("t").join(name);
    fs::create_dir_all(at("b/c")).unwrap();
    fs::write(at("a"), "one").unwrap();
    fs::write(at("b/c/d"), vec![7; 100_000]).unwrap();
    symlink("../a", at("b/up")).unwrap();
    directory
}

#[test]
fn files_come_back_with_their_digests() {
    let directory = tree();
    let (bytes, sent) = pack(Source::Here(&directory.path().join("t")), "t", Vec::new()).unwrap();
    let to = tempfile::tempdir().unwrap();
    let got = unpack(&bytes[..], to.path(), ROOM).unwrap();
    assert_eq!(sent, got);
    assert_eq!(got.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["t/a", "t/b/c/d"]);
    assert_eq!(got[0].sha256(), Some(digest_of(&b"one"[..]).unwrap().digits().as_str()));
    assert_eq!(fs::read(to.path().join("t/b/up")).unwrap(), b"one");
    // The same files make the same stream, whatever their times.
    fs::write(directory.path().join("t/a"), "one").unwrap();
    assert_eq!(pack(Source::Here(&directory.path().join("t")), "t", Vec::new()).unwrap().0, bytes);
    assert_eq!(size(&directory.path().join("t")).unwrap().0, 100_003 + 4);
}

#[test]
fn a_stream_that_leads_outside_is_refused() {
    let refusal = |bytes: &[u8]| {
        let to = tempfile::tempdir().unwrap();
        let inner = to.path().join("in");
        fs::create_dir(&inner).unwrap();
        let refused = unpack(bytes, &inner, ROOM).unwrap_err().to_string();
        let left: Vec<_> = fs::read_dir(to.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["in"], "{refused}");
        refused
    };
    let file = |name: &str| refusal(&stream(name, EntryType::Regular, None, b"x"));
    for name in ["../x", "/x", "a/../../x", "./x", "a//x", ""] {
        assert!(file(name).contains("refused") || file(name).contains("tar"), "{name}: {}", file(name));
    }
    for target in ["/etc", "../..", "../../x"] {
        assert!(
            refusal(&stream("l", EntryType::Symlink, Some(target), b"")).contains("leads outside"),
            "{target}"
        );
    }
    for kind in [EntryType::Link, EntryType::Char, EntryType::Block, EntryType::Fifo] {
        assert!(refusal(&stream("l", kind, Some("x"), b"")).contains("does not travel"), "{kind:?}");
    }
    assert!(refusal(b"no archive at all").contains("tar"));
}

#[test]
fn no_file_is_written_through_a_link() {
    let outside = tempfile::tempdir().unwrap();
    let to = tempfile::tempdir().unwrap();
    let mut bytes = stream("d", EntryType::Symlink, Some("e"), b"");
    bytes.truncate(512);
    bytes.extend(stream("d/x", EntryType::Regular, None, b"x"));
    assert!(unpack(&bytes[..], to.path(), ROOM).is_err());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn a_name_twice_and_too_many_bytes_are_refused() {
    let to = tempfile::tempdir().unwrap();
    let one = stream("x", EntryType::Regular, None, b"12345678");
    let mut twice = one.clone();
    twice.truncate(1024);
    twice.extend(&one);
    assert!(unpack(&twice[..], to.path(), ROOM).unwrap_err().to_string().contains("twice"));
    let to = tempfile::tempdir().unwrap();
    assert!(unpack(&one[..], to.path(), Room { bytes: 8 }).is_ok());
    let to = tempfile::tempdir().unwrap();
    assert!(
        unpack(&one[..], to.path(), Room { bytes: 7 }).unwrap_err().to_string().contains("above the limit")
    );
}

/// A container may lay links in its file system that lead to the guest's own files.
#[test]
fn no_link_of_a_container_leads_out_of_its_root() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, "the guest's").unwrap();
    let root = directory.path().join("root");
    fs::create_dir_all(root.join("out")).unwrap();
    fs::write(root.join("secret"), "its own").unwrap();
    symlink("../../../secret", root.join("out/way")).unwrap();
    symlink(secret.to_str().unwrap(), root.join("absolute")).unwrap();
    let (bytes, _) = pack(Source::Below(&root, "/out/way"), "way", Vec::new()).unwrap();
    let to = tempfile::tempdir().unwrap();
    unpack(&bytes[..], to.path(), ROOM).unwrap();
    assert_eq!(fs::read(to.path().join("way")).unwrap(), b"its own");
    assert!(pack(Source::Below(&root, "/absolute"), "x", Vec::new()).is_err());
    let refused = pack(Source::Below(&root, "/out"), "out", Vec::new()).unwrap_err().to_string();
    assert!(refused.contains("leads to"), "{refused}");
}

#[test]
fn a_file_of_another_kind_does_not_travel() {
    let directory = tempfile::tempdir().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("s")).unwrap();
    let refused = pack(Source::Here(directory.path()), "d", Vec::new()).unwrap_err().to_string();
    assert!(refused.contains("do not travel"), "{refused}");
    assert!(pack(Source::Here(&directory.path().join("none")), "n", Vec::new()).is_err());
}
