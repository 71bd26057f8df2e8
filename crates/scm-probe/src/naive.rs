//! The paper's naive way (section 7): every load and store traps, and its page is decrypted before and encrypted behind it.
//!
//! A page that is not accessible raises SIGSEGV; the handler decrypts it, makes it accessible, and sets the trap flag, so that SIGTRAP comes
//! behind the one instruction; that handler encrypts it again and takes it away. Nothing here is durable or authenticated across accesses.
//!
//! Invariant: the only accesses to the memory are those of [`Mapped`] on this one thread, so handlers run between two of its instructions
//! and never inside of the allocator or another handler.

use std::cell::UnsafeCell;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use seal::{BlockKey, SALT_SIZE, Suite, SystemRandom, TAG_SIZE, VolumeKey};

use crate::mapped::Mapped;
use crate::{Kind, NaiveArgs};

const PAGE: usize = 4096;
/// The trap flag. Source: Intel SDM, volume 1, section 3.4.3.
const TRAP: i64 = 1 << 8;

struct State {
    base: usize,
    key: BlockKey,
    pages: UnsafeCell<Pages>,
}

struct Pages {
    tags: Vec<[u8; TAG_SIZE]>,
    nonces: Vec<u64>,
    next: u64,
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

// SAFETY: one thread uses it, see the invariant above.
unsafe impl Sync for State {}
// SAFETY: as above.
unsafe impl Send for State {}

static STATE: OnceLock<State> = OnceLock::new();
/// The page that is accessible just now.
static OPEN: AtomicUsize = AtomicUsize::new(usize::MAX);

pub(crate) fn naive(args: &NaiveArgs) -> io::Result<()> {
    let length = args.length / PAGE * PAGE;
    if length == 0 || args.record == 0 || !args.record.is_multiple_of(8) || args.record > length {
        return Err(io::Error::other("records are multiples of 8 that fit into the memory"));
    }
    let memory = Mapped::private(length)?;
    let key = VolumeKey::generate(&SystemRandom).pages(Suite::Aes256Gcm, &[1; SALT_SIZE]);
    let pages = Pages {
        tags: vec![[0; TAG_SIZE]; length / PAGE],
        nonces: vec![0; length / PAGE],
        next: 0,
        plain: vec![0; PAGE],
        sealed: vec![0; PAGE],
    };
    let state = STATE.get_or_init(|| State { base: memory.address(), key, pages: UnsafeCell::new(pages) });
    for page in 0..length / PAGE {
        encrypt(state, page);
    }
    handle(libc::SIGSEGV, on_access)?;
    handle(libc::SIGTRAP, on_step)?;
    let (limit, begun) = (Duration::from_secs_f64(args.seconds), Instant::now());
    let mut random = fastrand::Rng::with_seed(1);
    let (mut at, mut bytes) = (0, 0_u64);
    while begun.elapsed() < limit {
        if matches!(args.kind, Kind::Randread | Kind::Randwrite) {
            at = random.usize(..=(length - args.record) / 8) * 8;
        } else if at + args.record > length {
            at = 0;
        }
        for word in (at..at + args.record).step_by(8) {
            match args.kind {
                Kind::Read | Kind::Randread => {
                    std::hint::black_box(memory.load(word));
                }
                Kind::Write | Kind::Randwrite => memory.store(word, word as u64),
            }
            bytes += 8;
            // A record may take longer than is to be measured.
            if bytes.is_multiple_of(1024) && begun.elapsed() >= limit {
                break;
            }
        }
        at += args.record;
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{}", serde_json::json!({ "bytes": bytes, "seconds": seconds }));
    Ok(())
}

fn handle(
    signal: i32,
    handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void),
) -> io::Result<()> {
    // SAFETY: all-zero is a valid sigaction; the handler has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        if libc::sigaction(signal, &raw const action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn protect(state: &State, page: usize, protection: i32) {
    // SAFETY: a page of the memory, which is mapped for as long as the process measures.
    unsafe {
        let start: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(state.base + page * PAGE);
        if libc::mprotect(start, PAGE, protection) != 0 {
            libc::abort();
        }
    }
}

/// Encrypts a page that is accessible, and takes it away.
fn encrypt(state: &State, page: usize) {
    // SAFETY: one thread, and no other reference lives (the invariant above); the page is mapped and accessible.
    unsafe {
        let pages = &mut *state.pages.get();
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(state.base + page * PAGE);
        std::ptr::copy_nonoverlapping(start, pages.plain.as_mut_ptr(), PAGE);
        pages.nonces[page] = pages.next;
        pages.tags[page] = state.key.seal(pages.next, &[], &pages.plain, &mut pages.sealed);
        pages.next += 1;
        std::ptr::copy_nonoverlapping(pages.sealed.as_ptr(), start, PAGE);
    }
    protect(state, page, libc::PROT_NONE);
}

fn decrypt(state: &State, page: usize) {
    protect(state, page, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: as in `encrypt`.
    unsafe {
        let pages = &mut *state.pages.get();
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(state.base + page * PAGE);
        std::ptr::copy_nonoverlapping(start, pages.sealed.as_mut_ptr(), PAGE);
        let opened =
            state.key.open(pages.nonces[page], &[], &pages.sealed, &pages.tags[page], &mut pages.plain);
        if opened.is_err() {
            libc::abort();
        }
        std::ptr::copy_nonoverlapping(pages.plain.as_ptr(), start, PAGE);
    }
}

fn set_trap(context: *mut libc::c_void, on: bool) {
    // SAFETY: the kernel hands in the context of the interrupted thread, which is restored from it.
    let flags = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        &mut (*context).uc_mcontext.gregs[usize::try_from(libc::REG_EFL).unwrap_or(0)]
    };
    *flags = if on { *flags | TRAP } else { *flags & !TRAP };
}

extern "C" fn on_access(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: a SIGSEGV has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    let page = STATE.get().map(|state| (state, address.wrapping_sub(state.base) / PAGE));
    match page {
        Some((state, page)) if page * PAGE < length(state) && OPEN.load(Ordering::Relaxed) == usize::MAX => {
            decrypt(state, page);
            OPEN.store(page, Ordering::Relaxed);
            set_trap(context, true);
        }
        // Not of this memory: the process ends, as it would have without us.
        // SAFETY: a system call without memory.
        _ => unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        },
    }
}

extern "C" fn on_step(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let page = OPEN.swap(usize::MAX, Ordering::Relaxed);
    if let Some(state) = STATE.get().filter(|_| page != usize::MAX) {
        encrypt(state, page);
    }
    set_trap(context, false);
}

fn length(state: &State) -> usize {
    // SAFETY: as in `encrypt`.
    let pages = unsafe { &*state.pages.get() };
    pages.tags.len() * PAGE
}
