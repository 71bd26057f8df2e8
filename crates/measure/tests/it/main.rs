//! Measuring on tiny sizes: that every job runs, that mistakes are told, and that nothing is lost. What the figures are is not looked at.

mod apps;
mod devices;
mod fio;
mod killed;
mod named;
mod refusals;

use std::path::{Path, PathBuf};

use clap::Parser;
use measure::commands::{Measure, run};
use measure::error::Result;
use report::run::Run;
use tempfile::TempDir;

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    measure: Measure,
}

/// Runs commands of the measuring program, in a directory for their targets and run files.
struct Runner {
    directory: TempDir,
}

impl Runner {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Carries out a command, with DIR for the directory.
    fn run(&self, line: &str) -> Result<()> {
        let directory = self.directory.path().to_str().unwrap();
        let words: Vec<String> = line.split_whitespace().map(|word| word.replace("DIR", directory)).collect();
        let parsed = Line::try_parse_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        run(&parsed.measure, words, "cvmio".into())
    }

    fn error(&self, line: &str) -> String {
        self.run(line).unwrap_err().to_string()
    }

    fn result(&self, name: &str) -> Run {
        read(&self.path(name))
    }
}

fn read(path: &Path) -> Run {
    Run::parse(&std::fs::read(path).unwrap()).unwrap()
}

/// Tiny.
const SMALL: &str = "--dir DIR --size 16M --seconds 0.1 --warm-up 0";
