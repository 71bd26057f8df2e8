//! How an anchor is.

use std::time::Duration;

/// How an anchor is, for status and metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Set while it does not answer.
    pub away: Option<Away>,
    /// What else its kind has to tell, by name: the server in use, the writes so far.
    pub facts: Vec<(&'static str, String)>,
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
