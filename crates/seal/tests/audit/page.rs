//! A page that two sides map, as guest and host do.

use std::os::fd::{AsFd, OwnedFd};

use memory::{Access, BLOCK_SIZE, Buffer, FileMapping};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Bytes of a block, and of a page.
pub const SIZE: usize = BLOCK_SIZE;
/// A block, in private memory.
pub type Block = [u8; SIZE];

/// A new shared page, to be mapped as often as one likes. Programs that are started inherit the file.
pub fn file() -> OwnedFd {
    let file = memfd_create("audit", MemfdFlags::empty()).expect("memfd_create works");
    ftruncate(&file, SIZE as u64).expect("there is memory for a page");
    file
}

/// The page as a buffer in shared memory: what a volume's store hands out.
pub fn shared(file: &impl AsFd) -> Buffer {
    FileMapping::new(file, 0, SIZE, Access::ReadWrite).expect("a page can be mapped").into_buffer()
}

/// The page, to look at and to change from the other side.
pub fn mapping(file: &impl AsFd) -> FileMapping {
    FileMapping::new(file, 0, SIZE, Access::ReadWrite).expect("a page can be mapped")
}

/// A block in a private buffer.
pub fn private(block: &Block) -> Buffer {
    let mut buffer = Buffer::private_zeroed(1);
    buffer.copy_from(0, block);
    buffer
}

/// What a buffer of one block holds.
pub fn content(buffer: &Buffer) -> Block {
    let mut block = [0; SIZE];
    buffer.copy_to(0, &mut block);
    block
}
