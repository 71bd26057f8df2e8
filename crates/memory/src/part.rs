//! Parts of a buffer, whose types say whether another domain can write them.

use std::marker::PhantomData;
use std::ptr;

use crate::once::{copy_once, prefetch_for_writing};

/// Bytes to copy from, or to open.
#[derive(Debug)]
pub enum Source<'a> {
    /// Only we can change them, and nobody does while they are borrowed.
    Private(&'a [u8]),
    /// Another domain may change them at any moment.
    Shared(Shared<'a>),
}

/// Bytes to copy to, or to seal into.
#[derive(Debug)]
pub enum Target<'a> {
    /// Only we can see or change them.
    Private(&'a mut [u8]),
    /// Another domain may read and change them at any moment.
    Shared(SharedMut<'a>),
}

/// Bytes that another domain may change at any moment: an address and a length.
#[derive(Debug)]
pub struct Shared<'a> {
    pointer: *const u8,
    length: usize,
    life: PhantomData<&'a u8>,
}

/// The same, to write to.
#[derive(Debug)]
pub struct SharedMut<'a> {
    pointer: *mut u8,
    length: usize,
    life: PhantomData<&'a mut u8>,
}

impl<'a> Shared<'a> {
    /// The `length` bytes at `pointer`.
    ///
    /// # Safety
    /// For the lifetime `'a` they are mapped for reading and initialised, no Rust reference covers them, and this domain writes them by
    /// [`copy_once`] only.
    #[must_use]
    pub unsafe fn from_raw(pointer: *const u8, length: usize) -> Self {
        Self { pointer, length, life: PhantomData }
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an empty part has no use")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Copies all bytes into `target`, each loaded once. A second copy may differ.
    ///
    /// # Panics
    /// If `target` has another length.
    pub fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(self.length, target.len(), "a copy has two equal sides");
        // SAFETY: `from_raw`'s caller vouches for the source; `target` is a private slice of the same length, and so it does not overlap
        // memory that no reference covers.
        unsafe { copy_once(self.pointer, target.as_mut_ptr(), self.length) }
    }
}

impl<'a> SharedMut<'a> {
    /// The `length` bytes at `pointer`.
    ///
    /// # Safety
    /// For the lifetime `'a` they are mapped for writing, no Rust reference covers them, and this domain reads and writes them by
    /// [`copy_once`] only.
    #[must_use]
    pub unsafe fn from_raw(pointer: *mut u8, length: usize) -> Self {
        Self { pointer, length, life: PhantomData }
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an empty part has no use")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Copies `source` there, each byte stored once.
    ///
    /// # Panics
    /// If `source` has another length.
    pub fn copy_from(&mut self, source: &[u8]) {
        assert_eq!(self.length, source.len(), "a copy has two equal sides");
        // SAFETY: as in `Shared::copy_to`, with the roles exchanged.
        unsafe { copy_once(source.as_ptr(), self.pointer, self.length) }
    }

    /// Asks for the cache lines, to be written soon. Changes nothing.
    pub fn prefetch(&self) {
        prefetch_for_writing(self.pointer, self.length);
    }
}

impl Source<'_> {
    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an empty part has no use")]
    pub fn len(&self) -> usize {
        match self {
            Source::Private(bytes) => bytes.len(),
            Source::Shared(shared) => shared.len(),
        }
    }

    /// Copies all bytes to an address.
    ///
    /// # Safety
    /// `to` is valid for writes of [`len`](Self::len) bytes, which do not overlap these and which nobody else uses.
    pub(crate) unsafe fn copy_to_raw(&self, to: *mut u8) {
        match self {
            // SAFETY: the caller vouches for `to`, the slice for itself.
            Source::Private(bytes) => unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) },
            // SAFETY: the same, and `from_raw`'s caller vouches for the source.
            Source::Shared(shared) => unsafe { copy_once(shared.pointer, to, shared.length) },
        }
    }
}

impl Target<'_> {
    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an empty part has no use")]
    pub fn len(&self) -> usize {
        match self {
            Target::Private(bytes) => bytes.len(),
            Target::Shared(shared) => shared.len(),
        }
    }

    /// Copies as many bytes from an address.
    ///
    /// # Safety
    /// `from` is valid for reads of [`len`](Self::len) initialised bytes, which do not overlap these and which nobody writes meanwhile.
    pub(crate) unsafe fn copy_from_raw(&mut self, from: *const u8) {
        match self {
            // SAFETY: the caller vouches for `from`, the slice for itself.
            Target::Private(bytes) => unsafe {
                ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len())
            },
            // SAFETY: the same, and `from_raw`'s caller vouches for the target.
            Target::Shared(shared) => unsafe { copy_once(from, shared.pointer, shared.length) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_parts_copy_the_same_bytes() {
        let from: Vec<u8> = (0..=255).collect();
        let mut shared = from.clone();
        let (mut one, mut other) = ([0; 256], [0; 256]);
        // SAFETY: 256 bytes that nobody else uses, on both sides; the reference to `shared` is not used until the parts are gone.
        unsafe {
            let (pointer, length) = (shared.as_mut_ptr(), shared.len());
            Source::Private(&from).copy_to_raw(one.as_mut_ptr());
            Source::Shared(Shared::from_raw(pointer, length)).copy_to_raw(other.as_mut_ptr());
            assert_eq!((&one[..], &other[..]), (&from[..], &from[..]));
            one.reverse();
            Target::Private(&mut other).copy_from_raw(one.as_ptr());
            Target::Shared(SharedMut::from_raw(pointer, length)).copy_from_raw(one.as_ptr());
        }
        assert_eq!((&one[..], &one[..]), (&other[..], &shared[..]));
    }

    #[test]
    #[should_panic(expected = "two equal sides")]
    fn a_copy_of_another_length_is_refused() {
        let bytes = [0_u8; 8];
        // SAFETY: eight bytes; the reference is not used meanwhile.
        unsafe { Shared::from_raw(bytes.as_ptr(), 8) }.copy_to(&mut [0; 9]);
    }
}
