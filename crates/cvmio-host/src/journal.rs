//! What is told to the journal: lines on standard error, with systemd's priorities where it reads them (`sd-daemon(3)`).

use std::io::Write;

use log::{Level, LevelFilter, Log, Metadata, Record};

struct Journal {
    is_read_by_systemd: bool,
}

/// Sends messages there from now on.
pub fn begin() {
    let is_read_by_systemd = std::env::var_os("JOURNAL_STREAM").is_some();
    if log::set_boxed_logger(Box::new(Journal { is_read_by_systemd })).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

impl Log for Journal {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let priority = match (self.is_read_by_systemd, record.level()) {
            (false, _) => "",
            (true, Level::Error) => "<3>",
            (true, Level::Warn) => "<4>",
            (true, _) => "<6>",
        };
        // A line that can't be written is no reason to stop.
        let _ = writeln!(std::io::stderr(), "{priority}{}", record.args());
    }

    fn flush(&self) {}
}
