//! AES-256-XTS (IEEE 1619) by aws-lc's EVP interface; aws-lc-rs does not offer it.

use std::cell::Cell;
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use aws_lc_sys as sys;

use crate::{Secret, heap};

/// The shortest input: one AES block.
pub(crate) const MIN_SIZE: usize = 16;
/// The longest input: 2^20 AES blocks (IEEE 1619, NIST SP 800-38E).
pub(crate) const MAX_SIZE: usize = 16 << 20;

/// A prepared key.
#[derive(Debug)]
pub(crate) struct Xts {
    encrypt: Pool,
    decrypt: Pool,
}

impl Xts {
    pub(crate) fn new(key: &Secret<64>) -> Xts {
        Xts { encrypt: Pool::new(key, Direction::Encrypt), decrypt: Pool::new(key, Direction::Decrypt) }
    }

    pub(crate) fn encrypt(&self, tweak: [u8; 16], plaintext: &[u8], out: &mut [u8]) {
        self.encrypt.context().run(tweak, plaintext, out);
    }

    pub(crate) fn decrypt(&self, tweak: [u8; 16], ciphertext: &[u8], out: &mut [u8]) {
        self.decrypt.context().run(tweak, ciphertext, out);
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Encrypt = 1,
    Decrypt = 0,
}

/// The tweak is part of an EVP context, so a thread needs one to itself while it works. Threads start
/// looking at different ones, and so meet only if there are more threads than contexts.
#[derive(Debug)]
struct Pool([Place; 8]);

/// A cache line to itself, so that the locks of two threads don't share one.
#[derive(Debug)]
#[repr(align(64))]
struct Place(Mutex<Context>);

impl Pool {
    fn new(key: &Secret<64>, direction: Direction) -> Pool {
        Pool(std::array::from_fn(|_| Place(Mutex::new(Context::new(key, direction)))))
    }

    fn context(&self) -> MutexGuard<'_, Context> {
        let first = thread_number();
        for i in 0..self.0.len() {
            match self.0[(first + i) % self.0.len()].0.try_lock() {
                Ok(context) => return context,
                Err(TryLockError::Poisoned(context)) => return context.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.0[first % self.0.len()].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Threads count themselves on first use.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    NUMBER.get()
}

/// An EVP context with its key set, in the heap of aws-lc, which is ours.
#[derive(Debug)]
struct Context(NonNull<sys::EVP_CIPHER_CTX>);

// SAFETY: an EVP context is not tied to the thread that made it; it only must not be used by two at once,
// and all use goes through &mut self.
unsafe impl Send for Context {}

impl Context {
    fn new(key: &Secret<64>, direction: Direction) -> Context {
        heap::take_over();
        // SAFETY: takes nothing, returns a context that is ours or null.
        let context = unsafe { sys::EVP_CIPHER_CTX_new() };
        let context = Context(NonNull::new(context).expect("the system has memory for a key schedule"));
        // SAFETY: the context is ours; the cipher is a static of aws-lc that takes a key of 64 bytes, which
        // `key` has; no engine and no tweak are given.
        let done = unsafe {
            let cipher = sys::EVP_aes_256_xts();
            let key = key.expose().as_ptr();
            sys::EVP_CipherInit_ex(context.0.as_ptr(), cipher, null_mut(), key, null(), direction as i32)
        };
        // Refused only if both halves of the key are the same, which derived keys are with chance 2^-256.
        assert_eq!(done, 1, "AES-256-XTS takes the key");
        context
    }

    fn run(&mut self, tweak: [u8; 16], input: &[u8], out: &mut [u8]) {
        assert_eq!(input.len(), out.len());
        assert!((MIN_SIZE..=MAX_SIZE).contains(&input.len()), "XTS takes 16 bytes to 16 MiB");
        // SAFETY: the context is ours alone (&mut self) and has its cipher and key; the tweak has the 16
        // bytes that it wants; input and out have input.len() bytes each and don't overlap, being
        // references.
        let done = unsafe {
            let context = self.0.as_ptr();
            sys::EVP_CipherInit_ex(context, null(), null_mut(), null(), tweak.as_ptr(), -1) == 1
                && sys::EVP_Cipher(context, out.as_mut_ptr(), input.as_ptr(), input.len()) == 1
        };
        assert!(done, "AES-256-XTS takes this length");
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is ours and is not used again.
        unsafe { sys::EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::vectors::{array, hex};

    const KEY: &str = "2718281828459045235360287471352662497757247093699959574966967627\
                       3141592653589793238462643383279502884197169399375105820974944592";

    /// IEEE 1619-2007, annex B, vector 10: data unit 0xff, plaintext 00 01 .. ff twice.
    #[test]
    fn ieee_1619() {
        let text = include_str!("../../tests/vectors/ieee-1619-vector-10.hex");
        let expected = hex(&text.split_whitespace().collect::<String>());
        let plaintext: Vec<u8> = (0..=255).chain(0..=255).collect();
        let key = Xts::new(&Secret::from_bytes(array(KEY)));
        let mut tweak = [0; 16];
        tweak[0] = 0xff;
        let mut out = vec![0; 512];
        key.encrypt(tweak, &plaintext, &mut out);
        assert_eq!(out, expected);
        let mut back = vec![0; 512];
        key.decrypt(tweak, &out, &mut back);
        assert_eq!(back, plaintext);
    }

    #[test]
    fn more_threads_than_contexts_share_a_key() {
        let key = Xts::new(&Secret::from_bytes(array(KEY)));
        let work = |thread: u8| {
            for i in 0..500_u64 {
                let plaintext = [thread; 512];
                let tweak = u128::from(i).to_le_bytes();
                let (mut out, mut back) = ([0; 512], [0; 512]);
                key.encrypt(tweak, &plaintext, &mut out);
                key.decrypt(tweak, &out, &mut back);
                assert_eq!(back, plaintext);
            }
        };
        std::thread::scope(|scope| (0..20).for_each(|thread| drop(scope.spawn(move || work(thread)))));
    }
}
