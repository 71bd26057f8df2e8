//! Sessions of guests: from the challenge to the last resource, in memory only.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use attest::{Evidence, Expected, ReportData};
use kbs::Tee;
use seal::jwe::Point;
use seal::{Random, SystemRandom};

/// Most sessions whose evidence has not come yet.
const MAX_CHALLENGED: usize = 1024;
/// Most sessions with evidence: each keeps it, to judge it again.
const MAX_ATTESTED: usize = 128;
/// How long a challenge waits for its evidence.
const CHALLENGE_LIFETIME: Duration = Duration::from_secs(60);

/// What is known of a guest whose evidence was accepted.
#[derive(Debug, Clone)]
pub struct Guest {
    /// The evidence, to be judged again at each release.
    pub evidence: Evidence,
    /// The report data that it answered with.
    pub report_data: ReportData,
    /// The key that it is bound to.
    pub point: Point,
    /// Whether it is bound to our certificate.
    pub is_tls_bound: bool,
}

impl Guest {
    /// SHA-256 of its key.
    pub fn key(&self) -> [u8; 32] {
        seal::sha256(&[&self.point[0], &self.point[1]])
    }

    /// The report data, for a judge.
    pub fn expected(&self) -> Expected {
        Expected::Exactly(self.report_data)
    }
}

/// Hash of a name or a token. A table of hashes tells nothing by the time that a look takes.
type Hash = [u8; 32];

struct Challenged {
    tee: Tee,
    nonce: String,
    until: Instant,
}

struct Attested {
    guest: Guest,
    token: Hash,
    until: Instant,
}

/// All sessions.
pub struct Sessions {
    lifetime: Duration,
    challenged: HashMap<Hash, Challenged>,
    attested: HashMap<Hash, Attested>,
}

/// A challenge for a guest.
pub struct Challenge {
    /// The session's name, for the cookie.
    pub id: String,
    /// 32 random bytes, as base64 text.
    pub nonce: String,
}

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    SystemRandom.fill(&mut bytes);
    bytes
}

fn hash(text: &str) -> Hash {
    seal::sha256(&[text.as_bytes()])
}

impl Sessions {
    /// None yet. An attestation counts for `lifetime`.
    pub fn new(lifetime: Duration) -> Self {
        Self { lifetime, challenged: HashMap::new(), attested: HashMap::new() }
    }

    fn forget_old(&mut self, now: Instant) {
        self.challenged.retain(|_, session| session.until > now);
        self.attested.retain(|_, session| session.until > now);
    }

    /// A new challenge. Strangers can ask for any number: the oldest of too many is forgotten.
    pub fn challenge(&mut self, tee: Tee, now: Instant) -> Challenge {
        use base64ct::{Base64, Encoding};
        self.forget_old(now);
        if self.challenged.len() >= MAX_CHALLENGED {
            let oldest = self.challenged.iter().min_by_key(|(_, session)| session.until);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.challenged.remove(&oldest);
            }
        }
        let challenge = Challenge { id: hex::encode(random()), nonce: Base64::encode_string(&random()) };
        let session = Challenged { tee, nonce: challenge.nonce.clone(), until: now + CHALLENGE_LIFETIME };
        self.challenged.insert(hash(&challenge.id), session);
        challenge
    }

    /// Takes a challenge: whatever becomes of the evidence, there is no second attempt. The kind of machine and the nonce.
    pub fn take(&mut self, id: &str, now: Instant) -> Option<(Tee, String)> {
        self.forget_old(now);
        self.challenged.remove(&hash(id)).map(|session| (session.tee, session.nonce))
    }

    /// Evidence was accepted: the session goes on, and `token` is another name for it. False if there are too many.
    pub fn admit(&mut self, id: &str, token: &str, guest: Guest, now: Instant) -> bool {
        self.forget_old(now);
        if self.attested.len() >= MAX_ATTESTED {
            return false;
        }
        let session = Attested { guest, token: hash(token), until: now + self.lifetime };
        self.attested.insert(hash(id), session);
        true
    }

    /// The guest of a session, by the session's name.
    pub fn guest(&mut self, id: &str, now: Instant) -> Option<Guest> {
        self.forget_old(now);
        self.attested.get(&hash(id)).map(|session| session.guest.clone())
    }

    /// The guest of a session, by its token.
    pub fn guest_of_token(&mut self, token: &str, now: Instant) -> Option<Guest> {
        self.forget_old(now);
        let token = hash(token);
        self.attested.values().find(|session| session.token == token).map(|session| session.guest.clone())
    }

    /// How long an attestation counts.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest() -> Guest {
        let evidence = Evidence::Simulated { report: Vec::new() };
        Guest { evidence, report_data: attest::Hex([0; 64]), point: [[1; 32]; 2], is_tls_bound: false }
    }

    #[test]
    fn a_nonce_is_good_for_one_attempt_within_a_minute() {
        let (mut sessions, now) = (Sessions::new(Duration::from_secs(300)), Instant::now());
        let one = sessions.challenge(Tee::Snp, now);
        let two = sessions.challenge(Tee::Tdx, now);
        assert_ne!((&one.id, &one.nonce), (&two.id, &two.nonce));
        assert_eq!(sessions.take(&one.id, now), Some((Tee::Snp, one.nonce)));
        assert_eq!(sessions.take(&one.id, now), None, "a second attempt");
        assert_eq!(sessions.take(&two.id, now + CHALLENGE_LIFETIME), None, "too late");
        assert_eq!(sessions.take("", now), None);
    }

    #[test]
    fn an_attestation_counts_for_its_lifetime_by_both_of_its_names() {
        let (mut sessions, now) = (Sessions::new(Duration::from_secs(300)), Instant::now());
        assert!(sessions.admit("id", "token", guest(), now));
        let late = now + Duration::from_secs(299);
        assert!(sessions.guest("id", late).is_some() && sessions.guest_of_token("token", late).is_some());
        assert!(sessions.guest("token", late).is_none() && sessions.guest_of_token("id", late).is_none());
        let late = now + Duration::from_secs(300);
        assert!(sessions.guest("id", late).is_none() && sessions.guest_of_token("token", late).is_none());
    }

    #[test]
    fn there_are_at_most_so_many() {
        let (mut sessions, now) = (Sessions::new(Duration::from_secs(300)), Instant::now());
        let first = sessions.challenge(Tee::Snp, now);
        let later = now + Duration::from_millis(1);
        let last = (0..MAX_CHALLENGED).map(|_| sessions.challenge(Tee::Snp, later).id).last().unwrap();
        assert_eq!(sessions.challenged.len(), MAX_CHALLENGED);
        assert!(sessions.take(&first.id, later).is_none() && sessions.take(&last, later).is_some());
        let all = (0..MAX_ATTESTED).all(|number| sessions.admit(&number.to_string(), "", guest(), now));
        assert!(all && !sessions.admit("one more", "", guest(), now));
    }
}
