//! The sealing audit: what happens in memory that the host can write, while it writes there.
//!
//! Two experiments with each cipher, and with OpenSSL as the control that must fail them. *Stepping*: a
//! process seals or opens one block in a shared page, one instruction at a time under ptrace(2), and every
//! access to the page is counted. Nothing may be read back from where it was sealed to, and nothing may be
//! fetched twice from where it is opened. *Racing*: a thread changes a byte of the page meanwhile.
//!
//! A harness of its own: what a machine cannot show is reported as ignored, with the reason. At the end there
//! is a table of all that was measured.

#[cfg(target_arch = "x86_64")]
mod cpu;
mod openssl;
mod page;
mod race;
#[cfg(target_arch = "x86_64")]
mod selfcheck;
#[cfg(target_arch = "x86_64")]
mod step;
mod subject;
mod table;
#[cfg(target_arch = "x86_64")]
mod tracee;
#[cfg(target_arch = "x86_64")]
mod tracer;
mod trials;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    #[cfg(target_arch = "x86_64")]
    {
        let arguments: Vec<String> = std::env::args().collect();
        if arguments.get(1).is_some_and(|first| first.as_bytes() == tracee::ARGUMENT.to_bytes()) {
            return tracee::be(&arguments[2..]);
        }
    }
    let arguments = Arguments::from_args();
    let conclusion = libtest_mimic::run(&arguments, trials::all());
    if !arguments.list {
        table::print();
    }
    conclusion.exit_code()
}
