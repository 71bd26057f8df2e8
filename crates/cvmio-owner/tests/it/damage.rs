//! A database that somebody or something damaged.

use crate::room::{Room, stamp};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Numbers that look random and are the same each time (Marsaglia, "Xorshift RNGs", 2003).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Damage of one kind, at a place of chance.
fn damaged(whole: &[u8], kind: u64, numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    let length = whole.len() as u64;
    let mut place = || usize::try_from(numbers.below(length)).unwrap();
    let at = place();
    match kind {
        0 => bytes.truncate(at),
        1 => bytes[at..].iter_mut().take(4096).for_each(|byte| *byte = 0),
        2 => (0..200).for_each(|_| bytes[place()] ^= 0x10),
        // A page that was written to the place of another.
        _ => {
            let page = &whole[place() & !4095..];
            bytes[at & !4095..].iter_mut().zip(page).take(4096).for_each(|(to, byte)| *to = *byte);
        }
    }
    bytes
}

/// Whatever becomes of its bytes: the database is served as it was, or refused by the exit code at which a unit does not start it again.
#[test]
fn a_damaged_database_is_refused_as_damaged_and_nothing_ends_by_a_panic() {
    let mut room = Room::serving();
    let mut client = room.client("ledger", "guest");
    client.compare_and_swap(None, &stamp(1, 1)).unwrap();
    for generation in 1..60 {
        client.compare_and_swap(Some(&stamp(1, generation)), &stamp(1, generation + 1)).unwrap();
    }
    room.stop();
    let listed = room.done("list", &[]);
    let whole = fs::read(room.database()).unwrap();
    let mut numbers = Numbers(0x5eed);
    let mut refused = [0; 4];
    for kind in (0..4).flat_map(|kind| [kind; 40]) {
        fs::write(room.database(), damaged(&whole, kind, &mut numbers)).unwrap();
        let said = room.run("list", &[]);
        match said.code {
            0 => {
                assert_eq!(said.out, listed, "it is whole, and says something else");
                assert_eq!(
                    room.run("volume add", &["other"]).code,
                    0,
                    "what was read as whole can't be used"
                );
            }
            4 => {
                assert!(
                    said.error.starts_with("cvmio: error: ") && !said.error.contains("panicked"),
                    "{said:?}"
                );
                refused[usize::try_from(kind).unwrap()] += 1;
            }
            _ => panic!("damage of kind {kind}: {said:?}"),
        }
    }
    assert!(refused.iter().all(|count| *count > 10), "{refused:?}");
    fs::write(room.database(), b"something else, and longer than a page".repeat(200)).unwrap();
    let said = room.run("serve", &["--listen", "127.0.0.1:0"]);
    assert!(said.code == 4 && said.error.contains("is damaged ("), "{said:?}");
    fs::write(room.database(), whole).unwrap();
    room.start();
}

/// What others can read or change draws a refusal, and not a service that looks trustworthy.
#[test]
fn a_state_that_others_can_reach_is_not_served() {
    let room = Room::serving();
    let other = room.path("other");
    let set = |path: &std::path::Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let copied = std::process::Command::new("cp").arg("-rp").arg(room.path("state")).arg(&other).status();
    assert!(copied.unwrap().success());
    let _ = fs::remove_file(other.join(owner::CONTROL));
    let run = |command: &str, more: &[&str]| {
        let output = room.command("other", command).args(more).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run("list", &[]).0, Some(0));
    for (path, mode, before) in [
        (other.clone(), 0o777, 0o700),
        (other.join(owner::DATABASE), 0o666, 0o600),
        (other.join("tls/authority.key"), 0o644, 0o600),
        (other.join("tls/server.key"), 0o644, 0o600),
    ] {
        set(&path, mode);
        let client = room.path("unused");
        for (command, more) in [
            ("serve", &["--listen", "127.0.0.1:0"][..]),
            ("volume add", &["new", "--new-client", client.to_str().unwrap()]),
        ] {
            let (code, error) = run(command, more);
            assert_eq!(code, Some(2), "{command} with {}: {error}", path.display());
            assert!(error.contains(&format!("{}: ", path.display())) && error.contains("chmod"), "{error}");
        }
        assert!(!client.exists());
        set(&path, before);
    }
    assert_eq!(run("list", &[]).0, Some(0));
}
