use super::*;
use anchor::{MOVED_TO_SIZE, State};
use proptest::prelude::*;

pub(crate) fn sample(generation: u64) -> Stamp {
    Stamp {
        volume: [0x11; 16],
        generation,
        head: [0x22; 32],
        session: [0x33; 16],
        claims: 5,
        header_digest: [0x44; 32],
        state: State::Claimed,
        moved_to: [0; MOVED_TO_SIZE],
        mac: [0x55; 32],
    }
}

fn any_stamp() -> impl Strategy<Value = Option<Box<Stamp>>> {
    prop::option::of(any::<u64>().prop_map(|generation| Box::new(sample(generation))))
}

fn any_request() -> impl Strategy<Value = Request> {
    let question = prop_oneof![
        any::<bool>().prop_map(|settle| Question::Read { settle }),
        (any_stamp(), any::<u64>())
            .prop_map(|(expected, new)| Question::Move { expected, new: Box::new(sample(new)) }),
    ];
    ("[a-z0-9][a-z0-9._-]{0,63}", any::<[u8; NONCE_SIZE]>(), question)
        .prop_map(|(name, nonce, question)| Request { nonce, name: name.parse().unwrap(), question })
}

fn any_answer() -> impl Strategy<Value = Answer> {
    let outcome = prop_oneof![
        any_stamp().prop_map(Outcome::Held),
        Just(Outcome::Moved),
        any_stamp().prop_map(Outcome::Conflict),
        (prop::sample::select(&Refusal::ALL[..]), "\\PC{0,80}")
            .prop_map(|(refusal, text)| Outcome::Refused(refusal, Text::new(&text))),
        "\\PC{0,80}".prop_map(|text| Outcome::Unavailable(Text::new(&text))),
    ];
    let position = any::<([u8; 16], u64, [u8; 32])>();
    (any::<[u8; NONCE_SIZE]>(), position, outcome).prop_map(|(nonce, (database, number, head), outcome)| {
        Answer { nonce, position: Position { database, number, head }, outcome }
    })
}

/// The bytes of `docs/owner.md`, laid out by hand.
#[test]
fn golden_vectors() {
    let request = Request {
        nonce: [0xa1; 32],
        name: "ledger".parse().unwrap(),
        question: Question::Move { expected: None, new: Box::new(sample(7)) },
    };
    let mut bytes = [b"cvmioOQ1".as_slice(), &[2, 0, 0, 0, 0, 0, 0, 0], &[0xa1; 32], b"ledger"].concat();
    bytes.resize(304, 0);
    bytes.extend(sample(7).encode());
    bytes.resize(512, 0);
    assert_eq!(request.encode().as_slice(), bytes);

    let answer = Answer {
        nonce: [0xa1; 32],
        position: Position { database: [0xd1; 16], number: 0x0102_0304_0506_0708, head: [0xe1; 32] },
        outcome: Outcome::Refused(Refusal::Superseded, Text::new("newer")),
    };
    let number = [0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01];
    let fields: [&[u8]; 6] =
        [b"cvmioOA1", &[4, 0, 3, 0, 0, 0, 0, 0], &[0xa1; 32], &[0xd1; 16], &number, &[0xe1; 32]];
    let mut bytes = fields.concat();
    bytes.resize(296, 0);
    bytes.extend(b"newer");
    bytes.resize(512, 0);
    assert_eq!(answer.encode().as_slice(), bytes);
}

#[test]
fn what_is_no_message_is_refused_by_name() {
    let request =
        Request { nonce: [1; 32], name: "a".parse().unwrap(), question: Question::Read { settle: true } };
    let good = request.encode();
    let with = |offset: usize, byte: u8| {
        let mut bytes = good;
        bytes[offset] = byte;
        Request::decode(&bytes)
    };
    assert_eq!(with(0, 0), Err(WireError::Magic));
    assert_eq!(with(8, 9), Err(WireError::Unknown("question", 9)));
    assert_eq!(with(9, 1), Err(WireError::Unknown("flags", 1)));
    assert_eq!(with(10, 1), Err(WireError::NotZero("reserved")));
    assert_eq!(with(48, b'A'), Err(WireError::Name(NameError::Character)));
    assert_eq!(with(48, 0), Err(WireError::Name(NameError::Empty)));
    assert_eq!(with(304, 1), Err(WireError::NotZero("stamps")));
    assert_eq!(with(8, 2), Err(WireError::Unknown("flags", 2)));

    let moved = Answer { nonce: [1; 32], position: Position::default(), outcome: Outcome::Moved }.encode();
    let with = |offset: usize, byte: u8| {
        let mut bytes = moved;
        bytes[offset] = byte;
        Answer::decode(&bytes)
    };
    assert_eq!(with(8, 6), Err(WireError::Unknown("outcome", 6)));
    assert_eq!(with(8, 4), Err(WireError::Unknown("reason", 0)));
    assert_eq!(with(9, 1), Err(WireError::Stamp("held", StampError::Magic)));
    assert_eq!(with(10, 1), Err(WireError::NotZero("reason")));
    assert_eq!(with(296, b'a'), Err(WireError::NotZero("text")));
    assert_eq!(with(511, 1), Err(WireError::NotZero("reserved")));
}

#[test]
fn a_text_is_cut_between_characters_and_has_no_control_characters() {
    let text = Text::new(&"\u{e4}\n".repeat(200));
    assert!(text.0.len() <= TEXT_SIZE && !text.0.contains('\n'));
    assert_eq!(Text::decode(b"a\x1b[2J"), Err(WireError::Text));
}

proptest! {
    #[test]
    fn requests_round_trip(request in any_request()) {
        prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
    }

    #[test]
    fn answers_round_trip(answer in any_answer()) {
        prop_assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
    }

    /// Bytes near a real message reach every check; whatever is accepted is canonical.
    #[test]
    fn decoding_never_panics_and_accepts_only_canonical_bytes(
        request in any_request(),
        answer in any_answer(),
        changes in prop::collection::vec((0..MESSAGE_SIZE, any::<u8>()), 0..4),
    ) {
        let (mut asked, mut told) = (request.encode(), answer.encode());
        for (offset, byte) in changes {
            asked[offset] = byte;
            told[offset] = byte;
        }
        if let Ok(decoded) = Request::decode(&asked) {
            prop_assert_eq!(decoded.encode(), asked);
        }
        if let Ok(decoded) = Answer::decode(&told) {
            prop_assert_eq!(decoded.encode(), told);
        }
    }
}
