//! What else may answer, or ask wrongly.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anchor::{Error, Options};
use futures::executor::block_on;

use super::cluster::Cluster;
use super::{open, open_with, options, stamp};

/// A server that answers everything with these bytes, or says nothing at all.
fn server(answer: Option<Vec<u8>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its number").port();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut client in listener.incoming().map_while(Result::ok) {
            if let Some(answer) = &answer {
                let _ = client.read(&mut [0; 4096]);
                let _ = client.write_all(answer);
            } else {
                open.push(client);
            }
        }
    });
    port
}

fn refusal(address: &str, options: &Options) -> Error {
    let timeout = Some(Duration::from_millis(400));
    match open_with(address, options, timeout) {
        Ok(anchor) => block_on(anchor.read()).expect_err(address),
        Err(error) => error,
    }
}

fn over_http(port: u16) -> Error {
    let mut options = Options::default();
    options.insert("request-timeout-ms".into(), "300".into());
    refusal(&format!("etcd:http://127.0.0.1:{port}/a"), &options)
}

fn http(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into()
}

#[test]
fn a_server_that_speaks_something_else_is_named_at_once() {
    let garbage: Vec<u8> = (0..4096_u32).map(|at| u8::try_from(at * 7 % 251).expect("small")).collect();
    for answer in [
        http("<html>welcome</html>"),
        http("{}"),
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n".to_vec(),
        [garbage, b"\n\r\n".to_vec()].concat(),
    ] {
        let shown = String::from_utf8_lossy(&answer[..40.min(answer.len())]).into_owned();
        let error = over_http(server(Some(answer)));
        let Error::Unusable(why) = error else { panic!("{shown}: {error:?}") };
        assert!(why.contains("no etcd") || why.contains("no message of HTTP"), "{shown}: {why}");
    }
    let stamped = r#"{"header":{"cluster_id":"1","revision":"1"},"kvs":[{"key":"L2E=","value":"aGVsbG8="}]}"#;
    let error = over_http(server(Some(http(stamped)))).to_string();
    assert!(error.contains("holds something that is no stamp"), "{error}");
    // A proxy whose servers are away.
    let busy = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".to_vec();
    assert!(matches!(over_http(server(Some(busy))), Error::Io(_)));
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let begun = Instant::now();
    let error = over_http(server(None));
    assert!(matches!(&error, Error::Io(why) if why.contains("no answer in time")), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("a number").port();
    assert!(matches!(over_http(nobody), Error::Io(_)));
}

#[test]
fn certificates_that_are_wrong_are_named() {
    let cluster = Cluster::start();
    let address = cluster.address("cvmio/a");
    let with = |changes: &[(&str, &Path)]| {
        let mut options = options(cluster.options());
        for (name, path) in changes {
            options.insert((*name).into(), path.display().to_string());
        }
        options.insert("request-timeout-ms".into(), "1500".into());
        options
    };
    let (expired, other) = (cluster.expired_certificate(), cluster.other_authority());
    for (changes, wanted) in [
        (vec![("cert-file", expired.as_path())], "does not accept our certificate"),
        (vec![("ca-file", other.as_path())], "UnknownIssuer"),
    ] {
        let error = refusal(&address, &with(&changes));
        let Error::Unusable(why) = error else { panic!("{changes:?}: {error:?}") };
        assert!(why.contains(wanted), "{changes:?}: {why}");
    }
    let by_name = address.replace("127.0.0.1", "localhost");
    let error = refusal(&by_name, &with(&[])).to_string();
    assert!(error.contains("NotValidForName"), "{error}");
    let missing = refusal(&address, &with(&[("ca-file", Path::new("/nowhere/ca.pem"))]));
    assert!(matches!(&missing, Error::Unusable(why) if why.contains("/nowhere/ca.pem")), "{missing:?}");
    // TLS where there is none, and none where there is.
    let plain = server(Some(http("{}")));
    let error = refusal(&cluster.address_at(&[plain], "a"), &with(&[])).to_string();
    assert!(error.contains("does not speak TLS"), "{error}");
    let error = over_http(cluster.port(0));
    assert!(matches!(error, Error::Unusable(_) | Error::Io(_)), "{error:?}");

    // Certificates are replaced while it is open: the next connection has the new ones.
    let files = ["ca.pem", "client.pem", "client.key"].map(|name| cluster.tls(name));
    let kept = std::fs::read(&files[1]).expect("a certificate");
    let anchor = open(&cluster, &address);
    block_on(anchor.advance(None, &stamp(1))).expect("moved");
    std::fs::copy(&expired, &files[1]).expect("copied");
    cluster.kill(0);
    let mut moving = anchor.advance(Some(&stamp(1)), &stamp(2));
    let mut refused = futures::FutureExt::now_or_never(&mut moving);
    super::wait_until("it hears that its certificate has expired", || {
        refused = futures::FutureExt::now_or_never(&mut moving);
        anchor.health().away.is_some_and(|away| away.error.contains("does not accept our certificate"))
    });
    assert_eq!(refused, None, "a session waits until somebody mends it");
    std::fs::write(&files[1], kept).expect("written");
    assert_eq!(block_on(moving), Ok(()));
}
