//! A job whose database lies on a volume: its machine is lost half way, and the next one goes on from there.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{IO, Owner, POLICY, holds_secret, missing, said, succeed};

/// Exit code for a disk that is older than its anchor.
const STALE: i32 = 5;
/// One transaction for each step; each holds what nobody else may see. The owner's input says where the first machine is to be lost.
///
/// Only with `extra` does SQLite make the end of its journal durable, too: else the last transaction may be rolled back when power is lost
/// (SQLite, "PRAGMA synchronous").
const STEPS: &str = "cd /data && sqlite3 db 'create table if not exists steps (n integer primary key, secret text)' && \
    n=$(sqlite3 db 'select count(*) from steps') && echo begins at $n; \
    while [ $n -lt 9 ]; do n=$((n+1)); sqlite3 db \"pragma synchronous = extra; insert into steps values ($n, '$(cat /run/secret)')\" || exit 1; echo step $n; \
    if [ -e /in/stop-at-$n ]; then sleep 1000; fi; done; mkdir /tmp/out && sqlite3 db 'select count(*), sum(n) from steps' >/tmp/out/sums; \
    cat /in/below/file >/tmp/out/copy && sha256sum </run/secret >/tmp/out/sum && touch /in/new; ls /sys/class/net; echo beside it >&2; exit 7";

/// The owner's service, on this machine.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Owner<'_> {
    /// Starts a service, makes a place in it and a policy for a volume of it, and a disk.
    fn volume(&self) -> Service {
        let program = self.bed.owner();
        let owner = |words: &[&str]| {
            let (command, rest) = words.split_at(if words[0] == "volume" { 2 } else { 1 });
            let mut owner = Command::new(&program);
            owner.args(command).arg("--state").arg(self.path("service")).args(rest);
            owner
        };
        succeed(&mut owner(&["init", "--host", "localhost"]));
        let client = self.path("client").display().to_string();
        succeed(&mut owner(&["volume", "add", "steps", "--new-client", &client]));
        let mut service = owner(&["serve", "--listen", "127.0.0.1:0"]);
        let service = service.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut service = Service(service);
        let mut line = String::new();
        BufReader::new(service.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let (_, port) = line.trim().rsplit_once(':').unwrap_or_else(|| panic!("it did not start: {line}"));

        let mut prepare = Command::new(self.bed.cvmio());
        prepare.args(["volume", "prepare"]).arg(self.path("policy.toml")).args(["--size", "64M"]);
        prepare.args(["--anchor", &format!("owner:localhost:{port}/steps")]);
        for (option, file) in [("ca-file", "ca.pem"), ("cert-file", "client.pem"), ("key-file", "client.key")]
        {
            prepare.args(["--anchor-option", &format!("{option}={client}/{file}")]);
        }
        succeed(&mut prepare);
        fs::write(self.path("volume.key"), [7; 32]).unwrap();
        fs::File::create(self.path("disk")).unwrap().set_len(192 << 20).unwrap();
        service
    }

    /// Puts sqlite3 and its libraries into a directory, as they lie in a container.
    fn sqlite(&self) -> PathBuf {
        let (from, to) = (self.bed.kernel(), self.path("more"));
        let libraries = from.join("usr/lib/x86_64-linux-gnu");
        let (loader, program) = (libraries.join("ld-linux-x86-64.so.2"), from.join("usr/bin/sqlite3"));
        let mut list = Command::new(&loader);
        let list = succeed(list.arg("--library-path").arg(&libraries).arg("--list").arg(&program));
        let words = list.split_whitespace().filter(|word| word.starts_with('/'));
        let files = words.map(Path::new).filter(|path| path.starts_with(&libraries));
        for directory in ["bin", "lib64", "lib/x86_64-linux-gnu"] {
            fs::create_dir_all(to.join(directory)).unwrap();
        }
        fs::copy(&program, to.join("bin/sqlite3")).unwrap();
        fs::copy(&loader, to.join("lib64/ld-linux-x86-64.so.2")).unwrap();
        for file in files {
            fs::copy(file, to.join("lib/x86_64-linux-gnu").join(file.file_name().unwrap())).unwrap();
        }
        to
    }

    /// Cuts the power of the machine when the container has said this.
    fn lose_the_machine_at(&self, line: &str) {
        let mut logs = self.command(&["job", "logs", "work"]);
        let mut logs = logs.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(logs.stdout.take().unwrap()).lines().map(Result::unwrap);
        let seen: Vec<String> = lines.take_while(|said| said != line).collect();
        let record = fs::read_to_string(self.state().join("record")).unwrap();
        let (_, rest) = record.split_once("\"process\":").unwrap_or_else(|| panic!("{record}, {seen:?}"));
        let process: String = rest.chars().take_while(char::is_ascii_digit).collect();
        succeed(Command::new("kill").args(["-KILL", &process]));
        assert_eq!(logs.wait().unwrap().code(), Some(IO), "{seen:?}");
    }
}

/// The host's key is pinned: somebody in the middle has another one.
fn somebody_in_the_middle_is_noticed(owner: &Owner<'_>) {
    let hosts = owner.state().join("known_hosts");
    let pinned = fs::read_to_string(&hosts).unwrap();
    let key = fs::read_to_string(owner.state().join("key.pub")).unwrap();
    fs::write(&hosts, format!("cvmio-guest {key}")).unwrap();
    // A connection that is open already was checked when it was made.
    let socket = owner.state().join("ssh");
    fs::rename(&socket, owner.state().join("aside")).unwrap();
    let refused = owner.cvmio(&["job", "resume", "work"]);
    assert_eq!(refused.status.code(), Some(POLICY), "{}", said(&refused));
    assert!(
        said(&refused).contains("does not have the host key") && said(&refused).contains("job resume work"),
        "{}",
        said(&refused)
    );
    fs::rename(owner.state().join("aside"), socket).unwrap();
    fs::write(&hosts, pinned).unwrap();
}

/// What came back, the machine's end, and secrets in what is the host's.
fn the_result_is_whole(owner: &Owner<'_>) {
    let result = |name: &str| fs::read_to_string(owner.path("results/out").join(name)).unwrap();
    assert_eq!((result("copy"), result("sums")), ("the owner's data".into(), "9|45\n".into()));
    assert_eq!(result("sum").len(), 68, "an ordinary user reads its secret");
    // What it made of its input comes back, and the owner's own stays as it is.
    assert!(owner.path("changed/in/new").exists() && owner.path("changed/in/below/file").exists());
    assert!(!owner.path("tree/new").exists());
    assert!(!owner.state().exists());
    let of_the_host = [owner.bed.qemu().parent().unwrap(), &owner.image].map(Path::to_path_buf);
    for place in of_the_host.into_iter().chain(["disk", "older", "results"].map(|name| owner.path(name))) {
        assert_eq!(holds_secret(&place), None);
    }
}

fn the_manifest_proves_it_and_nothing_else(owner: &Owner<'_>) {
    owner.policy();
    let verified = owner.verify(&["--allow-simulated"]);
    assert!(verified.status.success(), "{}", said(&verified));
    let verified = String::from_utf8(verified.stdout).unwrap();
    for words in ["exit code 7", "platform simulated", "5 files"] {
        assert!(verified.contains(words), "{words}: {verified}");
    }
    let volume =
        verified.lines().find(|line| line.starts_with("volume ")).unwrap_or_else(|| panic!("{verified}"));
    assert!(volume.contains("at /data: generation") && volume.ends_with("released"), "{volume}");
    let refuses = |more: &[&str], words: &str| {
        let refused = owner.verify(more);
        assert!(
            refused.status.code() == Some(POLICY) && said(&refused).contains(words),
            "{}",
            said(&refused)
        );
    };
    refuses(&[], "simulated");
    fs::write(owner.path("results/out/copy"), "not the owner's data").unwrap();
    refuses(&["--allow-simulated"], "copy is not the file");
    let manifest = fs::read_to_string(owner.path("work.manifest.json")).unwrap();
    fs::write(owner.path("work.manifest.json"), manifest.replacen("\"sig\":\"", "\"sig\":\"AAAA", 1))
        .unwrap();
    assert!(!owner.verify(&["--allow-simulated"]).status.success());
    // What is there is not replaced unasked.
    let refused = owner.run(&[]);
    assert!(refused.status.code() == Some(2) && said(&refused).contains("--replace"), "{}", said(&refused));
}

/// The life of a job: its machine is lost, the next one goes on and brings its result, and an older disk begins no third.
#[test]
fn a_job_goes_on_from_its_volume_and_brings_a_signed_result() {
    let Some(bed) = guest::bed() else { return };
    if missing() {
        return;
    }
    let owner = Owner::new(&bed, STEPS);
    let more = owner.sqlite();
    owner.pack(Some(&more));
    let _service = owner.volume();
    owner.add(
        "[[volumes]]\nto = \"/data\"\ndisk = \"disk\"\npolicy = \"policy.toml\"\nkey-file = \"volume.key\"\n",
    );
    fs::write(owner.path("tree/stop-at-5"), "").unwrap();
    let begun = owner.run(&["--detach"]);
    assert!(begun.status.success(), "{}", said(&begun));
    assert!(said(&begun).contains("its evidence has passed: platform simulated"), "{}", said(&begun));
    assert_eq!(String::from_utf8(owner.cvmio(&["job", "list"]).stdout).unwrap(), "work\tbegun\n");
    somebody_in_the_middle_is_noticed(&owner);
    owner.lose_the_machine_at("step 5");
    let lost = owner.cvmio(&["job", "resume", "work"]);
    assert!(lost.status.code() == Some(IO) && said(&lost).contains("lost its machine"), "{}", said(&lost));
    assert!(owner.cvmio(&["job", "stop", "work"]).status.success());
    fs::copy(owner.path("disk"), owner.path("older")).unwrap();

    // Another machine, from the checkpoint on. Its owner goes away, the way to the anchor with it, and comes back.
    fs::remove_file(owner.path("tree/stop-at-5")).unwrap();
    let begun = owner.run(&["--detach"]);
    assert!(begun.status.success(), "{}", said(&begun));
    let socket = format!("ControlPath={}", owner.state().join("ssh").display());
    succeed(Command::new("ssh").args(["-O", "exit", "-o", &socket, "guest"]));
    let done = owner.cvmio(&["job", "resume", "work"]);
    assert_eq!(done.status.code(), Some(7), "the container's own: {}", said(&done));
    let printed = String::from_utf8(done.stdout.clone()).unwrap();
    assert!(printed.starts_with("begins at 5\nstep 6\n") && printed.contains("step 9\n"), "{printed}");
    assert!(printed.ends_with("\nlo\n") && said(&done).contains("beside it\n"), "{printed}{}", said(&done));
    the_result_is_whole(&owner);
    the_manifest_proves_it_and_nothing_else(&owner);

    // The host puts the disk of before back.
    fs::copy(owner.path("older"), owner.path("disk")).unwrap();
    let refused = owner.run(&["--replace"]);
    assert_eq!(refused.status.code(), Some(STALE), "{}", said(&refused));
    assert!(said(&refused).contains("the volume for /data: "), "{}", said(&refused));
    assert!(!String::from_utf8(refused.stdout.clone()).unwrap().contains("begins"));
    assert!(!owner.state().exists());
}
