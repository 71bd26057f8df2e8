//! AES-256-GCM of the system's OpenSSL: the control, which is known to read its ciphertext again.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};

const FILE: &CStr = c"libcrypto.so.3";
const NONCE: [u8; 12] = [1; 12];
const GET_TAG: c_int = 0x10;
const SET_TAG: c_int = 0x11;

type Context = *mut c_void;
type Init = unsafe extern "C" fn(Context, *const c_void, *mut c_void, *const u8, *const u8) -> c_int;
type Update = unsafe extern "C" fn(Context, *mut u8, *mut c_int, *const u8, c_int) -> c_int;
type Final = unsafe extern "C" fn(Context, *mut u8, *mut c_int) -> c_int;
type Control = unsafe extern "C" fn(Context, c_int, c_int, *mut c_void) -> c_int;

/// Two contexts, each with its key.
pub struct OpenSsl {
    encrypt: Context,
    decrypt: Context,
    encrypt_init: Init,
    encrypt_update: Update,
    encrypt_final: Final,
    decrypt_init: Init,
    decrypt_update: Update,
    decrypt_final: Final,
    control: Control,
}

impl OpenSsl {
    /// `Err` says why there is none here.
    pub fn load() -> Result<OpenSsl, String> {
        // SAFETY: the name is a string; the library's constructors do what every user of it asks for.
        let library = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err(format!("there is no {} (Debian: libssl3)", FILE.to_string_lossy()));
        }
        // SAFETY: each symbol is used with the type that OpenSSL's <openssl/evp.h> declares for it; the
        // library is never closed.
        unsafe {
            let new: unsafe extern "C" fn() -> Context = symbol(library, c"EVP_CIPHER_CTX_new")?;
            let cipher: unsafe extern "C" fn() -> *const c_void = symbol(library, c"EVP_aes_256_gcm")?;
            let openssl = OpenSsl {
                encrypt: new(),
                decrypt: new(),
                encrypt_init: symbol(library, c"EVP_EncryptInit_ex")?,
                encrypt_update: symbol(library, c"EVP_EncryptUpdate")?,
                encrypt_final: symbol(library, c"EVP_EncryptFinal_ex")?,
                decrypt_init: symbol(library, c"EVP_DecryptInit_ex")?,
                decrypt_update: symbol(library, c"EVP_DecryptUpdate")?,
                decrypt_final: symbol(library, c"EVP_DecryptFinal_ex")?,
                control: symbol(library, c"EVP_CIPHER_CTX_ctrl")?,
            };
            assert!(!openssl.encrypt.is_null() && !openssl.decrypt.is_null());
            let key = [7; 32].as_ptr();
            let (encrypt, decrypt) = (openssl.encrypt, openssl.decrypt);
            assert_eq!((openssl.encrypt_init)(encrypt, cipher(), null_mut(), key, NONCE.as_ptr()), 1);
            assert_eq!((openssl.decrypt_init)(decrypt, cipher(), null_mut(), key, NONCE.as_ptr()), 1);
            Ok(openssl)
        }
    }

    /// Seals straight into `out`.
    ///
    /// # Safety
    /// `out` is valid for writes and reads of `plaintext.len()` bytes, and no Rust reference covers them.
    pub unsafe fn seal(&self, plaintext: &[u8], out: *mut u8) -> [u8; 16] {
        let (mut tag, mut written) = ([0_u8; 16], 0);
        let length = plaintext.len().try_into().expect("below 2 GiB");
        let context = self.encrypt;
        // SAFETY: the context has its key, and this thread alone uses it; the lengths are those of the
        // arguments (the caller's promise, for `out`). GCM writes nothing when it ends.
        let done = unsafe {
            (self.encrypt_init)(context, null(), null_mut(), null(), NONCE.as_ptr()) == 1
                && (self.encrypt_update)(context, out, &raw mut written, plaintext.as_ptr(), length) == 1
                && (self.encrypt_final)(context, null_mut(), &raw mut written) == 1
                && (self.control)(context, GET_TAG, 16, tag.as_mut_ptr().cast()) == 1
        };
        assert!(done, "OpenSSL seals");
        tag
    }

    /// Opens straight from `source`; whether the tag was right.
    ///
    /// # Safety
    /// `source` is valid for reads of `out.len()` bytes, and no Rust reference covers them.
    pub unsafe fn open(&self, source: *const u8, tag: &[u8; 16], out: &mut [u8]) -> bool {
        let (mut tag, mut written) = (*tag, 0);
        let length = out.len().try_into().expect("below 2 GiB");
        let context = self.decrypt;
        // SAFETY: as in `seal`; setting a tag only reads it.
        unsafe {
            let ready = (self.decrypt_init)(context, null(), null_mut(), null(), NONCE.as_ptr()) == 1
                && (self.decrypt_update)(context, out.as_mut_ptr(), &raw mut written, source, length) == 1
                && (self.control)(context, SET_TAG, 16, tag.as_mut_ptr().cast()) == 1;
            assert!(ready, "OpenSSL opens");
            (self.decrypt_final)(context, null_mut(), &raw mut written) == 1
        }
    }
}

/// # Safety
/// `F` is the type of the function of that name.
unsafe fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
    // SAFETY: the library is open and the name is a string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("{} has no {}", FILE.to_string_lossy(), name.to_string_lossy()));
    }
    // SAFETY: a pointer to code, not null, as large as F, which is a function pointer of the right type
    // (the caller's promise).
    Ok(unsafe { std::mem::transmute_copy(&found) })
}
