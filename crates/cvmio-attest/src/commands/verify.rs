//! `verify`: evidence against a policy.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use attest::simulated::RootKey;
use attest::snp::measure::{Candidates, explain};
use attest::{Claims, Context, Evidence, Expected, Policy, Roots, Verdict, snp};
use cli::failure::Failure;
use cli::output;
use serde_json::json;

use crate::arguments::Verify;
use evidence_files::{Beside, certificates, files, revocation_list};

pub fn verify(args: &Verify) -> Result<(), Failure> {
    let policy = Policy::parse(&files::read_text(&args.policy)?);
    let policy = policy.map_err(|error| Failure::from(error).on(args.policy.display()))?;
    let evidence = read_evidence(args)?;
    let mut beside = args.cache.as_ref().map_or(Ok(Beside::default()), |cache| Beside::read(cache))?;
    for path in &args.certificates {
        beside.certificates.extend(certificates(path)?);
    }
    for path in &args.crl {
        beside.revocation_lists.push(revocation_list(path)?);
    }
    if let Some(path) = &args.collateral {
        beside.collateral = vec![files::read(path, files::SMALL)?];
    }
    let mut roots = Roots::builtin();
    if let Some(root) = &args.allow_simulated {
        roots = roots.with_simulated(simulated_root(root)?);
    }
    let report_data = match (&args.nonce, args.report_data) {
        (Some(nonce), _) => Expected::Exactly(super::answer(nonce)),
        (None, Some(report_data)) => Expected::Exactly(report_data),
        (None, None) => Expected::Anything,
    };
    let mut context = Context::new(args.time.map_or_else(now, Ok)?, &roots, report_data);
    context.allow_simulated = args.allow_simulated.is_some();
    let verdict = beside.judge(&evidence, &policy, &context);
    let explanation = if args.explain { explain_measurement(args, &verdict)? } else { None };
    tell(args, verdict, explanation.as_deref())
}

fn now() -> Result<u64, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map(|now| now.as_secs())
        .map_err(|_| Failure::usage("this machine's clock stands before 1970; say --time SECONDS"))
}

/// A JSON document, or what a chip made.
fn read_evidence(args: &Verify) -> Result<Evidence, Failure> {
    let bytes = files::read(&args.evidence, files::SMALL)?;
    let log = args.event_log.as_ref().map(|path| files::read(path, files::SMALL)).transpose()?;
    let mut evidence = if bytes.trim_ascii_start().first() == Some(&b'{') {
        Evidence::parse(&bytes).map_err(|error| Failure::from(error).on(args.evidence.display()))?
    } else if bytes.len() == snp::REPORT_SIZE {
        Evidence::Snp { report: bytes, certificates: Vec::new() }
    } else {
        Evidence::Tdx { quote: bytes, event_log: None }
    };
    if let (Some(log), Evidence::Tdx { event_log, .. }) = (log, &mut evidence) {
        *event_log = Some(log);
    }
    Ok(evidence)
}

/// A public key, or a file that holds one.
fn simulated_root(text: &str) -> Result<RootKey, Failure> {
    let key = if Path::new(text).exists() { files::read_text(Path::new(text))? } else { text.to_string() };
    RootKey::parse(&key)
        .map_err(|error| Failure::usage(format!("the root of the simulated platform: {error}")))
}

/// What explains another measurement than the launch that was described has.
fn explain_measurement(args: &Verify, verdict: &Verdict) -> Result<Option<String>, Failure> {
    let (Some(Claims::Snp(report)), Some(path)) = (verdict.claimed(), &args.launch.firmware) else {
        return Ok(None);
    };
    let firmware = super::firmware(path)?;
    let others = args.launch.or_firmware.iter();
    let others: Vec<_> =
        others.map(|path| Ok((path, super::firmware(path)?))).collect::<Result<_, Failure>>()?;
    let launch = super::launched(&firmware, &args.launch)?;
    let candidates = Candidates {
        firmware: others.iter().map(|(path, one)| (path.display().to_string(), one)).collect(),
        command_line: launch.kernel.and(args.launch.append.as_deref()),
    };
    Ok(Some(match explain(&launch, &candidates, report.measurement) {
        None => "nothing that was tried explains the measurement: other features, numbers and types of processors, blanks around the command \
                 line, a kernel that is not measured, or the firmware named by --or-firmware"
            .to_string(),
        Some(differences) if differences.is_empty() => "the measurement is that of the launch described".to_string(),
        Some(differences) => {
            let all: Vec<String> = differences.iter().map(ToString::to_string).collect();
            format!("the measurement is that of the launch described, except: {}", all.join("; "))
        }
    }))
}

fn tell(args: &Verify, verdict: Verdict, explanation: Option<&str>) -> Result<(), Failure> {
    let platform = verdict.platform();
    if args.json {
        let is_accepted = verdict.reasons().is_empty() && verdict.claimed().is_some();
        let answer = json!({ "accepted": is_accepted, "verdict": verdict, "explanation": explanation });
        output::print_json(&answer)?;
        return verdict.accepted().map(|_| ()).map_err(|refusal| Failure::from(refusal).told());
    }
    verdict.notes().iter().for_each(|note| output::warning(note));
    for reason in verdict.reasons() {
        output::print(&format!("no   {reason}"));
    }
    explanation.iter().for_each(|text| output::print(text));
    let claims = verdict.accepted()?;
    output::print(&format!(
        "yes  {platform} evidence of a guest with the measurement {}",
        claims.measurement()
    ));
    Ok(())
}
