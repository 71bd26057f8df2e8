//! The process that is stepped through.

use std::arch::asm;
use std::ffi::{CStr, c_char, c_int};
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, RawFd};
use std::process::ExitCode;

use crate::page;
use crate::subject::{Work, plaintext, subject};

/// The first argument that makes this program the tracee. Behind it come subject, work, bytes, number of
/// rounds, number of the page's file, and the tag to open with.
pub const ARGUMENT: &CStr = c"--be-stepped-through";
/// The exit code if tracing is refused, plus the error's number.
pub const REFUSED: c_int = 64;

// Part of the `aegis` crate's C library.
unsafe extern "C" {
    fn aegis_init() -> c_int;
}

/// Libraries look at the CPU in their constructors, which run before `main`; this runs before them.
#[used]
#[unsafe(link_section = ".preinit_array")]
static EARLY: extern "C" fn(c_int, *const *const c_char) = early;

/// Asks to be traced, and lets libaegis look at the CPU under the tracer's eyes: it has no other way to hide
/// features from it.
extern "C" fn early(count: c_int, arguments: *const *const c_char) {
    // SAFETY: the C library gives us the arguments of `main`: `count` pointers to strings.
    let ours = count > 1 && unsafe { CStr::from_ptr(*arguments.add(1)) } == ARGUMENT;
    if !ours {
        return;
    }
    // SAFETY: takes no pointers, and only allows our parent to trace us; nothing has to be cleaned up yet.
    unsafe {
        if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
            libc::_exit(REFUSED + *libc::__errno_location());
        }
    }
    between_markers(0, || {
        // SAFETY: may be called at any time, and again.
        assert_eq!(unsafe { aegis_init() }, 0);
    });
}

/// The tracer stops at the markers, steps in between, and finds the page's address in rdi.
fn between_markers(page: usize, work: impl FnOnce()) {
    // SAFETY: the tracer goes on behind the instruction, as if nothing had been.
    unsafe { asm!("int3", in("rdi") page) };
    work();
    // SAFETY: as above.
    unsafe { asm!("int3") };
}

/// The whole program.
pub fn be(arguments: &[String]) -> ExitCode {
    let [name, work, size, rounds, file, tag] = arguments else { panic!("six arguments") };
    let work = if *work == format!("{:?}", Work::Seal) { Work::Seal } else { Work::Open };
    let rounds: usize = rounds.parse().expect("a number of rounds");
    let file: RawFd = file.parse().expect("a file number");
    // SAFETY: the tracer has opened it for us, and it stays open.
    let mut page = page::shared(&unsafe { BorrowedFd::borrow_raw(file) }.as_fd());
    let digits = |i: usize| u8::from_str_radix(&tag[2 * i..2 * i + 2], 16).expect("hexadecimal digits");
    let mut tag: [u8; 16] = std::array::from_fn(digits);
    let subject = subject(name).expect("the tracer has looked");
    let size: usize = size.parse().expect("a number of bytes");
    let plaintext = &plaintext()[..size];
    for _ in 0..rounds {
        let mut out = plaintext.to_vec();
        let mut opened = true;
        between_markers(page.as_ptr().addr(), || match work {
            Work::Seal => tag = subject.seal(plaintext, &mut page),
            Work::Open => {
                out.fill(0);
                opened = subject.open(&page, &tag, &mut out);
            }
        });
        if !opened || out != plaintext {
            return ExitCode::FAILURE;
        }
    }
    std::io::stdout().write_all(&tag).expect("the tracer reads it");
    ExitCode::SUCCESS
}
