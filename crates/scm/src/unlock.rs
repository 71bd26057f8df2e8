//! From the bytes at a region's end to its key and a header that is proven.

use seal::VolumeKey;
use seal::slot::{AREA_SIZE, Credential, KeySlots, SlotLimits};

use crate::Error;
use crate::geometry::{BLOCK, TAIL, header_at};
use crate::header::{HEADER_SIZE, Header, SIGNED, VERSION};
use crate::keys::{Keys, header_mac};
use crate::medium::{Fault, Medium};
use crate::root::Root;

/// A header of a region, proven by its key, and where it lies.
pub(crate) struct Unlocked {
    pub(crate) header: Header,
    slots: [u8; AREA_SIZE],
    copy: u64,
}

/// A copy of the header with its key slots, as they lie there.
type Copy = (Header, [u8; 32], [u8; AREA_SIZE], u64);

/// Both copies that are there, the one with the larger generation first; nothing of them is proven.
fn copies(medium: &dyn Medium) -> Result<Vec<Copy>, Error> {
    if medium.len() < TAIL || !medium.len().is_multiple_of(8) {
        return Err(no_region());
    }
    let mut found = Vec::new();
    let mut refused = None;
    for copy in 0..2 {
        let at = header_at(medium.len(), copy);
        let (mut header, mut slots) = ([0; HEADER_SIZE], [0; AREA_SIZE]);
        medium.read(at, &mut header)?;
        medium.read(at + BLOCK, &mut slots)?;
        match Header::decode(&header) {
            Ok(Some((header, mac))) if header.has_slots(&slots) => found.push((header, mac, slots, copy)),
            Ok(Some(_)) => {
                refused = Some(Error::CorruptRegion("its key slots are not those of its header".into()));
            }
            Ok(None) => {}
            Err(error) => refused = Some(error),
        }
    }
    found.sort_by_key(|(header, ..)| std::cmp::Reverse(header.generation));
    if found.is_empty() { Err(refused.unwrap_or_else(no_region)) } else { Ok(found) }
}

fn no_region() -> Error {
    Error::Usage(
        "there is no region: no header lies at the file's end; it is another file, or was cut short or made longer: create a region, or \
         restore a copy"
            .into(),
    )
}

/// The header in force as it claims to be, for a look without a key.
///
/// # Errors
/// As [`Engine::open`](crate::Engine::open).
pub fn claimed_header(medium: &dyn Medium) -> Result<Header, Error> {
    let (header, ..) = copies(medium)?.swap_remove(0);
    check_size(&header, medium)?;
    Ok(header)
}

fn check_size(header: &Header, medium: &dyn Medium) -> Result<(), Error> {
    let (wanted, there) = (header.geometry.file_len(), medium.len());
    if wanted == there {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "the region's file must have {wanted} bytes and has {there}: it was cut short or made longer; restore its length or a copy"
    )))
}

/// Finds the key, and the headers that it proves, the one with the larger generation first: there is at least one. Which of them is in force the
/// root says, since anybody may have destroyed a copy.
pub(crate) fn unlock(
    medium: &dyn Medium,
    credential: &Credential,
) -> Result<(Vec<Unlocked>, VolumeKey), Error> {
    let (mut proven, mut found, mut refused) = (Vec::new(), None, None);
    for (header, mac, slots, copy) in copies(medium)? {
        let opened = KeySlots::decode(&slots)
            .and_then(|decoded| decoded.unlock(&header.id, credential, &SlotLimits::default()));
        match opened {
            Ok(key) if header_mac(&key).verify(&[&header.signed()], &mac) => {
                check_size(&header, medium)?;
                proven.push(Unlocked { header, slots, copy });
                found = found.or(Some(key));
            }
            Ok(_) => refused = Some(Error::CorruptRegion("its header's MAC is wrong".into())),
            Err(error) => refused = refused.or(Some(error.into())),
        }
    }
    found.map(|key| (proven, key)).ok_or_else(|| refused.unwrap_or_else(no_region))
}

/// Writes a header, with its key slots, over a copy that is not in force.
pub(crate) fn write_header(
    medium: &dyn Medium,
    header: &Header,
    slots: &[u8; AREA_SIZE],
    keys: &Keys,
    copy: u64,
) -> Result<(), Fault> {
    let at = header.geometry.header_at(copy);
    let mac = keys.sign_header(&header.signed());
    const _: () = assert!(SIGNED + 32 <= HEADER_SIZE);
    store_changed(medium, at + BLOCK, slots)?;
    store_changed(medium, at, &header.encode(&mac))?;
    medium.write_back(at, 2 * BLOCK)?;
    medium.fence()
}

/// Stores the words that differ from what is there.
fn store_changed(medium: &dyn Medium, at: u64, bytes: &[u8]) -> Result<(), Fault> {
    let (words, _) = bytes.as_chunks::<8>();
    for (at, word) in (at..).step_by(8).zip(words.iter().map(|word| u64::from_le_bytes(*word))) {
        if medium.load(at)? != word {
            medium.store(at, word)?;
        }
    }
    Ok(())
}

/// Begins a session: from here on no log of an earlier one counts. Until a root belongs to it, the header before is in force; then its copy goes.
pub(crate) fn begin_session(
    medium: &dyn Medium,
    unlocked: &Unlocked,
    keys: &Keys,
    root: &mut Root,
) -> Result<Header, Error> {
    let mut header = unlocked.header.clone();
    header.version = VERSION;
    header.generation += 1;
    keys.random().fill(&mut header.session);
    write_header(medium, &header, &unlocked.slots, keys, 1 - unlocked.copy)?;
    for _ in 0..2 {
        root.again(medium, &header.geometry, keys, &header.session)?;
    }
    write_header(medium, &header, &unlocked.slots, keys, unlocked.copy)?;
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use seal::{Random, SecretBytes, Suite, SystemRandom};

    use super::*;
    use crate::{Engine, Geometry, Mapping, recovery};

    /// Its roots belong to no session. When it is opened it becomes one of version 2.
    #[test]
    fn a_region_of_version_1_is_opened() {
        let geometry = Geometry::new(4096, 8, 2, 4096).unwrap();
        let mapping = Arc::new(Mapping::memory(geometry.file_len()).unwrap());
        let key = || Credential::KeyFile(SecretBytes::from_slice(&[5; 32]));
        let random: Arc<dyn Random> = Arc::new(SystemRandom);
        crate::create(&*mapping, &geometry, Suite::Aes256Gcm, key(), &random, &|_, _| {}).unwrap();
        let (headers, volume) = unlock(&*mapping, &key()).unwrap();
        let keys = Keys::of(volume, &headers, Arc::clone(&random));
        let (unlocked, survey) = recovery::find(&*mapping, headers, &keys, &|_, _| {}).unwrap();
        let (root, _) =
            survey.settle(&*mapping, &unlocked.header, &keys, &mut crate::Report::default()).unwrap();
        let old = Header { version: 1, ..unlocked.header.clone() };
        write_header(&*mapping, &old, &unlocked.slots, &keys, unlocked.copy).unwrap();
        root.store(&*mapping, &geometry, &keys, None).unwrap();
        let version = || claimed_header(&*mapping).unwrap().version;
        assert_eq!(version(), 1);
        for _ in 0..2 {
            let medium: Arc<dyn Medium> = Arc::clone(&mapping) as Arc<dyn Medium>;
            let (engine, report) = Engine::open(medium, &key(), Arc::clone(&random), &|_, _| {}).unwrap();
            assert!(report.is_clean());
            let mut content = [1; 4096];
            engine.read(7, 0, &mut content).unwrap();
            assert_eq!((content, version()), ([0; 4096], 2));
        }
    }
}
