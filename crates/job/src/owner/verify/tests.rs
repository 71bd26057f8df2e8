use std::path::PathBuf;

use attest::simulated::{Issuer, Launch};
use attest::{Evidence, Hex};
use error_kind::{HasKind, Kind};

use super::*;
use crate::challenge::tests::ssh_key;
use crate::challenge::{Answer, NONCE, Question};
use crate::manifest::SigningKey;
use crate::manifest::tests::statement;

/// A real report that is not for this exchange: its chain passes with what lies beside it only, and its report data never does.
#[test]
fn evidence_of_a_chip_is_judged_with_the_certificates_beside_it() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/evidence/snp"));
    if !folder.is_dir() {
        println!("\nSKIPPED a real report: no folder `shared/evidence` lies beside the checkout");
        return;
    }
    let evidence =
        Evidence::Snp { report: fs::read(folder.join("genoa-report.bin")).unwrap(), certificates: vec![] };
    let mut exchange = statement(&SigningKey::generate().unwrap()).predicate.exchange;
    exchange.answer.evidence = serde_json::from_slice(evidence.to_json().as_bytes()).unwrap();
    let zeros = "00".repeat(48);
    let policy = format!(
        "version = 1\n[snp]\nfamilies = ['genoa']\nmeasurements = ['{zeros}']\nrevocation = 'when-given'\n"
    );
    let policy =
        format!("{policy}minimum-tcb.genoa = {{ bootloader = 0, tee = 0, snp = 0, microcode = 0 }}\n");
    let mut judge = Judge {
        policy: Policy::parse(&policy).unwrap(),
        roots: Roots::builtin(),
        beside: Beside::default(),
        allow_simulated: false,
        time: 1_795_737_600,
    };
    let without = judge.judge(&exchange).unwrap_err().to_string();
    assert!(without.contains("chain"), "{without}");
    for file in ["genoa-ask-ark-asvk.pem", "genoa-vcek.pem"] {
        let certificates = evidence_files::certificates(&folder.join(file)).unwrap();
        judge.beside.certificates.extend(certificates);
    }
    let with = judge.judge(&exchange).unwrap_err().to_string();
    assert!(!with.contains("chain") && with.contains("report-data"), "{with}");
}

/// A simulated platform, and the machine that the owner's policy accepts.
struct Machine {
    root: Root,
    launch: Launch,
}

impl Machine {
    fn new() -> Self {
        let (measurement, zeros) = (Hex([7; 48]), Hex([0; 32]));
        let launch = Launch { measurement, host_data: zeros, machine_id: zeros, tcb: 3, is_debug: false };
        Self { root: Root::generate().unwrap(), launch }
    }

    /// The owner's side of it.
    fn judge(&self) -> Judge {
        let policy =
            format!("version = 1\n[simulated]\nmeasurements = ['{}']\nminimum-tcb = 3\n", Hex([7; 48]));
        Judge {
            policy: Policy::parse(&policy).unwrap(),
            roots: Roots::none().with_simulated(self.root.key().unwrap()),
            beside: Beside::default(),
            allow_simulated: true,
            time: 1_795_737_600,
        }
    }

    /// What a guest that was launched so answers to a question.
    fn answer(&self, launch: &Launch, question: Question) -> Exchange {
        let (host_key, signing_key) = (ssh_key(2), SigningKey::generate().unwrap().public());
        let issuer = Issuer::read(&self.root.launch(launch).unwrap()).unwrap();
        let evidence = issuer.evidence(question.report_data(&host_key, &signing_key)).unwrap();
        let evidence = serde_json::from_slice(evidence.to_json().as_bytes()).unwrap();
        Exchange { question, answer: Answer { evidence, host_key, signing_key } }
    }
}

fn question(fill: u8) -> Question {
    Question { nonce: hex::encode([fill; NONCE]), owner_key: ssh_key(1) }
}

/// Each refusal is one of the policy's, and names the one check that said no.
fn refusal(judge: &Judge, exchange: &Exchange) -> String {
    let error = judge.judge(exchange).unwrap_err();
    assert_eq!(error.kind(), Kind::Policy);
    let said = error.to_string();
    assert!(said.starts_with("the simulated evidence is refused: ") && !said.contains("; "), "{said}");
    said
}

#[test]
fn a_guest_that_answers_the_owner_s_question_is_accepted_and_no_other() {
    let machine = Machine::new();
    let judge = machine.judge();
    let exchange = machine.answer(&machine.launch, question(1));
    assert_eq!(judge.judge(&exchange).unwrap().measurement(), machine.launch.measurement);
    // An answer to an earlier question.
    let replayed = Exchange { question: question(2), ..exchange.clone() };
    assert!(refusal(&judge, &replayed).contains("report-data"));
    // A host that asked before, with a key of its own.
    let asked = machine.answer(&machine.launch, Question { owner_key: ssh_key(9), ..question(1) });
    let taken = Exchange { question: question(1), ..asked };
    assert!(refusal(&judge, &taken).contains("report-data"));
    // Another guest's report, of the same image and for the same question, under keys that are not its own.
    let other = machine.answer(&machine.launch, question(1));
    for answer in [
        Answer { host_key: ssh_key(3), ..other.answer.clone() },
        Answer { signing_key: exchange.answer.signing_key.clone(), ..other.answer.clone() },
        Answer { evidence: exchange.answer.evidence.clone(), ..other.answer.clone() },
    ] {
        let mixed = Exchange { question: question(1), answer };
        assert!(refusal(&judge, &mixed).contains("report-data"));
    }
}

#[test]
fn a_platform_that_the_policy_does_not_accept_is_named() {
    let machine = Machine::new();
    let judge = machine.judge();
    let said = |launch: Launch| refusal(&judge, &machine.answer(&launch, question(1)));
    let launch = || machine.launch.clone();
    assert!(said(Launch { measurement: Hex([8; 48]), ..launch() }).contains("measurement"));
    assert!(said(Launch { tcb: 2, ..launch() }).contains("tcb"));
    assert!(said(Launch { is_debug: true, ..launch() }).contains("debug"));
    let exchange = machine.answer(&machine.launch, question(1));
    let without_the_flag = Judge { allow_simulated: false, ..judge.clone() };
    assert!(refusal(&without_the_flag, &exchange).contains("simulated: "));
    let of_another_machine = Judge { roots: Machine::new().judge().roots, ..judge };
    assert!(refusal(&of_another_machine, &exchange).contains("root"));
}

/// The same for a manifest, whose evidence is judged years later.
#[test]
fn a_manifest_with_the_evidence_of_another_guest_is_refused() {
    let machine = Machine::new();
    let key = SigningKey::generate().unwrap();
    let mut made = statement(&key);
    let exchange = machine.answer(&machine.launch, question(1));
    made.subject.clear();
    made.predicate.exchange =
        Exchange { answer: Answer { signing_key: key.public(), ..exchange.answer.clone() }, ..exchange };
    // Its signature is right: by the key that it names itself, for which no evidence vouches.
    let manifest = serde_json::to_vec(&made.sign(&key)).unwrap();
    let refused = verify(&manifest, &machine.judge(), Path::new("/")).unwrap_err();
    assert!(refused.kind() == Kind::Policy && refused.to_string().contains("report-data"), "{refused}");
}
