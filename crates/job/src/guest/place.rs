//! Where things lie in the guest. All of it is memory.

use std::path::{Path, PathBuf};

/// What the guest makes for itself: keys, the exchange.
const RUN: &str = "/run/cvmio";
/// The file system whose size the owner has chosen.
const JOB: &str = "/job";

fn run(name: &str) -> PathBuf {
    Path::new(RUN).join(name)
}

fn job(name: &str) -> PathBuf {
    Path::new(JOB).join(name)
}

/// Directories that are made at boot.
pub fn directories() -> [PathBuf; 6] {
    [run(""), job("inputs"), job("volumes"), job("secrets"), job("bundle"), job("outputs")]
}

/// The SSH host key, in the server's own form.
pub fn host_key() -> PathBuf {
    run("host-key")
}

/// The key that signs the manifest (PKCS #8).
pub fn signing_key() -> PathBuf {
    run("signing-key")
}

/// The first exchange.
pub fn exchange() -> PathBuf {
    run("exchange")
}

/// The job as the owner has set it up.
pub fn setup() -> PathBuf {
    run("setup")
}

/// How far it is.
pub fn state() -> PathBuf {
    run("state")
}

/// What the container has written. It lies apart from the container's files: one that has filled its own can still say so.
pub fn log() -> PathBuf {
    run("log")
}

/// The image's archive.
pub fn archive() -> PathBuf {
    job("image.tar")
}

/// The image's context.
pub fn context() -> PathBuf {
    job("context")
}

/// What was received, with its digests, as JSON: by its kind and number.
pub fn received(name: &str) -> PathBuf {
    run(&format!("received-{name}"))
}

/// An input.
pub fn input(number: usize) -> PathBuf {
    job("inputs").join(number.to_string())
}

/// A secret.
pub fn secret(number: usize) -> PathBuf {
    job("secrets").join(number.to_string())
}

/// What opens a volume.
pub fn volume(number: usize) -> PathBuf {
    run(&format!("volume-{number}"))
}

/// Where a volume's file system is.
pub fn mounted(number: usize) -> PathBuf {
    job("volumes").join(number.to_string())
}

/// Where daemons of volumes are found.
pub fn daemons() -> PathBuf {
    PathBuf::from("/run/volumes")
}

/// The container's table of hosts: the guest's own, without the ways to anchors.
pub fn hosts() -> PathBuf {
    run("hosts")
}

/// The container's bundle.
pub fn bundle() -> PathBuf {
    job("bundle")
}

/// The manifest.
pub fn manifest() -> PathBuf {
    run("manifest")
}

/// Images and containers.
pub fn containers() -> PathBuf {
    job("containers")
}
