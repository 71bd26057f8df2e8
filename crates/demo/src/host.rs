//! The host's side: it owns the image, keeps copies of it, and changes it as it likes. It has no key.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use store::BLOCK_SIZE;
use volume::format::header::{self, Header};

use super::guest::{Guest, io_failure};
use cli::failure::Failure;

const CHUNK: usize = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks of header and key slots, twice.
const HEADS: u64 = 4;

/// An image that the host holds.
pub struct Image {
    path: PathBuf,
    file: File,
}

impl Image {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file =
            File::options().read(true).write(true).open(path).map_err(|error| io_failure(path, &error))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    fn blocks(&self) -> Result<u64, Failure> {
        Ok(self.file.metadata().map_err(|error| io_failure(&self.path, &error))?.len() / BLOCK)
    }

    pub fn read(&self, block: u64, blocks: u64) -> Result<Vec<u8>, Failure> {
        let mut content = vec![0; usize::try_from(blocks).unwrap_or(0) * BLOCK_SIZE];
        self.file
            .read_exact_at(&mut content, block * BLOCK)
            .map_err(|error| io_failure(&self.path, &error))?;
        Ok(content)
    }

    pub fn write(&self, block: u64, content: &[u8]) -> Result<(), Failure> {
        let write = || {
            self.file.write_all_at(content, block * BLOCK)?;
            self.file.sync_all()
        };
        write().map_err(|error| io_failure(&self.path, &error))
    }

    pub fn flip_bit(&self, block: u64) -> Result<(), Failure> {
        let mut content = self.read(block, 1)?;
        content[BLOCK_SIZE / 2] ^= 4;
        self.write(block, &content)
    }

    /// Both copies of header and key slots.
    pub fn heads(&self) -> Result<Vec<u8>, Failure> {
        self.read(0, HEADS)
    }

    /// Changes what both headers say, as far as one can who has no key: the MAC stays what it was.
    pub fn forge_header(&self, change: impl Fn(&mut Header)) -> Result<(), Failure> {
        let forged = |error| Failure::internal(format!("the demo's own header: {error}"));
        for block in [0, 2] {
            let (page, slots) = (self.read(block, 1)?, self.read(block + 1, 1)?);
            let mut header = Header::decode(&page).map_err(forged)?;
            change(&mut header);
            let mut changed = header.encode_unsigned();
            header::put_digest(&mut changed, &slots);
            header::put_mac(&mut changed, header::mac(&page).map_err(forged)?);
            self.write(block, &changed)?;
        }
        Ok(())
    }

    /// Puts key slots of its own into both copies.
    pub fn put_slots(&self, slots: &[u8]) -> Result<(), Failure> {
        [1, 3].into_iter().try_for_each(|block| self.write(block, slots))?;
        self.forge_header(|_| ())
    }

    /// Overwrites everything with zeros.
    pub fn wipe(&self) -> Result<(), Failure> {
        let size = self.blocks()? * BLOCK;
        let wipe = || {
            self.file.set_len(0)?;
            self.file.set_len(size)?;
            self.file.sync_all()
        };
        wipe().map_err(|error| io_failure(&self.path, &error))
    }

    /// Whether there are zeros only.
    pub fn is_blank(&self) -> Result<bool, Failure> {
        let mut blank = true;
        each_chunk(&self.path, |_, chunk| blank &= is_zero(chunk))?;
        Ok(blank)
    }

    /// The longest stretch of blocks that differ from `before`: what the guest wrote meanwhile, as far as the host can see.
    pub fn longest_change(&self, before: &Self) -> Result<std::ops::Range<u64>, Failure> {
        let start = Header::decode(&self.read(0, 1)?)
            .map_err(|error| Failure::internal(format!("the demo's own header: {error}")))?
            .geometry
            .data_start();
        let (mut longest, mut current) = (0..0, 0..0);
        let mut old = vec![0; CHUNK];
        each_chunk(&self.path, |offset, chunk| {
            let old = &mut old[..chunk.len()];
            // A shorter copy differs from there on.
            if before.file.read_exact_at(old, offset).is_err() {
                old.fill(0);
            }
            let blocks = chunk.chunks(BLOCK_SIZE).zip(old.chunks(BLOCK_SIZE));
            for (block, (new, old)) in (offset / BLOCK..).zip(blocks) {
                if block < start || new == old {
                    current = block + 1..block + 1;
                    continue;
                }
                current.end = block + 1;
                if current.end - current.start > longest.end - longest.start {
                    longest = current.clone();
                }
            }
        })?;
        if longest.end - longest.start < 256 {
            return Err(Failure::internal("the guest wrote a large file, and the host cannot see where"));
        }
        Ok(longest)
    }
}

/// Copies a file with its holes.
pub fn copy(guest: &Guest, from: &Path, to: &Path) -> Result<(), Failure> {
    guest.tool("cp", &["--sparse=always".as_ref(), from.as_ref(), to.as_ref()])
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|part| part == &[0; 512][..part.len()])
}

fn each_chunk(path: &Path, mut see: impl FnMut(u64, &[u8])) -> Result<(), Failure> {
    let mut read = || {
        let file = File::open(path)?;
        let (mut chunk, mut offset) = (vec![0; CHUNK], 0);
        loop {
            let length = file.read_at(&mut chunk, offset)?;
            if length == 0 {
                return Ok(());
            }
            see(offset, &chunk[..length]);
            offset += length as u64;
        }
    };
    read().map_err(|error: std::io::Error| io_failure(path, &error))
}

/// Looks for each of `texts` in a file; how many of them are there, and how many bytes were not zero.
pub fn search(path: &Path, texts: &[Vec<u8>], guest: &Guest) -> Result<(usize, u64), Failure> {
    const HEAD: usize = 2;
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let mut starts = vec![false; 1 << 16];
    for text in texts {
        starts[head(text)] = true;
    }
    let mut found = vec![false; texts.len()];
    let (mut kept, mut used) = (Vec::new(), 0);
    each_chunk(path, |_, chunk| {
        if is_zero(chunk) {
            kept.clear();
            return;
        }
        used += chunk.len() as u64;
        // What may have begun at the end of the last chunk is looked at again.
        kept.extend_from_slice(chunk);
        for at in (0..kept.len().saturating_sub(HEAD)).filter(|at| starts[head(&kept[*at..])]) {
            for (text, found) in texts.iter().zip(&mut found).filter(|(_, found)| !**found) {
                *found = kept[at..].starts_with(text);
            }
        }
        kept.drain(..kept.len().saturating_sub(longest));
    })?;
    guest.interrupt.check()?;
    Ok((found.into_iter().filter(|found| *found).count(), used))
}

/// The first two bytes, as a number.
fn head(bytes: &[u8]) -> usize {
    let at = |index: usize| usize::from(bytes.get(index).copied().unwrap_or(0));
    at(0) << 8 | at(1)
}
