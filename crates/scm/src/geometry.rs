//! Where everything is in a region.
//!
//! | part | begins at | bytes |
//! | --- | --- | --- |
//! | data pages | 0 | pages × page size |
//! | state bitmap | behind it | a word for each 64 pages |
//! | table | next multiple of 4096 | 64 for each page |
//! | roots | next multiple of 4096 | two lines of 64, each at the start of 2048 |
//! | worker blocks | behind them | 4096 for each worker |
//! | page buffers | behind them | page size, at least 4096, for each worker |
//! | padding | behind them | zeros, up to the tail |
//! | tail | 16,384 before the end | header A, key slots A, header B, key slots B, 4096 each |
//!
//! The data comes first, so that a VMM maps the file from its beginning. The tail is found from the end: a file that was cut short, or made
//! longer, has no header where it must be.

use crate::Error;

/// Bytes of a block of the hidden part.
pub(crate) const BLOCK: u64 = 4096;
/// Bytes of a table entry, a log entry and a root: one cache line.
pub const LINE: u64 = 64;
/// Bytes of the tail: two headers with their key slots.
pub const TAIL: u64 = 4 * BLOCK;
/// Most workers: recovery tries each combination of what they had under way.
pub const MAX_WORKERS: u32 = 8;
/// The sizes of pages that regions in files have.
pub const PAGE_SIZES: [u64; 2] = [4096, 2 << 20];
/// Most pages: a page number has 52 bits in the progress field, and 2^40 pages need 64 TiB of table.
pub const MAX_PAGES: u64 = 1 << 40;

/// The shape of a region, from which every place follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    page_size: u64,
    pages: u64,
    workers: u32,
    file_len: u64,
}

impl Geometry {
    /// The shape of a region whose file's length is a multiple of `granule`.
    ///
    /// # Errors
    /// [`Error::Usage`] if there can be no such region.
    pub fn new(page_size: u64, pages: u64, workers: u32, granule: u64) -> Result<Geometry, Error> {
        let unaligned = Geometry { page_size, pages, workers, file_len: 0 };
        unaligned.check().map_err(Error::Usage)?;
        let least = unaligned.hidden_end() + TAIL;
        Ok(Geometry { file_len: least.next_multiple_of(granule.max(BLOCK)), ..unaligned })
    }

    /// The shape that a header claims.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn claimed(
        page_size: u64,
        pages: u64,
        workers: u32,
        file_len: u64,
    ) -> Result<Geometry, String> {
        let claimed = Geometry { page_size, pages, workers, file_len };
        claimed.check()?;
        let least = claimed.hidden_end() + TAIL;
        if !file_len.is_multiple_of(BLOCK) || file_len < least || file_len - least > PAGE_SIZES[1] {
            return Err(format!(
                "its header claims a file of {file_len} bytes, and its pages need {least} or little more"
            ));
        }
        Ok(claimed)
    }

    fn check(&self) -> Result<(), String> {
        if !self.page_size.is_power_of_two() || !(LINE..=PAGE_SIZES[1]).contains(&self.page_size) {
            return Err(format!(
                "pages of {} bytes are not known: they have 4096 or 2097152",
                self.page_size
            ));
        }
        let most = MAX_PAGES.min((1 << 62) / self.page_size);
        if self.pages == 0 || self.pages > most {
            return Err(format!("{} pages are not possible: between 1 and {most} are", self.pages));
        }
        if self.workers == 0 || self.workers > MAX_WORKERS {
            return Err(format!(
                "{} workers are not possible: between 1 and {MAX_WORKERS} are",
                self.workers
            ));
        }
        Ok(())
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_size(&self) -> u64 {
        self.page_size
    }

    /// Pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Workers.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// Bytes of the region's file.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Bytes of data, from the file's beginning.
    #[must_use]
    pub fn data_len(&self) -> u64 {
        self.pages * self.page_size
    }

    /// Where a page is.
    #[must_use]
    pub fn page_at(&self, page: u64) -> u64 {
        page * self.page_size
    }

    /// Where the word of the state bitmap is that has a page's bit.
    #[must_use]
    pub fn bitmap_at(&self, page: u64) -> u64 {
        self.data_len().next_multiple_of(BLOCK) + page / 64 * 8
    }

    /// Where a page's table entry is.
    #[must_use]
    pub fn entry_at(&self, page: u64) -> u64 {
        let bitmap_end = self.bitmap_at(0) + self.pages.div_ceil(64) * 8;
        bitmap_end.next_multiple_of(BLOCK) + page * LINE
    }

    /// Where a root is; there are two, 0 and 1.
    #[must_use]
    pub fn root_at(&self, slot: u64) -> u64 {
        self.entry_at(self.pages).next_multiple_of(BLOCK) + slot * (BLOCK / 2)
    }

    /// Where a worker's progress field and log are.
    #[must_use]
    pub fn worker_at(&self, worker: u32) -> u64 {
        self.root_at(2) + u64::from(worker) * BLOCK
    }

    /// Where a worker's page buffer is.
    #[must_use]
    pub fn buffer_at(&self, worker: u32) -> u64 {
        self.worker_at(self.workers) + u64::from(worker) * self.page_size.max(BLOCK)
    }

    fn hidden_end(&self) -> u64 {
        self.buffer_at(self.workers)
    }

    /// Where a copy of the header is, 0 or 1.
    #[must_use]
    pub fn header_at(&self, copy: u64) -> u64 {
        header_at(self.file_len, copy)
    }
}

/// Where a copy of the header is in a file of this length. Its key slots are the block behind it.
pub(crate) fn header_at(file_len: u64, copy: u64) -> u64 {
    file_len - TAIL + copy * 2 * BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_without_overlap() {
        for (page_size, pages, workers) in [(64, 3, 1), (4096, 1, 8), (4096, 100_000, 2), (2 << 20, 70, 4)] {
            let shape = Geometry::new(page_size, pages, workers, 4096).unwrap();
            let places = [
                shape.data_len(),
                shape.bitmap_at(0),
                shape.bitmap_at(pages - 1) + 8,
                shape.entry_at(0),
                shape.entry_at(pages),
                shape.root_at(0),
                shape.root_at(2),
                shape.worker_at(workers),
                shape.buffer_at(workers),
                shape.header_at(0),
                shape.header_at(2),
            ];
            assert!(places.is_sorted(), "{shape:?}: {places:?}");
            assert_eq!(shape.header_at(2), shape.file_len());
            assert_eq!(Geometry::claimed(page_size, pages, workers, shape.file_len()), Ok(shape));
        }
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for (page_size, pages, workers) in [
            (0, 1, 1),
            (4095, 1, 1),
            (4 << 20, 1, 1),
            (4096, 0, 1),
            (4096, MAX_PAGES + 1, 1),
            (4096, 1, 0),
            (4096, 1, 9),
        ] {
            assert!(matches!(Geometry::new(page_size, pages, workers, 4096), Err(Error::Usage(_))));
        }
        let shape = Geometry::new(4096, 10, 1, 4096).unwrap();
        assert!(Geometry::claimed(4096, 10, 1, shape.file_len() - 4096).is_err());
        assert!(Geometry::claimed(4096, 10, 1, !4095).is_err());
    }
}
