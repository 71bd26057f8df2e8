//! kill -9 in the middle of verified load, in every mode: no request is lost, and none is skipped.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use virtqueue::block::Kind;

use crate::guest::{DATA, Machine};

/// Kills in each mode. More make a longer test, and no other one.
const KILLS: usize = 12;
const BLOCKS: usize = 64;
/// Requests in flight.
const DEPTH: usize = 4;

pub fn serve(directory: &Path, mode: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cvmio-host"));
    command
        .arg("serve")
        .arg("--socket")
        .arg(directory.join("sock"))
        .arg("--disk")
        .arg(directory.join("disk"));
    command.args(["--mode", mode, "--queues", "1"]).arg("--control").arg(directory.join("control"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{mode}: it is never ready");
    child
}

/// A request under way: the block that nobody else asks for meanwhile, and what a write makes of it.
#[derive(Clone, Copy)]
struct Sent {
    head: u16,
    block: usize,
    value: Option<u8>,
}

#[test]
fn a_server_that_is_killed_loses_nothing_and_skips_nothing() {
    for mode in ["poll", "interrupt", "adaptive"] {
        let directory = tempfile::tempdir().unwrap();
        std::fs::File::create(directory.path().join("disk")).unwrap().set_len(1 << 20).unwrap();
        let socket = directory.path().join("sock");
        let mut server = serve(directory.path(), mode);
        let mut machine = Machine::new(&socket, 1);
        machine.start(0, 0);
        assert_eq!(machine.config.sectors, 2048);
        let mut disk = machine.driver(0);
        let mut random = fastrand::Rng::with_seed(11);
        let mut content = [0; BLOCKS];
        let mut sent: [Option<Sent>; DEPTH] = [None; DEPTH];
        let (mut ended, mut in_flight_at_kills) = (0, 0);
        for kill in 0..=KILLS {
            let until = ended + 40 + random.usize(..40);
            while ended < until {
                for number in 0..DEPTH {
                    if sent[number].is_some() {
                        continue;
                    }
                    let block = loop {
                        let block = random.usize(..BLOCKS);
                        if sent.iter().flatten().all(|other| other.block != block) {
                            break block;
                        }
                    };
                    let at = DATA + 4096 * number;
                    let value = random.bool().then(|| random.u8(1..));
                    disk.memory.copy_from(at, &[value.unwrap_or(0xee); 4096]);
                    let kind = if value.is_some() { Kind::Write } else { Kind::Read };
                    let head = disk.send(number, kind, 8 * block as u64, &[(at, 4096)]);
                    sent[number] = Some(Sent { head, block, value });
                }
                if ended + 1 == until && kill < KILLS {
                    // With all of them under way.
                    break;
                }
                // A guest that sleeps must also be woken for what ended just before a kill.
                let head = match mode {
                    "interrupt" => disk.woken(),
                    _ => disk.heard(Duration::from_secs(60)).expect("a request has not ended in a minute"),
                };
                let number = sent.iter().position(|sent| sent.is_some_and(|sent| sent.head == head)).unwrap();
                let Sent { block, value, .. } = sent[number].take().unwrap();
                assert_eq!(disk.status(number), 0, "{mode}");
                match value {
                    Some(value) => content[block] = value,
                    None => {
                        let mut found = [0; 4096];
                        disk.memory.copy_to(DATA + 4096 * number, &mut found);
                        assert_eq!(found, [content[block]; 4096], "{mode}: block {block} after {kill} kills");
                    }
                }
                ended += 1;
            }
            if kill == KILLS {
                break;
            }
            ended += 1;
            std::thread::sleep(Duration::from_micros(random.u64(..300)));
            server.kill().unwrap();
            server.wait().unwrap();
            in_flight_at_kills += usize::from(disk.driver.in_flight());
            server = serve(directory.path(), mode);
            machine = machine.again(&socket);
            let base = machine.used_index(0);
            machine.start(0, base);
            disk.take_events(&machine, 0);
        }
        let woken = disk.interrupted;
        println!(
            "{mode}: {ended} requests, {in_flight_at_kills} in flight at {KILLS} kills, woken {woken} times"
        );
        assert!(in_flight_at_kills > 0);
        server.kill().unwrap();
        server.wait().unwrap();
    }
}
