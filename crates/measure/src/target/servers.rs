//! Files and LUKS images behind NBD servers.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use super::{Address, Environment, Ready, file, may_destroy, place};
use crate::error::{Context, Error, Result};
use crate::program::{Server, output, run, shown};

/// `qemu-img` first finds out how fast it derives keys, by its user time over some ten milliseconds. On a busy machine the kernel's clock may
/// tick past all of that, and then it gives up; a slow hash makes that rare, and another attempt is not slower for it.
const LUKS_ATTEMPTS: u32 = 4;

/// The address of a server on a unix socket. fio and the NBD library take it apart, so a path has only letters, digits and a few signs in it; all
/// else is written as RFC 3986 has it.
pub fn uri(socket: &Path) -> String {
    let mut uri = String::from("nbd+unix:///?socket=");
    for byte in socket.as_os_str().as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                uri.push(char::from(*byte))
            }
            _ => uri += &format!("%{byte:02X}"),
        }
    }
    uri
}

/// What a user's address may have in it: what fio would read something else into is refused.
fn check_uri(uri: &str) -> Result<()> {
    let harmless = |letter: char| letter.is_ascii_alphanumeric() || "-._~:/?[]@&=+,%".contains(letter);
    match uri.chars().find(|letter| !harmless(*letter)) {
        None => Ok(()),
        Some(letter) => {
            let mut bytes = [0; 4];
            let escaped: String =
                letter.encode_utf8(&mut bytes).bytes().map(|byte| format!("%{byte:02X}")).collect();
            Err(Error::usage(format!(
                "{uri}: fio would read something else into {letter:?}; write it as {escaped}"
            )))
        }
    }
}

/// A server that somebody else runs. Nobody can tell whether it holds data, so it is to be named in any case.
///
/// # Errors
/// When it was not named in `--destroy-data`.
pub fn external(uri: &str, environment: &Environment<'_>) -> Result<Ready> {
    check_uri(uri)?;
    if !may_destroy(uri, environment) {
        return Err(Error::usage(format!(
            "{uri} would be overwritten; if its data may be lost, say --destroy-data '{uri}'"
        )));
    }
    Ok(Ready::new(Address::Nbd(uri.into()), environment.size))
}

/// A file, or a LUKS image in its filter, behind nbdkit: through the page cache.
///
/// # Errors
/// When a program is missing or fails.
pub fn nbdkit(luks: bool, environment: &Environment<'_>) -> Result<Ready> {
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "file", "disk"]);
    if luks {
        command.args(["--filter=luks", "passphrase=+secret"]);
    }
    let mut ready = serve(command, "--unix", luks, environment)?;
    ready.note = Some("it goes through the page cache".into());
    ready.page_cache = true;
    Ok(ready)
}

/// A file, or a LUKS image in QEMU's driver, behind `qemu-nbd`: with direct I/O.
///
/// # Errors
/// When a program is missing or fails.
pub fn qemu(luks: bool, environment: &Environment<'_>) -> Result<Ready> {
    let mut command = Command::new("qemu-nbd");
    command.args(["--persistent", "--shared=0", "--cache=none", "--aio=io_uring"]);
    if luks {
        command
            .args(["--object", "secret,id=key,file=secret", "--image-opts"])
            .arg("driver=luks,key-secret=key,file.driver=file,file.filename=disk");
    } else {
        command.args(["--format=raw", "disk"]);
    }
    serve(command, "--socket", luks, environment)
}

/// Starts a server that takes the place of its socket as `option`.
fn serve(mut command: Command, option: &str, luks: bool, environment: &Environment<'_>) -> Result<Ready> {
    let place = place(environment)?;
    let root = place.path().canonicalize().doing(place.path().display())?;
    let mut commands = Vec::new();
    if luks {
        commands.push(make_luks(&root, environment)?);
    } else {
        file::allocate(&root.join("disk"), environment.size)?;
    }
    let socket = root.join("socket");
    command.current_dir(&root).arg(option).arg(&socket);
    commands.push(shown(&command));
    let mut server = Server::start(&mut command)?;
    server.wait_until(environment.interrupt, || UnixStream::connect(&socket).is_ok())?;
    let mut ready = Ready::new(Address::Nbd(uri(&socket)), environment.size);
    ready.commands = commands;
    ready.server = Some(server);
    ready.place = Some(place);
    Ok(ready)
}

/// A LUKS1 image (aes-256-xts) with all its space taken. Its passphrase costs as little as the format allows: opening it is not measured.
fn make_luks(place: &Path, environment: &Environment<'_>) -> Result<String> {
    let secret = place.join("secret");
    fs::write(&secret, b"no secret: what it protects is random").doing(secret.display())?;
    let mut create = Command::new("qemu-img");
    create
        .current_dir(place)
        .args(["create", "-q", "-f", "luks", "--object", "secret,id=key,file=secret"])
        .args(["-o", "key-secret=key,hash-alg=sha512,iter-time=10,preallocation=falloc", "disk"])
        .arg(environment.size.to_string());
    for _ in 1..LUKS_ATTEMPTS {
        let ended = run(&mut create, environment.interrupt)?;
        if ended.success || !ended.complained.contains("accurate CPU usage") {
            return ended.must_succeed(&create).map(|_| shown(&create));
        }
    }
    output(&mut create, environment.interrupt).map(|_| shown(&create))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_reads_nothing_else_into_an_address() {
        assert_eq!(uri(Path::new("/a b/c;d#e:$f")), "nbd+unix:///?socket=/a%20b/c%3Bd%23e%3A%24f");
        for good in ["nbd://localhost:10809/disk", "nbd+unix:///x?socket=/run/a%3Bb", "nbd://[::1]"] {
            check_uri(good).unwrap();
        }
        for (bad, word) in
            [("nbd://h/a;b", "%3B"), ("nbd://h/#", "%23"), ("nbd://h/${HOME}", "%24"), ("nbd://h/ ", "%20")]
        {
            let said = check_uri(bad).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
    }
}
