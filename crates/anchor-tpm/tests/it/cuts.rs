//! Power that is cut: the TPM's, ours, at each message and at any moment, forty times in a row.

use super::bed::{Bed, Host, Moment, SECRET, Verdict, is_able, stamp};
use anchor_tpm::transport::Place;
use anchor_tpm::{Settings, TpmAnchor};
use seal::SecretBytes;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn generation(anchor: &mut TpmAnchor) -> u64 {
    anchor.stamp().unwrap().map_or(0, |stamp| stamp.generation)
}

fn next(anchor: &mut TpmAnchor, from: u64) -> Result<(), anchor_tpm::error::Error> {
    anchor.compare_and_swap((from > 0).then(|| stamp(from)).as_ref(), &stamp(from + 1))
}

/// The TPM loses its power at the n-th message of a move: before the TPM has it, or after it has acted and before its answer is there.
#[test]
fn a_tpm_that_loses_power_at_any_message_keeps_the_old_state_or_has_the_new_one() {
    if !is_able() {
        return;
    }
    let mut bed = Bed::with_anchor();
    let swtpm = Arc::new(Mutex::new(std::mem::replace(
        &mut bed.swtpm,
        super::bed::Swtpm::start(&bed.directory.path().join("unused")),
    )));
    let host = Host::before(&swtpm.lock().unwrap());
    let settings = || Settings { place: host.place(), ..bed.settings() };
    let mut now = 0;
    let (mut kept, mut moved) = (0, 0);
    for round in 0..40_usize {
        // A new client has seven messages to send: three for the session, and at most the flush of an old one, then read, extend, read.
        let (at, moment) = (1 + round / 2 % 7, if round % 2 == 0 { Moment::Command } else { Moment::Answer });
        let victim = Arc::clone(&swtpm);
        host.meddle(Some(Box::new(move |number, now, _| {
            if (number, now) == (at, moment) {
                victim.lock().unwrap().power_off();
                return Verdict::Hang;
            }
            Verdict::Pass
        })));
        let done = next(&mut TpmAnchor::new(settings()), now);
        host.meddle(None);
        {
            let mut swtpm = swtpm.lock().unwrap();
            swtpm.power_off();
            swtpm.power_on();
        }
        let found = generation(&mut TpmAnchor::new(settings()));
        assert!(found == now || found == now + 1, "round {round}: {found} after {now}");
        assert!(done.is_err() || found == now + 1, "round {round}: what was acknowledged is lost");
        if found == now {
            kept += 1
        } else {
            moved += 1
        }
        now = found;
    }
    assert!(kept >= 10 && moved >= 4, "{kept} kept, {moved} moved: the cuts are not where they should be");
    next(&mut TpmAnchor::new(settings()), now).unwrap();
}

#[test]
#[ignore = "not a test of its own: the processes of the next test run it"]
fn moving_process() {
    let of = |name: &str| std::env::var(name).expect("run by another test");
    let mut key = [0; 32];
    hex::decode_to_slice(of("CVMIO_TEST_KEY"), &mut key).unwrap();
    let mut anchor = TpmAnchor::new(Settings {
        place: Place::Path(of("CVMIO_TEST_TPM").into()),
        index: super::bed::INDEX,
        endorsement_key: Some(key),
        secret: SecretBytes::from_slice(&SECRET),
        companion: of("CVMIO_TEST_COMPANION").into(),
        read_only: false,
        address: "tpm:".into(),
    });
    let mut now = generation(&mut anchor);
    loop {
        if next(&mut anchor, now).is_err() {
            return;
        }
        now += 1;
        println!("moved={now}");
    }
}

/// kill -9 of the anchor's process, of the TPM, and of both, at random moments.
#[test]
fn a_killed_process_or_tpm_loses_nothing_that_was_acknowledged_and_strands_nobody() {
    if !is_able() {
        return;
    }
    let mut bed = Bed::with_anchor();
    let mut random = fastrand::Rng::with_seed(38);
    let mut acknowledged = 0;
    for round in 0..40 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cuts::moving_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env("CVMIO_TEST_KEY", hex::encode(bed.key))
            .env("CVMIO_TEST_TPM", bed.swtpm.socket())
            .env("CVMIO_TEST_COMPANION", bed.companion())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut left = random.u32(1..4);
        let mut note = |line: String| {
            let Some((_, number)) = line.split_once("moved=") else { return false };
            acknowledged = number.trim().parse::<u64>().unwrap();
            true
        };
        while left > 0 {
            let Some(line) = lines.next() else {
                panic!("round {round}: it cannot move: {:?}", child.wait())
            };
            left -= u32::from(note(line.unwrap()));
        }
        std::thread::sleep(Duration::from_micros(random.u64(0..8000)));
        let kill = round % 3;
        if kill != 0 {
            bed.swtpm.power_off();
        }
        if kill != 1 {
            let _ = child.kill();
        }
        let status = child.wait().unwrap();
        assert!(status.success() || status.signal() == Some(9), "round {round}: {status}");
        lines.for_each(|line| {
            note(line.unwrap());
        });
        if kill != 0 {
            bed.swtpm.power_on();
        }
        let found = generation(&mut bed.anchor());
        assert!(
            found == acknowledged || found == acknowledged + 1,
            "round {round}: {found} is held, {acknowledged} was acknowledged"
        );
        acknowledged = found;
    }
}
