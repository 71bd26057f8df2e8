//! Applications inside guests: each task is a script, and the guest takes the time.
//!
//! It is the guest's clock, since by the host's the way of a script to the guest and of its answer back would count as well: tens of
//! milliseconds where the guest is emulated. The host's clock is the check, see [`took`].

use std::time::Duration;

use super::script::Script;
use super::{App, Sizes, Task, archive, compile, duration, memory, postgres, rate, redis, rocksdb, sqlite};
use crate::error::{Error, Result};
use crate::session::{Measured, Prepared};
use crate::target::Spec;

/// Whether what an application needs in a guest is found by a small run of it on this machine.
pub fn is_traced(app: App) -> bool {
    matches!(app, App::Postgres | App::Compile)
}

/// Whether a target is a guest.
pub fn is(target: &Spec) -> bool {
    matches!(target, Spec::Vm(_))
}

/// The programs of this machine that an application needs in a guest.
pub fn programs(app: App) -> &'static [&'static str] {
    match app {
        // What is compiled for it is a program of ours, as is what measures memory.
        App::Rocksdb | App::Memory => &[],
        // What they run is found, but for what runs them.
        App::Postgres => &["setpriv"],
        App::Compile => &[],
        other => other.programs(),
    }
}

/// What a task is in a guest.
fn script(task: Task, sizes: &Sizes) -> Result<Script> {
    Ok(match task {
        Task::SqliteInsert => sqlite::insert_script(sizes),
        Task::SqliteMix => sqlite::mix_script(sizes),
        Task::Redis(what) => redis::script(what, sizes),
        Task::Rocksdb(mix) => rocksdb::script(mix, sizes),
        Task::TarCompress => archive::tar_compress_script(),
        Task::TarExtract => archive::tar_extract_script(),
        Task::Lz4Compress => archive::lz4_compress_script(),
        Task::Lz4Extract => archive::lz4_extract_script(),
        Task::Memory(what) => memory::script(what, sizes.memory),
        Task::Postgres => postgres::script(sizes)?,
        Task::Compile => compile::script(),
    })
}

/// One turn in a guest.
///
/// # Errors
/// When the program fails there, or the guest's clock is not to be trusted.
pub fn turn(task: Task, sizes: &Sizes, target: &mut Prepared<'_>) -> Result<Measured> {
    let script = script(task, sizes)?.text();
    let (answer, whole) = target.ready.turn(&script, target.environment.interrupt)?;
    let answer = answer.must_succeed()?;
    let (said, took) = took(&answer.said, whole)?;
    match task {
        Task::SqliteMix => Ok(rate(f64::from(sizes.inserts), took)),
        Task::Redis(_) => redis::figures(said),
        Task::Rocksdb(_) => rocksdb::figures(said),
        Task::Memory(_) => memory::figures(said),
        Task::Postgres => postgres::figures(said),
        _ => Ok(duration(took)),
    }
}

/// What the program printed, and the time that the script says. The whole script took `whole` by this machine's clock: a guest whose clock
/// says more of a part of it runs too fast.
fn took(said: &str, whole: Duration) -> Result<(&str, Duration)> {
    let said = said.trim_end();
    let (before, last) = said.rsplit_once('\n').unwrap_or(("", said));
    let nanoseconds = last.strip_prefix("took ").and_then(|number| number.parse::<u64>().ok());
    let took = nanoseconds
        .map(Duration::from_nanos)
        .ok_or_else(|| Error::io(format!("the guest does not say how long it took: `{last}`")))?;
    // Clocks may differ by a little.
    if took > whole + whole / 20 + Duration::from_millis(50) {
        return Err(Error::io(format!(
            "the guest's clock runs too fast: it says {:.3} s of what took {:.3} s",
            took.as_secs_f64(),
            whole.as_secs_f64()
        )));
    }
    Ok((before, took))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::super::script::FORGET;
    use super::*;

    fn sizes() -> Sizes {
        Sizes {
            inserts: 30,
            requests: 100,
            records: 50,
            operations: 20,
            seconds: 1,
            tree: "/tree".into(),
            project: None,
            memory: 1 << 20,
        }
    }

    /// All that an application can be asked for in a guest.
    fn tasks() -> impl Iterator<Item = Task> {
        use clap::ValueEnum;
        // PostgreSQL's user may not be there.
        let has_user = super::super::postgres::script(&sizes()).is_ok();
        let apps = App::value_variants().iter().filter(move |app| has_user || **app != App::Postgres);
        apps.flat_map(|app| app.tasks().iter().map(|(_, _, task)| *task))
    }

    #[test]
    fn each_script_is_one_that_a_shell_reads() {
        for task in tasks() {
            let text = script(task, &sizes()).unwrap().text();
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), &text).unwrap();
            let checked = Command::new("sh").arg("-n").arg(file.path()).output().unwrap();
            assert!(checked.status.success(), "{task:?}: {text}");
            assert!(
                text.contains("rm -rf $d\nmkdir $d\n") && text.ends_with("echo took $((ended - began))\n")
            );
        }
    }

    #[test]
    fn what_is_read_was_forgotten_before() {
        for task in [
            Task::SqliteMix,
            Task::TarCompress,
            Task::TarExtract,
            Task::Lz4Compress,
            Task::Lz4Extract,
            Task::Compile,
        ] {
            assert!(script(task, &sizes()).unwrap().before.contains(FORGET), "{task:?}");
        }
        for task in [Task::TarCompress, Task::TarExtract, Task::Lz4Compress, Task::Lz4Extract, Task::Compile]
        {
            assert!(script(task, &sizes()).unwrap().timed.ends_with("sync\n"), "{task:?}");
        }
    }

    #[test]
    fn the_time_is_the_last_line_and_no_longer_than_the_whole() {
        let whole = Duration::from_secs(2);
        let (said, time) = took("\"SET\",\"1\"\ntook 1500000000\n", whole).unwrap();
        assert_eq!((said, time), ("\"SET\",\"1\"", Duration::from_millis(1500)));
        assert_eq!(took("took 7\n", whole).unwrap(), ("", Duration::from_nanos(7)));
        for (said, word) in [
            ("", "does not say"),
            ("took %N", "does not say"),
            ("took -1", "does not say"),
            ("took 2200000000", "too fast"),
        ] {
            let error = took(said, whole).unwrap_err().to_string();
            assert!(error.contains(word), "{said}: {error}");
        }
    }
}
