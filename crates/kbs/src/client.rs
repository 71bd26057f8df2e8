//! The guest's side.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use attest::{Evidence, ReportData};
use http1::{Connection, Endpoint, Outgoing, Response};
use rustls::ClientConfig;
use seal::SecretBytes;
use seal::jwe::KeyPair;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::message::{
    Attestation, Challenge, CompositeEvidence, Granted, Problem, PublicKey, Request, RuntimeData, Tee,
};
use crate::report_data::{Hash, TlsKey, report_data};
use crate::{COOKIE, Error, MAX_RESOURCE, PREFIX, Resource, VERSION, evidence, jwe};

/// Most bytes of an answer: a resource as base64, and what stands around it.
const MAX_ANSWER: usize = MAX_RESOURCE * 4 / 3 + 4096;
/// Most bytes of a nonce, of a session's name, and of a token.
const MAX_NONCE: usize = 1024;
const MAX_COOKIE: usize = 1024;
/// What a broker of this project says that it understands.
const TLS_BINDING: &str = "cvmio-tls-binding";

/// A conversation with a key broker. First the evidence has to be made for [`Session::report_data`], then [`Session::attest`] sends it, and
/// then [`Session::resource`] asks.
pub struct Session {
    broker: String,
    connection: Connection,
    timeout: Duration,
    cookie: String,
    pair: KeyPair,
    tee: Tee,
    runtime_data: RuntimeData,
    additional_evidence: String,
    hash: Hash,
}

impl Session {
    /// Connects, and takes the challenge. `timeout` is for each request.
    ///
    /// # Errors
    /// If the broker is away, is not the one that `tls` trusts, or refuses.
    pub fn begin(
        endpoint: &Endpoint,
        tls: Arc<ClientConfig>,
        tee: Tee,
        timeout: Duration,
    ) -> Result<Session, Error> {
        let broker = endpoint.to_string();
        // A plain connection would let anybody answer.
        let endpoint = Endpoint { tls: true, ..endpoint.clone() };
        let connection =
            Connection::open(&endpoint, Some(tls), timeout).map_err(|error| failed(&broker, error))?;
        let pair = KeyPair::generate();
        let mut session = Session {
            broker,
            connection,
            timeout,
            cookie: String::new(),
            runtime_data: RuntimeData { nonce: String::new(), tee_pubkey: PublicKey::new(&pair.public()) },
            pair,
            tee,
            additional_evidence: String::new(),
            hash: Hash::Sha384,
        };
        session.challenge()?;
        Ok(session)
    }

    fn challenge(&mut self) -> Result<(), Error> {
        const STEP: &str = "request for a challenge";
        let request = Request { version: VERSION.into(), tee: self.tee, extra_params: json!({}) };
        let response = self.ask(STEP, "POST", &format!("{PREFIX}/auth"), &to_text(&request))?;
        let wrong = |why: &str| Error::Malformed(STEP, why.into());
        self.cookie = session_of(&response).ok_or_else(|| wrong("it sets no cookie of a session"))?;
        let challenge: Challenge = parse(STEP, &response.body)?;
        if challenge.nonce.is_empty() || challenge.nonce.len() > MAX_NONCE {
            return Err(wrong("its nonce is empty, or longer than 1024 bytes"));
        }
        self.hash = Hash::chosen(&challenge.extra_params).map_err(|why| wrong(&why))?;
        self.runtime_data.nonce = challenge.nonce;
        if challenge.extra_params.get(TLS_BINDING) == Some(&Value::Bool(true)) {
            let certificate = self.connection.certificate();
            let key = certificate.map(TlsKey::of).ok_or_else(|| wrong("no certificate was shown"))?;
            self.additional_evidence = key.to_additional();
        }
        Ok(())
    }

    /// The report data that the evidence must have.
    #[must_use]
    pub fn report_data(&self) -> ReportData {
        report_data(&self.runtime_data, &self.additional_evidence, self.hash)
    }

    /// Sends the evidence.
    ///
    /// # Errors
    /// If the broker refuses it, or went away.
    pub fn attest(&mut self, evidence: &Evidence) -> Result<(), Error> {
        const STEP: &str = "evidence";
        let (tee, primary_evidence) = evidence::to_wire(evidence)?;
        if tee != self.tee {
            return Err(Error::Evidence(format!("it is of {tee}, and the challenge was for {}", self.tee)));
        }
        let attestation = Attestation {
            init_data: None,
            runtime_data: self.runtime_data.clone(),
            tee_evidence: CompositeEvidence {
                primary_evidence,
                additional_evidence: self.additional_evidence.clone(),
            },
        };
        let response = self.ask(STEP, "POST", &format!("{PREFIX}/attest"), &to_text(&attestation))?;
        // A broker may give the session another name now.
        if let Some(cookie) = session_of(&response) {
            self.cookie = cookie;
        }
        parse::<Granted>(STEP, &response.body).map(drop)
    }

    /// Asks for a resource.
    ///
    /// # Errors
    /// If the broker refuses, or what came is not for this session's key.
    pub fn resource(&mut self, resource: &Resource) -> Result<SecretBytes, Error> {
        const STEP: &str = "request for the resource";
        let response = self.ask(STEP, "GET", &format!("{PREFIX}/resource/{resource}"), "")?;
        jwe::open(&self.pair, &response.body)
    }

    fn ask(&mut self, step: &'static str, method: &str, path: &str, body: &str) -> Result<Response, Error> {
        let cookie = format!("{COOKIE}={}", self.cookie);
        let fields = [("Cookie", cookie.as_str())];
        let fields = if self.cookie.is_empty() { &[][..] } else { &fields[..] };
        let request = Outgoing { method, path, fields, body, most: MAX_ANSWER };
        let response =
            self.connection.ask(&request, self.timeout).map_err(|error| failed(&self.broker, error))?;
        if response.status == 200 {
            return Ok(response);
        }
        let problem = serde_json::from_slice::<Problem>(&response.body).ok();
        let detail = problem.as_ref().map_or_else(|| "it gives no reason".into(), |said| shown(&said.detail));
        let problem = problem.map(|said| shown(said.name())).unwrap_or_default();
        Err(Error::Refused { step, status: response.status, problem, detail })
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("broker", &self.broker)
            .field("tee", &self.tee)
            .finish_non_exhaustive()
    }
}

/// The session that an answer's cookie names: letters, digits, and what base64 and UUIDs have beside them.
fn session_of(response: &Response) -> Option<String> {
    let cookies = response.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
    let value = cookies
        .into_iter()
        .find_map(|(_, value)| value.split(';').next()?.trim().strip_prefix(COOKIE)?.strip_prefix('='))?;
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '/' | '=' | '%');
    (!value.is_empty() && value.len() <= MAX_COOKIE && value.chars().all(good)).then(|| value.to_string())
}

/// Words of a broker's, as they may be printed.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(600).collect()
}

fn to_text(message: &impl serde::Serialize) -> String {
    serde_json::to_string(message).expect("these messages are text")
}

fn parse<T: DeserializeOwned>(step: &'static str, body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| Error::Malformed(step, error.to_string()))
}

fn failed(broker: &str, error: io::Error) -> Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => Error::Tls(broker.into(), tls.clone()),
        None => Error::Away(broker.into(), error),
    }
}
