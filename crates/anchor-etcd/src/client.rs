//! The anchor: which endpoint is asked, and what its answer means.

use std::io::{self, ErrorKind};
use std::time::{Duration, SystemTime};

use rustls::{AlertDescription, CertificateError as Bad};

use anchor::{Access, Address, BlockingAnchor, Error, Failure, Stamp};

use http1::{Connection, Endpoint, Outgoing, Response};

use crate::address::Place;
use crate::memory::Memory;
use crate::message::{self, Answer, Content, Space, Unexpected};
use crate::tls::Tls;

const RANGE: &str = "/v3/kv/range";
const TXN: &str = "/v3/kv/txn";
const STATUS: &str = "/v3/maintenance/status";

/// A member is asked for its space before the first move, and then once in so many: each leaves about 300 bytes behind.
const MOVES_PER_LOOK: u64 = 64;
/// Most bytes of an answer.
const MAX_BODY: usize = 64 * 1024;
/// gRPC's "resource exhausted": the space quota is used up, or the members are overloaded.
const EXHAUSTED: u32 = 8;

/// Status codes of gRPC that a person has to do something about: bad argument, no permission, not authenticated.
const FOR_PEOPLE: [u32; 3] = [3, 7, 16];

/// How to read an answer's body, given the key that was asked for.
type Reader = fn(&[u8], &str) -> Result<Answer, Unexpected>;

/// A key in an etcd cluster.
pub(crate) struct Etcd {
    pub(crate) address: Address,
    pub(crate) place: Place,
    pub(crate) tls: Option<Tls>,
    pub(crate) access: Access,
    /// For a request as a whole, connecting included.
    pub(crate) timeout: Duration,
    pub(crate) connection: Option<Connection>,
    /// The endpoint that is asked first: the last one that answered.
    pub(crate) current: usize,
    pub(crate) memory: Memory,
    pub(crate) moves: u64,
    /// When our certificate ends, as of the last connection.
    pub(crate) certificate_until: Option<SystemTime>,
    /// The database's size, as the member that was asked last tells it.
    pub(crate) space: Option<Space>,
}

/// One endpoint's failure.
enum Trouble {
    /// Nothing was sent.
    Unsent(Failure),
    /// Something was; perhaps it counts.
    Sent(Failure),
}

impl Trouble {
    fn into_failure(self) -> Failure {
        match self {
            Trouble::Unsent(failure) | Trouble::Sent(failure) => failure,
        }
    }
}

impl Etcd {
    /// Asks one endpoint after the other. What may change something goes to one only: as soon as it was sent, the caller has to read.
    fn ask(&mut self, path: &str, body: &str, read: Reader, repeatable: bool) -> Result<Answer, Failure> {
        let count = self.place.endpoints.len();
        let mut failures = Vec::new();
        for turn in 0..count {
            let index = (self.current + turn) % count;
            match self.ask_one(index, path, body, read) {
                Ok(answer) => {
                    self.current = index;
                    return self.memory.check(&self.address, answer.header).map(|()| answer);
                }
                Err(Trouble::Sent(Failure::Refused(error)) | Trouble::Unsent(Failure::Refused(error))) => {
                    return Err(Failure::Refused(error));
                }
                Err(Trouble::Sent(failure)) if !repeatable => {
                    self.current = (index + 1) % count;
                    failures.push((index, failure));
                    break;
                }
                Err(trouble) => failures.push((index, trouble.into_failure())),
            }
        }
        self.connection = None;
        Err(self.summary(failures))
    }

    /// All endpoints' failures in one: a person has to act only if all say so.
    fn summary(&self, failures: Vec<(usize, Failure)>) -> Failure {
        let for_people = failures.iter().all(|(_, failure)| matches!(failure, Failure::Setup(_)));
        let said: Vec<String> = failures
            .iter()
            .map(|(index, failure)| {
                let why = match failure {
                    Failure::Away(why) | Failure::Setup(why) => why.clone(),
                    Failure::Refused(error) => error.to_string(),
                };
                format!("{}: {why}", self.place.endpoints[*index])
            })
            .collect();
        let said = format!("etcd: {}", said.join("; "));
        if for_people { Failure::Setup(said) } else { Failure::Away(said) }
    }

    fn ask_one(&mut self, index: usize, path: &str, body: &str, read: Reader) -> Result<Answer, Trouble> {
        let mut connection = self.connect(index).map_err(Trouble::Unsent)?;
        let response = connection
            .ask(&question(path, body), self.timeout)
            .map_err(|error| Trouble::Sent(failure_of(&error)))?;
        if response.keeps {
            self.connection = Some(connection);
        }
        self.understand(&response, read).map_err(Trouble::Sent)
    }

    /// The connection that is there, if it is to this endpoint and was left open, or a new one.
    fn connect(&mut self, index: usize) -> Result<Connection, Failure> {
        let kept = self.connection.take().filter(|_| index == self.current);
        if let Some(mut connection) = kept
            && connection.is_fresh()
        {
            return Ok(connection);
        }
        self.certificate_until = self.tls.as_ref().and_then(Tls::certificate_until);
        let config = self.tls.as_ref().map(Tls::load).transpose().map_err(Failure::Setup)?;
        let endpoint: &Endpoint = &self.place.endpoints[index];
        Connection::open(endpoint, config, self.timeout).map_err(|error| failure_of(&error))
    }

    fn understand(&self, response: &Response, read: Reader) -> Result<Answer, Failure> {
        let foreign = |why: &str| {
            Failure::Setup(format!("what answers there is no etcd with a JSON gateway of version 3 ({why})"))
        };
        if response.status != 200 {
            return Err(match message::read_refusal(&response.body) {
                Ok(refusal) if FOR_PEOPLE.contains(&refusal.code) => {
                    Failure::Setup(explained(refusal.message))
                }
                Ok(refusal) if refusal.code == EXHAUSTED => Failure::Away(format!(
                    "{}; if its quota is used up, a person has to compact and defragment its database, and to disarm the alarm",
                    refusal.message
                )),
                Ok(refusal) => Failure::Away(explained(refusal.message)),
                // A proxy in front of a member that is away says so in its own words.
                Err(_) if response.status >= 500 => Failure::Away(format!("HTTP status {}", response.status)),
                Err(_) => foreign(&format!("HTTP status {}", response.status)),
            });
        }
        read(&response.body, &self.place.key).map_err(|unexpected| match unexpected {
            Unexpected::Foreign(why) => foreign(&why),
            Unexpected::NotAStamp(why) => Failure::Refused(self.address.unusable(format_args!(
                "the key {} holds something that is no stamp: {why}. Name another key",
                self.place.key
            ))),
        })
    }

    /// Asks the member that answered last how much room its database takes. That it does not say so is no failure of the anchor.
    fn look_at_space(&mut self) {
        let Ok(mut connection) = self.connect(self.current) else { return };
        let Ok(response) = connection.ask(&question(STATUS, "{}"), self.timeout) else { return };
        if response.keeps {
            self.connection = Some(connection);
        }
        let found = (response.status == 200).then(|| message::read_space(&response.body).ok());
        self.space = found.flatten().or(self.space);
    }

    fn held(&mut self, content: Content) -> Result<Option<Stamp>, Failure> {
        let Content::Holds(held) = content else {
            return Err(Failure::Away("etcd answered to another question".into()));
        };
        if let Some(held) = &held {
            self.memory.check_key(&self.address, held.modified)?;
        }
        Ok(held.map(|held| held.stamp))
    }
}

/// A request to the gateway.
fn question<'a>(path: &'a str, body: &'a str) -> Outgoing<'a> {
    Outgoing { method: "POST", path, fields: &[], body, most: MAX_BODY }
}

/// A refusal of etcd's with what to do about it, where its own words leave one puzzled.
fn explained(message: String) -> String {
    // Its gateway is a client of the member's, and shows the member's own certificate.
    let unreached = ["connection closed", "handshake failed", "server preface", "client preface"];
    let advice = if unreached.iter().any(|words| message.contains(words)) {
        "its gateway does not reach the member; where members ask for certificates, the member's own certificate needs clientAuth beside serverAuth"
    } else if ["user name is empty", "auth token", "CommonName of client"]
        .iter()
        .any(|words| message.contains(words))
    {
        "its authentication is on, which is not supported, since certificates decide access (`etcdctl auth disable`)"
    } else {
        return message;
    };
    format!("{message}: {advice}")
}

/// What an error of a connection means. Whatever TLS refuses, a person has to mend: a certificate, or the address.
fn failure_of(error: &io::Error) -> Failure {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. })) => {
            Failure::Setup("its certificate is not valid yet: correct this machine's clock".into())
        }
        Some(rustls::Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. })) => {
            Failure::Setup("its certificate has expired: renew it, or correct this machine's clock".into())
        }
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateExpired)) => Failure::Setup(
            "it says that our certificate has expired, or is not valid yet: renew it, or correct a clock"
                .into(),
        ),
        Some(rustls::Error::InvalidCertificate(why)) => {
            Failure::Setup(format!("its certificate is not accepted: {why:?}"))
        }
        Some(rustls::Error::AlertReceived(alert)) => {
            Failure::Setup(format!("it does not accept our certificate, or our kind of TLS: {alert:?}"))
        }
        Some(why) => Failure::Setup(format!("it does not speak TLS as it should: {why}")),
        None if error.kind() == ErrorKind::InvalidData => Failure::Setup(error.to_string()),
        None => Failure::Away(error.to_string()),
    }
}

impl BlockingAnchor for Etcd {
    fn read(&mut self) -> Result<Option<Stamp>, Failure> {
        let question = message::range(&self.place.key);
        let answer = self.ask(RANGE, &question, message::read_range, true)?;
        self.held(answer.content)
    }

    fn advance(&mut self, expected: Option<&Stamp>, new: &Stamp) -> Result<(), Failure> {
        if self.access == Access::ReadOnly {
            let why = "it was opened for reading only";
            return Err(Failure::Refused(self.address.unusable(why)));
        }
        let question = message::swap(&self.place.key, expected, new);
        let answer = self.ask(TXN, &question, message::read_swap, false)?;
        if answer.content == Content::Swapped {
            if self.moves.is_multiple_of(MOVES_PER_LOOK) {
                self.look_at_space();
            }
            self.moves += 1;
            self.memory.note_key(answer.header.revision);
            return Ok(());
        }
        let held = self.held(answer.content)?;
        Err(Failure::Refused(Error::Conflict(held.map(Box::new))))
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("endpoint", self.place.endpoints[self.current].to_string())];
        if let Some((cluster, revision)) = self.memory.seen() {
            facts.push(("cluster", format!("{cluster:x}")));
            facts.push(("revision", revision.to_string()));
        }
        facts.push(("moves", self.moves.to_string()));
        if let Some(Space { taken, used }) = self.space {
            facts.push(("database", format!("{} KiB, {} KiB of it in use", taken / 1024, used / 1024)));
        }
        facts
    }

    fn certificate_until(&self) -> Option<SystemTime> {
        self.certificate_until
    }

    fn space(&self) -> Option<u64> {
        self.space.map(|space| space.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words are etcd's: of 3.4, over its gateway.
    #[test]
    fn refusals_that_leave_one_puzzled_say_what_to_do() {
        let told = |message: &str| explained(message.to_owned());
        for unreached in ["connection closed", "transport: failed to write client preface: write tcp: reset"]
        {
            assert!(told(unreached).contains("needs clientAuth beside serverAuth"));
        }
        assert!(told("etcdserver: user name is empty").contains("`etcdctl auth disable`"));
        assert_eq!(told("etcdserver: no leader"), "etcdserver: no leader");
    }
}
