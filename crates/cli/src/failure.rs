//! Failures of the command line, each with its exit code.

use std::fmt;

use error_kind::{HasKind, Kind, Remedy};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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

/// Each kind with its exit code, and the name that a program is told; `docs/operations.md` says what to do.
const KINDS: [(Kind, u8, &str); 11] = [
    (Kind::Defect, 1, "defect"),
    (Kind::Usage, 2, "usage"),
    (Kind::Io, 3, "io"),
    (Kind::Corrupt, 4, "corrupt"),
    (Kind::Stale, 5, "stale"),
    (Kind::Forked, 6, "forked"),
    (Kind::Fenced, 7, "fenced"),
    (Kind::Anchor, 8, "anchor"),
    (Kind::NoSpace, 9, "no-space"),
    (Kind::Locked, 10, "locked"),
    (Kind::Policy, 11, "policy"),
];

/// An end that was asked for: 128 and the number of SIGINT, as shells say it. No library has that kind.
const INTERRUPTED: (Kind, u8, &str) = (Kind::Io, 130, "interrupted");

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: Kind, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        Self { code: exit_code(kind), message, in_use: false, told: false, silent: false }
    }

    /// A defect of this program.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(Kind::Defect, message)
    }

    /// Asked for what cannot be done; nothing was changed.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Something that this needs does not work.
    pub fn io(message: impl fmt::Display) -> Self {
        Self::new(Kind::Io, message)
    }

    /// The end was asked for by a signal, perhaps half-way.
    pub fn interrupted(message: impl fmt::Display) -> Self {
        Self { code: INTERRUPTED.1, ..Self::io(message) }
    }

    /// A daemon is there and does not answer.
    pub fn silent(message: impl fmt::Display) -> Self {
        Self { silent: true, ..Self::new(Kind::Io, message) }
    }

    /// Whether a daemon is there and does not answer.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// The policy is missing or no policy.
    pub fn policy(message: impl fmt::Display) -> Self {
        Self::new(Kind::Policy, message)
    }

    /// Whether it cannot be done as asked, or not now.
    pub fn is_usage(&self) -> bool {
        self.kind() == Kind::Usage
    }

    /// Whether something that this needs did not work, perhaps half-way.
    pub fn is_io(&self) -> bool {
        self.kind() == Kind::Io
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// What a program is told: the exit code, its name, and the words for people.
    pub fn as_json(&self) -> Value {
        json!({ "code": self.code, "kind": self.row().2, "message": self.message })
    }

    /// The kind. A code that is none's, from a daemon of another version, is a defect's.
    pub fn kind(&self) -> Kind {
        self.row().0
    }

    fn row(&self) -> (Kind, u8, &'static str) {
        KINDS.into_iter().chain([INTERRUPTED]).find(|(_, code, _)| *code == self.code).unwrap_or(KINDS[0])
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

    /// Whether somebody else has the store open.
    pub fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// The same, with the name of the thing that it is about.
    pub fn on(mut self, thing: impl fmt::Display) -> Self {
        self.message = format!("{thing}: {}", self.message);
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

/// The exit code of a kind.
fn exit_code(kind: Kind) -> u8 {
    KINDS.into_iter().find(|(known, ..)| *known == kind).map_or(KINDS[0].1, |(_, code, _)| code)
}

/// What to write on the command line to do what a message says.
fn words(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::ThinVolume => "--provision thin",
        Remedy::Force => "--force",
        Remedy::Survey => "leave out --to",
        Remedy::Certificates => "--tls-cert, --tls-key and --tls-ca",
    }
}

impl<E: HasKind> From<E> for Failure {
    fn from(error: E) -> Self {
        let failure = match error.remedy() {
            Some(remedy) => Self::new(error.kind(), format_args!("{error} ({})", words(remedy))),
            None => Self::new(error.kind(), &error),
        };
        Self { in_use: error.is_in_use(), ..failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error of a library.
    #[derive(Clone)]
    struct Said(Kind, Option<Remedy>);

    impl fmt::Display for Said {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("it is old")
        }
    }

    impl HasKind for Said {
        fn kind(&self) -> Kind {
            self.0
        }

        fn remedy(&self) -> Option<Remedy> {
            self.1
        }

        fn is_in_use(&self) -> bool {
            self.0 == Kind::Usage
        }
    }

    #[test]
    fn each_kind_has_an_exit_code_of_its_own() {
        // No arm for the rest: a new kind is noticed here.
        let place = |kind| match kind {
            Kind::Defect => 1,
            Kind::Usage => 2,
            Kind::Io => 3,
            Kind::Corrupt => 4,
            Kind::Stale => 5,
            Kind::Forked => 6,
            Kind::Fenced => 7,
            Kind::Anchor => 8,
            Kind::NoSpace => 9,
            Kind::Locked => 10,
            Kind::Policy => 11,
        };
        for (number, (kind, code, _)) in (1..).zip(KINDS) {
            let failure = Failure::from(Said(kind, None));
            assert_eq!((code, place(kind), failure.code(), failure.kind()), (number, number, number, kind));
            assert_eq!(failure.is_in_use(), kind == Kind::Usage);
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
        let kinds = KINDS.into_iter().chain([INTERRUPTED]).map(|(_, code, name)| (code, name.to_string()));
        let kinds: Vec<_> = std::iter::once((0, "done".to_string())).chain(kinds).collect();
        assert_eq!(rows, kinds);
        let stale = Failure::from(Said(Kind::Stale, None));
        assert_eq!(stale.as_json(), json!({ "code": 5, "kind": "stale", "message": "it is old" }));
    }

    /// The libraries know no command line.
    #[test]
    fn advice_names_the_flag_that_follows_it() {
        let refused = Failure::from(Said(Kind::Usage, Some(Remedy::Force)));
        assert_eq!(refused.to_string(), "it is old (--force)");
        let exposed = Failure::from(Said(Kind::Usage, Some(Remedy::Certificates)));
        assert_eq!(exposed.to_string(), "it is old (--tls-cert, --tls-key and --tls-ca)");
    }

    /// It goes over the control socket.
    #[test]
    fn a_failure_survives_its_way_and_a_foreign_code_is_a_defect() {
        let failure = Failure::from(Said(Kind::Fenced, None));
        let text = serde_json::to_string(&failure).unwrap();
        assert_eq!(serde_json::from_str::<Failure>(&text).unwrap(), failure);
        let foreign: Failure = serde_json::from_value(json!({ "code": 77, "message": "" })).unwrap();
        assert_eq!((foreign.kind(), foreign.code()), (Kind::Defect, 77));
    }
}
