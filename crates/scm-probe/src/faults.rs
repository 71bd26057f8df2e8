//! How long a first touch takes.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use scm::uffd::{self, Event};
use serde::Serialize;

use crate::mapped::Mapped;
use crate::{AnswerArgs, Answering, FaultsArgs};

/// What came out, in nanoseconds.
#[derive(Debug, Serialize)]
struct Times {
    touches: usize,
    mean: u128,
    p50: u128,
    p90: u128,
    p99: u128,
}

/// The process that answers, until this is dropped.
struct Answerer(Child);

impl Drop for Answerer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn faults(args: &FaultsArgs) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(&args.file)?;
    if args.bare.is_some() {
        // A touch of a page without memory would be another kind of fault.
        let mut content = vec![0_u8; 1 << 20];
        let mut filler = &file;
        for _ in 0..args.length.div_ceil(content.len()) {
            content[0] = content[0].wrapping_add(1);
            filler.write_all(&content)?;
        }
    }
    let mapped = Mapped::file(&file, args.length)?;
    let _answerer = args.bare.map(|how| answered(&mapped, how, args.page)).transpose()?;
    let mut pages: Vec<usize> = (0..mapped.len() / args.page).collect();
    if !args.in_order {
        fastrand::Rng::with_seed(1).shuffle(&mut pages);
    }
    let mut times: Vec<u128> = Vec::with_capacity(pages.len());
    for page in pages {
        let begun = Instant::now();
        std::hint::black_box(mapped.load(page * args.page));
        times.push(begun.elapsed().as_nanos());
    }
    let mean = times.iter().sum::<u128>() / times.len().max(1) as u128;
    times.sort_unstable();
    let permille = |part: usize| times.get(times.len() * part / 1000).copied().unwrap_or(0);
    let times =
        Times { touches: times.len(), mean, p50: permille(500), p90: permille(900), p99: permille(990) };
    println!("{}", serde_json::to_string(&times)?);
    Ok(())
}

/// Has touches of a mapping answered by another process, as a server is one.
fn answered(mapped: &Mapped, how: Answering, page: usize) -> io::Result<Answerer> {
    let uffd = uffd::open_minor().map_err(io::Error::other)?;
    let address = mapped.address();
    // SAFETY: advice about a mapping that is there; its content stays.
    unsafe {
        let start: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(address);
        libc::madvise(start, mapped.len(), libc::MADV_NOHUGEPAGE);
        libc::madvise(start, mapped.len(), libc::MADV_DONTNEED);
    }
    uffd::register(&uffd, address as u64, mapped.len() as u64)?;
    let how = if how == Answering::Asleep { "asleep" } else { "awake" };
    let mut command = Command::new(std::env::current_exe()?);
    // What this process was told, up to its own command, is the way to the other one.
    let way = std::env::args().skip(1).take_while(|word| word != "faults");
    command.args(way).args(["answer", how, &page.to_string()]);
    let child = command.stdin(Stdio::from(uffd)).stdout(Stdio::null()).spawn()?;
    Ok(Answerer(child))
}

pub(crate) fn answer(args: &AnswerArgs) -> io::Result<()> {
    let input = io::stdin();
    let uffd = input.as_fd();
    let mut events = Vec::new();
    loop {
        if args.how == Answering::Asleep {
            let mut wanted = [PollFd::new(&uffd, PollFlags::IN)];
            let limit = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut wanted, Some(&limit))?;
        }
        uffd::read(uffd, &mut events)?;
        for event in events.drain(..) {
            let Event::Fault { address, .. } = event else { continue };
            let mut resumed = uffd::resume(uffd, address / args.page * args.page, args.page);
            while resumed.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN)) {
                std::thread::sleep(Duration::from_micros(1));
                resumed = uffd::resume(uffd, address / args.page * args.page, args.page);
            }
            resumed?;
        }
    }
}
