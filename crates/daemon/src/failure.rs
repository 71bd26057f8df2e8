//! Failures of the command line, each with its exit code.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::sign::Sign;

/// What went wrong, in words for the user, and the exit code that says so to a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    code: u8,
    message: String,
    /// Somebody else has the store open.
    #[serde(default)]
    in_use: bool,
    /// What was printed for a program says so already.
    #[serde(skip)]
    told: bool,
    /// A daemon is there and does not answer.
    #[serde(skip)]
    silent: bool,
}

/// What a program is told instead of each exit code; the README says what to do.
const KINDS: [(u8, &str); 11] = [
    (INTERNAL, "defect"),
    (USAGE, "usage"),
    (IO, "io"),
    (4, "corrupt"),
    (5, "stale"),
    (6, "forked"),
    (7, "fenced"),
    (ANCHOR, "anchor"),
    (9, "no-space"),
    (10, "locked"),
    (POLICY, "policy"),
];

/// A defect of this program.
const INTERNAL: u8 = 1;
const USAGE: u8 = 2;
const IO: u8 = 3;
const ANCHOR: u8 = 8;
const POLICY: u8 = 11;

impl Failure {
    fn new(code: u8, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string(), in_use: false, told: false, silent: false }
    }

    /// A defect of this program.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(INTERNAL, message)
    }

    /// Asked for what cannot be done; nothing was changed.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(USAGE, message)
    }

    /// Something that this needs does not work.
    pub fn io(message: impl fmt::Display) -> Self {
        Self::new(IO, message)
    }

    /// A daemon is there and does not answer.
    pub fn silent(message: impl fmt::Display) -> Self {
        Self { silent: true, ..Self::new(IO, message) }
    }

    /// Whether a daemon is there and does not answer.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// The policy is missing or no policy.
    pub fn policy(message: impl fmt::Display) -> Self {
        Self::new(POLICY, message)
    }

    /// Whether it cannot be done as asked, or not now.
    pub fn is_usage(&self) -> bool {
        self.code == USAGE
    }

    /// Whether something that this needs did not work, perhaps half-way.
    pub fn is_io(&self) -> bool {
        self.code == IO
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// What a program is told: the exit code, its name, and the words for people.
    pub fn as_json(&self) -> Value {
        json!({ "code": self.code, "kind": self.kind(), "message": self.message })
    }

    fn kind(&self) -> &'static str {
        KINDS.iter().find(|(code, _)| *code == self.code).map_or("defect", |(_, kind)| kind)
    }

    /// The same, which a program has been told already.
    pub fn told(mut self) -> Self {
        self.told = true;
        self
    }

    /// Whether a program has been told already.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// What it is a sign of, if of tampering.
    pub fn tamper(&self) -> Option<Sign> {
        Sign::ALL.into_iter().find(|tamper| exit_code(tamper.kind()) == self.code)
    }

    /// Whether somebody else has the store open.
    pub fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// The same, with what to write on the command line to do what the message says.
    fn by(mut self, words: Option<&str>) -> Self {
        if let Some(words) = words {
            self.message = format!("{} ({words})", self.message);
        }
        self
    }

    /// The same, with more to know.
    pub fn with(mut self, more: impl fmt::Display) -> Self {
        self.message = format!("{}; {more}", self.message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The exit code for a kind of the volume's failures.
fn exit_code(kind: volume::Kind) -> u8 {
    match kind {
        volume::Kind::Usage => USAGE,
        volume::Kind::Io => IO,
        volume::Kind::Corrupt => 4,
        volume::Kind::Stale => 5,
        volume::Kind::Forked => 6,
        volume::Kind::Fenced => 7,
        volume::Kind::Anchor => ANCHOR,
        volume::Kind::NoSpace => 9,
        volume::Kind::Locked => 10,
        volume::Kind::Policy => POLICY,
        volume::Kind::Defect => INTERNAL,
    }
}

impl From<volume::Error> for Failure {
    fn from(error: volume::Error) -> Self {
        let failure = Self::new(exit_code(error.kind()), &error);
        failure.by(error.remedy().map(|remedy| match remedy {
            volume::Remedy::ThinVolume => "--provision thin",
            volume::Remedy::Force => "--force",
            volume::Remedy::Survey => "leave out --to",
        }))
    }
}

impl From<anchor::Error> for Failure {
    fn from(error: anchor::Error) -> Self {
        Self::new(ANCHOR, error)
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        use store::ErrorKind as Kind;
        let code = match error.kind {
            Kind::NotFound
            | Kind::Exists
            | Kind::InUse
            | Kind::Directory
            | Kind::Unsupported
            | Kind::PermissionDenied
            | Kind::ReadOnly
            | Kind::TooSmall => USAGE,
            _ => IO,
        };
        Self { in_use: error.kind == Kind::InUse, ..Self::new(code, error) }
    }
}

impl From<export::Error> for Failure {
    fn from(error: export::Error) -> Self {
        let code = match error {
            export::Error::Usage(_) | export::Error::Busy(_) | export::Error::Exposed(_) => USAGE,
            export::Error::System { .. } => IO,
        };
        let tls = matches!(error, export::Error::Exposed(_));
        Self::new(code, error).by(tls.then_some("--tls-cert, --tls-key and --tls-ca"))
    }
}

impl From<volume::policy::PolicyError> for Failure {
    fn from(error: volume::policy::PolicyError) -> Self {
        Self::policy(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_an_exit_code_of_its_own() {
        use volume::Kind;
        let kinds = [
            Kind::Usage,
            Kind::Io,
            Kind::Corrupt,
            Kind::Stale,
            Kind::Forked,
            Kind::Fenced,
            Kind::Anchor,
            Kind::NoSpace,
            Kind::Locked,
            Kind::Policy,
        ];
        let codes: Vec<u8> = kinds.into_iter().map(exit_code).collect();
        assert_eq!(codes, (2..=11).collect::<Vec<u8>>());
        assert_eq!(exit_code(Kind::Defect), 1);
        for kind in kinds {
            let failure = Failure::from(volume::Error::new(kind, ""));
            assert_eq!(failure.tamper(), Sign::of(kind), "{kind:?}");
        }
    }

    /// Authors of programs read the table.
    #[test]
    fn the_documents_have_each_kind() {
        let page = include_str!("../../../docs/operations.md");
        let table = page.split("## Exit codes").nth(1).unwrap().split("\n## ").next().unwrap();
        let rows: Vec<(u8, String)> = table
            .lines()
            .filter_map(|line| {
                let mut cells = line.split('|').skip(1).map(str::trim);
                let code = cells.next()?.parse().ok()?;
                let kind = cells.next()?.split([':', ' ']).next()?.trim_matches('`').to_string();
                Some((code, kind))
            })
            .collect();
        let kinds: Vec<_> =
            std::iter::once((0, "done")).chain(KINDS).map(|(code, kind)| (code, kind.to_string())).collect();
        assert_eq!(rows, kinds);
        let stale = Failure::from(volume::Error::new(volume::Kind::Stale, "old"));
        assert_eq!(stale.as_json(), json!({ "code": 5, "kind": "stale", "message": "old" }));
    }

    /// The libraries know no command line.
    #[test]
    fn advice_names_the_flag_that_follows_it() {
        let exposed = export::Error::Exposed(([0, 0, 0, 0], 10_809).into());
        let refused = Failure::from(exposed.clone());
        assert_eq!(refused.to_string(), format!("{exposed} (--tls-cert, --tls-key and --tls-ca)"));
        assert!(refused.is_usage());
    }
}
