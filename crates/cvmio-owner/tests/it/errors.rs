//! What a client is told when something is wrong: each has a message of its own that says what to mend.

use crate::room::{Room, stamp};
use anchor_owner::{Error, Files};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::ServerConfig;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use time::{Duration, OffsetDateTime};

/// The error of a read, as people see it.
fn refusal(room: &Room, address: &str, files: Files) -> String {
    room.client_at(address, files).ask_stamp().unwrap_err().to_string()
}

/// A certificate of the room's authority that has expired; its name tells what it is for.
fn expired(room: &Room, usage: ExtendedKeyUsagePurpose, hosts: &[&str]) -> (PathBuf, PathBuf) {
    let key = KeyPair::from_pem(&fs::read_to_string(room.path("state/tls/authority.key")).unwrap()).unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.distinguished_name.push(rcgen::DnType::CommonName, "cvmio-owner authority");
    let issuer = Issuer::new(authority, key);
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.extended_key_usages = vec![usage];
    params.not_before = OffsetDateTime::now_utc() - Duration::days(9);
    params.not_after = OffsetDateTime::now_utc() - Duration::days(1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let (at, key_at) = (room.path("expired.pem"), room.path("expired.key"));
    fs::write(&at, certificate.pem()).unwrap();
    fs::write(&key_at, key.serialize_pem()).unwrap();
    (at, key_at)
}

#[test]
fn a_client_with_wrong_files_is_told_which() {
    let room = Room::serving();
    let (address, good) = (format!("127.0.0.1:{}/ledger", room.port()), room.files("guest"));
    assert!(room.client_at(&address, good.clone()).ask_stamp().is_ok());

    let other = Room::new();
    other.volume("ledger", &["guest"]);
    let foreign = other.files("guest");
    let (certificate, key) = expired(&room, ExtendedKeyUsagePurpose::ClientAuth, &[]);
    let none = room.path("none.pem");
    let cases: [(&str, Files); 6] = [
        (
            "does not come from an authority in ca-file",
            Files { authority: foreign.authority.clone(), ..good.clone() },
        ),
        (
            "does not know the authority of the certificate in cert-file",
            Files { authority: good.authority.clone(), ..foreign.clone() },
        ),
        (
            "the certificate in cert-file has expired, or is not valid yet",
            Files { certificate, key, ..good.clone() },
        ),
        ("are no certificate with its key", Files { key: foreign.key, ..good.clone() }),
        ("none.pem: No such file", Files { certificate: none, ..good.clone() }),
        ("holds no certificate", Files { certificate: good.key.clone(), ..good.clone() }),
    ];
    for (expected, files) in cases {
        let error = refusal(&room, &address, files);
        assert!(error.contains(expected), "{expected:?} is not in: {error}");
    }
    let error = refusal(&room, &format!("[::ffff:127.0.0.1]:{}/ledger", room.port()), good);
    assert!(error.contains("is for another host name"), "{error}");
}

#[test]
fn a_volume_that_is_not_the_clients_looks_like_none() {
    let mut room = Room::new();
    room.volume("ledger", &["guest"]);
    room.volume("other", &["stranger"]);
    room.start();
    let error = room.client("other", "guest").compare_and_swap(None, &stamp(1, 1)).unwrap_err();
    assert!(error.to_string().contains("has no such volume for this client"), "{error}");
    let none = room.client("nowhere", "guest").ask_stamp().unwrap_err();
    assert_eq!(none.to_string().replace("nowhere", "other"), error.to_string());
    let log = room.done("audit show", &[]);
    assert!(log.contains("refused other client") && log.contains("refused nowhere client"), "{log}");
}

#[test]
fn a_service_that_is_away_or_something_else_is_named() {
    let mut room = Room::serving();
    room.stop();
    let good = room.files("guest");
    let error = room.client("ledger", "guest").ask_stamp().unwrap_err();
    assert!(matches!(error, Error::Unreachable(..)), "{error}");

    let error = refusal(&room, &format!("{}/ledger", plain_server()), good.clone());
    assert!(error.contains("does not speak TLS; check the port"), "{error}");

    let tls = |certificate: &Path, key: &Path, protocol: &[u8]| {
        refusal(&room, &format!("{}/ledger", tls_server(certificate, key, protocol)), good.clone())
    };
    let (certificate, key) = (room.path("state/tls/server.pem"), room.path("state/tls/server.key"));
    let error = tls(&certificate, &key, b"");
    assert!(error.contains("it is no cvmio-owner of this version"), "{error}");
    let error = tls(&certificate, &key, b"h2");
    assert!(error.contains("it is no cvmio-owner of this version"), "{error}");
    let error = tls(&certificate, &key, anchor_owner::wire::PROTOCOL);
    assert!(error.contains("answers nonsense"), "{error}");
    let (certificate, key) = expired(&room, ExtendedKeyUsagePurpose::ServerAuth, &["127.0.0.1"]);
    let error = tls(&certificate, &key, anchor_owner::wire::PROTOCOL);
    assert!(error.contains("the service's certificate has expired"), "{error}");
}

/// Answers everything as a mail server does; for one client.
fn plain_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    address
}

/// Speaks TLS, and then sends 512 bytes of nonsense; for one client.
fn tls_server(certificate: &Path, key: &Path, protocol: &[u8]) -> String {
    let mut config = ServerConfig::builder_with_provider(tls_files::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(tls_files::certificates(certificate).unwrap(), tls_files::private_key(key).unwrap())
        .unwrap();
    config.alpn_protocols = if protocol.is_empty() { Vec::new() } else { vec![protocol.to_vec()] };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let session = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        let mut request = [0; 512];
        if stream.read_exact(&mut request).is_ok() {
            let _ = stream.write_all(&[b'?'; 512]);
        }
        let _ = stream.read_to_end(&mut Vec::new());
    });
    address
}
