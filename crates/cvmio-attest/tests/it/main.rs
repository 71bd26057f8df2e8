//! The program, as a user starts it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn run(directory: &Path, line: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cvmio-attest"));
    command.current_dir(directory).args(line.split_whitespace()).args(more).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What it printed, of a command that must succeed.
fn done(directory: &Path, line: &str) -> String {
    let output = run(directory, line, &[]);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_string()
}

/// Exit code, output and errors of a command that must fail.
fn failed(directory: &Path, line: &str) -> (i32, String, String) {
    let output = run(directory, line, &[]);
    assert!(!output.status.success(), "{line} must fail: {}", text(&output.stdout));
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

const NONCE: &str = "000102030405060708090a0b0c0d0e0f";

/// A root, a guest that boots a kernel, its evidence for [`NONCE`], and a policy that accepts it.
fn simulated() -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    fs::write(at.join("kernel"), b"a kernel").unwrap();
    fs::write(at.join("initrd"), b"an initrd").unwrap();
    let root = done(at, "simulate root --key root.key");
    let launch =
        "simulate launch --key root.key --kernel kernel --initrd initrd --append quiet --tcb 2 --out seat";
    let measurement = done(at, launch);
    assert_eq!(done(at, "measure --simulated --kernel kernel --initrd initrd --append quiet"), measurement);
    let policy = format!("version = 1\n[simulated]\nmeasurements = ['{measurement}']\nminimum-tcb = 2\n");
    fs::write(at.join("policy.toml"), policy).unwrap();
    done(at, &format!("report --simulated seat --nonce {NONCE} --out evidence.json"));
    (folder, root)
}

#[test]
fn simulated_evidence_passes_only_where_it_is_asked_for_and_says_so() {
    let (folder, root) = simulated();
    let at = folder.path();
    let verify = format!("verify evidence.json --policy policy.toml --nonce {NONCE}");
    let (code, out, _) = failed(at, &verify);
    assert_eq!(code, 11);
    assert!(out.starts_with("no   simulated: "), "{out}");
    let output = run(at, &format!("{verify} --allow-simulated {root}"), &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("yes  simulated evidence"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("no chip vouches"), "{}", text(&output.stderr));
    // By a file with the key, and in JSON, which names the platform too.
    fs::write(at.join("root.pub"), &root).unwrap();
    let answer: Value =
        serde_json::from_str(&done(at, &format!("{verify} --allow-simulated root.pub --json"))).unwrap();
    assert_eq!(answer["accepted"], true);
    assert_eq!(answer["verdict"]["platform"], "simulated");
}

#[test]
fn another_kernel_command_line_or_initrd_another_nonce_and_an_old_tcb_are_refused() {
    let (folder, root) = simulated();
    let at = folder.path();
    fs::write(at.join("other"), b"another").unwrap();
    let verify = format!("verify other.json --policy policy.toml --nonce {NONCE} --allow-simulated {root}");
    let cases = [
        ("--kernel other --initrd initrd --append quiet --tcb 2", "no   measurement: "),
        ("--kernel kernel --initrd other --append quiet --tcb 2", "no   measurement: "),
        ("--kernel kernel --initrd initrd --append loud --tcb 2", "no   measurement: "),
        ("--kernel kernel --initrd initrd --append quiet --tcb 1", "no   reported-tcb: "),
    ];
    for (place, (launch, reason)) in cases.into_iter().enumerate() {
        done(at, &format!("simulate launch --key root.key {launch} --out seat{place}"));
        done(at, &format!("report --simulated seat{place} --nonce {NONCE} --out other.json"));
        let (code, out, _) = failed(at, &verify);
        assert_eq!(code, 11);
        assert!(out.starts_with(reason) && out.lines().count() == 1, "{launch}: {out}");
    }
    let other = NONCE.replace('0', "1");
    let again = format!("verify evidence.json --policy policy.toml --nonce {other} --allow-simulated {root}");
    assert!(failed(at, &again).1.starts_with("no   report-data: "));
    // Another machine's root.
    let stranger = done(at, "simulate root --key other.key");
    let strange =
        format!("verify evidence.json --policy policy.toml --nonce {NONCE} --allow-simulated {stranger}");
    assert!(failed(at, &strange).1.starts_with("no   root: "));
    // A key is never replaced.
    let (code, _, err) = failed(at, "simulate root --key root.key");
    assert!(code == 2 && err.contains("is there already"), "{err}");
}

#[test]
fn what_cannot_be_read_is_named() {
    let (folder, _) = simulated();
    let at = folder.path();
    let verify = |evidence: &str, policy: &str, more: &str| {
        failed(at, &format!("verify {evidence} --policy {policy} {more}"))
    };
    let any = "--any-report-data";
    let (code, _, err) = verify("nowhere.json", "policy.toml", any);
    assert!(code == 2 && err.contains("nowhere.json"), "{err}");
    let (code, _, err) = verify("evidence.json", "kernel", any);
    assert!(code == 11 && err.contains("kernel: this is no evidence policy"), "{err}");
    fs::write(at.join("bad.json"), b"{\"platform\":\"sample\"}").unwrap();
    let (code, _, err) = verify("bad.json", "policy.toml", any);
    assert!(code == 2 && err.contains("unknown variant `sample`"), "{err}");
    let (_, out, _) = verify("kernel", "policy.toml", any);
    assert!(out.starts_with("no   format: "), "{out}");
    let (code, _, err) = verify("evidence.json", "policy.toml", "");
    assert!(code == 2 && err.contains("--nonce"), "{err}");
    let (_, _, err) = verify("evidence.json", "policy.toml", "--nonce 00");
    assert!(err.contains("16 to 64 bytes"), "{err}");
    let (code, _, err) = failed(at, "measure --firmware kernel");
    assert!(code == 2 && err.contains("kernel: the firmware's image cannot be measured"), "{err}");
    let (_, _, err) = failed(at, "measure --firmware kernel --vcpu-type Xeon");
    assert!(err.contains("EPYC-Genoa"), "{err}");
    let (code, _, err) = failed(at, "report --simulated kernel --nonce 00000000000000000000000000000000");
    assert!(code == 2 && err.contains("kernel: these bytes are not"), "{err}");
    assert!(done(at, "doctor").contains("evidence can be judged here"));
    let all: Value = serde_json::from_str(&done(at, "doctor --json")).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 6);
}

/// The folder with real evidence, or nothing and a line that says so.
fn evidence(test: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/evidence"));
    if folder.join("README.txt").exists() {
        return Some(folder.canonicalize().unwrap());
    }
    println!("\nSKIPPED {test}: no folder `shared/evidence` lies beside the checkout");
    None
}

#[test]
fn a_real_report_verifies_without_a_network_from_a_cache() {
    let Some(evidence) = evidence("a real report") else { return };
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let snp = evidence.join("snp");
    let report = fs::read(snp.join("genoa-report.bin")).unwrap();
    let policy = format!(
        "version = 1\n[snp]\nfamilies = ['genoa']\nmeasurements = ['{}']\nrevocation = 'when-given'\n\
         minimum-tcb.genoa = {{ bootloader = 0, tee = 0, snp = 0, microcode = 0 }}\n",
        report[0x90..0xc0].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    );
    fs::write(at.join("policy.toml"), policy).unwrap();
    fs::write(at.join("report.bin"), &report).unwrap();
    let verify = "verify report.bin --policy policy.toml --any-report-data --time 1795737600";
    let (code, out, _) = failed(at, verify);
    assert!(code == 11 && out.starts_with("no   chain: "), "{out}");
    let table = snp.join("genoa-auxblob.bin");
    done(at, &format!("fetch --cache cache --table {}", table.display()));
    done(at, &format!("fetch --cache cache --table {}", table.display()));
    assert_eq!(fs::read_dir(at.join("cache")).unwrap().count(), 3);
    assert!(done(at, &format!("{verify} --cache cache")).starts_with("yes  snp evidence"));
    // By files too.
    let files = [snp.join("genoa-ask-ark-asvk.pem"), snp.join("genoa-vcek.pem")];
    let files: String = files.iter().map(|file| format!(" --certificates {}", file.display())).collect();
    assert!(done(at, &format!("{verify}{files}")).starts_with("yes  snp evidence"));
    // A clock that is far off.
    let (_, out, _) =
        failed(at, "verify report.bin --policy policy.toml --any-report-data --time 0 --cache cache");
    assert!(out.lines().all(|line| line.starts_with("no   validity: ")), "{out}");
    // Another measurement, with what explains it.
    let firmware = evidence.join("snp-measure/ovmf_AmdSev_suffix.bin");
    let explain = format!("{verify} --cache cache --explain --firmware {}", firmware.display());
    assert!(done(at, &explain).contains("nothing that was tried explains the measurement"));
}

#[test]
fn a_real_quote_verifies_with_its_collateral_among_others() {
    let Some(evidence) = evidence("a real quote") else { return };
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let tdx = evidence.join("tdx");
    let quote = fs::read(tdx.join("quote-uptodate.bin")).unwrap();
    let field = |place: usize| -> String {
        quote[48 + place..][..48].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let registers: String =
        (0..4).map(|number| format!("rtmr{number} = ['{}']\n", field(328 + 48 * number))).collect();
    let policy = format!("version = 1\n[tdx]\nmeasurements = ['{}']\n{registers}", field(136));
    fs::write(at.join("policy.toml"), policy).unwrap();
    fs::write(at.join("quote.bin"), &quote).unwrap();
    for name in ["quote-notcb", "quote-uptodate"] {
        let name = format!("{name}-collateral.json");
        fs::copy(tdx.join(&name), at.join(&name)).unwrap();
    }
    done(at, "fetch --cache cache --from .");
    let verify = "verify quote.bin --policy policy.toml --any-report-data --time 1751328000";
    assert!(failed(at, verify).1.starts_with("no   collateral: none is there"));
    assert!(done(at, &format!("{verify} --cache cache")).starts_with("yes  tdx evidence"));
    let late = "verify quote.bin --policy policy.toml --any-report-data --time 1795737600 --cache cache";
    assert!(failed(at, late).1.starts_with("no   collateral: "));
}

/// A server that has these answers, one for each connection; and its address.
fn server(answers: Vec<(u16, Vec<u8>)>) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (status, body) in answers {
            use std::io::{Read, Write};
            let mut stream = listener.accept().unwrap().0;
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.push(byte[0]);
            }
            assert!(asked.starts_with(b"GET /vcek/v1?x=1 HTTP/1.1\r\n"));
            let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        }
    });
    format!("http://{address}/vcek/v1?x=1")
}

#[test]
fn what_a_named_server_has_is_kept_by_what_it_is() {
    let Some(evidence) = evidence("a named server") else { return };
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let read = |name: &str| fs::read(evidence.join("snp").join(name)).unwrap();
    let url = server(vec![
        (200, read("milan-vcek.der")),
        (200, read("milan-ask-ark-asvk.pem")),
        (200, b" {\"tcb\": 1}".to_vec()),
        (200, b"<html>".to_vec()),
        (429, Vec::new()),
    ]);
    done(at, &format!("fetch --cache cache --url {url} --url {url} --url {url}"));
    let mut kinds: Vec<String> = fs::read_dir(at.join("cache"))
        .unwrap()
        .map(|entry| entry.unwrap().path().extension().unwrap().to_string_lossy().into_owned())
        .collect();
    kinds.sort();
    assert_eq!(kinds, ["der", "der", "der", "der", "json"]);
    let (code, _, err) = failed(at, &format!("fetch --cache other --url {url}"));
    assert!(code == 3 && err.contains("neither a certificate"), "{err}");
    let (code, _, err) = failed(at, &format!("fetch --cache other --url {url}"));
    assert!(code == 3 && err.contains("HTTP status 429"), "{err}");
    let (code, _, err) = failed(at, "fetch --cache other --url ftp://a/b");
    assert!(code == 2 && err.contains("no URL"), "{err}");
    assert!(!at.join("other").exists());
}
