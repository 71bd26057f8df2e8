//! A user's own job file.
//!
//! fio runs the sections of a file at once, up to one that says `stonewall` or `wait_for_previous`. What runs at once is one case here, named
//! by its first section. Which file, device or server is used, and for how long, is ours to say; lines about that are left out.

use report::run::Metric;

use crate::error::{Error, Result};

/// Options that are the target's or the turn's.
const OURS: [&str; 16] = [
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
];

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
/// When a line stands outside of a section, there is no section, or it includes other files.
pub fn parse(name: &str, text: &str) -> Result<Vec<Step>> {
    let mut global: Vec<String> = Vec::new();
    let mut sections: Vec<(String, Vec<String>, bool)> = Vec::new();
    let mut in_global = true;
    let mut begun = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let wrong = |what: &str| Error::usage(format!("{name}, line {}: {what}: {line}", number + 1));
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if line.starts_with("include ") {
            return Err(wrong("job files that include others cannot be repeated; put everything into one"));
        }
        if let Some(section) = line.strip_prefix('[') {
            let section =
                section.strip_suffix(']').ok_or_else(|| wrong("this section's name does not end"))?;
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
        let key = line.split('=').next().unwrap_or_default().trim();
        if OURS.contains(&key) {
            continue;
        }
        match sections.last_mut() {
            _ if in_global => global.push(line.into()),
            Some((_, _, wall)) if ["stonewall", "wait_for_previous"].contains(&key) => *wall = true,
            Some((_, options, _)) => options.push(line.into()),
            None => {}
        }
    }
    if sections.is_empty() {
        return Err(Error::usage(format!("{name} has no section but [global], so no job")));
    }
    Ok(steps(sections))
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
        ] {
            let error = parse("x.fio", text).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("x.fio"), "{error}");
        }
    }

    #[test]
    fn two_sections_of_one_name_are_two_cases() {
        let steps = parse("x", "[a]\nrw=read\n[a]\nstonewall\nrw=write\n").unwrap();
        assert_eq!(steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(), ["a", "a-2"]);
    }
}
