//! Secrets for attested guests: our client and others against the program, with evidence of a simulated platform.

mod broker;
mod python;
mod refusals;

use broker::{Broker, Guest, KERNEL};
use kbs::{Bundle, Resource};

#[test]
fn a_guest_gets_all_that_its_release_names_and_nothing_of_another_guests() {
    let broker = Broker::new();
    let mut session = broker.attested(&broker.guest(KERNEL));
    let content = session.resource(&broker.resource("default/volume/ledger")).unwrap();
    let bundle = Bundle::decode(content.expose()).unwrap();
    assert_eq!(bundle.key.expose(), [7; 64]);
    let files: Vec<&str> = bundle.files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(files, ["policy.toml", "ca.pem", "client.pem", "client.key"]);
    assert_eq!(bundle.files[0].1.expose(), b"an attach policy");
    assert_eq!(bundle.files[3].1.expose(), std::fs::read(broker.room.path("guest/client.key")).unwrap());
    // The same session may ask again, and for nothing else: neither for what is another guest's nor for what is not there.
    let other = session.resource(&broker.resource("default/key/plain")).unwrap_err().to_string();
    let nothing = session.resource(&broker.resource("default/key/none")).unwrap_err().to_string();
    assert!(other.contains("PolicyDeny") && other.contains("HTTP 401"), "{other}");
    assert_eq!(other.replace("plain", "none"), nothing, "names are not to be tried out");
    assert!(session.resource(&broker.resource("default/volume/ledger")).is_ok());
    // The other guest: a resource of another type is the key itself.
    let mut session = broker.attested(&broker.guest(b"another kernel"));
    assert_eq!(session.resource(&broker.resource("default/key/plain")).unwrap().expose(), [8; 32]);
    assert!(session.resource(&broker.resource("default/volume/ledger")).is_err());

    let log = broker.log();
    let count = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    let measurement = Guest::measurement(KERNEL).to_string();
    assert_eq!(count("key-released ledger guest"), 2, "{log}");
    assert_eq!(count(&format!("machine simulated measurement {measurement}")), 3, "{log}");
    assert_eq!(count("key-released plain guest"), 1, "{log}");
    assert_eq!((count("key-withheld plain guest"), count("key-withheld ledger guest")), (1, 1), "{log}");
    assert_eq!(count("key-withheld - guest"), 1, "{log}");
    // The owner is told what is allowed.
    broker.tells("no chip vouches");
    // The log is as whole as without such entries.
    assert!(broker.room.done("audit verify", &[]).starts_with("whole: "));
}

#[test]
fn a_bearer_token_stands_for_the_cookie_and_ends_with_its_attestation() {
    let broker = Broker::new();
    let mut raw = broker.raw();
    raw.attested(&broker.guest(KERNEL));
    let token = raw.token.clone();
    assert_eq!(token.split('.').count(), 3, "a JSON Web Token by form: {token}");
    let mut other = broker.raw();
    let (status, said) = other.get("default/volume/ledger", &[("Authorization", &format!("Bearer {token}"))]);
    assert_eq!(status, 200, "{said}");
    let (status, said) =
        other.get("default/volume/ledger", &[("Authorization", &format!("Bearer {token}x"))]);
    assert!(status == 401 && said.contains("TokenNotFound"), "{said}");

    let broker = Broker::with(&["--attestation-lifetime", "1ms"], |_| {});
    let mut raw = broker.raw();
    raw.attested(&broker.guest(KERNEL));
    std::thread::sleep(std::time::Duration::from_millis(5));
    let bearer = format!("Bearer {}", raw.token);
    for fields in [&[][..], &[("Authorization", bearer.as_str())]] {
        let (status, said) = raw.get("default/volume/ledger", fields);
        assert!(status == 401 && said.contains("TokenNotFound"), "{said}");
    }
}

#[test]
fn a_resource_name_that_is_none_is_refused_as_one_that_is_not_there() {
    let broker = Broker::new();
    let mut raw = broker.raw();
    raw.attested(&broker.guest(KERNEL));
    for path in ["default/volume", "default/../ledger", "default/volume/ledger/", "default/volume/%6cedger"] {
        let (status, said) = raw.get(path, &[]);
        assert!(status == 401 && said.contains("PolicyDeny"), "{path}: {said}");
    }
    assert!(Resource::parse("default/volume/ledger").is_ok());
}
