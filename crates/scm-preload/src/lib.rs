//! `libcvmio_scm.so`: preloaded into an unmodified VMM, it gives it an encrypted region, whose pages a server decrypts when they are touched.
//!
//! ```sh
//! LD_PRELOAD=/usr/lib/cvmio/libcvmio_scm.so qemu-system-x86_64 ... $(cvmio-scm qemu-args --socket /run/scm)
//! ```
//!
//! The region has a path that exists here only: `pmem` under the server's socket, `/run/scm/pmem`. No file system has one there, so a program
//! without the library opens nothing, maps nothing and makes no file. `open` has the library ask the server for the region, and returns a stand-in
//! of the same length and kind that can be neither read, written nor mapped, also by other processes that get it. A shared mapping of the stand-in
//! becomes one of the region, and is handed to the server; if that does not take it, the mmap fails, and standard error has the reason.
//!
//! It takes the place of open(2), stat(2), access(2), mmap(2), munmap(2), mremap(2), madvise(2), ioctl(2) and sendmsg(2) in the VMM's process. For
//! the mapping that is served, what would have the server encrypt under the VMM, or show it what is not open, is refused: a private mapping, one over
//! it or a part of it, a part that is unmapped, a move, MADV_REMOVE and MADV_DOFORK, a device that pins it for good (VFIO), and to hand it to another
//! process (vhost-user). Advice to use huge pages is left out. All other calls go to the kernel as they are.

mod region;
mod served;

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{off_t, size_t};

/// Fails a call of this thread.
fn refuse(errno: c_int, why: &str) {
    eprintln!("libcvmio_scm: {why}");
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = errno };
}

/// What a system call returned, as the C library returns it: `syscall` has set errno.
fn done(result: c_long) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

/// # Safety
/// `path` is null or a string.
unsafe fn bytes<'a>(path: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's.
    if path.is_null() { &[] } else { unsafe { CStr::from_ptr(path) }.to_bytes() }
}

/// openat(2). In C it takes `mode` only where a file may be made: where it is not given, the register has anything, and the kernel does not look.
///
/// # Safety
/// As openat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's.
    match region::open(unsafe { bytes(path) }, flags) {
        Some(opened) => opened,
        // SAFETY: the caller's.
        None => done(unsafe { libc::syscall(libc::SYS_openat, directory, path, flags, mode) }),
    }
}

/// openat(2), by the name that programs with large files use.
///
/// # Safety
/// As openat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { openat(directory, path, flags, mode) }
}

/// open(2).
///
/// # Safety
/// As open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

/// open(2), by the name that programs with large files use.
///
/// # Safety
/// As open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

/// open(2), by the name that fortified programs use where no file is made.
///
/// # Safety
/// As open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { openat(libc::AT_FDCWD, path, flags, 0) }
}

/// The same with large files.
///
/// # Safety
/// As open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { openat(libc::AT_FDCWD, path, flags, 0) }
}

/// # Safety
/// As fstatat(2).
unsafe fn status(path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    match region::open(unsafe { bytes(path) }, libc::O_CLOEXEC) {
        Some(opened) if opened >= 0 => {
            // SAFETY: the descriptor is ours; `out` is the caller's.
            let found = done(unsafe { libc::fstat(opened, out) }.into());
            // SAFETY: as above, and nobody else has it.
            unsafe { libc::close(opened) };
            found
        }
        Some(refused) => refused,
        // SAFETY: the caller's.
        None => done(unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, out, flags) }),
    }
}

/// stat(2).
///
/// # Safety
/// As stat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, out: *mut libc::stat) -> c_int {
    // SAFETY: the caller's.
    unsafe { status(path, out, 0) }
}

/// stat(2), by the name that programs with large files use: the structure is the same on machines with 64 bits.
///
/// # Safety
/// As stat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat64(path: *const c_char, out: *mut libc::stat) -> c_int {
    // SAFETY: the caller's.
    unsafe { status(path, out, 0) }
}

/// lstat(2).
///
/// # Safety
/// As lstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lstat(path: *const c_char, out: *mut libc::stat) -> c_int {
    // SAFETY: the caller's.
    unsafe { status(path, out, libc::AT_SYMLINK_NOFOLLOW) }
}

/// lstat(2), by the name that programs with large files use.
///
/// # Safety
/// As lstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lstat64(path: *const c_char, out: *mut libc::stat) -> c_int {
    // SAFETY: the caller's.
    unsafe { status(path, out, libc::AT_SYMLINK_NOFOLLOW) }
}

/// access(2).
///
/// # Safety
/// As access(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller's.
    if region::is_named(unsafe { bytes(path) }) {
        return 0;
    }
    // SAFETY: the caller's.
    done(unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, mode) })
}

/// mmap(2).
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    if flags & libc::MAP_FIXED != 0 && served::overlaps(address, length) {
        refuse(
            libc::EINVAL,
            "a mapping over the region, or over a part of it, is refused: unmap the region as a whole first",
        );
        return libc::MAP_FAILED;
    }
    // SAFETY: the caller's.
    let map = |descriptor: c_int| unsafe {
        let mapped = libc::syscall(libc::SYS_mmap, address, length, protection, flags, descriptor, offset);
        let mapped = usize::try_from(mapped.cast_unsigned()).unwrap_or(usize::MAX);
        std::ptr::with_exposed_provenance_mut::<c_void>(mapped)
    };
    let Some(region) = region::of(descriptor) else { return map(descriptor) };
    if ![libc::MAP_SHARED, libc::MAP_SHARED_VALIDATE].contains(&(flags & libc::MAP_TYPE)) {
        refuse(
            libc::EACCES,
            "a private mapping of the region is refused: its pages would not come back; use a shared one (share=on)",
        );
        return libc::MAP_FAILED;
    }
    served::map(&region, served::Asked { address, length, offset, protection }, map)
}

/// mmap(2), by the name that programs with large files use.
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { mmap(address, length, protection, flags, descriptor, offset) }
}

/// munmap(2).
///
/// # Safety
/// As munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    match served::unmap(address, length) {
        // SAFETY: the caller's.
        served::Unmap::Go => done(unsafe { libc::syscall(libc::SYS_munmap, address, length) }),
        served::Unmap::Others => 0,
        served::Unmap::Part => {
            refuse(libc::EINVAL, "to unmap a part of the region is refused: unmap all of it");
            -1
        }
    }
}

/// mremap(2). In C it takes the new address only with MREMAP_FIXED; else the register has anything, and nobody looks.
///
/// # Safety
/// As mremap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    address: *mut c_void,
    length: size_t,
    new_length: size_t,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    let is_over = flags & libc::MREMAP_FIXED != 0 && served::overlaps(new_address, new_length);
    if served::overlaps(address, length) || is_over {
        refuse(libc::EINVAL, "to move the region's mapping, or another one over it, is refused");
        return libc::MAP_FAILED;
    }
    // SAFETY: the caller's.
    let moved = unsafe { libc::syscall(libc::SYS_mremap, address, length, new_length, flags, new_address) };
    std::ptr::with_exposed_provenance_mut(usize::try_from(moved.cast_unsigned()).unwrap_or(usize::MAX))
}

/// madvise(2), without huge pages for the mapping that is served: a page's neighbours must not come with it.
///
/// # Safety
/// As madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: size_t, advice: c_int) -> c_int {
    if served::overlaps(address, length) {
        match advice {
            libc::MADV_HUGEPAGE | libc::MADV_COLLAPSE => return 0,
            libc::MADV_REMOVE | libc::MADV_DOFORK => {
                refuse(
                    libc::EOPNOTSUPP,
                    "advice to remove pages of the region, or to leave it to children of the process, is refused",
                );
                return -1;
            }
            _ => {}
        }
    }
    // SAFETY: the caller's.
    done(unsafe { libc::syscall(libc::SYS_madvise, address, length, advice) })
}

/// What has a device reach memory of this process for good: VFIO_IOMMU_MAP_DMA, and IOMMU_IOAS_MAP of iommufd.
const MAP_DMA: c_ulong = 0x3b71;
const IOAS_MAP: c_ulong = 0x3b85;

/// ioctl(2).
///
/// # Safety
/// As ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // The address and the length, in words of eight bytes.
    let range = match request {
        MAP_DMA => Some((1, 3)),
        IOAS_MAP => Some((2, 3)),
        _ => None,
    };
    if let Some((address, length)) = range.filter(|_| !argument.is_null()) {
        let words = argument.cast::<u64>();
        // SAFETY: both requests take a structure of at least four words, which the caller has filled.
        let (address, length) =
            unsafe { (words.add(address).read_unaligned(), words.add(length).read_unaligned()) };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if served::overlaps(std::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(0)), length) {
            refuse(
                libc::EPERM,
                "a device cannot have the region (VFIO): it would write past the page tables, into pages that are encrypted; have the region \
                 served by FUSE, or use no such device",
            );
            return -1;
        }
    }
    // SAFETY: the caller's.
    done(unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) })
}

/// Whether a message hands a region to another process.
///
/// # Safety
/// `message` is null or that of a call of sendmsg(2).
unsafe fn hands_over_a_region(message: *const libc::msghdr) -> bool {
    // SAFETY: the caller's: the control part is as long as it says. CMSG_NXTHDR ends where the next header would not be whole; the descriptors
    // of one are as many as its length says, cut to what is in the control part, and need not be aligned.
    unsafe {
        let Some(all) = message.as_ref().filter(|it| !it.msg_control.is_null()) else { return false };
        let end = all.msg_control.addr() + all.msg_controllen;
        let mut next = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = next.as_ref() {
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let first = libc::CMSG_DATA(next).cast::<[u8; size_of::<c_int>()]>();
                let bytes = end.min(next.addr() + header.cmsg_len).saturating_sub(first.addr());
                let count = bytes / size_of::<c_int>();
                let mut descriptors = (0..count).map(|at| c_int::from_ne_bytes(first.add(at).read()));
                if descriptors.any(|descriptor| region::of(descriptor).is_some()) {
                    return true;
                }
            }
            next = libc::CMSG_NXTHDR(message, next);
        }
        false
    }
}

/// sendmsg(2).
///
/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(socket: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's.
    if region::is_any() && unsafe { hands_over_a_region(message) } {
        refuse(
            libc::EPERM,
            "another process cannot have the region (vhost-user): it would see ciphertext, and write into it; have the region served by FUSE, or \
             use a device that is in the VMM",
        );
        return -1;
    }
    // SAFETY: the caller's.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, socket, message, flags) };
    isize::try_from(sent).unwrap_or(-1)
}
