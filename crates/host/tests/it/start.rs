//! What keeps a server from starting.

use std::fs;

use host::{DiskSettings, Server, Settings, StartError};

use crate::serve::Place;

fn refused(settings: &Settings) -> String {
    match Server::start(settings) {
        Ok(_) => panic!("it starts: {settings:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn each_reason_says_what_it_is() {
    let place = Place::new();
    let disk = place.disk("disk");
    let with = |file: std::path::PathBuf| Settings {
        cores: Vec::new(),
        disks: vec![DiskSettings { read_only: true, ..DiskSettings::new(place.at("s"), file) }],
    };
    assert!(refused(&with(place.at("nothing"))).contains("No such file"));
    assert!(refused(&with(place.at(""))).contains("directory"));
    fs::write(place.at("small"), [0; 100]).unwrap();
    assert!(refused(&with(place.at("small"))).contains("4096"));
    let cores = Settings { cores: vec![100_000], disks: vec![disk.clone()] };
    assert!(matches!(Server::start(&cores), Err(StartError::Core { core: 100_000, .. })));

    let settings = Settings { cores: Vec::new(), disks: vec![disk.clone()] };
    let server = Server::start(&settings).unwrap();
    // Another socket, the same disk; only to be read, so that nobody waits for a late write.
    let error = refused(&with(disk.file.clone()));
    assert!(error.contains("in use") || error.contains("another"), "{error}");
    // The same socket, another disk.
    let other = DiskSettings { socket: disk.socket.clone(), ..place.disk("other") };
    let error = refused(&Settings { cores: Vec::new(), disks: vec![other] });
    assert!(error.contains("another process serves"), "{error}");
    drop(server);
    assert!(!disk.socket.exists(), "a server that has ended leaves no socket");

    fs::write(&disk.socket, "no socket").unwrap();
    assert!(refused(&settings).contains("it is no socket"));
    fs::remove_file(&disk.socket).unwrap();
    // What a server that was killed has left.
    drop(std::os::unix::net::UnixListener::bind(&disk.socket).unwrap());
    drop(Server::start(&settings).unwrap());
    let nowhere = DiskSettings { socket: place.at("no/such/directory"), ..disk };
    assert!(
        refused(&Settings { cores: Vec::new(), disks: vec![nowhere] }).contains("is its directory there")
    );
}
