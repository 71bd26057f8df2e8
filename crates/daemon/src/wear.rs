//! Anchors that wear out: what a user who names nothing gets on one.

use std::time::Duration;

use volume::format::protections::Freshness;

/// Each move wears such an anchor out: a TPM's chip is good for some 500,000.
fn wears(anchor: Option<&str>) -> bool {
    anchor.is_some_and(|address| address.starts_with("tpm:"))
}

/// What level `transaction` means for a user who has named none.
pub const TRANSACTION: &str = "what is written counts from the next `cvmio volume commit` on, or from the end by `detach` or `deactivate`; a crash or a power cut before takes it back";

/// The level of a volume on this anchor, as named, or as is right for the anchor.
pub fn level(named: Option<Freshness>, anchor: Option<&str>) -> Freshness {
    named.unwrap_or(if wears(anchor) { Freshness::Transaction } else { Freshness::Strict })
}

/// How far the anchor may lag behind at level `interval`, as named, or as is right for the anchor.
pub fn interval(named: Option<Duration>, anchor: Option<&str>) -> Duration {
    named.unwrap_or(Duration::from_secs(if wears(anchor) { 60 } else { 1 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_that_wears_out_moves_often_only_when_that_is_named() {
        let (tpm, file) = (Some("tpm:/dev/tpmrm0,0x01800100"), Some("file:/a"));
        assert_eq!(level(None, tpm), Freshness::Transaction);
        assert_eq!(level(Some(Freshness::Strict), tpm), Freshness::Strict);
        assert_eq!((level(None, file), level(None, None)), (Freshness::Strict, Freshness::Strict));
        assert_eq!(interval(None, tpm), Duration::from_secs(60));
        assert_eq!(interval(Some(Duration::from_secs(2)), tpm), Duration::from_secs(2));
        assert_eq!(interval(None, file), Duration::from_secs(1));
    }
}
