//! The run file: what is written is what is read, and what is none is told by what is wrong with it.

use report::run::{Run, State};
use serde_json::{Value, json};

use super::golden;

fn changed(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut value: Value = serde_json::from_slice(include_bytes!("golden/run.json")).unwrap();
    change(&mut value);
    serde_json::to_vec(&value).unwrap()
}

fn error(bytes: &[u8]) -> String {
    Run::parse(bytes).unwrap_err().to_string()
}

#[test]
fn what_is_written_is_what_is_read() {
    let run = golden();
    assert_eq!(Run::parse(run.to_json().unwrap().as_bytes()).unwrap(), run);
    assert_eq!(
        (run.state, run.samples.len(), run.control().unwrap().name.as_str()),
        (State::Complete, 145, "file again")
    );
    assert_eq!(run.values("cvmio", "iops-randread").len(), 5);
}

#[test]
fn what_is_no_run_file_says_why() {
    let whole = include_bytes!("golden/run.json");
    assert!(error(&whole[..whole.len() / 2]).contains("cut off"));
    assert!(error(b"").contains("cut off"));
    assert!(error(b"format = 1").contains("no JSON"));
    assert!(error(b"[]").contains("no run file") && error(b"{}").contains("no run file"));
    assert!(error(br#"{"format": "something else", "version": 1}"#).contains("no run file"));
    let other = error(&changed(|run| run["version"] = json!(3)));
    assert!(other.contains("version 3") && other.contains("version 2"), "{other}");
    assert!(error(&changed(|run| run["colour"] = json!(1))).contains("colour"));
    assert!(error(&changed(|run| run["samples"][3]["value"] = json!("x"))).contains("line"));
}

#[test]
fn a_run_that_contradicts_itself_is_refused() {
    for (change, word) in [
        (
            Box::new(|run: &mut Value| run["samples"][0]["target"] = json!("nothing"))
                as Box<dyn FnOnce(&mut Value)>,
            "no target `nothing`",
        ),
        (Box::new(|run| run["samples"][0]["case"] = json!("nothing")), "no case `nothing`"),
        (Box::new(|run| run["samples"][0]["turn"] = json!(5)), "of 5 turns"),
        (Box::new(|run| run["samples"][1] = run["samples"][0].clone()), "twice"),
        (Box::new(|run| run["samples"][0]["value"] = json!(-1.0)), "the value -1"),
        (Box::new(|run| run["samples"][0]["value"] = json!(0.0)), "the value 0"),
        (Box::new(|run| run["question"] = json!(7)), "no research question 7"),
        (Box::new(|run| run["baseline"] = json!("nothing")), "no target"),
        (Box::new(|run| run["targets"][1]["name"] = json!("file")), "two targets"),
        (Box::new(|run| run["failures"][0]["case"] = json!("nothing")), "no case"),
    ] {
        let said = error(&changed(change));
        assert!(said.contains(word), "{said}");
    }
}
