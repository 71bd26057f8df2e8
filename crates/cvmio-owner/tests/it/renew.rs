//! Certificates that are about to end: what is said of them, and how they are renewed while volumes are in use.

use crate::room::{Room, stamp};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use time::OffsetDateTime;

/// Puts in the place of a certificate one for the same key that ends in so many days.
fn shorten(room: &Room, certificate: &Path, key: &Path, usage: ExtendedKeyUsagePurpose, days: i64) {
    let key_of = |path: &Path| KeyPair::from_pem(&fs::read_to_string(path).unwrap()).unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.distinguished_name.push(DnType::CommonName, "cvmio-owner authority");
    let issuer = Issuer::new(authority, key_of(&room.path("state/tls/authority.key")));
    let mut params = CertificateParams::new(vec!["127.0.0.1".into(), "localhost".into()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "ledger");
    params.extended_key_usages = vec![usage];
    params.not_before = OffsetDateTime::now_utc() - time::Duration::days(400);
    params.not_after = OffsetDateTime::now_utc() + time::Duration::days(days);
    let made = params.signed_by(&key_of(key), &issuer).unwrap();
    fs::write(certificate, made.pem()).unwrap();
}

fn shorten_service(room: &Room, days: i64) {
    let [certificate, key] = ["state/tls/server.pem", "state/tls/server.key"].map(|name| room.path(name));
    shorten(room, &certificate, &key, ExtendedKeyUsagePurpose::ServerAuth, days);
}

fn shorten_client(room: &Room, days: i64) {
    let [certificate, key] = ["guest/client.pem", "guest/client.key"].map(|name| room.path(name));
    shorten(room, &certificate, &key, ExtendedKeyUsagePurpose::ClientAuth, days);
}

/// The commands of `docs/owner.md` for this, as they stand there.
fn procedure() -> Vec<String> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/owner.md")).unwrap();
    let (_, section) = page.split_once("### Renewing them").expect("the page tells how to renew");
    let (_, block) = section.split_once("```sh\n").expect("it has commands");
    let (block, _) = block.split_once("```").unwrap();
    block.lines().map(|line| line.split('#').next().unwrap().trim().to_owned()).collect()
}

fn days_left(until: Option<SystemTime>) -> u64 {
    until.unwrap().duration_since(SystemTime::now()).map_or(0, |left| left.as_secs() / 86_400)
}

#[test]
fn the_procedure_renews_everything_and_loses_no_client() {
    let mut room = Room::new().with_ledger_at_rest();
    shorten_service(&room, 30);
    shorten_client(&room, 10);
    room.start();
    let mut first = room.client("ledger", "guest");
    first.compare_and_swap(None, &stamp(1, 1)).unwrap();
    assert_eq!(days_left(first.certificate_until()), 9);

    let guest = room.path("guest").display().to_string();
    let commands = procedure();
    assert!(commands.len() >= 3, "{commands:?}");
    for (number, command) in commands.iter().enumerate() {
        let words = command.strip_prefix("cvmio-owner renew").expect("it is a command of ours").trim();
        let words = words.replace("./ledger-client", &guest);
        let said = room.done("renew", &words.split_whitespace().collect::<Vec<_>>());
        assert!(said.contains("good until 20"), "{said}");
        // Connected or connecting, with the new certificates or the old ones: each is served.
        let number = number as u64;
        first.compare_and_swap(Some(&stamp(1, number + 1)), &stamp(1, number + 2)).unwrap();
        let held = room.client("ledger", "guest").ask_stamp().unwrap();
        assert_eq!(held.as_deref(), Some(&stamp(1, number + 2)));
    }
    let mut again = room.client("ledger", "guest");
    again.ask_stamp().unwrap();
    assert!(days_left(again.certificate_until()) >= 823, "one of the two was not renewed");
    // The names are the ones before, and the key is: it is the same client.
    room.client_at(&format!("localhost:{}/ledger", room.port()), room.files("guest")).ask_stamp().unwrap();
    assert!(room.done("list", &[]).contains("1 client(s)"));
    let (code, told) = room.stop();
    assert_eq!(code, 0);
    for expected in [
        "server.pem expires in 29 days; renew it",
        "the certificate of the client \"ledger\" (",
        ") expires in 9 days; renew it",
        "certificates were replaced, and are in use",
    ] {
        assert!(told.contains(expected), "{expected:?} is not in: {told}");
    }
    assert_eq!(told.matches("expires in 9 days").count(), 1, "once a day is enough: {told}");
}

#[test]
fn a_certificate_that_has_expired_is_renewed_without_a_restart() {
    let mut room = Room::new().with_ledger_at_rest();
    room.start();
    room.client("ledger", "guest").compare_and_swap(None, &stamp(1, 1)).unwrap();
    let refused = |expected: &str| {
        let error = room.client("ledger", "guest").ask_stamp().unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is not in: {error}");
    };
    shorten_service(&room, -2);
    refused("the service's certificate has expired");
    room.done("renew", &["--host", "127.0.0.1"]);
    shorten_client(&room, -3);
    refused("the certificate in cert-file has expired");
    let client: PathBuf = room.path("guest/client.pem");
    room.done("renew", &["--client", client.to_str().unwrap()]);
    let mut client = room.client("ledger", "guest");
    assert_eq!(client.ask_stamp().unwrap().as_deref(), Some(&stamp(1, 1)));

    // Half of a change: what was good before stays in use.
    let whole = fs::read(room.path("state/tls/server.pem")).unwrap();
    fs::write(room.path("state/tls/server.pem"), b"nothing").unwrap();
    room.client("ledger", "guest").ask_stamp().unwrap();
    fs::write(room.path("state/tls/server.pem"), whole).unwrap();
    room.client("ledger", "guest").ask_stamp().unwrap();
    let (_, told) = room.stop();
    assert!(told.contains("can't be used, so the ones before stay in use"), "{told}");
    assert!(told.contains("has expired 2 days ago") || told.contains("certificates were replaced"), "{told}");
}

#[test]
fn what_can_not_be_renewed_is_named() {
    let room = Room::new();
    let said = room.run("renew", &["--client", room.path("none.pem").to_str().unwrap()]);
    assert!(said.code == 2 && said.error.contains("none.pem"), "{said:?}");
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let params = CertificateParams::new(Vec::new()).unwrap();
    fs::write(room.path("other.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let said = room.run("renew", &["--client", room.path("other.pem").to_str().unwrap()]);
    assert!(said.code == 2 && said.error.contains("a key of another kind"), "{said:?}");
    fs::remove_file(room.path("state/tls/authority.key")).unwrap();
    let said = room.run("renew", &[]);
    assert!(said.code == 3 && said.error.contains("authority.key"), "{said:?}");
}
