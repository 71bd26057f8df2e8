//! A seed with the version of the simulator that it is for: `v10:1234`.

use crate::plan::VERSION;

/// A seed, as it is reported.
#[must_use]
pub fn tag(seed: u64) -> String {
    format!("v{VERSION}:{seed}")
}

/// Reads a seed: with its version, or a bare number for this one's.
///
/// # Errors
/// Says that the seed is of another version, or that it is none.
pub fn untag(text: &str) -> Result<u64, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("`{text}` is no seed: {error}"));
    let Some((version, seed)) = text.strip_prefix('v').and_then(|rest| rest.split_once(':')) else {
        return number(text);
    };
    if version.parse() == Ok(VERSION) {
        return number(seed);
    }
    Err(format!(
        "this seed is of version {version} of the simulator, and this is version {VERSION}, in which it is another run; \
         replay it with the version of this repository that reported it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_of_another_version_is_refused() {
        assert_eq!(untag(&tag(1234)), Ok(1234));
        assert_eq!(untag("1234"), Ok(1234));
        let error = untag("v1:1234").unwrap_err();
        assert!(error.contains("version 1 of the simulator"), "{error}");
        for wrong in ["", "v4", "v4:", "v:4", "x", "v4:x", "-1"] {
            assert!(untag(wrong).is_err(), "{wrong}");
        }
    }
}
