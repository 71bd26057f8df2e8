//! The token of an attestation: a JSON Web Token (RFC 7519) by form. It is another name of a session here, and nobody else can check it.

use base64ct::{Base64UrlUnpadded, Encoding};
use kbs::PublicKey;
use seal::{MacKey, Random, SystemRandom};
use serde_json::json;

/// A new token for the guest with this key, from now on for so many seconds.
pub fn issue(mac: &MacKey, key: &PublicKey, now: u64, lifetime: u64) -> String {
    let mut number = [0; 16];
    SystemRandom.fill(&mut number);
    let claims = json!({
        "exp": now.saturating_add(lifetime),
        "iat": now,
        "iss": "cvmio-owner",
        "jti": hex::encode(number),
        "tee-pubkey": key,
    });
    let header = json!({ "alg": "HS256", "typ": "JWT" });
    let part = |json: &serde_json::Value| Base64UrlUnpadded::encode_string(json.to_string().as_bytes());
    let signed = format!("{}.{}", part(&header), part(&claims));
    let signature = mac.sign(&[signed.as_bytes()]);
    format!("{signed}.{}", Base64UrlUnpadded::encode_string(&signature))
}
