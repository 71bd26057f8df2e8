//! What must hold for any bytes that the host, a client or a file hands to one of the decoders: nothing panics, and what is accepted is laid
//! out again to the byte. The fuzzer's targets call these, and so does `crates/cvmio/tests/corpus.rs`, with every file in `seeds/`.

mod broker;
mod evidence;
mod job;
mod rings;
mod session;
pub use broker::kbs;
pub use evidence::{certificates, event_log, evidence, evidence_policy, firmware, quote, snp};
pub use job::{job_archive, job_file, job_message};
pub use rings::rings;
pub use session::session;

use ::owner::log::{ENTRY_SIZE as AUDIT_SIZE, Entry};
use anchor::{STAMP_SIZE, Stamp, State};
use anchor_etcd::message::Content;
use anchor_owner::wire::{Answer, MESSAGE_SIZE, Outcome, Request};
use anchor_tpm::companion::Slot;
use anchor_tpm::replay::follow;
use anchor_tpm::wire::answer;
use export::nbd::wire;
use seal::slot::{AREA_SIZE, KeySlots};
use volume::format::backup::{self, HeaderBackup};
use volume::format::entry::{ENTRY_SIZE, entry_at, put_entry};
use volume::format::header::{Header, SIGNED, mac, put_mac};
use volume::format::item;
use volume::format::probe::{Probe, in_part, parts};
use volume::format::record::{RECORD_HEADER, RecordHeader};
use volume::format::salts::{self, put_salt, salt_at};
use volume::format::stream::{Chunk, FRAME_SIZE, Frame, START, StreamHeader};
use volume::format::superblock::{self, Superblock};
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;

/// A check by the name of its target.
pub type Target = (&'static str, fn(&[u8]));

/// All of them. Each has a file in `fuzz_targets/` and a directory in `seeds/`.
pub const TARGETS: [Target; 33] = [
    ("audit", audit),
    ("backup", backup),
    ("certificates", certificates),
    ("companion", companion),
    ("entry", entry),
    ("etcd", etcd),
    ("event-log", event_log),
    ("evidence", evidence),
    ("evidence-policy", evidence_policy),
    ("firmware", firmware),
    ("header", header),
    ("items", items),
    ("job-archive", job_archive),
    ("job-file", job_file),
    ("job-message", job_message),
    ("kbs", kbs),
    ("nbd", nbd),
    ("owner", owner),
    ("policy", policy),
    ("probe", probe),
    ("quote", quote),
    ("record", record),
    ("rings", rings),
    ("salts", salts),
    ("scm", scm),
    ("scm-message", scm_message),
    ("session", session),
    ("slots", slots),
    ("snp", snp),
    ("stamp", stamp),
    ("stream", stream),
    ("superblock", superblock),
    ("tpm", tpm),
];

/// Any bytes as an entry of the audit log of the owner's service, with a good hash: refused, or laid out again to the byte.
pub fn audit(bytes: &[u8]) {
    let mut whole = [0; AUDIT_SIZE];
    let length = bytes.len().min(AUDIT_SIZE - 32);
    whole[..length].copy_from_slice(&bytes[..length]);
    // Else nearly everything would be refused for its hash.
    let hash = seal::sha256(&[&whole[..AUDIT_SIZE - 32]]);
    whole[AUDIT_SIZE - 32..].copy_from_slice(&hash);
    if let Ok((entry, previous, found)) = Entry::decode(&whole) {
        assert_eq!(found, hash);
        assert_eq!(entry.encode(&previous), whole);
        assert!(!entry.to_string().chars().any(char::is_control));
    }
    assert!(bytes.len() == AUDIT_SIZE || Entry::decode(bytes).is_err());
}

/// Any message between the owner's service and a client: refused, or laid out again to the byte. What is missing is zeros.
pub fn owner(bytes: &[u8]) {
    let mut whole = [0; MESSAGE_SIZE];
    let length = bytes.len().min(MESSAGE_SIZE);
    whole[..length].copy_from_slice(&bytes[..length]);
    let request = Request::decode(&whole);
    if let Ok(request) = &request {
        assert_eq!(request.encode(), whole);
    }
    if let Ok(answer) = Answer::decode(&whole) {
        assert!(request.is_err());
        assert_eq!(answer.encode(), whole);
        if let Outcome::Refused(_, text) | Outcome::Unavailable(text) = answer.outcome {
            assert!(!text.to_string().chars().any(char::is_control));
        }
    }
}

/// Any file as a header backup: refused, or laid out again to the byte. The fuzzer's inputs are shorter; what is missing is zeros.
pub fn backup(file: &[u8]) {
    let mut whole = file.to_vec();
    whole.resize(backup::SIZE.max(file.len()), 0);
    assert!(file.len() >= backup::SIZE || HeaderBackup::decode(file).is_err());
    if let Ok(backup) = HeaderBackup::decode(&whole) {
        assert_eq!(backup.encode()[..], whole);
    }
}

/// Any bytes as what a server answers to the etcd anchor: no response, or one within the limits; and its body no answer, or one whose stamp is
/// laid out again to the byte.
pub fn etcd(bytes: &[u8]) {
    use anchor_etcd::message;
    let body = match http1::read_response(&mut &*bytes, 64 * 1024) {
        Ok(response) => response.body,
        Err(_) => bytes.to_vec(),
    };
    for read in [message::read_range, message::read_swap] {
        let Ok(answer) = read(&body, "/a/b") else { continue };
        assert!(answer.header.cluster != 0 && answer.header.revision != 0);
        if let Content::Holds(Some(held)) = answer.content {
            assert_eq!(Stamp::decode(&held.stamp.encode()), Ok(held.stamp));
        }
    }
    if let Ok(space) = message::read_space(&body) {
        assert!(space.taken > 0);
    }
    if let Ok(refusal) = message::read_refusal(&body) {
        assert!(refusal.message.chars().count() <= 200 && !refusal.message.chars().any(char::is_control));
    }
}

/// Any page as a node: each entry is refused, or laid out again to the byte.
pub fn entry(page: &[u8]) {
    let mut again = page.to_vec();
    for index in 0..page.len() / ENTRY_SIZE {
        if let Ok(entry) = entry_at(page, index) {
            put_entry(&mut again, index, &entry);
        }
    }
    assert_eq!(again, page);
    assert!(entry_at(page, page.len() / ENTRY_SIZE).is_err());
}

/// Any block as a header: refused, or laid out again to the byte, with places that stay inside the store.
pub fn header(page: &[u8]) {
    let Ok(header) = Header::decode(page) else { return };
    let mut again = header.encode_unsigned();
    // Of the key slots as well, which are not here.
    let digest = SIGNED - 32..SIGNED;
    again[digest.clone()].copy_from_slice(&page[digest]);
    put_mac(&mut again, mac(page).expect("what was decoded is a block"));
    assert_eq!(again, page);
    let geometry = header.geometry;
    assert!(geometry.data().all(|data| data.end <= geometry.physical_blocks));
    assert_eq!(geometry.data().map(|data| data.end - data.start).sum::<u64>(), geometry.data_blocks());
    let last = geometry.data().filter(|data| !data.is_empty()).last().expect("extent 0 has data");
    assert_eq!(geometry.unit_range(geometry.units() - 1).end, last.end);
}

/// Any bytes as an opened record's items: those before the first malformed one are laid out again to the byte.
pub fn items(payload: &[u8]) {
    let geometry = Geometry::for_logical(Geometry::MIN_LOGICAL, Shape::STANDARD).expect("the least size");
    let mut again = Vec::new();
    for item in item::items(payload) {
        let Ok(item) = item else { break };
        let _ = item.check(&geometry);
        item.encode_into(&mut again);
    }
    assert!(payload.starts_with(&again));
}

/// Any bytes as what an NBD client sends, from its first word on: each part is refused, or laid out again to the byte.
pub fn nbd(mut bytes: &[u8]) {
    let Some((flags, rest)) = bytes.split_first_chunk() else { return };
    let Ok(known) = wire::ClientFlags::decode(*flags) else { return };
    assert_eq!(known.encode(), *flags);
    bytes = rest;
    while let Some((header, rest)) = bytes.split_first_chunk() {
        let Ok(option) = wire::OptionHeader::decode(header) else { break };
        assert_eq!(option.encode(), header);
        let Some((data, rest)) = rest.split_at_checked(usize::try_from(option.length).expect("64 bits"))
        else {
            return;
        };
        if let Ok(ask) = wire::Ask::decode(option.code, data) {
            assert_eq!(ask.code(), option.code);
            let ignored = matches!(ask, wire::Ask::Abort | wire::Ask::Unknown(_));
            assert!(ignored || ask.encode() == data);
        }
        bytes = rest;
    }
    while let Some((header, rest)) = bytes.split_first_chunk() {
        let Ok(request) = wire::Request::decode(header) else { return };
        assert_eq!(request.encode(), header);
        let _ = request.flags.fit(request.command, true);
        bytes = rest;
    }
}

/// Any text as an attach policy: refused, or one that is written and read again as the same.
pub fn policy(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(policy) = Policy::parse(text) else { return };
    let again = policy.to_toml().expect("what was parsed is valid");
    assert_eq!(Policy::parse(&again), Ok(policy));
}

/// Any start of a store: blank exactly if it is all zeros.
pub fn probe(start: &[u8]) {
    assert_eq!(Probe::of(start) == Probe::Blank, start.iter().all(|&byte| byte == 0));
    // The same as a whole store: what is found, is in it.
    let size = start.len() as u64;
    for part in parts(size) {
        let bytes = &start
            [usize::try_from(part.start).expect("64 bits")..usize::try_from(part.end).expect("64 bits")];
        assert!(in_part(part.start, bytes, size).is_none_or(|found| part.contains(&found.at)));
    }
}

/// Any bytes as a journal record: refused, or laid out again to the byte, with a payload that is inside.
pub fn record(bytes: &[u8]) {
    let Ok(header) = RecordHeader::decode(bytes) else { return };
    assert_eq!(header.encode(), bytes[..RECORD_HEADER]);
    assert_eq!(header.associated_data(&[7; 32])[..112], bytes[..112]);
    if let Ok(sealed) = header.sealed(bytes) {
        assert_eq!(sealed.len(), usize::try_from(header.payload_bytes).expect("64 bits"));
    }
}

/// Any block as a salt-table node: taken apart and put together again to the byte.
pub fn salts(page: &[u8]) {
    let Ok((own, payload)) = salts::split(page) else { return };
    assert_eq!(salts::assemble(own, payload), page);
    if salts::check(payload).is_ok() {
        let mut again = [0; salts::SALT_NODE_PAYLOAD];
        for index in 0..64 {
            put_salt(&mut again, index, &salt_at(payload, index).expect("a leaf has 64 salts"));
        }
        assert_eq!(&again, payload);
    }
}

/// Any block as the key slots: refused, or laid out again to the byte, with labels that are fit for a terminal.
pub fn slots(bytes: &[u8]) {
    let Ok(area) = <&[u8; AREA_SIZE]>::try_from(bytes) else { return };
    let Ok(slots) = KeySlots::decode(area) else { return };
    assert_eq!(&slots.encode(), area);
    assert!(slots.list().iter().all(|slot| !slot.label.chars().any(char::is_control)));
}

/// Any bytes as an anchor's stamp: refused, or laid out again to the byte, with a hint that is fit for a terminal.
pub fn stamp(bytes: &[u8]) {
    let Ok(stamp) = Stamp::decode(bytes) else { return };
    assert_eq!(bytes.len(), STAMP_SIZE);
    assert_eq!(stamp.encode()[..], *bytes);
    if let Some(hint) = stamp.moved_to() {
        assert_eq!(stamp.state, State::Terminal);
        assert!(!hint.chars().any(char::is_control));
    }
}

/// Any block as what a region of storage-class memory keeps: a header, a table entry, a worker's log and its progress field are each refused, or
/// laid out again to the byte, with places that stay inside the file.
pub fn scm(bytes: &[u8]) {
    let mut block = [0; 4096];
    let length = bytes.len().min(block.len());
    block[..length].copy_from_slice(&bytes[..length]);
    if let Ok(Some((header, mac))) = ::scm::header::Header::decode(&block) {
        assert_eq!(header.encode(&mac), block);
        let geometry = header.geometry;
        assert!(geometry.data_len() < geometry.header_at(0) && geometry.header_at(2) == geometry.file_len());
    }
    if let Some(entry) = block.first_chunk().and_then(::scm::entry::Entry::decode) {
        assert_eq!(entry.encode()[..], block[..64]);
    }
    if let Some(Ok(log)) = block.first_chunk().map(::scm::progress::Log::decode) {
        assert_eq!(log.encode()[..], block[..160]);
    }
    let word = u64::from_le_bytes(std::array::from_fn(|at| block[at]));
    if let Ok(Some(progress)) = ::scm::progress::Progress::decode(word) {
        assert_eq!(progress.encode(), word);
    }
}

/// Any bytes as what a client or a server of storage-class memory says: refused, not whole yet, or said again in the same meaning.
pub fn scm_message(bytes: &[u8]) {
    use ::scm::protocol::{ClientMessage, ServerMessage, decode};
    let geometry = ::scm::Geometry::new(4096, 16, 1, 4096).expect("a shape that can be");
    if let Ok(Some(message)) = decode(bytes, &geometry) {
        if let ClientMessage::Attach(mapped, _) = &message {
            assert!(mapped.offset + mapped.length <= geometry.data_len());
        }
        assert_eq!(decode(&message.encode(), &geometry), Ok(Some(message)));
    }
    if let Ok(message) = ServerMessage::decode(bytes) {
        assert_eq!(ServerMessage::decode(&message.encode()), Ok(message));
    }
}

/// Any bytes as a stream whose chunks are open, and as one open chunk: each part is refused, or laid out again to the byte, and none is longer
/// than it may be.
pub fn stream(bytes: &[u8]) {
    open_chunk(bytes);
    let Some((page, mut rest)) = bytes.split_at_checked(volume::format::BLOCK_SIZE) else { return };
    if let Ok(header) = StreamHeader::decode(page) {
        let mut again = header.encode_unsigned();
        put_mac(&mut again, mac(page).expect("what was decoded is a block"));
        assert_eq!(again, page);
    }
    rest = rest.get(START - volume::format::BLOCK_SIZE..).unwrap_or_default();
    while let Some((head, after)) = rest.split_first_chunk::<FRAME_SIZE>() {
        let Ok(frame) = Frame::decode(head) else { return };
        assert_eq!(frame.encode(), *head);
        assert!(frame.body() < 2 << 20);
        let Some((body, after)) = after.split_at_checked(frame.body()) else { return };
        if let Frame::Chunk { length, .. } = frame {
            open_chunk(&body[..length]);
        }
        rest = after;
    }
}

fn open_chunk(payload: &[u8]) {
    let Ok((chunk, data)) = Chunk::decode(payload) else { return };
    let mut again = chunk.encode();
    let table = again.len() - data.len();
    again[table..].copy_from_slice(data);
    assert_eq!(again, payload);
    assert!(chunk.stretches.iter().all(|stretch| stretch.end <= chunk.range.end));
}

/// Any bytes as a superblock, sealed and opened: refused, or laid out again to the byte.
pub fn superblock(bytes: &[u8]) {
    // A whole block is taken apart first, and its payload read as if it had opened.
    let payload = match superblock::split(bytes) {
        Ok((salt, sealed, tag)) => {
            assert_eq!(superblock::assemble(salt, sealed, tag), bytes);
            &sealed[..]
        }
        Err(_) => bytes,
    };
    let Ok(superblock) = Superblock::decode(payload) else { return };
    assert_eq!(superblock.encode().expect("what was decoded is valid"), payload);
    let created = Geometry::for_logical(Geometry::MIN_LOGICAL, Shape::STANDARD).expect("the least size");
    let grown = created.grown(Geometry::MIN_LOGICAL, 2 * created.physical_blocks).expect("it grows");
    for geometry in [created, grown] {
        if superblock.check(&geometry).is_ok() {
            assert!(superblock.legs.iter().all(|leg| leg.segment < geometry.segments));
            assert!(usize::from(superblock.growths) <= geometry.growths());
        }
    }
}

/// Any bytes as a slot of a TPM anchor's companion file: not whole, or laid out again to the byte; and as a value and the attempts that
/// lead to it.
pub fn companion(bytes: &[u8]) {
    if let Some(slot) = Slot::decode(bytes) {
        let again = slot.encode();
        assert_eq!(again[..], bytes[..again.len()]);
        for attempt in slot.attempts.iter().take(4) {
            let standing = follow(&attempt.value(), &slot.attempts).expect("it leads to its own value");
            assert!(standing.needed().len() <= slot.attempts.len());
        }
    }
}

/// Any bytes as an answer of a TPM, to whichever command: malformed, refused, or read without leaving them.
pub fn tpm(bytes: &[u8]) {
    if let Some(header) = bytes.first_chunk()
        && let Ok(size) = answer::message_size(header)
    {
        assert!((anchor_tpm::wire::HEADER..=anchor_tpm::wire::MAX_MESSAGE).contains(&size));
    }
    for (has_handle, has_session) in [(false, false), (true, false), (false, true), (true, true)] {
        if let Ok(Ok(answer)) = answer::read(bytes, has_handle, has_session) {
            assert_eq!((answer.handle.is_some(), answer.proof.is_some()), (has_handle, has_session));
            parameters(answer.parameters);
        }
    }
    parameters(bytes);
}

fn parameters(bytes: &[u8]) {
    if let Some(range) = answer::first_parameter(bytes) {
        assert!(bytes.get(range).is_some());
    }
    if let Ok(public) = answer::nv_public(bytes) {
        let area = public.encode();
        assert_eq!(area[..], bytes[2..2 + area.len()]);
    }
    let _ = (answer::endorsement_point(bytes), answer::session_nonce(bytes));
    let _ = (answer::nv_value(bytes), answer::handles(bytes));
}
