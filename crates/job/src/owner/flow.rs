//! The whole flow of a job.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use attest::simulated;
use attest::{Claims, Hex, Policy};
use cli::interrupt::Interrupt;
use error_kind::Kind;
use evidence_files::Beside;

use super::collect::{collect, keep_manifest};
use super::launch::{Machine, launch};
use super::prepare::Prepared;
use super::ssh::{Channel, complaint, make_key, pin};
use super::state::{Place, Record, Stage, began};
use super::verify::{Judge, now, simulated_root};
use super::volumes;
use crate::error::{Context, Error, Result};
use crate::file::Job;
use crate::guest::{CONTENT, Frame, Phase, Setup, State, Stream, Word};
use crate::image::Image;
use crate::manifest::{End, Statement};
use crate::tree::{Digesting, Source, pack};

/// How long a guest may take to power itself off. Its end by force takes its memory, too.
const WIPING: Duration = Duration::from_secs(5);

/// How a job is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The machine, without a seat.
    pub machine: Machine,
    /// The owner's evidence policy; made from the image if it is left out.
    pub policy: Option<Policy>,
    /// Certificates, revocation lists and collateral that do not come with the evidence.
    pub beside: Beside,
    /// Whether a simulated platform may pass.
    pub allow_simulated: bool,
    /// Whether results may replace what is there.
    pub replace: bool,
}

/// How a job has ended.
#[derive(Debug)]
pub struct Done {
    /// How the container ended.
    pub end: End,
    /// What came back.
    pub results: Vec<PathBuf>,
    /// The manifest.
    pub manifest: PathBuf,
}

/// Tells the owner what happens now: a step, in words.
pub type Tell<'a> = &'a dyn Fn(&str);

/// A job whose machine runs.
pub struct Flow {
    place: Place,
    record: Record,
    job: Job,
    interrupt: Interrupt,
}

impl Flow {
    /// Launches the machine, judges its evidence, hands the job over and begins it.
    ///
    /// # Errors
    /// If any step fails. The machine is ended then, and nothing is left of the job.
    pub fn launch(
        prepared: &Prepared,
        options: &Options,
        tell: Tell<'_>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let place = Place::create(prepared.job.name.as_str())?;
        let begun = begin(prepared, options, &place, tell, interrupt);
        begun.map_err(|error| {
            put_away(&place);
            // Ctrl-C reaches the programs that this one waits for, too: that they failed is no news then.
            match interrupt.check() {
                Ok(()) => error,
                Err(interrupted) => Error::usage(interrupted.to_string()).because(error),
            }
        })
    }

    /// Takes up a job that was begun.
    ///
    /// # Errors
    /// If there is none of this name, or its machine is gone.
    pub fn resume(name: &str, interrupt: &Interrupt) -> Result<Self> {
        let place = Place::find(name)?;
        let record = place.record()?;
        let gone = |what: &str| {
            Err(Error::io(format!("the job {name} {what}; `cvmio job stop {name}` clears it away")))
        };
        if !record.is_alive() {
            return gone("has lost its machine, and all that was in its memory");
        }
        if record.stage != Stage::Begun {
            return gone("was never begun: its owner's side ended while it was handed over");
        }
        let job = Job::parse(record.setup.file.as_bytes(), &record.setup.name)
            .map_err(|error| Error::usage(error.to_string()).because(error))?;
        Ok(Self { place, record, job, interrupt: interrupt.clone() })
    }

    /// Copies what the container writes to `out` and `err` until it has ended.
    ///
    /// # Errors
    /// If the guest is gone, or its log has another form.
    pub fn follow(&self, out: &mut dyn Write, err: &mut dyn Write) -> Result<State> {
        let channel = self.channel();
        let mut child = channel.say(Word::Follow(0))?;
        drop(child.stdin.take());
        let from = child.stdout.take().ok_or_else(|| Error::io("ssh has no output"))?;
        let told = channel.interruptible(child.id(), || self.copy_log(from, out, err))?;
        if let Some(state) = told? {
            let _ = child.wait();
            return Ok(state);
        }
        self.interrupt.check().map_err(|error| Error::usage(error.to_string()))?;
        let mut said = String::new();
        if let Some(mut errors) = child.stderr.take() {
            let _ = errors.read_to_string(&mut said);
        }
        let _ = child.wait();
        match self.record.is_alive() {
            true => Err(complaint(Word::Follow(0), &said)),
            false => Err(Error::io(
                "the machine has ended before the job did, and all that was in its memory is gone",
            )),
        }
    }

    /// Copies the log from the guest to its end. The state behind it; `None` when it was cut off.
    fn copy_log(&self, from: impl Read, out: &mut dyn Write, err: &mut dyn Write) -> Result<Option<State>> {
        let mut digest = Digesting::new(std::io::sink());
        for line in BufReader::new(from).split(b'\n') {
            self.interrupt.check().map_err(|error| Error::usage(error.to_string()))?;
            let line = line.of("the log")?;
            if let Ok(frame) = serde_json::from_slice::<Frame>(&line) {
                digest.write_all(&line).and_then(|()| digest.write_all(b"\n")).of("the log")?;
                let bytes = frame.bytes()?;
                // Nobody may read it any more; the job goes on.
                let _ = match frame.stream {
                    Stream::Out => out.write_all(&bytes).and_then(|()| out.flush()),
                    Stream::Err => err.write_all(&bytes).and_then(|()| err.flush()),
                };
                continue;
            }
            let state: State = serde_json::from_slice(&line)
                .map_err(|error| Error::protocol(format!("the log has a line of another form: {error}")))?;
            self.keep_log_digest(&digest.finish().1.digits())?;
            return Ok(Some(state));
        }
        Ok(None)
    }

    fn keep_log_digest(&self, digits: &str) -> Result<()> {
        let path = self.place.file("log-digest");
        std::fs::write(&path, digits).of(path)
    }

    fn channel(&self) -> Channel {
        Channel::new(&self.place, self.record.port, &self.record.routes, &self.interrupt)
    }

    /// Fetches the manifest and what came back, checks both, and puts them into place. The log must have been followed to its end.
    ///
    /// # Errors
    /// If the job has failed, the manifest is not this guest's, or something differs from it.
    pub fn fetch(&self, state: &State) -> Result<Done> {
        let Some(end) = state.end.clone().filter(|_| state.phase == Phase::Ended) else {
            let failure = failure_of(state);
            std::fs::write(self.place.file("failed"), failure.to_string()).of(self.place.file("failed"))?;
            return Err(failure);
        };
        let channel = self.channel();
        let bytes = channel.ask(Word::Manifest, |_| Ok(()))?;
        let statement = Statement::open(&bytes)?;
        self.check(&statement, &end)?;
        let results = collect(&channel, &self.record, &self.job, &statement)?;
        let manifest = self.record.base.join(format!("{}.manifest.json", self.record.name));
        keep_manifest(&manifest, &bytes, self.record.replace)?;
        Ok(Done { end, results, manifest })
    }

    /// Whether a manifest is about this job, by this guest.
    fn check(&self, statement: &Statement, end: &End) -> Result<()> {
        let path = self.place.file("exchange");
        let exchange = std::fs::read(&path).of(&path)?;
        let exchange = serde_json::from_slice(&exchange)
            .map_err(|error| Error::io(format!("{}: {error}", path.display())).because(error))?;
        let predicate = &statement.predicate;
        let differs = |what: &str| {
            Err(Error::refused(format!(
                "the manifest is not about this job: its {what} differs from what the owner has"
            )))
        };
        if predicate.exchange != exchange {
            return differs("evidence");
        }
        let file = crate::tree::digest_of(self.record.setup.file.as_bytes()).of("the job file")?;
        if predicate.job_file.sha256() != Some(file.digits().as_str()) {
            return differs("job file");
        }
        if predicate.end != *end {
            return differs("end");
        }
        if self.job.image.digest.is_some_and(|digest| predicate.image.sha256() != Some(&digest.digits())) {
            return differs("image");
        }
        let log = std::fs::read_to_string(self.place.file("log-digest")).unwrap_or_default();
        if predicate.log.sha256() != Some(log.as_str()) {
            return differs("log");
        }
        let sent = std::fs::read(self.place.file("sent")).of(self.place.file("sent"))?;
        let sent: Vec<crate::manifest::Resource> =
            serde_json::from_slice(&sent).map_err(|error| Error::io(error.to_string()))?;
        if !volumes::are_those_opened(&predicate.volumes, &self.job, &self.record.volumes) {
            return differs("list of volumes");
        }
        if predicate.inputs != sent {
            return differs("list of inputs");
        }
        Ok(())
    }

    /// The job's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Whether the guest still has something to bring: its machine runs, and it has not said that it failed.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.record.is_alive() && !self.place.file("failed").exists()
    }

    /// Lets go of the guest, which goes on by itself.
    pub fn leave(self) {
        // What the guest says to the anchors of volumes goes on over this connection.
        if self.record.routes.is_empty() {
            self.channel().close();
        }
    }

    /// Powers the machine off and forgets the job.
    ///
    /// # Errors
    /// If something is left.
    pub fn wipe(self) -> Result<()> {
        put_away(&self.place);
        if self.place.path().exists() { self.place.forget() } else { Ok(()) }
    }
}

/// Ends a job's machine, if it has one, and forgets it.
pub fn put_away(place: &Place) {
    if let Ok(record) = place.record() {
        let channel = Channel::new(place, record.port, &[], &Interrupt::default());
        if record.stage != Stage::Launched && record.is_alive() {
            // Its answer may be cut off by its own end; and one that does not answer has no claim to be waited for.
            if let Ok(mut asking) = channel.say(Word::Wipe) {
                drop(asking.stdin.take());
                let _ = record.wait_for_end(WIPING);
                let _ = asking.kill();
                let _ = asking.wait();
            }
        }
        channel.close();
    }
    let _ = place.forget();
}

fn begin(
    prepared: &Prepared,
    options: &Options,
    place: &Place,
    tell: Tell<'_>,
    interrupt: &Interrupt,
) -> Result<Flow> {
    let image = Image::open(&options.machine.image)?;
    let (judge, machine) = trust(prepared, options, &image, place)?;
    if !prepared.volumes.is_empty() {
        Channel::check_lasting(place)?;
    }
    let owner_key = make_key(place)?;
    tell("starting the machine");
    let mut booting = launch(&machine, &image, prepared, place)?;
    let process = i32::try_from(booting.running.id()).map_err(|_| Error::io("QEMU has no process id"))?;
    let mut record = Record {
        name: prepared.job.name.to_string(),
        base: prepared.base.clone(),
        setup: Setup {
            name: prepared.name.clone(),
            file: prepared.text.clone(),
            container: prepared.plan.container,
        },
        process,
        process_began: began(process).ok_or_else(|| Error::io("QEMU has ended at once"))?,
        port: booting.port,
        routes: prepared.volumes.iter().flat_map(|volume| volume.routes.clone()).collect(),
        volumes: prepared.volumes.iter().map(|volume| volume.id.clone()).collect(),
        stage: Stage::Launched,
        replace: options.replace,
    };
    place.keep(&record)?;
    tell("waiting for its evidence");
    let limit = Duration::from_secs(prepared.job.guest.boot_time.0);
    let exchange = booting.challenge(owner_key, limit, interrupt)?;
    let claims = judge.judge(&exchange)?;
    tell(&told(&claims));
    pin(place, &exchange.answer.host_key)?;
    let text = serde_json::to_vec(&exchange).map_err(|error| Error::io(error.to_string()))?;
    std::fs::write(place.file("exchange"), text).of(place.file("exchange"))?;
    record.stage = Stage::Attested;
    place.keep(&record)?;
    let flow = Flow { place: place.clone(), record, job: prepared.job.clone(), interrupt: interrupt.clone() };
    flow.hand_over(prepared, tell)?;
    // From here on the machine outlives this program.
    booting.running.leave();
    let flow = Flow { record: Record { stage: Stage::Begun, ..flow.record }, ..flow };
    place.keep(&flow.record)?;
    Ok(flow)
}

/// Why a job has failed, as its guest says it. The kinds of what it did itself mean nothing here; those of a volume do.
fn failure_of(state: &State) -> Error {
    let Some(failure) = &state.failure else {
        return Error::io("the guest could not run the job, and does not say why");
    };
    let kind = match failure.kind() {
        Kind::Usage | Kind::Defect => Kind::Io,
        kind => kind,
    };
    Error::new(kind, format!("the guest could not run the job: {failure}"))
}

fn told(claims: &Claims) -> String {
    let measurement = claims.measurement().to_string();
    format!("its evidence has passed: platform {}, measurement {}...", claims.platform(), &measurement[..16])
}

/// By what the guest is judged, and how it is launched so that it can pass.
fn trust(prepared: &Prepared, options: &Options, image: &Image, place: &Place) -> Result<(Judge, Machine)> {
    let mut machine = options.machine.clone();
    let mut roots = attest::Roots::builtin();
    if machine.platform.is_confidential() {
        let policy = options.policy.clone().ok_or_else(|| {
            Error::usage("an evidence policy is missing (--policy): `cvmio attest measure` computes the measurement that it names")
        })?;
        return Ok((
            Judge {
                policy,
                roots,
                beside: options.beside.clone(),
                allow_simulated: options.allow_simulated,
                time: now(),
            },
            machine,
        ));
    }
    if !options.allow_simulated {
        return Err(Error::usage(
            "this machine has no confidential guests, so no chip would vouch for what runs; --allow-simulated runs the job all the same, and \
             the manifest says so",
        ));
    }
    let measurement = image.simulated_measurement(&machine.image, &image.words(prepared.plan.storage))?;
    let failed = |error: simulated::SimulatedError| Error::io(error.to_string()).because(error);
    let root = simulated_root()?;
    let launch = simulated::Launch {
        measurement,
        host_data: Hex([0; 32]),
        machine_id: Hex([0; 32]),
        tcb: 1,
        is_debug: false,
    };
    let seat = place.file("seat");
    std::fs::write(&seat, root.launch(&launch).map_err(failed)?.as_slice()).of(&seat)?;
    roots = roots.with_simulated(root.key().map_err(failed)?);
    machine.seat = Some(seat);
    let policy = match &options.policy {
        Some(policy) => policy.clone(),
        None => Policy::parse(&image.simulated_policy(&machine.image, &image.words(prepared.plan.storage))?)
            .map_err(|error| Error::io(error.to_string()).because(error))?,
    };
    Ok((Judge { policy, roots, beside: options.beside.clone(), allow_simulated: true, time: now() }, machine))
}

impl Flow {
    /// Sends everything, and begins the work.
    fn hand_over(&self, prepared: &Prepared, tell: Tell<'_>) -> Result<()> {
        let channel = self.channel();
        let check = || self.interrupt.check().map_err(|error| Error::usage(error.to_string()));
        let setup = serde_json::to_vec(&self.record.setup).map_err(|error| Error::io(error.to_string()))?;
        tell("sending the job");
        channel.ask(Word::Setup, |to| to.write_all(&setup).of("the job"))?;
        check()?;
        tell("sending the image");
        channel.ask(Word::Image, |to| self.send_image(prepared, to))?;
        let mut sent = Vec::new();
        for (number, input) in self.job.inputs.iter().enumerate() {
            check()?;
            tell(&format!("sending the input {}", input.from.display()));
            let path = prepared.path(&input.from);
            let mut files = Vec::new();
            channel.ask(Word::Input(number), |to| {
                files = pack(Source::Here(&path), CONTENT, to)?.1;
                Ok(())
            })?;
            sent.extend(files.into_iter().map(|file| {
                let below = file.name.strip_prefix(CONTENT).unwrap_or(&file.name);
                crate::manifest::Resource { name: format!("{}{below}", input.to), ..file }
            }));
        }
        let text = serde_json::to_vec(&sent).map_err(|error| Error::io(error.to_string()))?;
        std::fs::write(self.place.file("sent"), text).of(self.place.file("sent"))?;
        for (number, secret) in self.job.secrets.iter().enumerate() {
            let path = prepared.path(&secret.from);
            channel.ask(Word::Secret(number), |to| {
                std::io::copy(&mut File::open(&path).of(&path)?, to).of(&path).map(drop)
            })?;
        }
        check()?;
        if !prepared.volumes.is_empty() {
            tell("opening the volumes");
            volumes::open(&channel, &self.job, &prepared.volumes, &prepared.base)?;
        }
        check()?;
        channel.ask(Word::Start, |_| Ok(())).map(drop)
    }

    fn send_image(&self, prepared: &Prepared, to: &mut dyn Write) -> Result<()> {
        if let Some(archive) = &self.job.image.archive {
            let path = prepared.path(archive);
            return std::io::copy(&mut File::open(&path).of(&path)?, to).of(&path).map(drop);
        }
        let context = self.job.image.context.as_ref().ok_or_else(|| Error::usage("the job has no image"))?;
        pack(Source::Here(&prepared.path(context)), CONTENT, to).map(drop)
    }
}
