//! What the host can do, and what the anchor says to it.

use super::bed::{Bed, Host, INDEX, Moment, SECRET, Swtpm, Verdict, is_able, move_up, refusal, stamp};
use anchor_tpm::companion::Companion;
use anchor_tpm::steps::Log;
use anchor_tpm::wire::command::{NvPublic, attributes};
use anchor_tpm::{Settings, TpmAnchor};
use seal::SecretBytes;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};

#[test]
fn a_wrong_secret_and_a_foreign_index_are_told_by_name() {
    if !is_able() {
        return;
    }
    let bed = Bed::with_anchor();
    move_up(&mut bed.anchor(), 0, 2);
    let wrong = Settings { secret: SecretBytes::from_slice(&[1; 32]), ..bed.settings() };
    for _ in 0..40 {
        // Wrong ones are not counted: no lockout.
        let refused = refusal(
            TpmAnchor::new(Settings { secret: SecretBytes::from_slice(&[1; 32]), ..bed.settings() }).stamp(),
        );
        assert!(refused.contains("not the secret that the policy has"), "{refused}");
    }
    assert!(
        refusal(TpmAnchor::new(wrong).compare_and_swap(Some(&stamp(2)), &stamp(3)))
            .contains("not the secret")
    );
    assert_eq!(bed.anchor().stamp().unwrap(), Some(stamp(2)));

    let foreign = |index, attributes, size| NvPublic { attributes, size, ..NvPublic::anchor(index, false) };
    let ordinary = attributes::ANCHOR & !attributes::EXTEND;
    for (at, public) in [
        foreign(INDEX + 1, ordinary, 32),
        foreign(INDEX + 2, attributes::ANCHOR | attributes::ORDERLY, 32),
        foreign(INDEX + 3, ordinary, 16),
    ]
    .into_iter()
    .enumerate()
    {
        bed.tpm().nv_define(&public, &SECRET, b"").unwrap();
        let path = bed.directory.path().join(format!("other-{at}"));
        fs::copy(bed.companion(), &path).unwrap();
        let mut anchor = TpmAnchor::new(Settings { index: public.index, companion: path, ..bed.settings() });
        for refused in [refusal(anchor.stamp()), refusal(anchor.create(b""))] {
            assert!(refused.contains("it is used for something else"), "{refused}");
        }
    }
    let mut nowhere = TpmAnchor::new(Settings { index: INDEX + 9, ..bed.settings() });
    assert!(refusal(nowhere.stamp()).contains("no such index; make the anchor with `cvmio anchor init"));
}

/// With the owner hierarchy the host undefines the index, defines it anew and replays the extends.
#[test]
fn an_index_defined_anew_by_the_owner_is_caught_and_only_because_of_the_secret() {
    if !is_able() {
        return;
    }
    for attacker in [[9; 32], SECRET] {
        let bed = Bed::with_anchor();
        let mut digests = Vec::new();
        let mut anchor = bed.anchor();
        let mut note = || digests.push(Companion::open(&bed.companion(), true).unwrap().load().unwrap());
        note();
        for generation in 0..3 {
            move_up(&mut anchor, generation, generation + 1);
            note();
        }
        drop(anchor);
        // The state of generation 2: its file, and all extends up to it.
        let old = &digests[2];
        let mut history: Vec<_> = digests[..3].iter().flatten().collect();
        history.sort_by_key(|attempt| attempt.number);
        history.dedup();
        let mut tpm = bed.tpm();
        tpm.nv_undefine(&NvPublic::anchor(INDEX, true), b"").unwrap();
        tpm.nv_define(&NvPublic::anchor(INDEX, false), &attacker, b"").unwrap();
        for (at, attempt) in history.iter().enumerate() {
            tpm.nv_extend(&NvPublic::anchor(INDEX, at > 0), &attacker, &attempt.digest()).unwrap();
        }
        fs::remove_file(bed.companion()).unwrap();
        Companion::create(&bed.companion(), &old[0]).unwrap();
        let mut file = Companion::open(&bed.companion(), false).unwrap();
        file.load().unwrap();
        file.store(old).unwrap();
        drop((file, tpm));
        let found = bed.anchor().stamp();
        if attacker == SECRET {
            // The control: this is what the secret prevents.
            assert_eq!(found.unwrap(), Some(stamp(2)));
        } else {
            let refused = refusal(found);
            assert!(refused.contains("undefined the index and defined it anew"), "{refused}");
        }
    }
}

#[test]
fn a_companion_file_that_was_cut_changed_or_put_back_leads_nowhere() {
    if !is_able() {
        return;
    }
    let bed = Bed::with_anchor();
    let mut anchor = bed.anchor();
    move_up(&mut anchor, 0, 2);
    let old = fs::read(bed.companion()).unwrap();
    move_up(&mut anchor, 2, 4);
    let good = fs::read(bed.companion()).unwrap();
    let writes = anchor.extends();
    let mut changed = good.clone();
    for slot in [0, good.len() / 2] {
        // In each attempt, and the checksum made good again as an adversary would: here just the stamp's generation and a new checksum.
        changed[slot + 32 + 64 + 32] ^= 1;
        changed[slot + 32 + 256 + 64 + 32] ^= 1;
        let count = usize::from(changed[slot + 16]);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&changed[slot..slot + 28]);
        hasher.update(&changed[slot + 32..slot + 32 + count * 256]);
        let sum = hasher.finalize().to_le_bytes();
        changed[slot + 28..slot + 32].copy_from_slice(&sum);
    }
    for (bytes, why) in [
        (&old[..], "an older copy or was changed"),
        (&changed, "an older copy or was changed"),
        (&good[..5000], "put a whole one back"),
        (&[], "put a whole one back"),
        (&vec![0xff; good.len()], "both of its slots are damaged"),
    ] {
        fs::write(bed.companion(), bytes).unwrap();
        for refused in [refusal(anchor.stamp()), refusal(anchor.compare_and_swap(Some(&stamp(2)), &stamp(9)))]
        {
            assert!(refused.contains(why), "{refused}");
        }
    }
    fs::remove_file(bed.companion()).unwrap();
    assert!(refusal(anchor.stamp()).contains("it is not there"));
    fs::write(bed.companion(), &good).unwrap();
    assert_eq!(anchor.stamp().unwrap(), Some(stamp(4)));
    assert_eq!(anchor.extends(), writes, "nothing was written to the chip meanwhile");
}

#[test]
fn another_tpm_is_not_taken_for_the_one_that_the_policy_names() {
    if !is_able() {
        return;
    }
    let bed = Bed::with_anchor();
    move_up(&mut bed.anchor(), 0, 1);
    let other = Swtpm::start(&bed.directory.path().join("other"));
    let place = anchor_tpm::transport::Place::Path(other.socket());
    let mut anchor = TpmAnchor::new(Settings { place, ..bed.settings() });
    let refused = refusal(anchor.stamp());
    assert!(refused.contains("this is another TPM") && refused.contains(&hex::encode(bed.key)), "{refused}");
    assert!(refusal(anchor.create(b"")).contains("this is another TPM"));
}

/// Not a guarantee: why an emulated TPM is no root. Its host has its state directory, and puts back what was there.
#[test]
fn an_emulated_tpm_whose_state_is_put_back_gives_the_old_value() {
    if !is_able() {
        return;
    }
    let mut bed = Bed::with_anchor();
    move_up(&mut bed.anchor(), 0, 1);
    let state = bed.directory.path().join("tpm/tpm2-00.permall");
    bed.swtpm.power_off();
    let (tpm, file) = (fs::read(&state).unwrap(), fs::read(bed.companion()).unwrap());
    bed.swtpm.power_on();
    move_up(&mut bed.anchor(), 1, 3);
    bed.swtpm.power_off();
    fs::write(&state, tpm).unwrap();
    fs::write(bed.companion(), file).unwrap();
    bed.swtpm.power_on();
    assert_eq!(bed.anchor().stamp().unwrap(), Some(stamp(1)));
}

/// The host carries the messages. It changes each byte that counts, and repeats what it has seen.
#[test]
fn a_host_in_between_can_neither_read_nor_change_nor_repeat() {
    if !is_able() {
        return;
    }
    let bed = Bed::with_anchor();
    move_up(&mut bed.anchor(), 0, 1);
    let host = Host::before(&bed.swtpm);
    let mut anchor = TpmAnchor::new(Settings { place: host.place(), ..bed.settings() });
    // What it sees.
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    host.meddle(Some(Box::new(move |_, moment, message| {
        notes.lock().unwrap().push((moment, message.clone()));
        Verdict::Pass
    })));
    anchor.compare_and_swap(Some(&stamp(1)), &stamp(2)).unwrap();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let digests: Vec<_> = Companion::open(&bed.companion(), true).unwrap().load().unwrap();
    for (_, message) in &seen {
        let has = |bytes: &[u8]| message.windows(bytes.len()).any(|part| part == bytes);
        assert!(!has(&SECRET[..16]));
        for attempt in &digests {
            assert!(!has(&attempt.digest()) && !has(&attempt.value()), "a parameter was sent in the clear");
        }
    }
    // The answer to TPM2_NV_Read has 117 bytes: no other of a session has as many.
    let answer_to_read = |message: &[u8]| message.len() == 117 && message[..2] == [0x80, 0x02];
    let old = seen
        .iter()
        .find(|(moment, message)| *moment == Moment::Answer && answer_to_read(message))
        .unwrap()
        .1
        .clone();

    // An earlier answer, and one with a bit changed, at each of several places.
    for at in [None, Some(16), Some(40), Some(60)] {
        let old = old.clone();
        host.meddle(Some(Box::new(move |_, moment, message| {
            if moment == Moment::Answer && answer_to_read(message) {
                match at {
                    None => message.clone_from(&old),
                    Some(at) => message[at] ^= 1,
                }
            }
            Verdict::Pass
        })));
        let refused = refusal(anchor.stamp());
        assert!(refused.contains("is not proven"), "{at:?}: {refused}");
        host.meddle(None);
        assert_eq!(anchor.stamp().unwrap(), Some(stamp(2)));
    }
    // A command with a bit changed: the TPM refuses it.
    host.meddle(Some(Box::new(|_, moment, message| {
        if moment == Moment::Command && message[6..10] == [0, 0, 0x01, 0x36] {
            *message.last_mut().unwrap() ^= 1;
        }
        Verdict::Pass
    })));
    assert!(anchor.compare_and_swap(Some(&stamp(2)), &stamp(3)).is_err());
    host.meddle(None);
    assert_eq!(anchor.stamp().unwrap(), Some(stamp(2)));
    // "Never written", which would be a volume that may be formatted anew.
    host.meddle(Some(Box::new(move |_, moment, message| {
        if moment == Moment::Answer && answer_to_read(message) {
            *message = vec![0x80, 0x01, 0, 0, 0, 10, 0, 0, 0x01, 0x4a];
        }
        Verdict::Pass
    })));
    assert!(anchor.stamp().is_err(), "a refusal is no state");
    host.meddle(None);
    anchor.compare_and_swap(Some(&stamp(2)), &stamp(3)).unwrap();
}

#[test]
fn what_is_no_tpm_is_refused() {
    if !is_able() {
        return;
    }
    let bed = Bed::with_anchor();
    let at = |path: std::path::PathBuf| {
        TpmAnchor::new(Settings { place: anchor_tpm::transport::Place::Path(path), ..bed.settings() }).stamp()
    };
    assert!(refusal(at(bed.directory.path().join("none"))).contains("no TPM can be reached"));
    assert!(refusal(at(bed.companion())).contains("neither a device nor a socket"));
    assert!(refusal(at("/dev/null".into())).contains("the answer is cut short"));
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        &[0x80, 0x01, 0, 0, 0, 10, 0, 0, 0, 0],
        &[0x80, 0x02, 0, 0, 0x0f, 0xff, 0, 0, 0, 0],
        &[0, 0xc4, 0, 0, 0, 10, 0, 0, 0, 0x1e],
        &[0x80, 0x02, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0],
        &[],
    ] {
        let path = bed.directory.path().join("garbage");
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.read(&mut [0; 4096]).unwrap();
            client.write_all(answer).unwrap();
        });
        let refused = refusal(at(path));
        assert!(refused.contains("no TPM 2.0") || refused.contains("lost while reading"), "{refused}");
        server.join().unwrap();
    }
}

/// Others may have locked the TPM, or filled it. An anchor that exists works all the same: nothing of it is counted, and it needs no room.
#[test]
fn a_tpm_that_is_locked_or_full_says_so_and_keeps_its_anchor() {
    if !is_able() {
        return;
    }
    let bed = Bed::with_anchor();
    let counted = NvPublic {
        attributes: attributes::ANCHOR & !attributes::NO_DA,
        ..NvPublic::anchor(INDEX + 1, false)
    };
    let mut tpm = bed.tpm();
    tpm.nv_define(&counted, &SECRET, b"").unwrap();
    let guess = |tpm: &mut anchor_tpm::tpm::Tpm| refusal(tpm.nv_read(&counted, &[1; 16]));
    let said: Vec<String> = (0..40).map(|_| guess(&mut tpm)).collect();
    assert!(said.iter().any(|said| said.contains("locked after too many wrong")), "{said:?}");
    move_up(&mut bed.anchor(), 0, 2);

    let full = (2..2000)
        .map(|at| tpm.nv_define(&NvPublic::anchor(INDEX + at, false), &SECRET, b""))
        .find_map(Result::err);
    let full = full.expect("some end").to_string();
    assert!(full.contains("no room for another index"), "{full}");
    drop(tpm);
    move_up(&mut bed.anchor(), 2, 4);
    assert_eq!(bed.anchor().stamp().unwrap(), Some(stamp(4)));
}
