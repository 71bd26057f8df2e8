//! What a guest's requests are answered with.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use attest::{Claims, Context, Platform, Policy, Roots, Verdict};
use evidence_files::Beside;
use http1::Incoming;
use kbs::{
    Attestation, COOKIE, Challenge, Granted, Hash, PREFIX, Problem, Request, Resource, TlsKey, VERSION,
    from_wire, report_data, seal_for,
};
use seal::{MacKey, SystemRandom};
use serde::Serialize;
use serde_json::json;

use super::catalogue::{Catalogue, Release};
use super::sessions::{Guest, Sessions};
use super::token;
use crate::error::Error;
use crate::keeper::Report;
use crate::log::{Event, Machine, Shown};

/// The desk.
pub struct Desk {
    pub catalogue: PathBuf,
    pub cache: Option<PathBuf>,
    pub roots: Roots,
    pub allow_simulated: bool,
    pub sessions: Mutex<Sessions>,
    pub mac: MacKey,
    /// Writes an entry into the audit log; whether the log has it.
    pub record: Box<dyn Fn(Event) -> bool + Send + Sync>,
    pub report: Report,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    /// The session's name, where it is to be a cookie.
    pub session: Option<String>,
    pub body: String,
}

/// A refusal: the HTTP status, the problem's name, and what is said of it.
struct Refused(u16, &'static str, String);

impl Refused {
    fn new(problem: &'static str, why: impl std::fmt::Display) -> Self {
        Self(401, problem, why.to_string())
    }

    /// Something that the owner has to mend. The guest is told no more than that.
    fn ours(desk: &Desk, why: impl std::fmt::Display) -> Self {
        (desk.report)(&format!("a guest was refused for want of something of ours: {why}"));
        Self(503, "PluginInternalError", "the key broker cannot do it now; its log says why".into())
    }
}

fn ok(session: Option<String>, body: &impl Serialize) -> Reply {
    Reply { status: 200, session, body: serde_json::to_string(body).expect("these messages are text") }
}

/// The time in seconds since 1970.
fn now() -> Result<u64, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map(|now| now.as_secs()).map_err(|_| Error::Usage("this machine's clock stands before 1970".into()))
}

impl Desk {
    /// Answers a request on a connection where our certificate is `ours`.
    pub fn answer(&self, request: &Incoming, ours: TlsKey) -> Reply {
        let path = request.path.strip_prefix(PREFIX).unwrap_or_default();
        let done = match (request.method.as_str(), path) {
            ("POST", "/auth") => self.challenge(request),
            ("POST", "/attest") => self.attest(request, ours),
            ("GET", path) if path.starts_with("/resource/") => {
                self.resource(request, &path["/resource/".len()..])
            }
            _ => Err(Refused(404, "InvalidRequestPath", "there is nothing here by this method".into())),
        };
        done.unwrap_or_else(|Refused(status, problem, detail)| {
            let body = serde_json::to_string(&Problem::new(problem, detail)).expect("a problem is text");
            Reply { status, session: None, body }
        })
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn challenge(&self, request: &Incoming) -> Result<Reply, Refused> {
        let request: Request = serde_json::from_slice(&request.body)
            .map_err(|error| Refused::new("SerdeError", format_args!("this is no request: {error}")))?;
        if request.version != VERSION {
            let why =
                format!("version {:?} of the protocol is not spoken here, {VERSION} is", request.version);
            return Err(Refused::new("AttestationError", why));
        }
        let made = self.sessions().challenge(request.tee, Instant::now());
        let challenge = Challenge { nonce: made.nonce, extra_params: json!({ "cvmio-tls-binding": true }) };
        Ok(ok(Some(made.id), &challenge))
    }

    fn attest(&self, request: &Incoming, ours: TlsKey) -> Result<Reply, Refused> {
        let id = request.cookie(COOKIE).unwrap_or_default();
        let Some((tee, nonce)) = self.sessions().take(id, Instant::now()) else {
            self.withheld(None, None, nothing_shown("session"));
            let why =
                "there is no challenge in this session: none was asked for, it is too old, or it was used";
            return Err(Refused::new("AttestationError", why));
        };
        let attestation: Attestation = serde_json::from_slice(&request.body).map_err(|error| {
            self.withheld(None, None, nothing_shown("format"));
            Refused::new("SerdeError", format_args!("this is no evidence: {error}"))
        })?;
        let Attestation { runtime_data, tee_evidence, .. } = &attestation;
        if runtime_data.nonce != nonce {
            self.withheld(None, None, nothing_shown("nonce"));
            return Err(Refused::new("AttestationError", "the nonce is another one than the challenge had"));
        }
        let additional = tee_evidence.additional_evidence.as_str();
        let is_tls_bound = !additional.is_empty();
        if is_tls_bound && TlsKey::from_additional(additional) != Some(ours) {
            self.withheld(None, None, nothing_shown("tls-binding"));
            return Err(Refused::new(
                "AttestationError",
                "the evidence is bound to another server's certificate, or to what is not known",
            ));
        }
        let guest = from_wire(tee, &tee_evidence.primary_evidence).and_then(|evidence| {
            let point = runtime_data.tee_pubkey.point()?;
            let report_data = report_data(runtime_data, additional, Hash::Sha384);
            Ok(Guest { evidence, report_data, point, is_tls_bound })
        });
        let guest = guest.map_err(|why| {
            self.withheld(None, None, nothing_shown("format"));
            Refused::new("AttestationError", why)
        })?;
        self.admit(id, &attestation, guest)
    }

    /// A guest goes on if any release accepts its evidence. Each release judges it again.
    fn admit(&self, id: &str, attestation: &Attestation, guest: Guest) -> Result<Reply, Refused> {
        let catalogue = Catalogue::read(&self.catalogue).map_err(|error| Refused::ours(self, error))?;
        let mut nearest: Option<Verdict> = None;
        for release in &catalogue.0 {
            let policy = match release.policy() {
                Ok(policy) => policy,
                // It closes this release, and no other guest's.
                Err(error) => {
                    (self.report)(&format!("{} is closed: {error}", release.name.as_str()));
                    continue;
                }
            };
            let verdict = self.judge(&guest, &policy)?;
            if verdict.reasons().is_empty() && verdict.claimed().is_some() {
                return self.grant(id, attestation, guest);
            }
            (self.report)(&refusal(release, &verdict));
            if nearest.as_ref().is_none_or(|other| verdict.reasons().len() < other.reasons().len()) {
                nearest = Some(verdict);
            }
        }
        let Some(verdict) = nearest else {
            self.withheld(None, Some(&guest), machine_only(&guest, "policy"));
            return Err(Refused::new("PolicyDeny", "nothing is released here"));
        };
        self.withheld(None, Some(&guest), shown(&verdict));
        Err(Refused::new("PolicyDeny", format_args!("no policy accepts this evidence: {}", checks(&verdict))))
    }

    fn grant(&self, id: &str, attestation: &Attestation, guest: Guest) -> Result<Reply, Refused> {
        let now = now().map_err(|error| Refused::ours(self, error))?;
        let mut sessions = self.sessions();
        let lifetime = sessions.lifetime().as_secs();
        let token = token::issue(&self.mac, &attestation.runtime_data.tee_pubkey, now, lifetime);
        if !sessions.admit(id, &token, guest, Instant::now()) {
            return Err(Refused(503, "PluginInternalError", "too many guests are served; try again".into()));
        }
        Ok(ok(Some(id.to_string()), &Granted { token }))
    }

    fn resource(&self, request: &Incoming, path: &str) -> Result<Reply, Refused> {
        let bearer = request.field("authorization").and_then(|field| field.strip_prefix("Bearer "));
        let guest = match (request.cookie(COOKIE), bearer) {
            (_, Some(token)) => self.sessions().guest_of_token(token.trim(), Instant::now()),
            (Some(id), None) => self.sessions().guest(id, Instant::now()),
            (None, None) => None,
        };
        let Some(guest) = guest else {
            self.withheld(None, None, nothing_shown("session"));
            return Err(Refused::new(
                "TokenNotFound",
                "no evidence was accepted in this session, or it is too old",
            ));
        };
        // The same answer to a resource that is not there and to one that is another guest's: names are not to be tried out.
        let denied = |detail: String| {
            Refused::new("PolicyDeny", format_args!("this guest does not get {path:?}{detail}"))
        };
        let catalogue = Catalogue::read(&self.catalogue).map_err(|error| Refused::ours(self, error))?;
        let release = Resource::parse(path).ok().and_then(|resource| catalogue.find(&resource));
        let Some(release) = release else {
            self.withheld(None, Some(&guest), machine_only(&guest, "resource"));
            return Err(denied(String::new()));
        };
        let policy = release.policy().map_err(|error| Refused::ours(self, error))?;
        let verdict = self.judge(&guest, &policy)?;
        let mut evidence = shown(&verdict);
        if evidence.check.is_empty() && release.require_tls_binding && !guest.is_tls_bound {
            evidence.check = "tls-binding".into();
        }
        if !evidence.check.is_empty() || verdict.accepted().is_err() {
            (self.report)(&format!("{} was withheld: {}", release.name.as_str(), evidence.check));
            self.withheld(Some(release), Some(&guest), evidence);
            return Err(denied(String::new()));
        }
        self.release(release, &guest, evidence)
    }

    /// Everything that the release names, or nothing. First the log.
    fn release(&self, release: &Release, guest: &Guest, evidence: Shown) -> Result<Reply, Refused> {
        let content = release.content().map_err(|error| Refused::ours(self, error))?;
        let sealed = seal_for(&guest.point, content.expose(), &SystemRandom);
        let body = sealed.map_err(|_| Refused::new("JweError", "the guest's key is no point of P-256"))?;
        let event = Event::Released { name: release.name.clone(), key: guest.key(), evidence };
        if !(self.record)(event) {
            return Err(Refused::ours(self, "the audit log does not take the entry"));
        }
        Ok(Reply { status: 200, session: None, body })
    }

    /// Judges a guest's evidence by a policy, now.
    fn judge(&self, guest: &Guest, policy: &Policy) -> Result<Verdict, Refused> {
        let beside = self.cache.as_ref().map_or(Ok(Beside::default()), |cache| Beside::read(cache));
        let beside = beside.map_err(|error| Refused::ours(self, error))?;
        let now = now().map_err(|error| Refused::ours(self, error))?;
        let mut context = Context::new(now, &self.roots, guest.expected());
        context.allow_simulated = self.allow_simulated;
        Ok(beside.judge(&guest.evidence, policy, &context))
    }

    fn withheld(&self, release: Option<&Release>, guest: Option<&Guest>, evidence: Shown) {
        let name = release.map(|release| release.name.clone());
        let key = guest.map(Guest::key).unwrap_or_default();
        // A refusal stands whether or not the log has it.
        let _ = (self.record)(Event::Withheld { left_out: 0, name, key, evidence });
    }
}

fn machine(platform: Platform) -> Machine {
    match platform {
        Platform::Snp => Machine::Snp,
        Platform::Tdx => Machine::Tdx,
        Platform::Simulated => Machine::Simulated,
    }
}

/// What the log keeps of a verdict.
fn shown(verdict: &Verdict) -> Shown {
    let measurement = verdict.claimed().map(Claims::measurement);
    Shown {
        machine: Some(machine(verdict.platform())),
        measurement: measurement.map_or([0; 48], |measurement| measurement.0),
        check: verdict.reasons().first().map(|reason| reason.check.to_string()).unwrap_or_default(),
    }
}

fn nothing_shown(check: &str) -> Shown {
    Shown { machine: None, measurement: [0; 48], check: check.into() }
}

fn machine_only(guest: &Guest, check: &str) -> Shown {
    Shown { machine: Some(machine(guest.evidence.platform())), ..nothing_shown(check) }
}

/// The checks that say no. A guest learns which, and not what would have been accepted.
fn checks(verdict: &Verdict) -> String {
    let mut all: Vec<String> = verdict.reasons().iter().map(|reason| reason.check.to_string()).collect();
    all.dedup();
    all.truncate(8);
    all.join(", ")
}

/// For the owner: every reason.
fn refusal(release: &Release, verdict: &Verdict) -> String {
    let all: Vec<String> = verdict.reasons().iter().take(8).map(ToString::to_string).collect();
    format!("evidence was refused for {}: {}", release.name.as_str(), all.join("; "))
}

#[cfg(test)]
mod tests;
