//! What a guest's ftrace and QEMU's events say of requests, from their texts: the only place where these are read.

use std::collections::BTreeMap;

/// Nanoseconds that one request spent, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Parts {
    /// From the system call to the driver that hands the request to the device.
    pub submission: f64,
    /// From there to the driver that hears of its end.
    pub device: f64,
    /// From there to the return of the system call.
    pub completion: f64,
}

/// Seconds with six digits, as ftrace and QEMU write them, in nanoseconds since some moment.
fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let fraction = fraction.get(..6)?;
    let seconds = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
    seconds.checked_add(fraction.parse::<u64>().ok()? * 1000)
}

fn span(from: u64, to: u64) -> Option<f64> {
    to.checked_sub(from).and_then(|span| u32::try_from(span).ok()).map(f64::from)
}

/// A line of ftrace: its time, and its event or `return`. Source: the kernel's `Documentation/trace/ftrace.rst`.
fn event(line: &str) -> Option<(u64, &str)> {
    let (head, rest) = line.split_once(": ")?;
    let time = nanoseconds(head.split_whitespace().next_back()?)?;
    let (name, said) = rest.split_once([':', '(', ' '])?;
    // `sys_pread64 -> 0x1000` is how a system call's return is written.
    Some((time, if said.starts_with("-> ") { "return" } else { name }))
}

/// The requests of one process that has one under way at a time.
pub fn guest(trace: &str) -> Vec<Parts> {
    let mut requests = Vec::new();
    let (mut call, mut issue, mut complete) = (None, None, None);
    for (time, name) in trace.lines().filter_map(event) {
        match name {
            "sys_pread64" | "sys_pwrite64" => (call, issue, complete) = (Some(time), None, None),
            "block_rq_issue" if call.is_some() => issue = issue.or(Some(time)),
            "block_rq_complete" if issue.is_some() => complete = Some(time),
            "return" => {
                let parts = || {
                    let (call, issue, complete) = (call?, issue?, complete?);
                    Some(Parts {
                        submission: span(call, issue)?,
                        device: span(issue, complete)?,
                        completion: span(complete, time)?,
                    })
                };
                requests.extend(parts());
                (call, issue, complete) = (None, None, None);
            }
            _ => {}
        }
    }
    requests
}

/// Nanoseconds between QEMU's taking up a request and its giving it back, of each. Source: QEMU, docs/devel/tracing, "log" back end with
/// time stamps: `PID@SECONDS:EVENT vdev 0x... req 0x... ...`.
pub fn backend(trace: &str) -> Vec<f64> {
    let mut begun: BTreeMap<&str, u64> = BTreeMap::new();
    let mut spans = Vec::new();
    for line in trace.lines() {
        let Some((head, rest)) = line.split_once(":virtio_blk_") else { continue };
        let Some(time) = head.rsplit(['@', ' ']).next().and_then(nanoseconds) else { continue };
        let mut words = rest.split_whitespace();
        let (Some(name), Some(request)) = (words.next(), words.skip_while(|word| *word != "req").nth(1))
        else {
            continue;
        };
        if name == "req_complete" {
            let from = begun.remove(request);
            spans.extend(from.and_then(|from| span(from, time)));
        } else {
            begun.insert(request, time);
        }
    }
    spans
}

/// The middle one.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: &str = "\
# tracer: nop
             fio-77      [000] .....   12.000100: sys_pread64(fd: 3, buf: 7f, count: 1000, pos: 0)
             fio-77      [000] .....   12.000150: block_rq_issue: 254,0 RS 4096 () 0 + 8 none,0,0 [fio]
          <idle>-0       [001] d.h2.   12.000950: block_rq_complete: 254,0 RS () 0 + 8 none,0,0 [0]
             fio-77      [000] .....   12.001000: sys_pread64 -> 0x1000
             fio-77      [000] .....   12.002000: sys_pread64(fd: 3, buf: 7f, count: 1000, pos: 0)
             fio-77      [000] .....   12.002010: sys_pread64 -> 0x0
";

    #[test]
    fn a_request_has_three_parts_in_the_guest() {
        let requests = guest(GUEST);
        assert_eq!(requests, [Parts { submission: 50_000.0, device: 800_000.0, completion: 50_000.0 }]);
        assert!(guest("").is_empty() && guest("fio-7 [0] ... 1.2: x: y\n: \n1.999999: sys_").is_empty());
    }

    #[test]
    fn the_back_end_is_paired_by_request() {
        let trace = "\
7@1795747987.000100:virtio_blk_handle_read vdev 0x1 req 0xa sector 0 nsectors 8
7@1795747987.000200:virtio_blk_handle_write vdev 0x1 req 0xb sector 0 nsectors 8
7@1795747987.000500:virtio_blk_req_complete vdev 0x1 req 0xa status 0
7@1795747987.000900:virtio_blk_req_complete vdev 0x1 req 0xb status 0
7@1795747987.001000:virtio_blk_req_complete vdev 0x1 req 0xc status 0
rubbish
";
        assert_eq!(backend(trace), [400_000.0, 700_000.0]);
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(Vec::new())), (Some(2.0), None));
    }
}
