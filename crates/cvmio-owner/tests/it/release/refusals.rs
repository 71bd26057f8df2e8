//! What is not released, and what is said of it. Each of these real systems have let pass.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use attest::Hex;
use attest::simulated::{Launch, Root};
use http1::Endpoint;
use kbs::{Error, Session, Tee, TlsKey};
use rustls::pki_types::CertificateDer;
use serde_json::json;

use super::broker::{Broker, KERNEL, PATIENCE, catalogue, policy, tls};
use crate::room::Room;

/// What a guest hears whose evidence is refused.
fn refused(broker: &Broker, root: &Root, launch: &Launch) -> String {
    let guest = Broker::guest_of(root, launch);
    let mut session = broker.session().unwrap();
    let error = session.attest(&guest.evidence(session.report_data())).unwrap_err();
    // And gets nothing for it.
    let nothing = session.resource(&broker.resource("default/volume/ledger")).unwrap_err().to_string();
    assert!(nothing.contains("TokenNotFound"), "{nothing}");
    error.to_string()
}

#[test]
fn another_measurement_an_old_tcb_a_debugged_guest_and_a_strange_root_are_refused() {
    let broker = Broker::new();
    let good = Broker::launch(KERNEL);
    let cases = [
        ("measurement", Launch { measurement: Hex([9; 48]), ..good.clone() }),
        ("reported-tcb", Launch { tcb: 1, ..good.clone() }),
        ("debug", Launch { is_debug: true, ..good.clone() }),
    ];
    for (check, launch) in cases {
        let said = refused(&broker, &broker.root, &launch);
        assert!(said.contains("no policy accepts this evidence") && said.contains(check), "{check}: {said}");
        assert!(
            !said.contains(&good.measurement.to_string()),
            "a stranger learns what would have been accepted: {said}"
        );
        assert!(broker.log().contains(&format!("check {check} left-out 0")), "{}", broker.log());
    }
    let said = refused(&broker, &Root::generate().unwrap(), &good);
    assert!(said.contains(": root"), "{said}");
    // The owner is told more.
    broker.tells("evidence was refused for ledger: measurement: ");
}

#[test]
fn simulated_evidence_counts_only_where_the_owner_allows_it_by_name() {
    let broker = Broker::with(&["--no-simulated"], |_| {});
    let said = refused(&broker, &broker.root, &Broker::launch(KERNEL));
    assert!(said.contains("simulated"), "{said}");
    assert!(!broker.said().contains("no chip vouches"));
}

#[test]
fn a_nonce_counts_once_whatever_became_of_it() {
    let broker = Broker::new();
    let guest = broker.guest(KERNEL);
    let mut raw = broker.raw();
    raw.challenged();
    let evidence = guest.evidence(raw.report_data());
    // A first attempt that fails uses it up.
    let (status, said) = raw.attest(&guest.evidence(Hex([0; 64])), "");
    assert!(status == 401 && said["detail"].as_str().unwrap().contains("report-data"), "{said}");
    let (status, said) = raw.attest(&evidence, "");
    assert!(status == 401 && said["detail"].as_str().unwrap().contains("it was used"), "{said}");
    // So does one that succeeds.
    raw.challenged();
    let evidence = guest.evidence(raw.report_data());
    assert_eq!(raw.attest(&evidence, "").0, 200);
    let (status, said) = raw.attest(&evidence, "");
    assert!(status == 401 && said["detail"].as_str().unwrap().contains("it was used"), "{said}");
}

#[test]
fn evidence_of_another_guest_another_session_or_for_another_key_is_refused() {
    let broker = Broker::new();
    let guest = broker.guest(KERNEL);
    // Another guest's evidence is genuine, of the right measurement, and answers its own session.
    let mut theirs = broker.raw();
    theirs.challenged();
    let evidence = guest.evidence(theirs.report_data());
    let mut ours = broker.raw();
    ours.challenged();
    let (status, said) = ours.attest(&evidence, "");
    assert!(status == 401 && said["detail"].as_str().unwrap().contains("report-data"), "{said}");
    // Its session, and our key in the place of its own.
    let mut ours = broker.raw();
    (ours.cookie, ours.nonce) = (theirs.cookie.clone(), theirs.nonce.clone());
    let (status, said) = ours.attest(&evidence, "");
    assert!(status == 401 && said["detail"].as_str().unwrap().contains("report-data"), "{said}");
    // Our session, and its nonce.
    let mut ours = broker.raw();
    ours.challenged();
    ours.nonce = theirs.nonce.clone();
    let (status, said) = ours.attest(&guest.evidence(ours.report_data()), "");
    assert!(status == 401 && said["detail"].as_str().unwrap().contains("the nonce is another one"), "{said}");
    // No session at all.
    let mut nobody = broker.raw();
    let (status, said) = nobody.attest(&evidence, "");
    assert!(status == 401 && said["type"].as_str().unwrap().ends_with("/AttestationError"), "{said}");
    assert_eq!(nobody.get("default/volume/ledger", &[]).0, 401);
}

#[test]
fn evidence_that_is_bound_to_another_tls_server_is_refused() {
    let bound =
        catalogue().replacen("key = 'ledger.key'", "key = 'ledger.key'\nrequire-tls-binding = true", 1);
    let broker = Broker::with(&[], |broker| broker.write("releases.toml", bound.as_bytes()));
    let guest = broker.guest(KERNEL);
    // Our client binds it by itself.
    assert!(broker.attested(&guest).resource(&broker.resource("default/volume/ledger")).is_ok());
    let mut raw = broker.raw();
    raw.challenged();
    let relay = TlsKey::of(&CertificateDer::from(vec![1, 2, 3])).to_additional();
    let report_data = kbs::report_data(&raw.runtime_data(), &relay, kbs::Hash::Sha384);
    let (status, said) = raw.attest(&guest.evidence(report_data), &relay);
    assert!(
        status == 401 && said["detail"].as_str().unwrap().contains("another server's certificate"),
        "{said}"
    );
    // Unbound evidence is good evidence, but not for this release.
    raw.attested(&guest);
    let (status, said) = raw.get("default/volume/ledger", &[]);
    assert!(status == 401 && said.contains("PolicyDeny"), "{said}");
    assert!(broker.log().contains("check tls-binding"), "{}", broker.log());
}

#[test]
fn a_policy_that_was_changed_counts_at_once() {
    let broker = Broker::new();
    let mut session = broker.attested(&broker.guest(KERNEL));
    let ledger = broker.resource("default/volume/ledger");
    assert!(session.resource(&ledger).is_ok());
    broker.write("evidence.toml", policy(KERNEL, 3).as_bytes());
    let said = session.resource(&ledger).unwrap_err().to_string();
    assert!(said.contains("PolicyDeny"), "{said}");
    assert!(broker.log().lines().last().unwrap().contains("key-withheld ledger"), "{}", broker.log());
    // One that is none, or that others can write, opens nothing.
    broker.write("evidence.toml", b"version = 1");
    assert!(session.resource(&ledger).unwrap_err().to_string().contains("HTTP 503"));
    broker.write("evidence.toml", policy(KERNEL, 2).as_bytes());
    assert!(session.resource(&ledger).is_ok());
    let path = broker.room.path("evidence.toml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(session.resource(&ledger).unwrap_err().to_string().contains("HTTP 503"));
    broker.tells("others can change what is released");
    // A release that is gone from the catalogue is gone.
    broker.write("releases.toml", b"version = 1\n");
    assert!(session.resource(&ledger).unwrap_err().to_string().contains("PolicyDeny"));
}

#[test]
fn what_belongs_together_comes_together_or_not_at_all() {
    let broker = Broker::new();
    let mut session = broker.attested(&broker.guest(KERNEL));
    let key = broker.room.path("guest/client.key");
    fs::rename(&key, broker.room.path("guest/elsewhere")).unwrap();
    let said = session.resource(&broker.resource("default/volume/ledger")).unwrap_err().to_string();
    assert!(said.contains("HTTP 503") && !said.contains("client.key"), "{said}");
    broker.tells("client.key");
    assert!(!broker.log().contains("key-released"), "{}", broker.log());
}

#[test]
fn another_version_kind_of_machine_path_or_no_json_is_refused() {
    let broker = Broker::new();
    let mut raw = broker.raw();
    let cases = [
        (
            "/kbs/v0/auth",
            json!({ "version": "0.1.1", "tee": "snp", "extra-params": "" }).to_string(),
            401,
            "\"0.1.1\"",
        ),
        (
            "/kbs/v0/auth",
            json!({ "version": "0.4.0", "tee": "sample", "extra-params": "" }).to_string(),
            401,
            "sample",
        ),
        ("/kbs/v0/auth", "{".into(), 401, "no request"),
        ("/kbs/v0/attest", "{".into(), 401, "no challenge"),
        ("/kbs/v0/other", "{}".into(), 404, "nothing here"),
        ("/", "{}".into(), 404, "nothing here"),
    ];
    for (path, body, status, words) in cases {
        let (found, said) = raw.send("POST", path, &[], &body);
        assert!(found == status && said["detail"].as_str().unwrap().contains(words), "{path}: {said}");
    }
    raw.challenged();
    let (status, said) = raw.send("POST", "/kbs/v0/attest", &[], "{");
    assert!(status == 401 && said["detail"].as_str().unwrap().contains("no evidence"), "{said}");
}

#[test]
fn a_broker_that_is_away_or_another_one_is_not_waited_for_nor_trusted() {
    let broker = Broker::new();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = Endpoint { tls: true, host: "127.0.0.1".into(), port: nobody.port() };
    let begin = |endpoint: &Endpoint, tls: Arc<rustls::ClientConfig>| {
        Session::begin(endpoint, tls, Tee::CvmioSimulated, PATIENCE).unwrap_err()
    };
    let error = begin(&away, broker.tls());
    assert!(
        matches!(error, Error::Away(..)) && error.to_string().contains("nothing was released"),
        "{error}"
    );
    // Another authority vouches for it.
    let error = begin(&broker.endpoint(), tls(&Room::new()));
    assert!(matches!(error, Error::Tls(..)) && error.to_string().contains("is not trusted"), "{error}");
    // The right authority, and another name.
    let error = begin(&Endpoint { host: "127.0.0.2".into(), ..broker.endpoint() }, broker.tls());
    assert!(matches!(error, Error::Tls(..)), "{error}");
}

#[test]
fn a_service_does_not_start_with_what_it_could_not_release() {
    let room = Room::new().with_ledger_at_rest();
    let write = |name: &str, content: &[u8], mode: u32| {
        fs::write(room.path(name), content).unwrap();
        fs::set_permissions(room.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    let start = || {
        let file = room.path("releases.toml");
        let options = ["--listen", "127.0.0.1:0", "--release-listen", "127.0.0.1:0", "--releases"];
        let said = room.run("serve", &[&options[..], &[file.to_str().unwrap()]].concat());
        assert_eq!(said.code, 2, "{said:?}");
        said.error
    };
    for (name, content) in
        [("plain.key", &[8; 32][..]), ("ledger.key", &[7; 64]), ("attach.toml", b"a policy")]
    {
        write(name, content, 0o600);
    }
    write("evidence.toml", policy(KERNEL, 2).as_bytes(), 0o600);
    write("other.toml", policy(KERNEL, 2).as_bytes(), 0o600);
    let catalogue = catalogue();
    let cases = [
        (catalogue.replace("version = 1", "version = 2"), "version 2 is not understood"),
        (catalogue.replace("name = 'ledger'", "name = 'Ledger'"), "small letters"),
        (catalogue.replace("name = 'plain'", "name = 'ledger'"), "there twice"),
        (catalogue.replace("default/volume/ledger", "default/key/ledger"), "only a resource of type"),
        (catalogue.replace("default/volume/ledger", "ledger"), "REPOSITORY/TYPE/TAG"),
        (catalogue.replace("evidence-policy = 'other.toml'\n", ""), "evidence-policy"),
        (catalogue.clone() + "more = 1\n", "unknown field"),
    ];
    for (content, words) in cases {
        write("releases.toml", content.as_bytes(), 0o600);
        let said = start();
        assert!(said.contains(words), "{words}: {said}");
    }
    write("releases.toml", catalogue.as_bytes(), 0o622);
    assert!(start().contains("others can change what is released"));
    write("releases.toml", catalogue.as_bytes(), 0o600);
    write("ledger.key", &[7; 31], 0o600);
    assert!(start().contains("at least 32 random bytes"));
    write("ledger.key", &[7; 64], 0o604);
    assert!(start().contains("every user of this machine can use the key"));
}
