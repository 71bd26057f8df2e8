//! What protection costs on this machine: a volume against the bare store under it, in turns.

mod attach;
mod case;
mod gate;
mod lane;
mod load;
mod maintenance;
mod program;
mod report;
mod setup;
mod timed;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anchor::Anchor;
use clap::{Args, Subcommand};
use hdrhistogram::Histogram;
use store::{BLOCK_SIZE, Buffer};
use volume::format::protections::{Freshness, SuiteCode};
use volume::{Error, Kind, Result};

use case::{Case, STANDARD};
use cli::failure::Failure;
use cli::output;
use gate::Gate;
use load::{Load, Seen, Until, histogram, processor_time};
use report::{METHOD, Row, Subject, Times, Turn, show};
use setup::{Contestants, Setup, Side};

/// What the volume protects.
#[derive(Args, Debug, Clone)]
pub struct Protections {
    /// Cipher of data blocks
    #[arg(long, default_value = "aes-256-gcm")]
    suite: SuiteCode,
    /// When the anchor moves
    #[arg(long, default_value = "strict")]
    freshness: Freshness,
    /// Let the host read the data
    #[arg(long)]
    no_confidentiality: bool,
    /// Let the host change the data unnoticed; needs --freshness off
    #[arg(long)]
    no_integrity: bool,
}

/// How much is measured, for how long, and where.
#[derive(Args, Debug, Clone)]
struct Scale {
    /// Directory for the files, which are removed; choose it on the disk that is to be measured
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Logical size of the volume in MiB; whatever is measured beside it has as much
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=1 << 24))]
    size: u64,
    /// Time that is measured in each turn
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// How often each contestant has its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
}

impl Scale {
    /// The time of a turn.
    fn time(&self) -> Result<Duration> {
        Duration::try_from_secs_f64(self.seconds)
            .map_err(|error| Error::new(Kind::Usage, format!("--seconds {}: {error}", self.seconds)))
    }
}

/// What can be measured.
#[derive(Subcommand, Debug)]
#[expect(
    missing_docs,
    reason = "a doc comment here would take the place of the help that their arguments have"
)]
pub enum BenchCommand {
    Volume(BenchArgs),
    Upkeep(maintenance::MaintenanceArgs),
    Attach(attach::AttachArgs),
    #[command(flatten)]
    Programs(Box<measure::commands::Measure>),
}

/// Runs a benchmark.
///
/// # Errors
/// When what is measured, or a peer of it, cannot be set up or fails; usage errors before anything is made.
pub fn run(command: &BenchCommand) -> std::result::Result<(), Failure> {
    match command {
        BenchCommand::Volume(args) => Ok(run_volume(args)?),
        BenchCommand::Upkeep(args) => Ok(maintenance::run(args)?),
        BenchCommand::Attach(args) => attach::run(args),
        BenchCommand::Programs(command) => with_programs(command),
    }
}

/// Measures with real programs, or shows what came out.
fn with_programs(command: &measure::commands::Measure) -> std::result::Result<(), Failure> {
    // A run file has the words, so that the same can be run again.
    let words = std::env::args().skip_while(|word| word != "bench").skip(1).collect();
    let cvmio = cli::find::find("cvmio").unwrap_or_else(|| "cvmio".into());
    measure::commands::run(command, words, cvmio).map_err(|error| match error.kind() {
        measure::error::Kind::Interrupted => Failure::interrupted(error),
        _ => error.into(),
    })
}

/// A volume against the bare store under it
///
/// Both are driven in this process, at the same depth and in turns. Every block that is read is checked.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples: what the disk under /srv gives, and what is left of it; what an anchor in a cluster costs
  cvmio bench volume --dir /srv --size 4096 --fill 50
  cvmio bench volume --threads 16 --cases write-fsync-4k-q1 --anchor etcd:https://h1:2379/bench/1 --anchor-option ca-file=/etc/ca.pem")]
pub struct BenchArgs {
    #[command(flatten)]
    setup: Setup,
    /// What to run: `randread-4k-q32` and the like, separated by commas
    #[arg(long, value_delimiter = ',', default_values = STANDARD)]
    cases: Vec<Case>,
    /// First overwrite twice the capacity at random
    #[arg(long)]
    aged: bool,
    /// Threads, each with a queue of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Compare levels instead of media: a volume with this anchor beside one at level `off`, in turns. A place where no volume lives yet
    #[arg(long, value_name = "ADDRESS")]
    anchor: Option<String>,
    /// An option of that anchor; KEY=@FILE reads the value from a file
    #[arg(long, value_name = "KEY=VALUE", requires = "anchor")]
    anchor_option: Vec<String>,
    /// Follow each so many writes by a flush
    #[arg(long, value_name = "WRITES", default_value_t = 0)]
    fsync_every: u64,
    /// Print one JSON object for each case instead of the table
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark and prints what came out.
///
/// # Errors
/// When it cannot be set up, a request fails, or something reads otherwise than it was written.
fn run_volume(args: &BenchArgs) -> Result<()> {
    let time = args.setup.scale.time()?;
    measure::ledger::clear();
    let anchor = args.anchor.as_deref().map(|address| timed::open(address, args)).transpose()?;
    let given = anchor.clone().map(|anchor| anchor as Arc<dyn Anchor>);
    let bench = Contestants::with_anchor(&args.setup, given)?;
    check(&bench)?;
    bench.fill(Side::Raw)?;
    bench.fill(Side::Protected)?;
    if args.aged {
        bench.age()?;
    }
    if !args.json {
        output::print(&Row::head(bench.rival()));
    }
    for case in &args.cases {
        let mut case = case.clone();
        if case.reads < 100 && args.fsync_every > 0 {
            case.flush_every = args.fsync_every;
        }
        let before = bench.session.volume.status();
        anchor.iter().for_each(|anchor| anchor.forget());
        let mut row = measure(&bench, args, &case, time)?;
        row.moves = anchor.as_ref().map(|anchor| anchor.moves(&before, &bench));
        show(args.json, &row, &row.line(case.depth == 1 || case.flush_every > 0))?;
    }
    let status = bench.session.volume.status();
    bench.end()?;
    if !args.json {
        output::print(METHOD);
        output::print(&format!(
            "Volume: {} checkpoints, {} commits, {} anchor moves, write amplification {:.3}, {} waits for space, {} for a checkpoint.",
            status.checkpoints,
            status.commits,
            status.anchor_moves,
            status.write_amplification.unwrap_or(0.0),
            status.waits_for_space,
            status.waits_for_checkpoint
        ));
    }
    Ok(())
}

fn measure(bench: &Contestants, args: &BenchArgs, case: &Case, time: Duration) -> Result<Row> {
    let mut turns = Vec::new();
    let mut times = [Side::Raw, Side::Protected].map(|_| histogram());
    for turn in 0..args.setup.scale.turns {
        let take = |side, times: &mut Histogram<u64>| {
            quiesce();
            Run { bench, case, side, threads: args.threads, time, turn }.turn(&Gate::default(), times)
        };
        let raw = take(Side::Raw, &mut times[0])?;
        turns.push((raw, take(Side::Protected, &mut times[1])?));
    }
    let subject = Subject {
        case: case.to_string(),
        medium: args.setup.medium,
        fill: args.setup.fill,
        aged: args.aged,
        threads: args.threads,
        unit: case.unit(),
        rival: bench.rival(),
    };
    Ok(Row::new(subject, &turns, times.each_ref().map(Times::of)))
}

/// One turn of one contestant.
struct Run<'a> {
    bench: &'a Contestants,
    case: &'a Case,
    side: Side,
    threads: u32,
    time: Duration,
    turn: u32,
}

impl Run<'_> {
    /// Runs it; the other holder of the gate sees when it is measured, and may end that early.
    fn turn(&self, gate: &Gate, times: &mut Histogram<u64>) -> Result<Turn> {
        let (seen, elapsed, processor) = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    // Named, so that a profiler tells the contestants apart.
                    let name = format!("{}-{thread}", self.side.name());
                    let builder = thread::Builder::new().name(name);
                    builder
                        .spawn_scoped(scope, move || self.thread(thread, gate))
                        .expect("a thread can be started")
                })
                .collect();
            let start = gate.open(self.threads);
            let processor = processor_time();
            gate.wait_until(start + self.time);
            let (elapsed, processor) = (start.elapsed(), processor_time() - processor);
            let seen: Vec<Result<Seen>> =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(died()))).collect();
            (seen, elapsed, processor)
        });
        let mut requests = 0;
        for seen in seen {
            let seen = seen?;
            requests += seen.requests;
            times.add(&seen.times).map_err(|error| Error::new(Kind::Io, error.to_string()))?;
        }
        if requests == 0 {
            return Err(Error::new(Kind::Io, format!("{}: not one request ended in {elapsed:?}", self.case)));
        }
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let (requests, blocks) = (requests as f64, self.case.blocks as f64);
        Ok(Turn {
            speed: self.case.speed(requests / elapsed.as_secs_f64()),
            processor: processor.as_secs_f64() * 1e9 / (requests * blocks),
        })
    }

    fn thread(&self, thread: u32, gate: &Gate) -> Result<Seen> {
        let share = self.bench.filled / u64::from(self.threads);
        // A sequential load has a part of its own for each thread; a random one shares everything.
        let range = match self.case.random {
            true => 0..self.bench.filled,
            false => share * u64::from(thread)..share * u64::from(thread + 1),
        };
        let seed = u64::from(self.turn) << 32 | u64::from(thread) << 1 | 1;
        let lane = self.bench.lane(self.side, self.case.depth);
        match lane {
            Ok(mut lane) => {
                let load = Load { case: self.case, range, until: Until::Time(self.time, gate), seed };
                load.run(lane.as_mut())
            }
            Err(error) => {
                gate.arrive();
                Err(error)
            }
        }
    }
}

fn died() -> Error {
    Error::new(Kind::Defect, "a thread of the load died; report this as a defect")
}

/// Waits until what the last turn left to do in the background is done, for a while.
fn quiesce() {
    const GLANCE: Duration = Duration::from_millis(50);
    for _ in 0..100 {
        let before = processor_time();
        thread::sleep(GLANCE);
        if processor_time() - before < GLANCE / 20 {
            return;
        }
    }
}

/// Writes blocks of random content all over the volume, some twice, and reads them back, before anything is measured.
fn check(bench: &Contestants) -> Result<()> {
    const WRITES: usize = 256;
    let mut random = fastrand::Rng::with_seed(3);
    let mut lane = bench.lane(Side::Protected, 1)?;
    let mut expected = std::collections::HashMap::new();
    let mut ended = Vec::new();
    for turn in 0..WRITES {
        let block = random.u64(..bench.blocks.min(WRITES as u64));
        let mut content = vec![0; BLOCK_SIZE];
        random.fill(&mut content);
        let mut buffer = Buffer::private_zeroed(1);
        buffer.copy_from(0, &content);
        lane.write(0, block, buffer);
        if turn % 16 == 15 {
            lane.flush(1);
        }
        while ended.is_empty() || (turn % 16 == 15 && ended.len() < 2) {
            lane.wait(&mut ended);
        }
        ended.drain(..).try_for_each(|end| end.result)?;
        expected.insert(block, content);
    }
    for (block, content) in expected {
        lane.read(0, block, Buffer::private_zeroed(1));
        lane.wait(&mut ended);
        for end in ended.drain(..) {
            end.result?;
            if end.buffer.as_ref().and_then(Buffer::private) != Some(content.as_slice()) {
                return Err(Error::new(
                    Kind::Corrupt,
                    format!(
                        "block {block} does not read as it was written; this is a defect, and nothing was measured"
                    ),
                ));
            }
        }
    }
    Ok(())
}
