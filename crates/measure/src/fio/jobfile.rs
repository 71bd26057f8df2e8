//! A user's own job file.
//!
//! fio runs the sections of a file at once, up to one that says `stonewall` or `wait_for_previous`. What runs at once is one case here, named
//! by its first section. Which file, device or server is used, and for how long, is ours to say; lines about that are left out.
//!
//! Some of fio's options read and write other files, run programs, or remove what they find. So only options are let through that are known to do
//! nothing of that kind, with values of harmless letters: fio replaces some words behind a `$`, even by the output of a program.

use report::run::Metric;

use crate::error::{Error, Result};

/// Options that are the target's or the turn's: left out.
const OURS: [&str; 23] = [
    "filename",
    "directory",
    "filename_format",
    "ioengine",
    "uri",
    "direct",
    "buffered",
    "size",
    "filesize",
    "runtime",
    "timeout",
    "ramp_time",
    "time_based",
    "group_reporting",
    "thread",
    "io_size",
    "fallocate",
    "create_serialize",
    "lat_percentiles",
    "clat_percentiles",
    "slat_percentiles",
    "percentile_list",
    "description",
];

/// Options that touch nothing but the target, and leave the report as it is. Source: fio's HOWTO, version 3.33.
const KNOWN: [&str; 90] = [
    "allrandrepeat",
    "blockalign",
    "ba",
    "blocksize",
    "blocksize_range",
    "blocksize_unaligned",
    "bs",
    "bs_is_seq_rand",
    "bs_unaligned",
    "bsrange",
    "bssplit",
    "buffer_compress_chunk",
    "buffer_compress_percentage",
    "cmdprio",
    "cmdprio_bssplit",
    "cmdprio_class",
    "cmdprio_percentage",
    "cpumask",
    "cpus_allowed",
    "cpus_allowed_policy",
    "dedupe_mode",
    "dedupe_percentage",
    "dedupe_working_set_percentage",
    "end_fsync",
    "fadvise_hint",
    "fdatasync",
    "fixedbufs",
    "force_async",
    "fsync",
    "fsync_on_close",
    "hipri",
    "invalidate",
    "io_submit_mode",
    "iodepth",
    "iodepth_batch",
    "iodepth_batch_complete",
    "iodepth_batch_complete_max",
    "iodepth_batch_complete_min",
    "iodepth_batch_submit",
    "iodepth_low",
    "latency_percentile",
    "latency_run",
    "latency_target",
    "latency_window",
    "max_latency",
    "new_group",
    "nice",
    "nonvectored",
    "norandommap",
    "nowait",
    "numa_cpu_nodes",
    "numa_mem_policy",
    "number_ios",
    "numjobs",
    "percentage_random",
    "prio",
    "prioclass",
    "randrepeat",
    "randseed",
    "random_distribution",
    "random_generator",
    "rate",
    "rate_cycle",
    "rate_ignore_thinktime",
    "rate_iops",
    "rate_iops_min",
    "rate_min",
    "rate_process",
    "readwrite",
    "refill_buffers",
    "registerfiles",
    "rw",
    "rw_sequencer",
    "rwmixread",
    "rwmixwrite",
    "scramble_buffers",
    "serialize_overlap",
    "softrandommap",
    "sqthread_poll",
    "sqthread_poll_cpu",
    "startdelay",
    "stonewall",
    "sync",
    "thinktime",
    "thinktime_blocks",
    "thinktime_blocks_type",
    "thinktime_iotime",
    "thinktime_spin",
    "uncached",
    "wait_for_previous",
];

/// Letters of values that fio takes as they are.
const HARMLESS: &str = "._:,/%+-*()^";
/// fio cuts lines at 4096 bytes, and takes what is behind for another line.
const LONGEST: usize = 1000;

/// Sections that run at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The case's name.
    pub name: String,
    /// What it is about: bandwidth for requests of 64 KiB and more, latency for depth 1 and one job, else IOPS.
    pub metric: Metric,
    /// The sections with their options, global ones first in each.
    pub sections: Vec<(String, Vec<String>)>,
}

/// Reads a job file.
///
/// # Errors
/// When a line stands outside of a section, there is no section, or an option or a value is not one that is known to be harmless.
pub fn parse(name: &str, text: &str) -> Result<Vec<Step>> {
    let mut global: Vec<String> = Vec::new();
    let mut sections: Vec<(String, Vec<String>, bool)> = Vec::new();
    let mut in_global = true;
    let mut begun = false;
    for (number, line) in text.lines().enumerate() {
        let wrong =
            |what: &str| Error::usage(format!("{name}, line {}: {what}: {}", number + 1, line.trim()));
        // As fio does: what is behind one of these is a comment.
        let line = line.split([';', '#']).next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if line.len() > LONGEST {
            return Err(Error::usage(format!(
                "{name}, line {}: it is longer than {LONGEST} bytes",
                number + 1
            )));
        }
        if let Some(section) = line.strip_prefix('[') {
            let section =
                section.strip_suffix(']').ok_or_else(|| wrong("this section's name does not end"))?;
            check_name(section).map_err(|why| wrong(&why))?;
            begun = true;
            in_global = section == "global";
            if !in_global {
                sections.push((section.into(), global.clone(), false));
            }
            continue;
        }
        if !begun {
            return Err(wrong("an option stands before the first section"));
        }
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim())),
            None => (line, None),
        };
        if OURS.contains(&key) {
            continue;
        }
        check_option(key, value).map_err(|why| wrong(&why))?;
        let option = value.map_or_else(|| key.to_string(), |value| format!("{key}={value}"));
        match sections.last_mut() {
            _ if in_global => global.push(option),
            Some((_, _, wall)) if ["stonewall", "wait_for_previous"].contains(&key) => *wall = true,
            Some((_, options, _)) => options.push(option),
            None => {}
        }
    }
    if sections.is_empty() {
        return Err(Error::usage(format!("{name} has no section but [global], so no job")));
    }
    Ok(steps(sections))
}

/// Whether fio takes a section's name for a name.
fn check_name(name: &str) -> std::result::Result<(), String> {
    if name.starts_with("global") && name != "global" {
        return Err("fio takes every section whose name begins so for [global]".into());
    }
    let is_harmless = |letter: char| letter.is_alphanumeric() || " _-.+:,/()@".contains(letter);
    if name.is_empty() || name.len() > 200 || !name.chars().all(is_harmless) {
        return Err("a section's name has letters, digits and simple signs".into());
    }
    Ok(())
}

fn check_option(key: &str, value: Option<&str>) -> std::result::Result<(), String> {
    if !KNOWN.contains(&key) {
        return Err(format!(
            "the option `{key}` is not let through, since it is not known to touch nothing but the target and to keep the report whole; leave it out"
        ));
    }
    let is_harmless =
        |letter: char| letter.is_ascii_alphanumeric() || letter == ' ' || HARMLESS.contains(letter);
    match value.and_then(|value| value.chars().find(|letter| !is_harmless(*letter))) {
        Some(letter) => {
            Err(format!("{letter:?} in a value is not let through, since fio may read more into it"))
        }
        None => Ok(()),
    }
}

fn steps(sections: Vec<(String, Vec<String>, bool)>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (name, options, wall) in sections {
        match steps.last_mut().filter(|_| !wall) {
            Some(step) => step.sections.push((name, options)),
            None => {
                let name = unique(&name, &steps);
                steps.push(Step {
                    name: name.clone(),
                    metric: metric(&options),
                    sections: vec![(name, options)],
                });
            }
        }
    }
    steps
}

fn unique(name: &str, steps: &[Step]) -> String {
    let taken = |name: &str| steps.iter().any(|step| step.name == name);
    let mut numbered = (2..).map(|number| format!("{name}-{number}"));
    if taken(name) { numbered.find(|name| !taken(name)).unwrap_or_default() } else { name.into() }
}

fn metric(options: &[String]) -> Metric {
    let last = |keys: &[&str]| {
        let of = |option: &String| {
            let (key, value) = option.split_once('=')?;
            keys.contains(&key.trim()).then(|| value.trim().to_lowercase())
        };
        options.iter().rev().find_map(of)
    };
    let number = |key: &str| last(&[key]).map_or(1, |value| value.parse().unwrap_or(2u32));
    match last(&["bs", "blocksize"]).as_deref().map_or(4096, bytes) {
        65536.. => Metric::Bandwidth,
        _ if number("iodepth") == 1 && number("numjobs") == 1 => Metric::Latency,
        _ => Metric::Iops,
    }
}

/// A size as fio takes it; 4096 for what is none.
fn bytes(text: &str) -> u64 {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    let factor = match text[digits.len()..].chars().next() {
        Some('k') => 1 << 10,
        Some('m') => 1 << 20,
        _ => 1,
    };
    digits.parse::<u64>().map_or(4096, |number| number.saturating_mul(factor))
}

impl Step {
    /// A job file for one target, with the options that are ours.
    pub fn file(&self, ours: &[String]) -> String {
        let mut text = String::new();
        for (name, options) in &self.sections {
            text += &format!("[{name}]\n");
            for option in options.iter().chain(ours) {
                text += option;
                text.push('\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
; a comment
[global]
ioengine=libaio
filename=/dev/sda
bs=4k
[reader]
rw=randread
iodepth=32
[writer]
rw=randwrite
[big]
stonewall
rw=write
bs=1m
[probe]
wait_for_previous
rw=read
";

    #[test]
    fn what_runs_at_once_is_a_case() {
        let steps = parse("x.fio", FILE).unwrap();
        let seen: Vec<_> =
            steps.iter().map(|step| (step.name.as_str(), step.metric, step.sections.len())).collect();
        assert_eq!(
            seen,
            [("reader", Metric::Iops, 2), ("big", Metric::Bandwidth, 1), ("probe", Metric::Latency, 1)]
        );
        let file = steps[0].file(&["filename=/tmp/x".into()]);
        assert!(!file.contains("/dev/sda") && !file.contains("libaio"), "{file}");
        assert_eq!(file.matches("filename=/tmp/x").count(), 2);
        assert_eq!(file.matches("bs=4k").count(), 2);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, word) in [
            ("rw=read\n", "line 1"),
            ("[global]\nbs=4k\n", "no job"),
            ("[x\n", "does not end"),
            ("[a]\ninclude b.fio\n", "line 2"),
            ("[a]\ninclude\tb.fio\n", "line 2"),
            ("[globals]\nbs=4k\n", "begins so"),
            ("[a$jobname]\n", "simple signs"),
        ] {
            let error = parse("x.fio", text).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("x.fio"), "{error}");
        }
    }

    #[test]
    fn options_that_reach_other_files_are_not_let_through() {
        for option in [
            "opendir=/home",
            "read_iolog=/etc/passwd",
            "write_iolog=x",
            "write_bw_log=x",
            "write_lat_log",
            "write_iops_log=x",
            "write_hist_log=x",
            "unlink=1",
            "unlink_each_loop=1",
            "exec_prerun=rm -rf /",
            "exec_postrun=x",
            "verify=crc32c",
            "verify_state_load=1",
            "mem=mmaphuge:/x",
            "iomem=mmapshared:/x",
            "ioscheduler=none",
            "profile=act",
            "cgroup=x",
            "uid=0",
            "buffer_pattern='/etc/shadow'",
            "trigger=x",
            "pre_read=1",
            "nrfiles=9",
            "file_service_type=random",
            "create_only=1",
            "offset=1G",
            "zonemode=zbd",
            "gtod_reduce=1",
            "unified_rw_reporting=1",
            "no_such_option",
        ] {
            for text in [format!("[a]\n{option}\n"), format!("[global]\n {option}\n[a]\nrw=read\n")] {
                let said = parse("x.fio", &text).unwrap_err().to_string();
                assert!(said.contains("is not let through") && said.contains("x.fio, line 2"), "{said}");
            }
        }
        for value in ["bs=${HOME}", "rate=$ncpus*2'; touch x'", "bs=\"4k\"", "bs=`x`", "bs=\\4k"] {
            let said = parse("x.fio", &format!("[a]\n{value}\n")).unwrap_err().to_string();
            assert!(said.contains("in a value"), "{said}");
        }
        assert!(parse("x", &format!("[a]\nbs={}\n", "4".repeat(5000))).is_err());
        let known = "[a]\nrw = randrw:8 ; a comment\nbssplit=4k/10:64k/50\nrandom_distribution=zipf:1.2 # more\nsize=1T\n";
        let steps = parse("x", known).unwrap();
        assert_eq!(
            steps[0].sections[0].1,
            ["rw=randrw:8", "bssplit=4k/10:64k/50", "random_distribution=zipf:1.2"]
        );
    }

    #[test]
    fn two_sections_of_one_name_are_two_cases() {
        let steps = parse("x", "[a]\nrw=read\n[a]\nstonewall\nrw=write\n").unwrap();
        assert_eq!(steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(), ["a", "a-2"]);
    }
}
