//! The demonstration: real work on a protected volume, and then everything that a host might try on it.

mod anchored;
mod attacks;
mod guest;
mod host;
mod root;
mod table;
mod work;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Instant;

use attacks::World;
use clap::Args;
use cli::failure::Failure;
use cli::interrupt::Interrupt;
use cli::output::{self, print};
use guest::Guest;
use host::copy;
use root::{Kind, Root};
use table::Attempt;
use work::Source;

/// Put a volume to work, then attack it in every way that its host could
///
/// Makes a small volume in a temporary directory, a file system on it, and a database in that; then plays the host, which changes,
/// swaps and rolls back what it holds. Needs root, for the mount. Leaves nothing behind, also when it is interrupted.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sudo cvmio demo
  sudo cvmio demo --anchor etcd")]
pub struct DemoArgs {
    /// Directory for the demonstration's temporary files (about 1 GiB), on a disk that can do direct I/O
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Durable transactions of the database
    #[arg(long, default_value_t = 2000)]
    transactions: u32,
    /// What the volume has for an anchor. With another kind than a file, the real thing is started, and the host rolls back the disk together
    /// with everything else that it holds
    #[arg(long, value_enum, default_value_t)]
    anchor: Kind,
}

/// Plays both sides, and prints who won.
///
/// # Errors
/// When an attack got through, when it was interrupted, or when this machine lacks something.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::usage(
            "the demonstration mounts a file system: run it as root, as in `sudo cvmio demo`",
        ));
    }
    let started = Instant::now();
    let mut guest = Guest::new(&args.dir, Interrupt::on_signals()?)?;
    let mut root = None;
    let result = match args.anchor {
        Kind::File => play(args, &mut guest),
        kind => Root::start(kind, &args.dir, &guest)
            .and_then(|started| anchored::play(args, &mut guest, root.insert(started))),
    };
    // First what is attached, since a detach needs its anchor.
    let left = guest.put_away();
    drop(root);
    let attempts = match (result, left) {
        (Ok(attempts), Ok(())) => attempts,
        (Err(failure), Ok(())) => return Err(failure),
        // An interruption says that everything was put away.
        (Err(failure), Err(left)) if guest.interrupt.check().is_ok() => {
            return Err(left.with(format!("before that: {failure}")));
        }
        (_, Err(left)) => return Err(left),
    };
    print(&format!("\n{}\n", table::table(&attempts)));
    let through = attempts.iter().filter(|attempt| !attempt.caught).count();
    let seconds = started.elapsed().as_secs();
    if through > 0 {
        return Err(Failure::internal(format!("{through} of {} attacks got through", attempts.len())));
    }
    print(&format!(
        "{} attacks, all caught. Nothing is left mounted, attached or running. {seconds} s.",
        attempts.len()
    ));
    Ok(())
}

fn play(args: &DemoArgs, guest: &mut Guest) -> Result<Vec<Attempt>, Failure> {
    let world = World::new(guest);
    let source = Source::find()?;
    say("The guest puts a volume to work.");
    create(&world, guest)?;
    fill(args, &world, guest, &source)?;
    attacks::lend_key(&world, guest)?;
    step("gave a second key to somebody, and took it back");
    copy(guest, &world.image, &world.empty_image)?;

    say("The guest comes back, and looks at every byte.");
    let searched = come_back(args, &world, guest, &source)?;
    copy(guest, &world.image, &world.old_image)?;
    copy(guest, &world.anchor, &world.old_anchor)?;

    guest.attach_good(&world.image, &world.policy, &world.key)?;
    guest.mount(false)?;
    work::write_secret(&guest.mountpoint(), 2)?;
    let expected = work::read_all(&guest.mountpoint(), &guest.interrupt)?.hashes;
    guest.detach()?;
    copy(guest, &world.image, &world.good_image)?;
    copy(guest, &world.anchor, &world.good_anchor)?;
    step(&format!(
        "overwrote {} in place; the host has copies of the disk from before and after",
        work::SECRET_FILE
    ));

    say("The host has its turn. It may do what it likes with the disk.");
    let mut world = world;
    world.expected = expected;
    let mut attempts = vec![searched];
    for attack in attacks::ALL {
        let attempt = attack(&world, guest)?;
        step(&format!("{}: {}", attempt.attack, if attempt.caught { "caught" } else { "GOT THROUGH" }));
        attempts.push(attempt);
    }
    Ok(attempts)
}

/// Makes the volume. What the guest keeps (key, policy, anchor) is in its own directory.
fn create(world: &World, guest: &Guest) -> Result<(), Failure> {
    for path in [&world.key, &world.thief_key] {
        guest::make_key(path)?;
    }
    let anchor = format!("file:{}", world.anchor.display());
    let arguments: [&OsStr; 11] = [
        "volume".as_ref(),
        "create".as_ref(),
        world.image.as_ref(),
        "--size=512M".as_ref(),
        "--anchor".as_ref(),
        anchor.as_ref(),
        "--policy".as_ref(),
        world.policy.as_ref(),
        "--key-file".as_ref(),
        world.key.as_ref(),
        "--freshness=strict".as_ref(),
    ];
    guest.command(&arguments)?;
    step("created a volume of 512 MiB: aes-256-gcm, confidentiality, integrity, freshness strict");
    Ok(())
}

fn fill(args: &DemoArgs, world: &World, guest: &mut Guest, source: &Source) -> Result<(), Failure> {
    guest.attach_good(&world.image, &world.policy, &world.key)?;
    guest.format()?;
    guest.mount(false)?;
    step("attached it as a loop device, made an ext4 file system on it and mounted that");
    source.unpack(guest)?;
    step(&format!(
        "unpacked {} files, {}, from {}",
        source.count(),
        output::bytes(source.bytes),
        source.root.display()
    ));
    let started = Instant::now();
    let mut database = work::open(&guest.mountpoint())?;
    work::transact(&mut database, args.transactions, &guest.interrupt)?;
    work::audit(&database, args.transactions)?;
    drop(database);
    step(&format!(
        "ran {} transactions in SQLite (WAL, synchronous=FULL), each durable and anchored: {:.1} s",
        args.transactions,
        started.elapsed().as_secs_f64()
    ));
    let hashes = work::read_all(&guest.mountpoint(), &guest.interrupt)?.hashes;
    guest.detach()?;
    step("synced, unmounted, detached");
    *world.first.borrow_mut() = hashes;
    Ok(())
}

/// Attaches again, compares everything, and gives the host something to watch.
fn come_back(args: &DemoArgs, world: &World, guest: &mut Guest, source: &Source) -> Result<Attempt, Failure> {
    guest.attach_good(&world.image, &world.policy, &world.key)?;
    guest.mount(false)?;
    let reading = work::read_all(&guest.mountpoint(), &guest.interrupt)?;
    if !reading.failed.is_empty() || reading.hashes != *world.first.borrow() {
        return Err(Failure::internal("what the guest wrote is not what it reads after it came back"));
    }
    let database = work::open(&guest.mountpoint())?;
    work::audit(&database, args.transactions)?;
    drop(database);
    step(&format!(
        "attached again: {} files are the same to the last byte, and the database is whole",
        reading.hashes.len()
    ));
    work::write_secret(&guest.mountpoint(), 1)?;
    guest.unmount()?;
    attacks::search(world, guest, &source.snippets())
}

fn say(text: &str) {
    print(&format!("\n{text}"));
}

fn step(text: &str) {
    print(&format!("  {text}"));
}
