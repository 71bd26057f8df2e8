//! From the end of the kernel's boot to the owner's first login.

use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use super::evidence::evidence;
use super::{CHALLENGE_PORT, SSH_PORT, place};
use crate::challenge::{Answer, Exchange, MAX_MESSAGE, Question};
use crate::error::{Context, Error, Result};
use crate::manifest::SigningKey;
use crate::program::{output, unstarted};

/// How long a caller may take to ask.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often it is looked whether the SSH server listens.
const PAUSE: Duration = Duration::from_millis(50);
/// Where the SSH server looks for the keys that may log in.
const KEYS: &str = "/root/.ssh";
/// Names of addresses.
const HOSTS: &str = "/etc/hosts";
/// The program that an SSH session runs, whatever it asks for. The owner may have the guest listen on its own loopback, for the anchors of
/// volumes; the server itself refuses to connect anywhere (`-j`).
const RESTRICTED: &str =
    "command=\"/usr/bin/cvmio-job guest session\",no-agent-forwarding,no-X11-forwarding,no-pty";

/// Makes the guest's keys, answers one challenge, and serves the owner until the machine is powered off.
///
/// # Errors
/// If something of it cannot be done; then the guest is of no use.
pub fn boot() -> Result<()> {
    for directory in place::directories().iter().map(AsRef::as_ref).chain([Path::new(KEYS)]) {
        DirBuilder::new().recursive(true).mode(0o700).create(directory).of(directory)?;
    }
    fs::copy(HOSTS, place::hosts()).of(HOSTS)?;
    let host_key = make_host_key()?;
    let signing_key = SigningKey::generate()?;
    private(&place::signing_key(), signing_key.document())?;
    // It listens before anybody knows of it, so that the owner finds it there. Until the challenge there is no key that may log in.
    let mut server = serve()?;
    challenge(&host_key, &signing_key)?;
    let status = server.wait().of("dropbear")?;
    Err(Error::io(format!("the SSH server has ended ({status})")))
}

/// Writes a new file that nobody else reads.
pub fn private(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path).of(path)?;
    file.write_all(content).of(path)
}

/// Makes the SSH host key. Its public half, as `TYPE BASE64`.
fn make_host_key() -> Result<String> {
    let mut command = Command::new("dropbearkey");
    let said = output(command.args(["-t", "ed25519", "-f"]).arg(place::host_key()))?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let line = said.lines().find(|line| line.starts_with("ssh-ed25519 "));
    let key = line.map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "));
    key.ok_or_else(|| Error::io("dropbearkey named no public key"))
}

/// Answers the first caller that asks well, and lets its key in. Others are let go: a host that asks in the owner's place gets evidence for its
/// own key, with which the owner will have nothing to do.
fn challenge(host_key: &str, signing_key: &SigningKey) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, CHALLENGE_PORT)).of("the challenge's port")?;
    loop {
        let (mut caller, _) = listener.accept().of("the challenge's port")?;
        let Ok(question) = read_question(&caller) else { continue };
        let signing_key = signing_key.public();
        let evidence = evidence(question.report_data(host_key, &signing_key))?;
        let answer = Answer { evidence, host_key: host_key.into(), signing_key };
        let text = serde_json::to_string(&answer).map_err(|error| Error::io(error.to_string()))?;
        let line = format!("{RESTRICTED} {}\n", question.owner_key);
        let exchange = Exchange { question, answer };
        let kept = serde_json::to_vec(&exchange).map_err(|error| Error::io(error.to_string()))?;
        private(&place::exchange(), &kept)?;
        private(&Path::new(KEYS).join("authorized_keys"), line.as_bytes())?;
        // The caller may be gone; it has had its one answer all the same.
        let _ = caller.write_all(text.as_bytes()).and_then(|()| caller.write_all(b"\n"));
        return Ok(());
    }
}

fn read_question(caller: &TcpStream) -> Result<Question> {
    caller.set_read_timeout(Some(PATIENCE)).of("a caller")?;
    caller.set_write_timeout(Some(PATIENCE)).of("a caller")?;
    let mut line = Vec::new();
    BufReader::new(caller.take(MAX_MESSAGE)).read_until(b'\n', &mut line).of("a caller")?;
    let question: Question = serde_json::from_slice(&line)
        .map_err(|error| Error::protocol(format!("this is no question: {error}")).because(error))?;
    question.check()?;
    Ok(question)
}

/// Starts the SSH server, and waits until it listens.
fn serve() -> Result<Child> {
    // No passwords, and no connections from the guest to anywhere.
    let mut command = Command::new("dropbear");
    command.args(["-F", "-E", "-s", "-j", "-p", &SSH_PORT.to_string(), "-r"]).arg(place::host_key());
    let mut server = command.spawn().map_err(|error| unstarted(&command, error))?;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, SSH_PORT)).is_err() {
        if let Some(status) = server.try_wait().of("dropbear")? {
            return Err(Error::io(format!("the SSH server has ended at once ({status})")));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(server)
}
