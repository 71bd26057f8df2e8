//! `cvmio volume attach`: starts the daemon, and waits until the device is there.

use std::path::{Path, PathBuf};

use seal::slot::Credential;
use volume::Reading;
use volume::format::protections::Freshness;
use volume::policy::Policy;

use crate::cli::{Attach, FrontEnd};
use cli::failure::Failure;
use cli::output;
use daemon::front::Show;
use daemon::front::nbd::{Files, Where};
use daemon::input::{self, Origin, Released, VolumeFiles};
use daemon::metrics::Address;
use daemon::runtime::Place;
use daemon::system;
use daemon::{Errors, Order, Ready, launch, tamper};

pub fn run(args: &Attach) -> Result<(), Failure> {
    // The policy may be released with the key: then the owner is asked first.
    let released = released(args)?;
    let order = order(args)?;
    order.show.check(&Place::new(&order.runtime, &order.name))?;
    system::protect()?;
    let credential = released.map_or_else(|| input::load(&args.credential, Origin::Known), Ok)?;
    if args.foreground {
        return daemon::run(&order, credential, Errors::AsTheyAre, |ready| {
            report(args, ready).map_err(|failure| std::io::Error::other(failure.to_string()))
        });
    }
    let spinner = output::spinner(format!("attaching {}", order.store.display()));
    let ready = launch::start(&order, &credential);
    drop(spinner);
    report(args, &ready?)
}

/// What the owner releases, where a policy comes with it.
fn released(args: &Attach) -> Result<Option<Credential>, Failure> {
    let Some(released) = args.credential.release.released().filter(Released::holds_files) else {
        return Ok(None);
    };
    if let (Some(policy), Some(given)) = (released.policy(), &args.policy)
        && policy != *given
    {
        return Err(Failure::usage(format!(
            "the owner releases the attach policy with the key, to {}; leave --policy out",
            policy.display()
        )));
    }
    system::protect()?;
    input::load(&args.credential, Origin::Known).map(Some)
}

fn order(args: &Attach) -> Result<Order, Failure> {
    let released = args.credential.release.released().and_then(|released| released.policy());
    let policy_path = input::default_policy(&args.store, args.policy.as_deref().or(released.as_deref()))?;
    // Looked at first, so that a wrong path is not taken for a lost policy.
    let address = store::Address::of(&args.store)?;
    std::fs::metadata(address.path()).map_err(|error| {
        Failure::usage(format!(
            "the store {address} cannot be opened: {error}; name the file, the device or the server's socket that holds the volume"
        ))
    })?;
    let policy = input::read_policy(&policy_path)?;
    VolumeFiles::known(&args.store, &policy_path, &policy).opened_by(&args.credential).refuse_same(&[])?;
    let show = show(args, &policy)?;
    let address =
        address.absolute().map_err(|error| Failure::usage(format!("{}: {error}", args.store.display())))?;
    let store = address.to_path();
    let name = match &args.name {
        Some(name) => name.clone(),
        None => {
            let stem = address.path().file_stem().unwrap_or_default().to_string_lossy();
            cli::input::parse_name(&stem)
                .map_err(|error| Failure::usage(format!("{error}: name it with --name")))?
        }
    };
    let interval = daemon::wear::interval(args.interval, policy.anchor.as_deref());
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
        poll: args.poll.into(),
        show,
        reading: match (args.read_only, args.force) {
            (false, _) => None,
            (true, false) => Some(Reading::Pinned),
            (true, true) => Some(Reading::PinnedBesideWriter),
        },
        interval,
        anchor_timeout: args.anchor_timeout,
        store_timeout: args.store_timeout,
        buffered: args.buffered,
        metrics: args.metrics.as_ref().map(from_here).transpose()?,
        for_root: args.for_root,
        tamper: tamper::Orders::new(args.on_tamper.into(), args.tamper_hook.as_deref())?,
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
            daemon::front::warn_of_loop(why.as_ref());
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

/// Options of another front end would do nothing, and were given for a reason.
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
        // Also what was found before there was a daemon.
        return output::print_json(&Ready { warnings: output::warned(), ..ready.clone() });
    }
    let mut text = format!("attached {} ({})", ready.name, output::bytes(ready.size));
    for (what, place) in ready.shown.places() {
        text += &format!("\n  {what:<12}  {place}");
    }
    if ready.freshness == Freshness::Transaction && !args.read_only {
        text += &format!("\n  {:<12}  transaction: {}", "freshness", daemon::wear::TRANSACTION);
    }
    output::print(&text);
    Ok(())
}
