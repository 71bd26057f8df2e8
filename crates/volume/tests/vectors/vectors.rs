//! The vectors that `generate.py` and `stream.py` made from the specification alone: what the code lays out is what they hold,
//! and it reads from them what was meant.

use std::ops::Range;
use std::path::Path;

use anchor::{Stamp, State};
use seal::SecretBytes;
use seal::slot::{Credential, SlotLimits};
use volume::StreamReader;
use volume::format::ad::{Tree, data_ad, node_ad, salt_node_ad, superblock_ad};
use volume::format::backup::HeaderBackup;
use volume::format::entry::{Entry, entry_at, put_entry};
use volume::format::header::{self, Header};
use volume::format::item::{self, Item, Units};
use volume::format::protections::{Freshness, Provision, SuiteCode};
use volume::format::record::{self, RecordHeader};
use volume::format::rekeying::Rekeying;
use volume::format::stream::{Chunk, StreamHeader};
use volume::format::superblock::{self, Leg, Superblock};
use volume::format::{BLOCK_SIZE, salts};
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;

#[expect(clippy::disallowed_methods, reason = "the vectors are files")]
fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A length, and then the lines that are not all zero, each behind its offset.
fn vector(name: &str) -> Vec<u8> {
    let text = read(&format!("{name}.hex"));
    let mut lines = text.lines();
    let length = lines.next().and_then(|line| line.strip_prefix("length ")).expect("a length");
    let mut bytes = vec![0; length.parse().expect("a number")];
    for line in lines {
        let (offset, data) = line.split_once(' ').expect("offset and bytes");
        let (offset, data) = (usize::from_str_radix(offset, 16), hex::decode(data).expect("hex"));
        bytes[offset.expect("hex")..][..data.len()].copy_from_slice(&data);
    }
    bytes
}

fn ramp<const N: usize>(start: u8) -> [u8; N] {
    let mut bytes = [start; N];
    for at in 1..N {
        bytes[at] = bytes[at - 1].wrapping_add(1);
    }
    bytes
}

const VOLUME: u8 = 0x00;
const SESSION: u8 = 0x20;

fn full_entry() -> Entry {
    Entry { physical: 0x09_0807_0605, epoch: 0x0c_0b0a, nonce: 0x1211_100f_0e0d, flags: 0, tag: ramp(0xa0) }
}

fn roots() -> [Entry; 3] {
    let root = |physical, epoch, nonce, flags, tag| Entry { physical, epoch, nonce, flags, tag: ramp(tag) };
    [root(5000, 3, 77, 0, 0x10), root(5001, 0, 0, 0, 0x30), root(264, 3, 78, 1234, 0x50)]
}

#[test]
fn entries() {
    let largest = Entry {
        physical: (1 << 40) - 1,
        epoch: (1 << 24) - 1,
        nonce: (1 << 48) - 1,
        flags: u16::MAX,
        tag: [0xff; 16],
    };
    let (bytes, all) = (vector("entries"), [Entry::ABSENT, full_entry(), largest]);
    let mut page = vec![0; bytes.len()];
    for (index, entry) in all.iter().enumerate() {
        assert_eq!(entry_at(&bytes, index).as_ref(), Ok(entry));
        put_entry(&mut page, index, entry);
    }
    assert_eq!(page, bytes);
}

#[test]
fn associated_data() {
    let volume = ramp(VOLUME);
    let all = [
        data_ad(&volume, 0x12_3456_789a),
        node_ad(&volume, Tree::Map, 2, 17),
        node_ad(&volume, Tree::Bitmap, 1, 18),
        salt_node_ad(&volume, 3, 0),
        superblock_ad(&volume, 2),
    ];
    assert_eq!(all.concat(), vector("associated-data"));
}

#[test]
fn headers() {
    let mut header = Header {
        rekeying: None,
        generation: 7,
        volume: ramp(VOLUME),
        suite: SuiteCode::Aes256Gcm,
        confidentiality: true,
        integrity: true,
        freshness: Freshness::Strict,
        provision: Provision::Full,
        geometry: Geometry::for_logical(1 << 18, Shape::STANDARD).expect("1 GiB"),
    };
    let bytes = vector("header");
    assert_eq!(Header::decode(&bytes).as_ref(), Ok(&header));
    assert_eq!(header::mac(&bytes), Ok(&ramp(0xe0)));
    let mut page = header.encode_unsigned();
    assert_eq!(header::signed_part(&page), header::signed_part(&bytes));
    header::put_mac(&mut page, &ramp(0xe0));
    assert_eq!(page[..], bytes);

    let bytes = vector("header-rekeying");
    let (superblock, salt, sealed, tag) = (ramp(0x10), ramp(0x60), ramp(0x70), ramp(0xc0));
    header.rekeying = Some(Rekeying { boundary: 0x12_3456, superblock, salt, sealed, tag });
    assert_eq!(Header::decode(&bytes).as_ref(), Ok(&header));
    assert_eq!(header::signed_part(&header.encode_unsigned()), header::signed_part(&bytes));
}

#[test]
fn grown_headers() {
    let created = Geometry::for_logical(1 << 18, Shape::STANDARD).expect("1 GiB");
    let grown = created.grown(1 << 18, 2 * created.physical_blocks).expect("it grows");
    let grown = grown.grown(1 << 20, 5 * created.physical_blocks).expect("it grows");
    let bytes = vector("header-grown");
    let header = Header::decode(&bytes).expect("a header");
    assert_eq!((header.geometry, header.provision), (grown, Provision::Thin));
    let mut page = header.encode_unsigned();
    header::put_mac(&mut page, &ramp(0xe0));
    assert_eq!(page[..], bytes);
}

#[test]
fn header_backups() {
    let bytes = vector("header-backup");
    let backup = HeaderBackup::decode(&bytes).expect("a backup");
    assert_eq!(backup.pair[..BLOCK_SIZE], vector("header"));
    assert_eq!(backup.digest, seal::sha256(&[&*backup.pair]));
    assert_eq!(backup.encode()[..], bytes);
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "a list of ranges that has one")]
fn streams() {
    let bytes = vector("stream");
    let key = Credential::KeyFile(SecretBytes::from_slice(&ramp::<48>(0x11)));
    let mut reader = StreamReader::open(&bytes[..], &key, &SlotLimits::default()).expect("it opens");
    let header = StreamHeader {
        stream: ramp(SESSION),
        volume: ramp(VOLUME),
        generation: 41,
        head: ramp(0x40),
        blocks: 1 << 18,
    };
    assert_eq!(reader.header(), &header);
    let mut page = header.encode_unsigned();
    header::put_mac(&mut page, header::mac(&bytes[..BLOCK_SIZE]).expect("a block"));
    assert_eq!(page[..], bytes[..BLOCK_SIZE]);
    let mut data = Vec::new();
    let expected: [(Range<u64>, &[Range<u64>]); 3] =
        [(0..7, &[0..1, 6..7]), (7..70_000, &[]), (70_000..1 << 18, &[70_000..70_002])];
    for (range, stretches) in expected {
        let opened = reader.chunk().expect("it verifies").expect("a chunk");
        assert_eq!(opened.chunk, Chunk { range, stretches: stretches.to_vec() });
        data.extend_from_slice(opened.data());
    }
    assert!(reader.chunk().expect("nothing follows").is_none());
    let blocks = [0u64, 6, 70_000, 70_001];
    assert!(data == blocks.map(|block| block.to_le_bytes().repeat(512)).concat());
}

#[test]
fn superblocks() {
    let [map, salts, bitmap] = roots();
    let leg = |segment, block, first, last, head| Leg { segment, block, first, last, head: ramp(head) };
    let superblock = Superblock {
        generation: 41,
        head: ramp(0x40),
        session: ramp(SESSION),
        claims: 9,
        epoch: 3,
        next_epoch: 4,
        epoch_salt: ramp(0x60),
        map,
        salts,
        bitmap,
        mapped: 1000,
        publication: 12,
        pair: 1,
        legs: vec![leg(5, 6, 11, 40, 0x70), leg(7, 0, 41, 41, 0x80), leg(9, 1, 42, Leg::OPEN, 0x40)],
        next_segment: 8,
        units: vec![10, 11],
        growths: 0,
        old_salts: Entry::ABSENT,
    };
    let payload = superblock.encode().expect("a valid superblock");
    assert_eq!(payload[..], vector("superblock-payload"));
    assert_eq!(Superblock::decode(&payload).as_ref(), Ok(&superblock));
    let old_salts = Entry { physical: 5002, tag: ramp(0xd0), ..Entry::ABSENT };
    let rekeying = Superblock { old_salts, ..superblock };
    assert_eq!(rekeying.encode().expect("a valid superblock")[..], vector("superblock-rekeying"));
    assert_eq!(Superblock::decode(&vector("superblock-rekeying")), Ok(rekeying));

    let grown = Superblock { growths: 5, ..Superblock::decode(&payload).expect("it was encoded") };
    assert_eq!(grown.encode().expect("a valid superblock")[..], vector("superblock-grown"));
    assert_eq!(Superblock::decode(&vector("superblock-grown")), Ok(grown));

    let block = vector("superblock-block");
    assert_eq!(superblock::split(&block), Ok((&ramp(0xb0), &payload, &ramp(0xc0))));
    assert_eq!(superblock::assemble(&ramp(0xb0), &payload, &ramp(0xc0))[..], block);
}

#[test]
fn items() {
    let units = |units: &[u32]| Item::Reserve(Units::new(units).expect("1 to 8 units"));
    let [map, salts, bitmap] = roots();
    let all = [
        Item::Write { logical: 0xfe_dcba_9876_5432, entry: full_entry() },
        Item::Discard { logical: 300, blocks: 1 << 33 },
        units(&[5, 6]),
        units(&[100, 101, 102, 103, 104, 105, 106, 107]),
        Item::Epoch { epoch: (1 << 24) - 1, salt: ramp(0x60) },
        Item::Root { tree: Tree::Map, growths: 0, entry: map },
        Item::Root { tree: Tree::Salts, growths: 0, entry: salts },
        Item::Root { tree: Tree::Bitmap, growths: 0, entry: bitmap },
        Item::Mapped(1000),
    ];
    let mut payload = Vec::new();
    all.iter().for_each(|item| item.encode_into(&mut payload));
    assert_eq!(payload, vector("items"));
    assert_eq!(item::items(&payload).collect::<Result<Vec<_>, _>>().as_deref(), Ok(&all[..]));

    let grown = [
        Item::Root { tree: Tree::Map, growths: 5, entry: map },
        Item::Root { tree: Tree::Bitmap, growths: 16, entry: bitmap },
    ];
    let read: Result<Vec<_>, _> = item::items(&vector("items-grown")).collect();
    assert_eq!(read.as_deref(), Ok(&grown[..]));
}

#[test]
fn records() {
    let header = RecordHeader {
        volume: ramp(VOLUME),
        session: ramp(SESSION),
        generation: 42,
        payload_bytes: 120 * 40,
        blocks: 2,
        last: true,
        next_segment: 11,
        epoch: 3,
        nonce: (1 << 48) - 1,
        salt: ramp(0x60),
        tag: ramp(0xd0),
    };
    let bytes = header.encode();
    assert_eq!(bytes[..], vector("record-header"));
    assert_eq!(RecordHeader::decode(&bytes).as_ref(), Ok(&header));
    let before = ramp(0x40);
    assert_eq!(header.associated_data(&before)[..], vector("record-associated-data"));
    assert_eq!(record::head_input(&before, &bytes).concat(), vector("head-input"));
    assert_eq!(record::genesis_input(&ramp(VOLUME)).concat(), vector("genesis-input"));
}

#[test]
fn salt_leaves() {
    let block = vector("salt-leaf");
    let (own, payload) = salts::split(&block).expect("a block");
    assert_eq!(own, &ramp(0xf0));
    assert_eq!(salts::check(payload), Ok(()));
    let mut page = [0; BLOCK_SIZE - 32];
    salts::put_salt(&mut page, 1, &ramp(0x90));
    salts::put_salt(&mut page, 63, &ramp(0x91));
    assert_eq!(salts::salt_at(payload, 1), Ok(ramp(0x90)));
    assert_eq!(salts::salt_at(payload, 63), Ok(ramp(0x91)));
    assert_eq!(salts::salt_at(payload, 2), Ok([0; 32]));
    assert_eq!(salts::assemble(own, &page)[..], block);
}

#[test]
fn sizes() {
    let table = read("sizes.csv");
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next().expect("a head line").split(',').collect();
    let mut rows = 0;
    for line in lines {
        let must: Vec<u64> = line.split(',').map(|number| number.parse().expect("a number")).collect();
        let (logical, physical) = (must[0], must[1]);
        let geometry = Geometry::thin(logical, physical, Shape::STANDARD).expect("sizes within the limits");
        let is: [(&str, u64); 13] = [
            ("logical", geometry.logical_blocks),
            ("physical", geometry.physical_blocks),
            ("segment-blocks", geometry.segment_blocks.into()),
            ("segments", geometry.segments.into()),
            ("unit-blocks", geometry.unit_blocks.into()),
            ("bitmap-start", geometry.bitmap_start()),
            ("data-start", geometry.data_start()),
            ("data-blocks", geometry.data_blocks()),
            ("map-levels", geometry.map_levels().into()),
            ("bitmap-levels", geometry.bitmap_levels().into()),
            ("pinned-limit", geometry.pinned_limit()),
            ("reserve-target", geometry.reserve_target()),
            ("full", geometry.fully_provisioned().into()),
        ];
        let must: Vec<(&str, u64)> = names.iter().copied().zip(must).collect();
        assert_eq!(is[..], must, "{line}");
        // The rows of the first half are the smallest full volumes.
        if rows < 6 {
            assert_eq!(Geometry::for_logical(logical, Shape::STANDARD), Ok(geometry), "{line}");
        }
        rows += 1;
    }
    assert_eq!(rows, 11);
}

#[test]
fn extents() {
    let table = read("extents.csv");
    let mut volume: Option<(u64, Geometry)> = None;
    let mut rows = 0;
    for line in table.lines().skip(1) {
        let numbers: Vec<u64> = line.split(',').map(|number| number.parse().expect("a number")).collect();
        let [number, logical, physical, places, data, data_blocks, first_bit] = numbers[..] else {
            panic!("{line}")
        };
        let (before, geometry) = match volume {
            Some((same, geometry)) if same == number => {
                (geometry.bitmap_nodes(), geometry.grown(logical, physical).expect("it grows"))
            }
            _ => (0, Geometry::thin(logical, physical, Shape::STANDARD).expect("within the limits")),
        };
        volume = Some((number, geometry));
        assert_eq!(geometry.data().last(), Some(data..data + data_blocks), "{line}");
        assert_eq!(geometry.is_bitmap_place(places), data > places, "{line}");
        assert_eq!(4 * (geometry.bitmap_nodes() - before), data - places, "{line}");
        if data_blocks > 0 {
            assert_eq!(geometry.bit_of(data), first_bit, "{line}");
        }
        rows += 1;
    }
    assert_eq!(rows, 12);
}

#[test]
fn policies() {
    let text = read("policy.toml");
    let policy = Policy {
        version: 1,
        volume: [
            0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
        ],
        suite: SuiteCode::Aes256Gcm,
        confidentiality: true,
        integrity: true,
        freshness: Freshness::Strict,
        size: 1 << 30,
        anchor: Some("file:/var/lib/cvmio/ledger.anchor".into()),
        format_if_blank: false,
        anchor_options: anchor::Options::default(),
    };
    assert_eq!(Policy::parse(&text).as_ref(), Ok(&policy));
    assert_eq!(policy.to_toml(), Ok(text));
}

#[test]
fn stamps() {
    let stamp = Stamp {
        volume: ramp(VOLUME),
        generation: 42,
        head: ramp(0x40),
        session: ramp(SESSION),
        claims: 7,
        header_digest: ramp(0x60),
        state: State::Claimed,
        moved_to: [0; 32],
        mac: ramp(0xe0),
    };
    let moved_to = Stamp::hint_of("file:/var/lib/cvmio/new.anchor");
    let moved = Stamp { state: State::Terminal, moved_to, ..stamp.clone() };
    for (name, stamp) in [("stamp", stamp), ("stamp-moved", moved)] {
        assert_eq!(stamp.encode()[..], vector(name), "{name}");
        assert_eq!(Stamp::decode(&vector(name)), Ok(stamp), "{name}");
    }
}
