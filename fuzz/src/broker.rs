//! What guests and key brokers send each other.

use std::sync::LazyLock;

use kbs::{
    Address, Attestation, Bundle, Challenge, Granted, Hash, Problem, Request, Resource, Tee, TlsKey,
    open_with,
};
use seal::jwe::KeyPair;

/// Any bytes as a message of the KBS protocol, or what stands around one: refused, or understood and laid out again to the same meaning.
pub fn kbs(bytes: &[u8]) {
    if let Ok(Some(request)) = http1::read_request(&mut &*bytes, 1 << 16) {
        let _ = (request.cookie(kbs::COOKIE), request.field("authorization"));
        json(&request.body);
    }
    json(bytes);
    if let Ok(bundle) = Bundle::decode(bytes) {
        assert_eq!(bundle.encode().expect("it was one").expose(), bytes);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = TlsKey::from_additional(text);
        if let Ok(resource) = Resource::parse(text) {
            assert_eq!(resource.to_string(), text);
        }
        if let Ok(address) = Address::parse(text) {
            assert_eq!(Address::parse(&address.to_string()).ok(), Some(address));
        }
    }
}

fn json(bytes: &[u8]) {
    static PAIR: LazyLock<KeyPair> = LazyLock::new(KeyPair::generate);
    if bytes.starts_with(b"{\"protected\"") {
        // Nobody can have sealed anything for this pair.
        assert!(open_with(&PAIR, bytes).is_err());
    }
    let _ = serde_json::from_slice::<Request>(bytes);
    let _ = serde_json::from_slice::<Granted>(bytes);
    if let Ok(challenge) = serde_json::from_slice::<Challenge>(bytes) {
        let _ = Hash::chosen(&challenge.extra_params);
    }
    if let Ok(problem) = serde_json::from_slice::<Problem>(bytes) {
        assert!(!problem.name().contains('/'));
    }
    let Ok(attestation) = serde_json::from_slice::<Attestation>(bytes) else { return };
    let Attestation { runtime_data, tee_evidence, .. } = &attestation;
    let _ = runtime_data.tee_pubkey.point();
    let _ = kbs::report_data(runtime_data, &tee_evidence.additional_evidence, Hash::Sha384);
    for tee in [Tee::Snp, Tee::Tdx, Tee::CvmioSimulated] {
        if let Ok(evidence) = kbs::from_wire(tee, &tee_evidence.primary_evidence) {
            let (named, json) = kbs::to_wire(&evidence).expect("it has the right sizes");
            assert_eq!((named, kbs::from_wire(tee, &json)), (tee, Ok(evidence)));
        }
    }
}
