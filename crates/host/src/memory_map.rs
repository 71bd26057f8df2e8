//! A guest's memory, as its VMM shares it: pieces of files, each at a guest address and at an address of the VMM's own.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use memory::{Access, FileMapping};
use rustix::fs::FileType;
use virtqueue::{Area, Guest};

use crate::guard::Guarded;

/// Most pieces. QEMU has three for an ordinary machine, and one more for each memory that is plugged in.
pub(crate) const MOST_REGIONS: usize = 64;

/// One piece.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    pub(crate) guest: u64,
    pub(crate) user: u64,
    pub(crate) length: u64,
    mapping: Arc<Guarded>,
    /// Where the piece begins in the mapping, whose own beginning is at a page, maybe a huge one.
    skip: usize,
}

/// All pieces, by guest address.
#[derive(Debug, Default)]
pub(crate) struct MemoryMap {
    regions: Vec<Region>,
}

impl Region {
    /// Maps a piece of `file`, without touching it.
    ///
    /// # Errors
    /// When the numbers can't be, or the file is shorter, or can't be mapped.
    pub(crate) fn new(
        guest: u64,
        user: u64,
        length: u64,
        offset: u64,
        file: &File,
    ) -> Result<Self, io::Error> {
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
        let overflows = [guest, user, offset].iter().any(|begin| begin.checked_add(length).is_none());
        if length == 0 || overflows {
            return Err(invalid(format!("a region of {length} bytes at {guest:#x} is none")));
        }
        let stat = rustix::fs::fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let message = "the guest's memory is no file that can be shared; give the machine memory-backend-memfd,share=on";
            return Err(invalid(message.into()));
        }
        let end = offset + length;
        let there = u64::try_from(stat.st_size).unwrap_or(0);
        if there < end {
            return Err(invalid(format!("a region ends at {end} in a file of {there} bytes")));
        }
        // Of a file on hugetlbfs this is the size of its pages: it is mapped by whole ones.
        let page = u64::try_from(stat.st_blksize).unwrap_or(4096).max(4096);
        let from = offset - offset % page;
        let whole = (end - from).next_multiple_of(page);
        let size = |bytes: u64| usize::try_from(bytes).map_err(|_| invalid("it does not fit here".into()));
        let mapping = FileMapping::untouched(file, from, size(whole)?, Access::ReadWrite)?;
        let (mapping, skip) = (Arc::new(Guarded::new(mapping)?), size(offset - from)?);
        Ok(Self { guest, user, length, mapping, skip })
    }

    fn covers(&self, begin: u64, address: u64) -> bool {
        address.wrapping_sub(begin) < self.length
    }
}

/// A piece of the mapping: where, and how many bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    region: usize,
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl MemoryMap {
    /// # Errors
    /// When there are too many pieces, or two overlap.
    pub(crate) fn new(mut regions: Vec<Region>) -> Result<Self, io::Error> {
        regions.sort_by_key(|region| region.guest);
        let overlap = regions.windows(2).any(|pair| pair[0].guest + pair[0].length > pair[1].guest);
        if overlap || regions.len() > MOST_REGIONS {
            let message = format!("{} pieces of memory: too many, or two at one address", regions.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(Self { regions })
    }

    /// Whether a piece was lost, so that nothing that was read counts.
    pub(crate) fn is_lost(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_lost())
    }

    /// The first part of this range of guest addresses that is in one piece.
    pub(crate) fn find(&self, address: u64, length: u64) -> Option<Found> {
        let region = self.regions.iter().position(|region| region.covers(region.guest, address))?;
        let at = address - self.regions[region].guest;
        let length = usize::try_from(length.min(self.regions[region].length - at)).ok()?;
        Some(Found { region, offset: self.regions[region].skip + usize::try_from(at).ok()?, length })
    }

    /// Where a part lies in this process, for the kernel.
    pub(crate) fn address(&self, found: Found) -> *mut u8 {
        self.regions[found.region].mapping.mapping().as_ptr().wrapping_add(found.offset)
    }

    /// Calls `action` with each part of a range of guest addresses. False, if some of it is no memory.
    fn each(
        &self,
        address: u64,
        length: usize,
        mut action: impl FnMut(&FileMapping, Range<usize>, usize),
    ) -> bool {
        let mut done = 0;
        while done < length {
            let Ok(offset) = u64::try_from(done) else { return false };
            let Some(at) = address.checked_add(offset) else { return false };
            let left = u64::try_from(length - done).unwrap_or(u64::MAX);
            let Some(found) = self.find(at, left) else { return false };
            let range = found.offset..found.offset + found.length;
            action(self.regions[found.region].mapping.mapping(), range, done);
            done += found.length;
        }
        true
    }

    /// Copies bytes in. False, if some of it is no memory.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.each(address, bytes.len(), |mapping, range, at| {
            mapping.copy_from(range.start, &bytes[at..at + range.len()]);
        })
    }

    /// What lies at an address of the VMM's own, as the rings are named; it must be in one piece.
    pub(crate) fn ring(&self, user: u64, length: usize) -> Option<Piece> {
        let region = self.regions.iter().find(|region| region.covers(region.user, user))?;
        let at = user - region.user;
        if u64::try_from(length).ok()? > region.length - at || !user.is_multiple_of(2) {
            return None;
        }
        let offset = region.skip.checked_add(usize::try_from(at).ok()?)?;
        Some(Piece { mapping: region.mapping.clone(), offset, length })
    }
}

impl Guest for MemoryMap {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.each(address, into.len(), |mapping, range, at| {
            let length = range.len();
            mapping.copy_to(range.start, &mut into[at..at + length]);
        })
    }
}

/// A piece of memory that is shared with a VMM or its guest: of a ring, or of the log of what is in flight.
#[derive(Debug)]
pub(crate) struct Piece {
    mapping: Arc<Guarded>,
    offset: usize,
    length: usize,
}

impl Piece {
    /// Bytes of a mapping of its own. They are inside.
    pub(crate) fn new(mapping: Arc<Guarded>, range: Range<usize>) -> Option<Self> {
        let fits = range.end <= mapping.mapping().len() && range.start.is_multiple_of(2);
        fits.then(|| Self { mapping, offset: range.start, length: range.len() })
    }
}

impl Area for Piece {
    fn size(&self) -> usize {
        self.length
    }

    fn load(&self, offset: usize) -> u16 {
        self.mapping.mapping().load_u16(self.offset + offset)
    }

    fn store(&self, offset: usize, value: u16) {
        self.mapping.mapping().store_u16(self.offset + offset, value);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.mapping.mapping().copy_to(self.offset + offset, into);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.mapping.mapping().copy_from(self.offset + offset, bytes);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}
