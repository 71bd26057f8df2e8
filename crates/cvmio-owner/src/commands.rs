//! The commands.

use crate::cli::{
    Add, Allow, Audit, Cli, Command, Disallow, Init, List, Named, Place, Releases, Renew, Serve, Verify,
    Volume,
};
use anchor::{Anchor, Created};
use clap::CommandFactory;
use cli::failure::Failure;
use cli::grammar::Grammar;
use cli::{manual, output};
use owner::log::{Entry, Head};
use owner::{
    Authority, Error, Files, Limits, Office, Releasing, Reply, Report, Service, Setup, VolumeReport,
};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an anchor of the service's own may be away before one attempt is given up.
const ANCHOR_PATIENCE: Duration = Duration::from_secs(10);

/// How often certificates are looked at.
const DAY: Duration = Duration::from_hours(24);

/// Runs a command to its end.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Init(args) => init(&args),
        Command::Serve(args) => serve(args),
        Command::Renew(args) => renew(&args),
        Command::List(args) => list(&args),
        Command::Volume(Volume::Add(args)) => add(&args),
        Command::Volume(Volume::Allow(args)) => allow(&args),
        Command::Volume(Volume::Disallow(args)) => disallow(&args),
        Command::Volume(Volume::Retire(args)) => order(&args, |name| owner::Command::Retire { name }),
        Command::Volume(Volume::Remove(args)) => order(&args, |name| owner::Command::Remove { name }),
        Command::Grammar => grammar(),
        Command::Man { directory } => {
            manual::write(Cli::command(), &directory, |_| true).map_err(|error| Failure::usage(&error))
        }
        Command::Audit(Audit::Verify(args)) => verify(&args),
        Command::Audit(Audit::Show(args)) => show(&args.place),
        Command::Audit(Audit::Export(args)) => export(&args.place, &args.file),
    }
}

fn grammar() -> Result<(), Failure> {
    say(serde_json::to_string(&Grammar::of(&Cli::command())).map_err(Failure::io)?);
    Ok(())
}

fn report() -> Report {
    // A line that can't be written is no reason to stop.
    Arc::new(|line| drop(writeln!(io::stderr(), "cvmio-owner: {line}")))
}

/// A line on standard output.
fn say(line: impl std::fmt::Display) {
    output::print(&line.to_string());
}

fn init(args: &Init) -> Result<(), Failure> {
    let state = &args.place.state;
    let own = new_anchor(&args.place)?;
    let (own, undo) = own.map_or((None, None), |created| (Some(created.anchor), created.undo));
    if let Err(error) = owner::make(state, own.as_deref()) {
        if let Some(undo) = undo {
            undo();
        }
        return Err(error.into());
    }
    if !args.no_authority {
        Authority::make(&state.join(owner::TLS), &args.hosts)?;
    }
    say(format_args!("made {}", state.display()));
    match own {
        Some(own) => say(format_args!("it stands on the anchor {}: give it to each `serve`", own.address())),
        None => say("it stands on its disk: putting back this disk rolls back every volume"),
    }
    Ok(())
}

fn renew(args: &Renew) -> Result<(), Failure> {
    let authority = Authority::open(&args.state.join(owner::TLS))?;
    let renewed = match args.clients.is_empty() {
        false => args.clients.iter().map(|path| authority.renew_client(path)).collect(),
        true => {
            let own = args.authority.then(|| authority.renew_authority());
            own.into_iter().chain([authority.renew_service(&args.hosts)]).collect::<Result<Vec<_>, _>>()
        }
    }?;
    for renewed in renewed {
        say(format_args!("renewed {}: good until {}", renewed.path.display(), renewed.until));
    }
    Ok(())
}

fn serve(args: Serve) -> Result<(), Failure> {
    let tls = args.place.state.join(owner::TLS);
    let report = report();
    // Before anything else: a signal that comes during the start must not be lost.
    let mut signals =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])
            .map_err(Failure::io)?;
    let (certificate, key) = (
        args.tls_cert.unwrap_or_else(|| tls.join("server.pem")),
        args.tls_key.unwrap_or_else(|| tls.join("server.key")),
    );
    let releasing = releasing(args.releases, (&certificate, &key), &report);
    let service = Service::start(Setup {
        own: own_anchor(&args.place)?,
        directory: args.place.state,
        listen: args.listen,
        tls: Files { certificate, key, clients: args.client_ca.unwrap_or_else(|| tls.join("authority.pem")) },
        limits: Limits::default(),
        report: Arc::clone(&report),
    })?;
    report(service.sentence());
    let guests = match releasing.map(|releasing| service.release(releasing)).transpose() {
        Ok(guests) => guests,
        Err(error) => {
            service.stop()?;
            return Err(error.into());
        }
    };
    say(format_args!("listening on {}", service.address()));
    guests.iter().for_each(|guests| say(format_args!("releasing to guests on {guests}")));
    let mut looked: Option<Instant> = None;
    while signals.pending().next().is_none() && !service.has_ended() {
        if looked.is_none_or(|looked| looked.elapsed() > DAY) {
            service.notices().iter().for_each(|notice| report(notice));
            looked = Some(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(service.stop()?)
}

/// How secrets are released, if they are.
fn releasing(args: Releases, (certificate, key): (&Path, &Path), report: &Report) -> Option<Releasing> {
    let (catalogue, listen) = args.releases.zip(args.release_listen)?;
    Some(Releasing {
        listen,
        catalogue,
        cache: args.evidence_cache,
        simulated: args.allow_simulated,
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        lifetime: args.attestation_lifetime,
        report: Arc::clone(report),
    })
}

fn office(place: &Place) -> Result<Office, Error> {
    let anchor = || own_anchor(place).map_err(|failure| Error::Usage(failure.to_string()));
    Office::open(&place.state, anchor, report())
}

fn order(args: &Named, command: impl FnOnce(String) -> owner::Command) -> Result<(), Failure> {
    office(&args.place)?.order(command(args.name.clone()))?;
    Ok(())
}

/// A client as the service knows it: a file is a certificate, all else must be the digits.
fn client(text: &str) -> Result<String, Failure> {
    match Path::new(text).is_file() {
        true => Ok(owner::fingerprint(Path::new(text))?),
        false => Ok(text.to_lowercase()),
    }
}

/// Makes a new client for a volume with the authority in the state directory, and gives `order` its fingerprint. If the order is refused, the
/// client's files are taken away again.
fn with_new_client(
    args: &Named,
    directory: &Path,
    order: impl FnOnce(String) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let authority = Authority::open(&args.place.state.join(owner::TLS))?;
    let made = authority.make_client(&args.name, directory)?;
    if let Err(failure) = order(owner::fingerprint(&made.certificate)?) {
        for file in [&made.authority, &made.certificate, &made.key] {
            let _ = std::fs::remove_file(file);
        }
        let _ = std::fs::remove_dir(directory);
        return Err(failure);
    }
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    say(format_args!("made a client in {}: give it to the machine of the volume", directory.display()));
    say(format_args!(
        "  --anchor owner:HOST:PORT/{} --anchor-option ca-file={} --anchor-option cert-file={} --anchor-option key-file={}",
        args.name,
        whole(&made.authority).display(),
        whole(&made.certificate).display(),
        whole(&made.key).display()
    ));
    Ok(())
}

fn add(args: &Add) -> Result<(), Failure> {
    let clients = args.clients.iter().map(|text| client(text)).collect::<Result<Vec<_>, _>>()?;
    let add = |clients| order(&args.named, |name| owner::Command::Add { name, clients });
    match &args.new_client {
        None => add(clients),
        Some(directory) => with_new_client(&args.named, directory, |new| add([clients, vec![new]].concat())),
    }
}

fn allow(args: &Allow) -> Result<(), Failure> {
    let allow = |client| order(&args.named, |name| owner::Command::Allow { name, client });
    match (&args.client.client, &args.client.new_client) {
        (Some(text), _) => allow(client(text)?),
        (None, Some(directory)) => with_new_client(&args.named, directory, allow),
        (None, None) => Err(Failure::usage("give --client or --new-client")),
    }
}

fn disallow(args: &Disallow) -> Result<(), Failure> {
    let client = client(&args.client)?;
    order(&args.named, |name| owner::Command::Disallow { name, client })
}

fn list(args: &List) -> Result<(), Failure> {
    let Reply::Volumes(volumes) = office(&args.place)?.order(owner::Command::List {})? else {
        return Err(Failure::io("the service gives no list"));
    };
    if args.json {
        say(serde_json::to_string_pretty(&volumes).map_err(Failure::io)?);
        return Ok(());
    }
    volumes.iter().for_each(|volume| say(line(volume)));
    Ok(())
}

fn line(volume: &VolumeReport) -> String {
    let stamp = match (volume.generation, volume.claims) {
        (Some(generation), Some(claims)) => format!(", generation {generation}, claim {claims}"),
        _ => String::new(),
    };
    let retired = if volume.retired { ", retired" } else { "" };
    format!("{}: {}{stamp}{retired}, {} client(s)", volume.name, volume.state, volume.clients.len())
}

fn verify(args: &Verify) -> Result<(), Failure> {
    let vouched = args.head.as_deref().map(parse_head).transpose()?;
    let verified = if args.files.is_empty() {
        office(&args.place)?.verify(&args.place.state, vouched)?
    } else {
        owner::verify_files(&args.files, vouched)?
    };
    say(format_args!(
        "whole: entries {} to {}, {} volume(s)",
        verified.first,
        verified.head.number,
        verified.state.volumes.len()
    ));
    say(format_args!("head {}:{}", verified.head.number, hex::encode(verified.head.hash)));
    Ok(())
}

fn parse_head(text: &str) -> Result<Head, Failure> {
    let parse = || {
        let (number, digits) = text.split_once(':')?;
        let mut hash = [0; 32];
        hex::decode_to_slice(digits, &mut hash).ok()?;
        Some(Head { number: number.parse().ok()?, hash })
    };
    parse().ok_or_else(|| Failure::usage(format!("{text:?} is no NUMBER:HASH, as `audit verify` prints it")))
}

fn show(place: &Place) -> Result<(), Failure> {
    office(place)?.each_entry(|bytes| {
        match Entry::decode(bytes) {
            Ok((entry, ..)) => say(entry),
            Err(error) => say(format_args!("? {error}")),
        }
        Ok(())
    })?;
    Ok(())
}

fn export(place: &Place, path: &Path) -> Result<(), Failure> {
    let fail = |error| Error::Io("write", path.to_owned(), error);
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path).map_err(fail)?;
    let mut out = io::BufWriter::new(file);
    office(place)?.each_entry(|bytes| out.write_all(bytes).map_err(fail))?;
    out.flush().map_err(fail)?;
    out.get_ref().sync_all().map_err(fail)?;
    Ok(())
}

/// The service's own anchor, if there is one.
fn own_anchor(place: &Place) -> Result<Option<Arc<dyn Anchor>>, Failure> {
    let Some(address) = &place.anchor else { return Ok(None) };
    let options = anchor::typed_options(&place.anchor_option).map_err(Failure::usage)?;
    // Waiting for an anchor that is away is the service's own affair.
    let opened = anchor::open_address(address, &options, Some(ANCHOR_PATIENCE));
    opened.map(Some).map_err(|error| Error::Root(error).into())
}

/// The same for `init`, which makes it where it can be made.
fn new_anchor(place: &Place) -> Result<Option<Created>, Failure> {
    let Some(address) = &place.anchor else { return Ok(None) };
    let options = anchor::typed_options(&place.anchor_option).map_err(Failure::usage)?;
    let created = anchor::create_address(address, &options, Some(ANCHOR_PATIENCE)).map_err(Error::Root)?;
    created.notes.iter().for_each(|note| report()(note));
    Ok(Some(created))
}
