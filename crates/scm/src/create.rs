//! Making a region: every page is zeros, encrypted.

use std::sync::Arc;

use seal::slot::{Argon2Params, Credential, KeySlots};
use seal::{Random, Suite, VolumeKey, sha256};

use crate::Error;
use crate::entry::ENTRY_SIZE;
use crate::geometry::Geometry;
use crate::header::{Header, VERSION};
use crate::keys::{Keys, Sum};
use crate::medium::Medium;
use crate::root::Root;
use crate::unlock;

/// Makes a region on a medium that is all zeros. The header is written last, so what was cut short is no region. `progress` hears how many of
/// all pages are there.
///
/// # Errors
/// [`Error::Usage`] if the suite authenticates nothing or the medium has another length, [`Error::Key`], [`Error::Medium`].
pub fn create(
    medium: &dyn Medium,
    geometry: &Geometry,
    suite: Suite,
    credential: Credential,
    random: &Arc<dyn Random>,
    progress: &dyn Fn(u64, u64),
) -> Result<(), Error> {
    if suite == Suite::Aes256Xts {
        return Err(Error::Usage(
            "`aes-256-xts` authenticates nothing, and a page's tag must tell whether it was changed: choose `aes-256-gcm`, `aegis-128x2` \
             or `aegis-256x2`"
                .into(),
        ));
    }
    if medium.len() != geometry.file_len() {
        return Err(Error::Usage(format!(
            "the region needs {} bytes, and its file has {}",
            geometry.file_len(),
            medium.len()
        )));
    }
    let key = VolumeKey::generate(&**random);
    let (mut id, mut session) = ([0; 16], [0; 32]);
    random.fill(&mut id);
    random.fill(&mut session);
    let mut slots = KeySlots::new();
    slots.add(&id, &key, credential, "", Argon2Params::default(), &**random)?;
    let slots = slots.encode();
    let keys = Keys::new(key, suite, id, geometry, Arc::clone(random));
    let sum = seal_zeros(medium, geometry, &keys, progress)?;
    Root { generation: 1, sum }.store(medium, geometry, &keys, Some(&session))?;
    medium.fence()?;
    let header = Header {
        version: VERSION,
        suite,
        id,
        geometry: *geometry,
        generation: 1,
        session,
        slots_digest: sha256(&[&slots]),
    };
    Ok(unlock::write_header(medium, &header, &slots, &keys, 0)?)
}

fn seal_zeros(
    medium: &dyn Medium,
    geometry: &Geometry,
    keys: &Keys,
    progress: &dyn Fn(u64, u64),
) -> Result<Sum, Error> {
    let size = usize::try_from(geometry.page_size()).expect("a page fits into memory");
    let (zeros, mut sealed) = (vec![0; size], vec![0; size]);
    let mut sum = Sum::default();
    for page in 0..geometry.pages() {
        let entry = keys.seal(page, &zeros, &mut sealed);
        medium.write(geometry.page_at(page), &sealed)?;
        medium.write_back(geometry.page_at(page), geometry.page_size())?;
        medium.write(geometry.entry_at(page), &entry.encode())?;
        medium.write_back(geometry.entry_at(page), ENTRY_SIZE as u64)?;
        sum ^= keys.share(page, &Some(entry));
        if page % 64 == 63 || page + 1 == geometry.pages() {
            medium.store(geometry.bitmap_at(page), u64::MAX >> (63 - page % 64))?;
            medium.write_back(geometry.bitmap_at(page), 8)?;
            progress(page + 1, geometry.pages());
        }
    }
    Ok(sum)
}
