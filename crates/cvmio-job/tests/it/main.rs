//! The program beside machines that answer as a test wants: a script in QEMU's place, whose ports the test serves. Nothing is booted.

mod machine;

use std::time::{Duration, Instant};

use machine::{Answers, Room, Run};

/// Exit codes.
const IO: i32 = 3;
const POLICY: i32 = 11;
/// The longest time from Ctrl-C to the end: the program may wait for one answer of a guest, which may be dead.
const AT_ONCE: Duration = Duration::from_secs(40);

#[test]
fn a_guest_that_the_policy_does_not_accept_is_sent_nothing() {
    let room = Room::new();
    let other = "11".repeat(48);
    let policy = format!("version = 1\n[simulated]\nmeasurements = [\"{other}\"]\n");
    std::fs::write(room.path("owner.toml"), policy).unwrap();
    let mut run = room.run(&["--policy", "owner.toml"]);
    let machine = run.machine(Answers::Well);
    let (code, said) = run.wait();
    assert_eq!(code, Some(POLICY), "{said}");
    assert!(said.contains("measurement") && !said.contains("sending"), "{said}");
    assert!(!machine.was_logged_in_to(), "something was sent");
    room.nothing_is_left();
}

#[test]
fn an_answer_to_another_question_is_refused() {
    for answers in [Answers::AnotherQuestion, Answers::ForAnotherOwner] {
        let room = Room::new();
        let mut run = room.run(&[]);
        let machine = run.machine(answers);
        let (code, said) = run.wait();
        assert_eq!(code, Some(POLICY), "{said}");
        assert!(said.contains("report-data") && !said.contains("sending"), "{said}");
        assert!(!machine.was_logged_in_to(), "something was sent");
        room.nothing_is_left();
    }
}

#[test]
fn simulated_evidence_is_refused_before_a_launch_where_nobody_allowed_it() {
    let room = Room::new();
    let (code, said) = room.run_without_the_flag().wait();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--allow-simulated"), "{said}");
    assert!(!room.path("arguments").exists(), "a machine was started");
    room.nothing_is_left();
}

#[test]
fn a_machine_that_ends_by_itself_is_told_with_its_last_words() {
    let room = Room::ending("echo 'no such device' >&2; exit 1");
    let (code, said) = room.run(&[]).wait();
    assert_eq!(code, Some(IO), "{said}");
    assert!(said.contains("no such device"), "{said}");
    room.nothing_is_left();
}

#[test]
fn ctrl_c_leaves_nothing_while_evidence_is_waited_for() {
    let room = Room::new();
    let mut run = room.run(&[]);
    run.wait_for("waiting for its evidence");
    let took = run.interrupt();
    let (code, said) = run.wait();
    assert!(code == Some(130) && took < AT_ONCE, "{code:?} after {took:?}: {said}");
    assert!(said.ends_with("cvmio: error: interrupted; everything was put away\n"), "{said}");
    room.nothing_is_left();
}

/// The guest's port takes the connection, and then nobody answers.
#[test]
fn ctrl_c_or_a_signal_to_the_program_alone_leaves_nothing_while_the_channel_is_silent() {
    for press in [Run::interrupt, Run::terminate] {
        let room = Room::new();
        let mut run = room.run(&[]);
        let machine = run.machine(Answers::Well);
        run.wait_for("sending the job");
        machine.wait_for_login();
        let took = press(&mut run);
        let (code, said) = run.wait();
        assert!(code == Some(130) && took < AT_ONCE, "{code:?} after {took:?}: {said}");
        assert!(said.ends_with("cvmio: error: interrupted; everything was put away\n"), "{said}");
        room.nothing_is_left();
    }
}

/// The owner's side was killed, and the guest does not answer any more.
#[test]
fn a_job_is_stopped_whose_guest_is_silent() {
    let room = Room::new();
    let mut run = room.run(&[]);
    let machine = run.machine(Answers::Well);
    run.wait_for("sending the job");
    machine.wait_for_login();
    run.kill();
    assert!(room.is_left(), "the machine goes on without its owner's side");
    let begun = Instant::now();
    let stopped = room.command(&["job", "stop", "work"]).output().unwrap();
    assert!(
        stopped.status.success() && begun.elapsed() < AT_ONCE,
        "after {:?}: {stopped:?}",
        begun.elapsed()
    );
    room.nothing_is_left();
}

/// A program in mmdebstrap's place has written a part when the end is asked for.
#[test]
fn an_image_that_is_interrupted_leaves_nothing() {
    for press in [Run::interrupt, Run::terminate] {
        let room = Room::new();
        let mut build =
            room.build_with("echo part >$(dirname \"$0\")/out/part; echo building >&2; exec sleep 1000");
        build.wait_until_there("out/part");
        let took = press(&mut build);
        let (code, said) = build.wait();
        assert!(code == Some(130) && took < AT_ONCE, "{code:?} after {took:?}: {said}");
        assert!(said.ends_with("cvmio: error: interrupted; everything was put away\n"), "{said}");
        assert!(!room.path("out").exists());
    }
}
