//! How an anchor is.

use std::time::{Duration, SystemTime};

/// How an anchor is, for status and metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Set while it does not answer.
    pub away: Option<Away>,
    /// What else its kind has to tell, by name: the server in use, the writes so far.
    pub facts: Vec<(&'static str, String)>,
    /// When the first of the certificates ends that it is reached with: ours, or those of who answers.
    pub certificate_until: Option<SystemTime>,
    /// Bytes that it takes where it is kept, if each move takes some and its kind can tell.
    pub space: Option<u64>,
}

/// An anchor that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Away {
    /// For how long.
    pub duration: Duration,
    /// Attempts that failed meanwhile.
    pub attempts: u64,
    /// How the last one failed.
    pub error: String,
}

/// How long before its end a certificate is worth a warning.
const NOTICE: Duration = Duration::from_secs(60 * DAY);
const DAY: u64 = 86_400;

/// Says at `now` when a certificate ends that is good until `until`; `None` before its last 60 days.
#[must_use]
pub fn certificate_notice(until: SystemTime, now: SystemTime) -> Option<String> {
    let days = |time: Duration| match time.as_secs() / DAY {
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    };
    match until.duration_since(now) {
        Ok(left) if left > NOTICE => None,
        Ok(left) => Some(format!("expires in {}", days(left))),
        Err(over) => Some(format!("has expired {} ago", days(over.duration()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sixty_days_of_a_certificate_are_worth_a_word() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let days = |days: u64| Duration::from_secs(days * DAY);
        assert_eq!(certificate_notice(now + days(61), now), None);
        assert_eq!(certificate_notice(now + days(60), now).as_deref(), Some("expires in 60 days"));
        assert_eq!(certificate_notice(now + days(1), now).as_deref(), Some("expires in 1 day"));
        assert_eq!(certificate_notice(now - days(2), now).as_deref(), Some("has expired 2 days ago"));
    }
}
