//! Signs of tampering: the kinds of failures that no honest host causes.

/// What a host, or somebody else with the volume, has done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// Something on the store is not what was written there.
    Corrupt,
    /// The store is older than what the anchor vouches for.
    Stale,
    /// The store has a history of its own.
    Forked,
    /// Another session has claimed the volume.
    Fenced,
}

impl Sign {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Corrupt, Self::Stale, Self::Forked, Self::Fenced];

    /// What a failure of this kind is a sign of, if of anything.
    pub fn of(kind: volume::Kind) -> Option<Self> {
        Self::ALL.into_iter().find(|tamper| tamper.kind() == kind)
    }

    /// The kind of the volume's failures that it is.
    pub fn kind(self) -> volume::Kind {
        match self {
            Self::Corrupt => volume::Kind::Corrupt,
            Self::Stale => volume::Kind::Stale,
            Self::Forked => volume::Kind::Forked,
            Self::Fenced => volume::Kind::Fenced,
        }
    }

    /// As in fields and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Corrupt => "corrupt",
            Self::Stale => "stale",
            Self::Forked => "forked",
            Self::Fenced => "fenced",
        }
    }

    /// The journal's message id, for ever the same.
    pub fn message_id(self) -> &'static str {
        match self {
            Self::Corrupt => "725ec10aba1a4a02ba39b808c358131c",
            Self::Stale => "6d68ac3b75fc44b1992387937ea2538c",
            Self::Forked => "7e7237c6f7b042d3bd752b4ca57a0e5f",
            Self::Fenced => "c02053a36b3746469b92a6bf44251ffe",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failure of one of these kinds, and of no other, is a sign.
    #[test]
    fn a_failure_is_a_sign_by_its_kind() {
        use volume::Kind;
        for sign in Sign::ALL {
            let failure = cli::failure::Failure::from(volume::Error::new(sign.kind(), ""));
            assert_eq!(Sign::of(failure.kind()), Some(sign));
        }
        for kind in
            [Kind::Usage, Kind::Io, Kind::Anchor, Kind::NoSpace, Kind::Locked, Kind::Policy, Kind::Defect]
        {
            assert_eq!(Sign::of(kind), None, "{kind:?}");
        }
    }

    #[test]
    fn each_kind_of_tampering_has_an_id_of_its_own() {
        let ids: std::collections::BTreeSet<&str> = Sign::ALL.map(Sign::message_id).into();
        assert_eq!(ids.len(), Sign::ALL.len());
        assert!(ids.iter().all(|id| id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit())));
    }
}
