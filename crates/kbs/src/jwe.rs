//! A resource as JSON Web Encryption, in the flattened form (RFC 7516, section 7.2.2).

use base64ct::{Base64UrlUnpadded, Encoding};
use seal::jwe::{ALGORITHM, ENCRYPTION, KeyPair, NoPoint, Point, Sealed, Sender};
use seal::{Random, SecretBytes};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Error;
use crate::message::coordinate;

#[derive(Serialize, Deserialize)]
struct Message {
    protected: String,
    encrypted_key: String,
    iv: String,
    ciphertext: String,
    tag: String,
    /// What a sender binds beside the header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    aad: Option<String>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    enc: String,
    epk: Ephemeral,
    /// Names of both sides, which would change the key; nobody uses them here.
    apu: Option<String>,
    apv: Option<String>,
    /// Names of fields that must be understood; none is.
    crit: Option<serde_json::Value>,
    /// Compression before encryption, which nobody uses here.
    zip: Option<String>,
}

#[derive(Deserialize)]
struct Ephemeral {
    kty: String,
    crv: String,
    x: String,
    y: String,
}

/// Encrypts a secret for the holder of `recipient`: one line of JSON.
///
/// # Errors
/// [`NoPoint`] if that is no point of P-256.
///
/// # Panics
/// Never: its fields are text.
pub fn seal_for(recipient: &Point, secret: &[u8], random: &dyn Random) -> Result<String, NoPoint> {
    let sender = Sender::new(recipient)?;
    let [x, y] = sender.point().map(|part| Base64UrlUnpadded::encode_string(&part));
    let header = json!({ "alg": ALGORITHM, "enc": ENCRYPTION, "epk": { "crv": "P-256", "kty": "EC", "x": x, "y": y } });
    let protected = Base64UrlUnpadded::encode_string(header.to_string().as_bytes());
    let sealed = sender.seal(protected.as_bytes(), secret, random);
    let message = Message {
        encrypted_key: Base64UrlUnpadded::encode_string(&sealed.wrapped_key),
        iv: Base64UrlUnpadded::encode_string(&sealed.iv),
        ciphertext: Base64UrlUnpadded::encode_string(&sealed.ciphertext),
        tag: Base64UrlUnpadded::encode_string(&sealed.tag),
        protected,
        aad: None,
    };
    Ok(serde_json::to_string(&message).expect("text can be written"))
}

/// Opens what a broker encrypted for `pair`.
///
/// # Errors
/// [`Error::Malformed`] if it is none, [`Error::NotForUs`] if it does not open.
pub fn open(pair: &KeyPair, bytes: &[u8]) -> Result<SecretBytes, Error> {
    let wrong = |why: String| Error::Malformed("request for the resource", why);
    let message: Message = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    let Message { protected, encrypted_key, iv, ciphertext, tag, aad } = &message;
    let decode = |name: &str, text: &str| {
        Base64UrlUnpadded::decode_vec(text).map_err(|_| wrong(format!("the field `{name}` is not base64url")))
    };
    let header: Header =
        serde_json::from_slice(&decode("protected", protected)?).map_err(|error| wrong(error.to_string()))?;
    if (header.alg.as_str(), header.enc.as_str()) != (ALGORITHM, ENCRYPTION) {
        let found = format!("{:?} with {:?}", header.alg, header.enc);
        return Err(wrong(format!("it is encrypted by {found}, expected {ALGORITHM} with {ENCRYPTION}")));
    }
    if (header.epk.kty.as_str(), header.epk.crv.as_str()) != ("EC", "P-256") {
        return Err(wrong("its ephemeral key is not on P-256".into()));
    }
    if header.apu.is_some() || header.apv.is_some() || header.crit.is_some() || header.zip.is_some() {
        return Err(wrong(
            "its header has a field `apu`, `apv`, `crit` or `zip`, which is not used here".into(),
        ));
    }
    let sender = [coordinate(&header.epk.x).map_err(wrong)?, coordinate(&header.epk.y).map_err(wrong)?];
    let size = |name: &str| wrong(format!("the field `{name}` has another size"));
    let sealed = Sealed {
        wrapped_key: decode("encrypted_key", encrypted_key)?.try_into().map_err(|_| size("encrypted_key"))?,
        iv: decode("iv", iv)?.try_into().map_err(|_| size("iv"))?,
        ciphertext: decode("ciphertext", ciphertext)?,
        tag: decode("tag", tag)?.try_into().map_err(|_| size("tag"))?,
    };
    // RFC 7516, section 5.1, step 14.
    let bound = aad
        .as_ref()
        .filter(|aad| !aad.is_empty())
        .map_or_else(|| protected.clone(), |aad| format!("{protected}.{aad}"));
    pair.open(&sender, bound.as_bytes(), &sealed).map_err(|_| Error::NotForUs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use seal::SystemRandom;
    use serde_json::Value;

    #[test]
    fn a_secret_comes_back_and_only_as_it_was_sent() {
        let pair = KeyPair::generate();
        let text = seal_for(&pair.public(), b"the volume's key", &SystemRandom).unwrap();
        assert_eq!(open(&pair, text.as_bytes()).unwrap().expose(), b"the volume's key");
        assert!(matches!(open(&KeyPair::generate(), text.as_bytes()), Err(Error::NotForUs)));
        let with = |field: &str, value: &str| {
            let mut message: Value = serde_json::from_str(&text).unwrap();
            message[field] = value.into();
            open(&pair, message.to_string().as_bytes()).unwrap_err()
        };
        assert!(matches!(with("aad", "AAAA"), Error::NotForUs));
        assert!(with("iv", "AAAA").to_string().contains("`iv` has another size"));
        assert!(with("tag", "*").to_string().contains("`tag` is not base64url"));
        let header =
            |text: &str| with("protected", &Base64UrlUnpadded::encode_string(text.as_bytes())).to_string();
        assert!(
            header(r#"{"alg":"RSA-OAEP","enc":"A256GCM","epk":{"kty":"EC","crv":"P-256","x":"","y":""}}"#)
                .contains("RSA-OAEP")
        );
        assert!(header(r#"{"alg":"ECDH-ES+A256KW","enc":"A256GCM"}"#).contains("epk"));
        let point = Base64UrlUnpadded::encode_string(&[0; 32]);
        let epk = format!(r#""epk":{{"kty":"EC","crv":"P-256","x":"{point}","y":"{point}"}}"#);
        let zipped = format!(r#"{{"alg":"ECDH-ES+A256KW","enc":"A256GCM",{epk},"zip":"DEF"}}"#);
        assert!(header(&zipped).contains("`zip`"), "{}", header(&zipped));
        assert!(matches!(
            with(
                "protected",
                &Base64UrlUnpadded::encode_string(zipped.replace(r#","zip":"DEF""#, "").as_bytes())
            ),
            Error::NotForUs
        ));
        assert!(open(&pair, b"{}").unwrap_err().to_string().contains("protected"));
    }
}
