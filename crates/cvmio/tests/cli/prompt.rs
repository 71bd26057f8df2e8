//! Passphrases that are typed in, at a real terminal.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::common::Desk;

/// What a program at a terminal showed, and its exit code.
struct Typed {
    code: i32,
    shown: String,
}

/// Runs `cvmio` at a pseudo-terminal; types each answer when its prompt is there, not before: what was typed ahead is thrown away.
fn type_in(desk: &Desk, arguments: &str, answers: &[(&str, &[u8])]) -> Typed {
    let command = format!("{} {arguments}", crate::common::programs::cvmio().display());
    let mut script = Command::new("timeout")
        .args(["120", "script", "--quiet", "--flush", "--return", "--command", &command, "/dev/null"])
        .current_dir(desk.path(""))
        .env("CVMIO_RUNTIME_DIR", desk.path("run"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("`script` is part of every Debian");
    let (mut keyboard, mut screen) =
        (script.stdin.take().expect("piped"), script.stdout.take().expect("piped"));
    let (mut shown, mut seen, mut byte) = (String::new(), 0, [0]);
    for (prompt, answer) in answers {
        while !shown[seen..].ends_with(prompt) {
            assert_eq!(screen.read(&mut byte).expect("a terminal"), 1, "no `{prompt}` in: {shown}");
            shown.push(char::from(byte[0]));
        }
        seen = shown.len();
        keyboard.write_all(answer).expect("typed");
    }
    // `script` ends when its input does; every prompt has been answered by now.
    drop(keyboard);
    let mut rest = Vec::new();
    screen.read_to_end(&mut rest).expect("a terminal");
    shown += &String::from_utf8_lossy(&rest);
    Typed { code: script.wait().expect("it ends").code().unwrap_or(-1), shown }
}

const NEW: &str = "New passphrase: ";
const AGAIN: &str = "The same again: ";
const KNOWN: &str = "Passphrase: ";
const CREATE: &str = "volume create disk.img --size 16M --freshness off";

#[test]
fn a_passphrase_is_asked_for_and_never_shown() {
    let desk = Desk::new();
    let typing_error = [(NEW, &b"open sesame\n"[..]), (AGAIN, b"open sesam\n")];
    let refused = type_in(&desk, CREATE, &typing_error);
    assert_eq!(refused.code, 2, "{}", refused.shown);
    assert!(refused.shown.contains("differ"), "{}", refused.shown);
    assert!(!desk.path("disk.img").exists());

    let gone = type_in(&desk, CREATE, &[(NEW, b"open\x03")]);
    assert_eq!(gone.code, 2, "{}", gone.shown);
    assert!(gone.shown.contains("interrupted") && !desk.path("disk.img").exists(), "{}", gone.shown);

    // A letter that is taken back is not part of it.
    let created = type_in(&desk, CREATE, &[(NEW, b"open sesames\x7f\n"), (AGAIN, b"open sesame\r")]);
    assert_eq!(created.code, 0, "{}", created.shown);

    let check = "volume check disk.img";
    let wrong = type_in(&desk, check, &[(KNOWN, b"open barley\n")]);
    assert_eq!(wrong.code, 10, "{}", wrong.shown);
    let right = type_in(&desk, check, &[(KNOWN, b"open sesame\n")]);
    assert_eq!(right.code, 0, "{}", right.shown);
    assert!(right.shown.contains("all whole"), "{}", right.shown);
    // Long work shows its rate and the time that is left.
    assert!(right.shown.contains("B/s, ") && right.shown.contains(" left"), "{}", right.shown);
    // Also when the daemon does it.
    desk.write("passphrase", b"open sesame\n");
    desk.done("volume attach disk.img --passphrase-file passphrase");
    let attached = type_in(&desk, "volume check disk", &[]);
    desk.done("volume detach disk");
    assert_eq!(attached.code, 0, "{}", attached.shown);
    assert!(attached.shown.contains("B/s, ") && attached.shown.contains(" left"), "{}", attached.shown);
    for typed in [refused, gone, created, wrong, right] {
        assert!(!typed.shown.contains("sesam"), "the passphrase is on the screen: {}", typed.shown);
    }
}

/// Before a benchmark measures anything it writes for minutes, with a large volume.
#[test]
fn a_benchmark_shows_what_it_prepares() {
    let desk = Desk::new();
    let bench =
        "bench volume --medium memory --size 256 --turns 1 --seconds 0.1 --aged --cases randread-4k-q1";
    let Typed { code, shown } = type_in(&desk, bench, &[]);
    assert_eq!(code, 0, "{shown}");
    for part in
        ["making room", "filling the bare store", "filling the volume", "overwriting the volume at random"]
    {
        let bar = |line: &str| line.contains(part) && line.contains("B/s, ") && line.contains(" left");
        assert!(shown.split('\r').any(bar), "{part}: {shown}");
    }
}
