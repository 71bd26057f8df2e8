//! `cvmio volume attach`: starts the daemon, and waits until the device is there.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use seal::slot::Credential;
use serde::{Deserialize, Serialize};
use volume::Reading;
use volume::policy::Policy;

use crate::cli::{Attach, FrontEnd};
use crate::daemon::front::Show;
use crate::daemon::front::nbd::{Files, Where};
use crate::daemon::metrics::Address;
use crate::daemon::{self, Errors, Order, Ready, tamper};
use crate::failure::Failure;
use crate::input::{self, Origin};
use crate::runtime::{self, Place};
use crate::{output, system};

/// Most bytes of an order.
const MAX_ORDER: u64 = 1 << 20;
/// Most bytes that are told of what a daemon said before it had a log.
const MAX_LAST_WORDS: u64 = 4096;

/// The daemon's first and only words to who started it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Ready(Ready),
    Failed(Failure),
}

pub fn run(args: &Attach) -> Result<(), Failure> {
    let order = order(args)?;
    order.show.check(&Place::new(&order.runtime, &order.name))?;
    system::protect()?;
    let credential = input::load(&args.credential, Origin::Known)?;
    if args.foreground {
        return daemon::run(&order, credential, Errors::AsTheyAre, |ready| {
            report(args, ready).map_err(|failure| std::io::Error::other(failure.to_string()))
        });
    }
    let spinner = output::spinner(format!("attaching {}", order.store.display()));
    let ready = start(&order, &credential);
    drop(spinner);
    report(args, &ready?)
}

fn order(args: &Attach) -> Result<Order, Failure> {
    let policy_path = input::default_policy(&args.store, args.policy.as_deref())?;
    // Looked at first, so that a wrong path is not taken for a lost policy.
    std::fs::metadata(&args.store).map_err(|error| {
        Failure::usage(format!(
            "the store {} cannot be opened: {error}; name the file or device that holds the volume",
            args.store.display()
        ))
    })?;
    let policy = input::read_policy(&policy_path)?;
    let show = show(args, &policy)?;
    let store = whole(&args.store)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => {
            let stem = store.file_stem().unwrap_or_default().to_string_lossy();
            input::parse_name(&stem)
                .map_err(|error| Failure::usage(format!("{error}: name it with --name")))?
        }
    };
    Ok(Order {
        name,
        runtime: args.runtime.directory()?,
        store,
        policy,
        policy_file: whole(&policy_path)?,
        memory: args.memory,
        block_cache: args.block_cache.unwrap_or(0),
        discard: args.discard,
        queues: args.queues,
        show,
        reading: match (args.read_only, args.force) {
            (false, _) => None,
            (true, false) => Some(Reading::Pinned),
            (true, true) => Some(Reading::PinnedBesideWriter),
        },
        interval: args.interval,
        buffered: args.buffered,
        metrics: args.metrics.as_ref().map(from_here).transpose()?,
        for_root: args.for_root,
        tamper: tamper::Orders::new(args.on_tamper, args.tamper_hook.as_deref())?,
    })
}

/// The front end, and what is for it alone.
fn show(args: &Attach, policy: &Policy) -> Result<Show, Failure> {
    let nbd = &args.nbd;
    let for_fuse = [("--loop", args.use_loop), ("--mount", args.mount.is_some())];
    let for_nbd = [("--listen", nbd.listen.is_some()), ("--tls-cert", nbd.tls_cert.is_some())];
    if args.front_end != FrontEnd::Fuse {
        refuse_any(&for_fuse, "fuse")?;
    }
    if args.front_end != FrontEnd::Nbd {
        refuse_any(&for_nbd, "nbd")?;
    }
    let ublk = Show::Ublk { queues: args.queues, owner: policy.volume };
    match args.front_end {
        FrontEnd::Fuse => {
            let mount = args.mount.as_deref().map(whole).transpose()?;
            Ok(Show::Fuse { use_loop: args.use_loop, mount })
        }
        FrontEnd::Ublk => Ok(ublk),
        FrontEnd::Auto => {
            let (show, why) = Show::block_device(args.queues, policy.volume);
            warn_of_loop(why.as_ref());
            Ok(show)
        }
        FrontEnd::Nbd => {
            let tls = match (&nbd.tls_cert, &nbd.tls_key) {
                (Some(certificate), Some(key)) => Some(Files {
                    certificate: whole(certificate)?,
                    key: whole(key)?,
                    clients: nbd.tls_ca.as_deref().map(whole).transpose()?,
                }),
                _ => None,
            };
            Ok(Show::Nbd(Where { listen: nbd.listen, tls }))
        }
    }
}

/// Whoever left the choice to us should know what he has, and why.
pub fn warn_of_loop(why: Option<&Failure>) {
    if let Some(failure) = why {
        output::warning(&format!("a loop device on a file, and no ublk device: {failure}"));
    }
}

/// Options of another front end would do nothing, and whoever gave one wanted something.
fn refuse_any(options: &[(&str, bool)], owner: &str) -> Result<(), Failure> {
    match options.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((option, _)) => Err(Failure::usage(format!(
            "{option} is for --as {owner} only; leave it out, or attach the volume with --as {owner}"
        ))),
    }
}

/// The same address for a daemon, which stands elsewhere.
fn from_here(address: &Address) -> Result<Address, Failure> {
    Ok(match address {
        Address::Unix(path) => Address::Unix(whole(path)?),
        Address::Loopback(_) => address.clone(),
    })
}

fn whole(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

fn report(args: &Attach, ready: &Ready) -> Result<(), Failure> {
    ready.warnings.iter().for_each(|warning| output::warning(warning));
    if args.json {
        return output::print_json(ready);
    }
    let mut text = format!("attached {} ({})", ready.name, output::bytes(ready.size));
    for (what, place) in ready.shown.places() {
        text += &format!("\n  {what:<12}  {place}");
    }
    output::print(&text);
    Ok(())
}

/// Starts the daemon and waits for its word.
pub fn start(order: &Order, credential: &Credential) -> Result<Ready, Failure> {
    let fail = |error: std::io::Error| Failure::io(format!("the daemon cannot be started: {error}"));
    let place = Place::new(&order.runtime, &order.name);
    // This very program, also if another was installed in its place meanwhile.
    let mut child = Command::new("/proc/self/exe")
        // The sign by which systemd knows whom the root file system needs (https://systemd.io/ROOT_STORAGE_DAEMONS).
        .arg0(if order.for_root { "@cvmio" } else { "cvmio" })
        .args(["volume", "serve", &order.name])
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(fail)?;
    let word = brief(&mut child, order, credential).and_then(|()| hear(&mut child));
    match word.map_err(fail)? {
        Some(Word::Ready(ready)) => Ok(ready),
        Some(Word::Failed(failure)) => {
            let _ = child.wait();
            Err(explain(failure, order))
        }
        None => {
            let end = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            Err(Failure::internal(format!(
                "the daemon ended before the volume was there ({end}): {}; see also {}",
                last_words(&mut child),
                place.log().display()
            )))
        }
    }
}

/// The secret goes through a pipe: what is on a command line, everybody can see.
fn brief(child: &mut Child, order: &Order, credential: &Credential) -> std::io::Result<()> {
    let Some(mut pipe) = child.stdin.take() else { return Ok(()) };
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    pipe.write_all(&line)?;
    input::to_pipe(credential, &mut pipe)
}

fn hear(child: &mut Child) -> std::io::Result<Option<Word>> {
    let Some(pipe) = child.stdout.take() else { return Ok(None) };
    let mut line = String::new();
    BufReader::new(pipe.take(MAX_ORDER)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line).ok())
}

/// What a daemon said that ended before it had a log.
fn last_words(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(pipe) = child.stderr.take() {
        // What is no text is not worth another error.
        let _ = pipe.take(MAX_LAST_WORDS).read_to_string(&mut text);
    }
    text.trim().into()
}

/// Says who has the store, if it is one of ours.
fn explain(failure: Failure, order: &Order) -> Failure {
    if !failure.is_in_use() {
        return failure;
    }
    let store = order.store.to_string_lossy();
    let holder = runtime::running(&order.runtime).into_iter().find_map(|(name, status)| {
        let status = status.ok()?;
        let report = status.get("report")?;
        let held = report.get("volume")?.get("store")?.as_str()?;
        (held == store).then(|| format!("it is attached as {name}, by process {}", report["process"]))
    });
    match holder {
        Some(holder) => failure.with(holder),
        None => failure,
    }
}

/// The daemon's side.
pub fn serve() -> Result<(), Failure> {
    let (order, credential) = match receive() {
        Ok(received) => received,
        Err(error) => {
            return Err(Failure::usage(format!("this is started by `cvmio volume attach` only ({error})")));
        }
    };
    // A session of its own: the terminal's hang-up is none of its business.
    let _ = rustix::process::setsid();
    let mut told = false;
    let result = daemon::run(&order, credential, Errors::ToLog, |ready| {
        told = true;
        say(&Word::Ready(ready.clone()))
    });
    if let (Err(failure), false) = (&result, told) {
        let _ = say(&Word::Failed(failure.clone()));
    }
    result
}

fn say(word: &Word) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(word)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

/// Reads the order byte by byte: a buffer would keep a copy of the secret that follows it.
fn receive() -> std::io::Result<(Order, Credential)> {
    system::protect().map_err(|failure| std::io::Error::other(failure.to_string()))?;
    let mut pipe = File::from(rustix::io::dup(std::io::stdin())?);
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        pipe.read_exact(&mut byte)?;
        if byte[0] == b'\n' {
            break;
        }
        if line.len() as u64 == MAX_ORDER {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        line.push(byte[0]);
    }
    Ok((serde_json::from_slice(&line)?, input::from_pipe(&mut pipe)?))
}
