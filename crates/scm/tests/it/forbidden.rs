//! A process or thread to which the system denies something, whatever its user is: by a seccomp filter (see seccomp(2)), as a container has
//! one. Here userfaultfd.

use std::io;

/// `USERFAULTFD_IOC_NEW`, of /dev/userfaultfd.
const IOC_NEW: u32 = 0xaa00;

/// What fails with EPERM.
#[derive(Debug, Clone, Copy)]
pub struct Forbidden {
    /// userfaultfd(2).
    pub system_call: bool,
    /// A descriptor from /dev/userfaultfd.
    pub device: bool,
}

pub const BOTH: Forbidden = Forbidden { system_call: true, device: true };

impl Forbidden {
    /// The filter, to be made before a fork: what it does then allocates nothing.
    pub fn filter(self) -> impl Fn() -> io::Result<()> + Send + Sync + 'static {
        let number = |number: i64| u32::try_from(number).expect("system calls have small numbers");
        // No system call and no request has this number.
        let when = |is_forbidden, value| if is_forbidden { value } else { u32::MAX };
        let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), offset);
        let is = |value, jumps| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jumps, value);
        let end = |value| statement(libc::BPF_RET | libc::BPF_K, (0, 0), value);
        let filter = [
            load(0),
            is(when(self.system_call, number(libc::SYS_userfaultfd)), (3, 0)),
            is(number(libc::SYS_ioctl), (0, 3)),
            // The low half of the second argument.
            load(24),
            is(when(self.device, IOC_NEW), (0, 1)),
            end(libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
            end(libc::SECCOMP_RET_ALLOW),
        ];
        move || install(filter)
    }
}

/// A statement of a filter: what it does, how many it goes over if a comparison holds and if not, and its number.
pub fn statement(code: u32, (jt, jf): (u8, u8), k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).expect("codes have 16 bits"), jt, jf, k }
}

/// Filters the system calls of this thread, and of what it starts, from now on.
pub fn install<const STATEMENTS: usize>(mut filter: [libc::sock_filter; STATEMENTS]) -> io::Result<()> {
    let len = u16::try_from(STATEMENTS).unwrap_or(u16::MAX);
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: both calls concern the calling thread only; the program and its statements outlive the calls, which copy them.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}
