//! The parts of a request's time, as the work of a run.

use std::collections::BTreeMap;

use report::run::{Case, Metric};

use crate::error::{Error, Result};
use crate::session::{Measured, Prepared, Work};
use crate::target::vm::trace;
use crate::target::{Address, Contents, Need};

/// The parts, in the order in which a request goes through them, and their sum.
const PARTS: [&str; 5] = ["submission", "exit", "backend", "completion", "all"];
/// What is done.
const KINDS: [&str; 2] = ["randread", "randwrite"];

/// Requests of 4 KiB, one at a time, that are watched.
pub struct Breakdown {
    requests: u32,
    size: u64,
}

impl Breakdown {
    /// So many requests in each turn, over so many bytes.
    pub fn new(requests: u32, size: u64) -> Self {
        Self { requests, size }
    }

    fn fio(&self, kind: &str, device: &str) -> String {
        format!(
            "fio --name={kind} --rw={kind} --bs=4k --ioengine=psync --direct=1 --filename={device} --size={} --number_ios={} \
             --thread=1 --norandommap=1 --randrepeat=0",
            self.size, self.requests
        )
    }
}

/// The script that watches a program with ftrace and prints what it saw.
fn watched(program: &str, device: &str) -> String {
    let call = if program.contains("randread") { "pread64" } else { "pwrite64" };
    let name = device.trim_start_matches("/dev/");
    format!(
        "set -e
        trace=/sys/kernel/tracing
        [ -e $trace/trace ] || mount -t tracefs tracefs $trace || {{ echo the kernel has no ftrace >&2; exit 1; }}
        for event in syscalls/sys_enter_{call} syscalls/sys_exit_{call} block/block_rq_issue block/block_rq_complete; do
            [ -e $trace/events/$event ] || {{ echo the kernel has no event $event >&2; exit 1; }}
        done
        echo 0 >$trace/tracing_on
        echo mono >$trace/trace_clock
        echo 8192 >$trace/buffer_size_kb
        echo >$trace/trace
        IFS=: read -r major minor </sys/block/{name}/dev
        for event in block_rq_issue block_rq_complete; do
            echo \"dev == $((major << 20 | minor))\" >$trace/events/block/$event/filter
            echo 1 >$trace/events/block/$event/enable
        done
        for event in sys_enter_{call} sys_exit_{call}; do
            # Requests have 4096 bytes; what other programs read has not.
            [ $event = sys_exit_{call} ] || echo 'count == 4096' >$trace/events/syscalls/$event/filter
            echo 1 >$trace/events/syscalls/$event/enable
        done
        echo 1 >$trace/tracing_on
        {program} >/dev/null
        echo 0 >$trace/tracing_on
        cat $trace/trace
        for event in $trace/events/block $trace/events/syscalls; do echo 0 >$event/enable; done
        "
    )
}

impl Work for Breakdown {
    fn need(&self) -> Need {
        Need::Blocks
    }

    fn contents(&self) -> Contents {
        Contents::programs(&["fio"])
    }

    fn cases(&self) -> Vec<Case> {
        let of = |kind: &str| {
            let command = self.fio(kind, "TARGET");
            PARTS.map(|part| Case {
                name: format!("{kind}-{part}"),
                metric: Metric::Latency,
                aged: false,
                command: command.clone(),
            })
        };
        KINDS.iter().flat_map(|kind| of(kind)).collect()
    }

    fn seconds(&self) -> f64 {
        // Half a millisecond for each request, as emulated guests on a busy machine need it.
        f64::from(self.requests) * 0.0005 + 1.0
    }

    fn prepare(&self, target: &mut Prepared<'_>) -> Result<()> {
        let device = device(target)?;
        let fill = format!("dd if=/dev/zero of={device} bs=1M count={} conv=fsync", self.size >> 20);
        let answer = target.ready.script(&fill, target.environment.interrupt)?;
        if answer.code == 0 { Ok(()) } else { Err(Error::io(answer.complained)) }
    }

    fn age(&self, _target: &mut Prepared<'_>) -> Result<()> {
        Ok(())
    }

    fn turn(&self, case: usize, target: &mut Prepared<'_>) -> Result<Measured> {
        let (kind, part) = (KINDS.get(case / PARTS.len()), PARTS.get(case % PARTS.len()));
        let (Some(kind), Some(part)) = (kind, part) else { return Err(Error::io("there is no such case")) };
        let device = device(target)?;
        let script = watched(&self.fio(kind, &device), &device);
        let before = traced(target)?.len();
        let answer = target.ready.script(&script, target.environment.interrupt)?;
        if answer.code != 0 {
            return Err(Error::io(format!(
                "the guest's kernel cannot be watched: {}",
                answer.complained.trim()
            )));
        }
        let seen = traced(target)?;
        if let Some(guest) = &mut target.ready.guest {
            guest.pause()?;
        }
        let figures = parts(&answer.said, seen.get(before..).unwrap_or_default())?;
        let value = figures.get(*part).copied().ok_or_else(|| Error::io("there is no such part"))?;
        Ok(Measured { value, figures, course: Vec::new() })
    }
}

fn device(target: &Prepared<'_>) -> Result<String> {
    match &target.ready.address {
        Address::File { path, .. } => Ok(path.to_string_lossy().into_owned()),
        Address::Nbd(_) => Err(Error::usage("only the disk of a machine can be looked into")),
    }
}

fn traced(target: &Prepared<'_>) -> Result<String> {
    let guest = target.ready.guest.as_ref();
    guest.ok_or_else(|| Error::usage("only the disk of a machine can be looked into"))?.traced()
}

/// The parts from what the guest's kernel and QEMU saw. Their clocks are not compared: only spans of each.
fn parts(guest: &str, qemu: &str) -> Result<BTreeMap<String, f64>> {
    let requests = trace::guest(guest);
    let middle = |values: Vec<f64>, what: &str| {
        trace::median(values).ok_or_else(|| Error::io(format!("{what} shows not one whole request")))
    };
    let of =
        |part: fn(&trace::Parts) -> f64| middle(requests.iter().map(part).collect(), "the guest's trace");
    let (submission, device) = (of(|one| one.submission)?, of(|one| one.device)?);
    let completion = of(|one| one.completion)?;
    let all = of(|one| one.submission + one.device + one.completion)?;
    let backend = middle(trace::backend(qemu), "QEMU's trace")?;
    // Medians of two clocks; the difference cannot be less than nothing.
    let exit = (device - backend).max(1.0);
    let values = [submission, exit, backend, completion, all];
    Ok(PARTS.iter().map(|part| (*part).to_string()).zip(values).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up() {
        let guest = "\
 fio-7 [0] ... 12.000100: sys_pread64(fd: 3)
 fio-7 [0] ... 12.000150: block_rq_issue: 254,0 RS 4096
 x-0 [0] ... 12.000950: block_rq_complete: 254,0 RS
 fio-7 [0] ... 12.001000: sys_pread64 -> 0x1000
";
        let qemu = "7@1.000100:virtio_blk_handle_read vdev 0x1 req 0xa sector 0\n7@1.000400:virtio_blk_req_complete vdev 0x1 req 0xa status 0\n";
        let parts = parts(guest, qemu).unwrap();
        let values: Vec<f64> = PARTS.iter().map(|part| parts[*part]).collect();
        assert_eq!(values, [50_000.0, 500_000.0, 300_000.0, 50_000.0, 900_000.0]);
        assert!(super::parts("", qemu).unwrap_err().to_string().contains("the guest's trace"));
        assert!(super::parts(guest, "").unwrap_err().to_string().contains("QEMU's trace"));
    }
}
