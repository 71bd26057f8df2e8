//! `tpm:` as the program registers it: its address and its options.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anchor::{Access, Anchor, Created, Limits, Needs, Opening, OptionKey, Options, Scheme, Threaded};
use seal::{Secret, SecretBytes, SystemRandom};

use crate::anchor::{ENDURANCE, Settings, TpmAnchor};
use crate::error::Error;
use crate::tpm::KeyDigest;
use crate::transport::Place;

const FORM: &str = "tpm:DEVICE,INDEX (tpm:/dev/tpmrm0,0x01800100)";
/// Handles of NV indices (TPM 2.0 Library, Part 2, section 7.2 "TPM_HT").
const INDICES: std::ops::RangeInclusive<u32> = 0x0100_0000..=0x01ff_ffff;
/// Fewest and most bytes of a secret. Wrong ones are not counted by the TPM, so it must not be one that can be guessed.
const SECRET: std::ops::RangeInclusive<usize> = 16..=32;

const OPTIONS: &[OptionKey] = &[
    OptionKey {
        name: "endorsement-key",
        secret: false,
        about: "which TPM: SHA-256 of its P-256 endorsement key's public area, in hex",
    },
    OptionKey {
        name: "companion",
        secret: false,
        about: "path of the companion file; it need not be trusted",
    },
    OptionKey {
        name: "secret",
        secret: true,
        about: "the index's authorisation value, 16 to 32 bytes in hex",
    },
    OptionKey {
        name: "secret-file",
        secret: false,
        about: "path of a file with it; made by `init` if it is not there",
    },
    OptionKey {
        name: "owner-secret",
        secret: true,
        about: "the TPM owner's authorisation value; only to define the index",
    },
];

/// Anchors in a TPM 2.0.
#[must_use]
pub fn scheme() -> Scheme {
    Scheme {
        name: "tpm",
        form: FORM,
        options: OPTIONS,
        check: |rest, options| Ok(check(rest, options)?),
        needs,
        open,
        create,
    }
}

fn usage(text: impl Into<String>) -> Error {
    Error::Usage(text.into())
}

/// Place and index of an address, without its scheme.
pub(crate) fn parse(rest: &str) -> Result<(Place, u32), Error> {
    let wrong = |why: &str| usage(format!("anchor address \"tpm:{rest}\" {why}: write {FORM}"));
    let (place, index) = rest.rsplit_once(',').ok_or_else(|| wrong("names no index"))?;
    let index = index
        .strip_prefix("0x")
        .filter(|digits| digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
        .ok_or_else(|| wrong("has an index that is no hexadecimal number"))?;
    if !INDICES.contains(&index) {
        return Err(wrong("has a handle of no NV index (0x01000000 to 0x01ffffff)"));
    }
    match place.strip_prefix("tcp:") {
        Some(host)
            if host
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) =>
        {
            Ok((Place::Tcp(host.into()), index))
        }
        Some(_) => Err(wrong("has no host and port after tcp:")),
        None if place.contains('\0') => Err(wrong("has a NUL byte in its path")),
        None if Path::new(place).is_absolute() => Ok((Place::Path(place.into()), index)),
        None => Err(wrong("has a relative path")),
    }
}

fn needs(rest: &str) -> Needs {
    match parse(rest) {
        Ok((Place::Path(path), _)) if path.starts_with("/dev") => {
            Needs { devices: vec![path], ..Needs::default() }
        }
        Ok((Place::Path(path), _)) => Needs { paths: vec![path], ..Needs::default() },
        Ok((Place::Tcp(_), _)) => Needs { network: true, ..Needs::default() },
        Err(_) => Needs::default(),
    }
}

/// All that can be checked without looking at anything.
fn check(rest: &str, options: &Options) -> Result<(), Error> {
    parse(rest)?;
    companion(options)?;
    endorsement_key(options)?;
    match (options.get("secret"), options.get("secret-file")) {
        (Some(text), None) => secret(text).map(drop),
        (None, Some(path)) if Path::new(path).is_absolute() => Ok(()),
        (None, Some(path)) => {
            Err(usage(format!("the option secret-file has a relative path, {path:?}: write the whole path")))
        }
        (Some(_), Some(_)) => {
            Err(usage("a tpm: anchor has either the option secret or secret-file, not both"))
        }
        (None, None) => Err(usage(
            "a tpm: anchor needs a secret: without one, the TPM's owner could define the index anew and replay its history. Give secret-file=/PATH (which `init` makes), or secret=HEX",
        )),
    }
}

fn companion(options: &Options) -> Result<PathBuf, Error> {
    match options.get("companion").map(PathBuf::from) {
        Some(path) if path.is_absolute() => Ok(path),
        Some(path) => {
            Err(usage(format!("the option companion has a relative path, {path:?}: write the whole path")))
        }
        None => Err(usage(
            "a tpm: anchor needs a companion file, for what the TPM has no room for: give companion=/PATH. It need not be trusted; it may lie beside the volume",
        )),
    }
}

fn endorsement_key(options: &Options) -> Result<Option<KeyDigest>, Error> {
    let Some(text) = options.get("endorsement-key") else { return Ok(None) };
    let mut digest = [0; 32];
    hex::decode_to_slice(text, &mut digest)
        .map_err(|_| usage("the option endorsement-key is no SHA-256 digest: write 64 hexadecimal digits"))?;
    Ok(Some(digest))
}

/// A secret from its text. Zeros at its end are no part of an authorisation value (TPM 2.0 Library, Part 1, section 17.6.4.3).
fn secret(text: &str) -> Result<SecretBytes, Error> {
    let wrong =
        || usage("the secret is no hexadecimal text of 16 to 32 bytes that does not end with a zero byte");
    let secret = SecretBytes::from_vec(hex::decode(text.trim()).map_err(|_| wrong())?);
    if SECRET.contains(&secret.len()) && secret.expose().last() != Some(&0) {
        Ok(secret)
    } else {
        Err(wrong())
    }
}

fn secret_of(options: &Options) -> Result<SecretBytes, Error> {
    if let Some(text) = options.get("secret") {
        return secret(text);
    }
    let path = options
        .get("secret-file")
        .ok_or_else(|| usage("a tpm: anchor needs the option secret or secret-file"))?;
    let failed = |doing| move |source| Error::SecretFile { path: path.into(), doing, source };
    let mut file = File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => usage(format!(
            "there is no file {path} with the secret. An anchor that was never made is made first, with its secret (anchor init); otherwise put the file back"
        )),
        _ => failed("opening it")(error),
    })?;
    let text = SecretBytes::read_from(&mut file, 1024).map_err(failed("reading it"))?;
    let text = std::str::from_utf8(text.expose()).map_err(|_| usage(format!("{path} is no text")))?;
    secret(text).map_err(|error| usage(format!("{path}: {error}")))
}

/// Makes the file with the secret, if it is to be made.
fn make_secret(options: &Options) -> Result<(), Error> {
    let Some(path) = options.get("secret-file") else { return Ok(()) };
    let failed = |doing| move |source| Error::SecretFile { path: path.into(), doing, source };
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        other => other.map_err(failed("making it"))?,
    };
    loop {
        let secret = Secret::<32>::generate(&SystemRandom);
        if secret.expose()[31] != 0 {
            let text = SecretBytes::from_vec(hex::encode(secret.expose()).into_bytes());
            file.write_all(text.expose()).map_err(failed("writing it"))?;
            file.write_all(b"\n").map_err(failed("writing it"))?;
            return file.sync_all().map_err(failed("syncing it"));
        }
    }
}

fn settings(opening: &Opening<'_>) -> Result<Settings, Error> {
    let (place, index) = parse(opening.address.rest())?;
    Ok(Settings {
        place,
        index,
        endorsement_key: endorsement_key(opening.options)?,
        secret: secret_of(opening.options)?,
        companion: companion(opening.options)?,
        read_only: opening.access == Access::ReadOnly,
        address: opening.address.to_string(),
    })
}

fn spawn(anchor: TpmAnchor, opening: &Opening<'_>) -> Result<Arc<dyn Anchor>, anchor::Error> {
    let limits = Limits { timeout: opening.timeout, ..Limits::default() };
    Ok(Threaded::spawn(anchor, limits)?)
}

fn open(opening: &Opening<'_>) -> Result<Arc<dyn Anchor>, anchor::Error> {
    spawn(TpmAnchor::new(settings(opening)?), opening)
}

fn create(opening: &Opening<'_>) -> Result<Created, anchor::Error> {
    // Before anything is made: which TPM is it?
    if endorsement_key(opening.options)?.is_none() {
        let (place, _) = parse(opening.address.rest())?;
        let found = crate::tpm::Tpm::new(place, None).endorsement_key()?;
        return Err(Error::OtherTpm { found: hex::encode(found), expected: None }.into());
    }
    make_secret(opening.options)?;
    let owner = SecretBytes::from_slice(opening.options.get("owner-secret").unwrap_or_default().as_bytes());
    let mut anchor = TpmAnchor::new(settings(opening)?);
    let is_new = anchor.create(owner.expose())?;
    let again = settings(opening)?;
    let undo = move || {
        // The creation has failed already; what can't be taken away is found by the next.
        let _ = TpmAnchor::new(again).destroy(owner.expose());
    };
    Ok(Created {
        anchor: spawn(anchor, opening)?,
        undo: is_new.then(|| Box::new(undo) as Box<dyn FnOnce() + Send>),
        notes: notes(),
    })
}

fn notes() -> Vec<String> {
    vec![
        "A TPM that the host emulates is no root of freshness: with its state directory put back, it has the old value. Use a chip, or a vTPM in an SVSM that keeps its state.".into(),
        format!("A chip is good for some {ENDURANCE} writes of an index, one for each move of the anchor: use level transaction, or interval with 60 s or more."),
        "The secret together with the TPM's owner hierarchy suffices to roll the anchor back: keep the policy or the secret's file where the host cannot read it.".into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> Options {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn addresses_name_a_place_and_an_index() {
        assert_eq!(
            parse("/dev/tpmrm0,0x01800100").unwrap(),
            (Place::Path("/dev/tpmrm0".into()), 0x0180_0100)
        );
        assert_eq!(parse("/run/a,b,0x1ffffff").unwrap(), (Place::Path("/run/a,b".into()), 0x01ff_ffff));
        assert_eq!(
            parse("tcp:[::1]:2321,0x01000000").unwrap(),
            (Place::Tcp("[::1]:2321".into()), 0x0100_0000)
        );
        for (rest, why) in [
            ("", "names no index"),
            ("/dev/tpmrm0", "names no index"),
            ("/dev/tpmrm0,1800100", "no hexadecimal"),
            ("/dev/tpmrm0,0x", "no hexadecimal"),
            ("/dev/tpmrm0,0x+1800100", "no hexadecimal"),
            ("/dev/tpmrm0,0x81010001", "no NV index"),
            ("dev/tpmrm0,0x01800100", "relative path"),
            ("tcp:host,0x01800100", "no host and port"),
            ("tcp::1,0x01800100", "no host and port"),
        ] {
            let error = parse(rest).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("write tpm:"), "{rest}: {error}");
        }
    }

    #[test]
    fn options_are_checked_before_anything_is_opened() {
        let key = "ab".repeat(32);
        let good = [("companion", "/c"), ("secret-file", "/s"), ("endorsement-key", &key)];
        assert!(check("/dev/tpmrm0,0x01800100", &options(&good)).is_ok());
        let with = |name: &str, value: &str| {
            let mut all = options(&good);
            all.insert(name.into(), value.into());
            check("/dev/tpmrm0,0x01800100", &all).unwrap_err().to_string()
        };
        assert!(with("companion", "c").contains("relative path"));
        assert!(with("secret-file", "s").contains("relative path"));
        assert!(with("secret", &"11".repeat(32)).contains("not both"));
        assert!(with("endorsement-key", "ab").contains("64 hexadecimal digits"));
        let without = |name: &str| {
            let left: Vec<_> = good.into_iter().filter(|(other, _)| *other != name).collect();
            check("/dev/tpmrm0,0x01800100", &options(&left))
        };
        assert!(without("secret-file").unwrap_err().to_string().contains("needs a secret"));
        assert!(without("companion").unwrap_err().to_string().contains("needs a companion file"));
        assert!(without("endorsement-key").is_ok(), "`init` says which it is");
    }

    #[test]
    fn a_secret_is_long_enough_and_does_not_end_with_a_zero() {
        for bad in ["", "11", &"11".repeat(15), &"11".repeat(33), "no hex", &format!("{}00", "11".repeat(20))]
        {
            assert!(secret(bad).is_err(), "{bad}");
        }
        assert_eq!(secret(&format!(" {}\n", "0f".repeat(16))).unwrap().expose(), [0x0f; 16]);
    }

    #[test]
    fn a_secret_is_made_once_and_kept_private() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let options = options(&[("secret-file", path.to_str().unwrap())]);
        assert!(secret_of(&options).unwrap_err().to_string().contains("there is no file"));
        make_secret(&options).unwrap();
        let made = secret_of(&options).unwrap();
        make_secret(&options).unwrap();
        assert_eq!(secret_of(&options).unwrap(), made);
        assert_eq!((made.len(), std::fs::metadata(&path).unwrap().mode() & 0o777), (32, 0o600));
    }
}
