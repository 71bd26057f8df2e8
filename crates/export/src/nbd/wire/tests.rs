use super::*;
use crate::Extent;
use proptest::prelude::*;

#[test]
fn known_bytes_of_the_protocol() {
    assert_eq!(greeting(), b"NBDMAGICIHAVEOPT\0\x03");
    let header = OptionHeader::decode(b"IHAVEOPT\0\0\0\x07\0\0\0\x06").unwrap();
    assert_eq!(header, OptionHeader { code: 7, length: 6 });
    assert_eq!(
        Ask::decode(7, &[0, 0, 0, 1, b'x', 0, 1, 0, 3]),
        Ok(Ask::Info { go: true, name: "x".into(), wanted: vec![3] })
    );
    let mut request = [0; REQUEST_BYTES];
    request[..8].copy_from_slice(&[0x25, 0x60, 0x95, 0x13, 0, 0x11, 0, 6]);
    request[27] = 9;
    let request = Request::decode(&request).unwrap();
    assert_eq!((request.command, request.length), (Command::WriteZeroes, 9));
    assert!(request.flags.has(Flags::FUA) && request.flags.has(Flags::FAST_ZERO));
    assert!(!request.flags.has(Flags::NO_HOLE));
    let reply = simple(0x0102_0304_0506_0708, Err(Errno::NOSPC));
    assert_eq!(reply, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8]);
    let reply = option_reply(3, &OptionReply::Server("ab".into()));
    assert_eq!(reply[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
    assert_eq!(reply[8..], [0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 6, 0, 0, 0, 2, b'a', b'b']);
    let reply = chunk_error(1, Errno::IO);
    assert_eq!(reply[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1]);
    assert_eq!(reply[16..], [0, 0, 0, 6, 0, 0, 0, 5, 0, 0]);
    assert_eq!(offset_data(1, 2, 512)[16..], [0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 0, 2]);
}

#[test]
fn what_is_no_protocol_is_refused() {
    for flags in [0_u32, 2, 4, 7, u32::MAX] {
        assert!(ClientFlags::decode(flags.to_be_bytes()).is_err(), "{flags}");
    }
    assert!(OptionHeader::decode(b"IHAVEOPU\0\0\0\x07\0\0\0\x06").is_err());
    let long = OptionHeader { code: 7, length: MAX_OPTION + 1 };
    assert!(OptionHeader::decode(long.encode().first_chunk().unwrap()).is_err());
    assert!(Request::decode(&[0; REQUEST_BYTES]).is_err());
    for (code, data) in [
        (1, &[0xff][..]),
        (3, &[0]),
        (5, &[0]),
        (8, &[0]),
        (7, &[]),
        (7, &[0, 0, 0, 9, b'x', 0, 0]),
        (7, &[0, 0, 0, 0, 0, 2, 0, 0]),
        (7, &[0, 0, 0, 0, 0, 0, 0]),
        (7, &[0xff, 0xff, 0xff, 0xff, 0, 0]),
        // A count of queries that would take all memory, if it were believed.
        (10, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    ] {
        assert!(Ask::decode(code, data).is_err(), "{code} {data:?}");
    }
}

#[test]
fn flags_fit_their_commands_only() {
    let all = [Flags::NO_HOLE, Flags::DONT_FRAGMENT, Flags::ONE_EXTENT, Flags::FAST_ZERO, Flags(1 << 5)];
    let fitting = |command, structured| {
        assert!(Flags::FUA.fit(command, structured));
        all.map(|flag: Flags| flag.fit(command, structured))
    };
    assert_eq!(fitting(Command::WriteZeroes, true), [true, false, false, true, false]);
    assert_eq!(fitting(Command::Read, true), [false, true, false, false, false]);
    assert_eq!(fitting(Command::Read, false), [false; 5]);
    assert_eq!(fitting(Command::BlockStatus, true), [false, false, true, false, false]);
    assert_eq!(fitting(Command::Write, true), [false; 5]);
}

/// The descriptors of a reply: length, and whether it is a hole.
fn descriptors(reply: &[u8]) -> Vec<(u32, bool)> {
    let descriptors = reply[24..].chunks_exact(8).map(|descriptor| {
        let number = |at: usize| u32::from_be_bytes(descriptor[at..at + 4].try_into().unwrap());
        (number(0), number(4) == 3)
    });
    descriptors.collect()
}

#[test]
fn block_status_is_cut_to_what_was_asked() {
    let extents =
        [(8192, true), (4096, false), (8192, true)].map(|(length, allocated)| Extent { length, allocated });
    let ask =
        |skip, length, one| block_status(1, &extents, skip, length, one).map(|reply| descriptors(&reply));
    assert_eq!(ask(0, 20480, false).unwrap(), [(8192, false), (4096, true), (8192, false)]);
    assert_eq!(ask(100, 9000, false).unwrap(), [(8092, false), (908, true)]);
    assert_eq!(ask(100, 9000, true).unwrap(), [(8092, false)]);
    assert_eq!(ask(8192, 1, false).unwrap(), [(1, true)]);
    assert_eq!(ask(20480, 1, false), None);
    let long = [Extent { length: 1 << 40, allocated: false }];
    let reply = block_status(1, &long, 5, u32::MAX, false).unwrap();
    assert_eq!(descriptors(&reply), [(u32::MAX, true)]);
}

fn text() -> impl Strategy<Value = String> {
    ".{0,20}"
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let queries = prop::collection::vec(text(), 0..4);
    prop_oneof![
        text().prop_map(Ask::ExportName),
        prop::sample::select(vec![
            Ask::Abort,
            Ask::List,
            Ask::StartTls,
            Ask::StructuredReplies,
            Ask::Unknown(77)
        ]),
        (any::<bool>(), text(), prop::collection::vec(any::<u16>(), 0..5))
            .prop_map(|(go, name, wanted)| Ask::Info { go, name, wanted }),
        (any::<bool>(), text(), queries).prop_map(|(set, name, queries)| Ask::MetaContexts {
            set,
            name,
            queries
        }),
    ]
}

proptest! {
    #[test]
    fn questions_are_understood_as_they_were_meant(ask in any_ask()) {
        let data = ask.encode();
        prop_assert_eq!(Ask::decode(ask.code(), &data), Ok(ask.clone()));
        let header = OptionHeader { code: ask.code(), length: u32::try_from(data.len()).unwrap() };
        prop_assert_eq!(OptionHeader::decode(header.encode().first_chunk().unwrap()), Ok(header));
    }

    #[test]
    fn arbitrary_options_do_not_panic(code in 0..12_u32, data in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(ask) = Ask::decode(code, &data) {
            prop_assert_eq!(ask.code(), code);
        }
    }

    #[test]
    fn requests_are_laid_out_again_to_the_byte(mut bytes in any::<[u8; REQUEST_BYTES]>()) {
        bytes[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        prop_assert_eq!(Request::decode(&bytes).unwrap().encode(), bytes);
    }
}
