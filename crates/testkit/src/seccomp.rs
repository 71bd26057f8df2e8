//! A kernel that refuses a system call, as the seccomp profile of a container does (seccomp(2)).

use std::io;

/// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JEQ | BPF_K` and `BPF_RET | BPF_K` of `linux/bpf_common.h`.
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// From now on `call` fails with `errno`, for this thread and all that it starts. There is no way back.
///
/// It makes no other system call and takes no memory, so a process may call it between fork and exec.
///
/// # Errors
/// When the kernel has no filters.
///
/// # Panics
/// If these are no numbers of a system call and an error.
pub fn forbid(call: libc::c_long, errno: i32) -> io::Result<()> {
    let (call, errno) = (u32::try_from(call).expect("a number"), u32::try_from(errno).expect("a number"));
    let step = |code, yes, no, value| libc::sock_filter { code, jt: yes, jf: no, k: value };
    let mut steps = [
        // The first field of `struct seccomp_data` is the call's number.
        step(LOAD, 0, 0, 0),
        step(IF_EQUAL, 0, 1, call),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
    // SAFETY: the first call takes numbers only; the second reads `program`, and the steps that it names, which live until it returns.
    let ended = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    if ended == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
