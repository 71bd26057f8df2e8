//! Which commands answer in JSON.

use std::ffi::OsString;

use clap::CommandFactory;
use cli::answer::{Asked, Unclear};

use super::*;

fn parse(words: &[OsString]) -> Result<Asked<Cli>, Unclear> {
    cli::answer::parse(crate::others::listed(Cli::command()), words)
}

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

#[test]
fn who_asked_for_json_is_answered_so_and_nobody_else() {
    let json = |line: &str| parse(&words(line)).map_err(|unclear| unclear.error).unwrap().json;
    assert!(json("cvmio volume status ledger --json"));
    assert!(!json("cvmio volume status ledger"));
    assert!(json("cvmio volume key add disk.img --json"));
    assert!(json("cvmio volume activate ledger") && json("cvmio volume deactivate --all"));
    assert!(!json("cvmio volume units /tmp/units"), "it has no such option");
    assert!(!json("cvmio volume export a.img --to - --json"), "the stream goes there");
    assert!(json("cvmio volume export a.img --to a.stream --json"));
}

#[test]
fn what_is_no_command_is_told_a_program_in_few_words() {
    let told = |line: &str| parse(&words(line)).err().unwrap().json;
    let failure = told("cvmio volume status ledger --colour --json").unwrap();
    assert_eq!((failure.code(), failure.to_string()), (2, "unexpected argument '--colour' found".into()));
    let failure = told("cvmio volume status --json").unwrap();
    assert!(failure.to_string().ends_with("were not provided: <NAME>"), "{failure}");
    assert!(told("cvmio volume activate").is_some());
    assert!(told("cvmio volume status").is_none() && told("cvmio volume status --json --help").is_none());
}
