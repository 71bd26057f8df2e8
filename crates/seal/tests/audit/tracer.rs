//! Tracing a process with ptrace(2).

use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _};
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;

use libc::{c_int, pid_t, user_regs_struct as Registers};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::cpu::Cpu;
use crate::subject::Work;
use crate::tracee::{ARGUMENT, REFUSED};

/// The instruction that begins and ends what is stepped through.
const MARKER: u8 = 0xcc;

/// Why a machine cannot run this.
pub struct Refused(pub String);

/// The tracer's side. The process ends with it, at the latest.
pub struct Tracee {
    child: Child,
    ended: bool,
    /// The cores that this thread may use otherwise.
    cores: Option<CpuSet>,
}

impl Tracee {
    /// Starts the process and stops it at its first marker, before the libraries' constructors.
    pub fn start(
        name: &str,
        work: Work,
        cpu: &Cpu,
        page: &impl AsFd,
        tag: [u8; 16],
    ) -> Result<Tracee, Refused> {
        let cores = share_a_core();
        let tag: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = page.as_fd().as_raw_fd();
        let child = Command::new(std::env::current_exe().expect("this program has a name"))
            .args([ARGUMENT.to_str().expect("it is text"), name])
            .args([
                format!("{work:?}"),
                cpu.size.to_string(),
                cpu.rounds().to_string(),
                file.to_string(),
                tag,
            ])
            .envs(cpu.environment())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Refused(format!("no process can be started: {error}")))?;
        let mut tracee = Tracee { child, ended: false, cores };
        if let Some(code) = tracee.wait() {
            assert!(code >= REFUSED, "{name}: exit code {code} before it was traced");
            let error = std::io::Error::from_raw_os_error(code - REFUSED);
            return Err(Refused(format!("ptrace(PTRACE_TRACEME) is refused here: {error}")));
        }
        tracee.request(libc::PTRACE_SETOPTIONS, libc::PTRACE_O_EXITKILL as usize).expect("since Linux 3.8");
        Ok(tracee)
    }

    pub fn registers(&self) -> Registers {
        // SAFETY: integers, for which zero is a value.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETREGS, (&raw mut registers).addr()).expect("it is stopped");
        registers
    }

    pub fn set_registers(&self, registers: &Registers) {
        self.request(libc::PTRACE_SETREGS, std::ptr::from_ref(registers).addr()).expect("it is stopped");
    }

    /// The mask register `k`, as the kernel saves it (XSAVE's component 5, at the place that the CPU names).
    pub fn mask(&self, k: usize) -> u64 {
        const NT_X86_XSTATE: usize = 0x202;
        let mut state = vec![0_u64; 2048];
        let mut io = libc::iovec { iov_base: state.as_mut_ptr().cast(), iov_len: size_of_val(&state[..]) };
        // SAFETY: the kernel writes at most iov_len bytes behind iov_base.
        let done = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, self.pid(), NT_X86_XSTATE, &raw mut io) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        let masks = std::arch::x86_64::__cpuid_count(0xd, 5).ebx as usize;
        assert!(masks + 64 <= io.iov_len);
        state[masks / 8 + k]
    }

    /// Bytes of its memory at `address`: up to 16.
    pub fn code(&self, address: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for at in [address, address + 8] {
            // SAFETY: reads a word of the other process; an address that it has not is an error.
            let word = unsafe {
                *libc::__errno_location() = 0;
                libc::ptrace(libc::PTRACE_PEEKTEXT, self.pid(), at, 0)
            };
            if std::io::Error::last_os_error().raw_os_error() == Some(0) {
                bytes.extend(word.to_le_bytes());
            }
        }
        bytes
    }

    /// Executes one instruction (of a repeated string instruction, one turn).
    pub fn step(&mut self) {
        self.request(libc::PTRACE_SINGLESTEP, 0).expect("it is stopped");
        assert_eq!(self.wait(), None, "it ended within a round");
    }

    /// Whether the next instruction ends the round.
    pub fn at_marker(code: &[u8]) -> bool {
        code.first() == Some(&MARKER)
    }

    /// Goes on to the next marker that begins something; or to the end, with what it says there.
    pub fn go_on(&mut self) -> Option<Vec<u8>> {
        self.request(libc::PTRACE_CONT, 0).expect("it is stopped");
        let code = self.wait()?;
        assert_eq!(code, 0, "the block did not open to the plaintext");
        let mut said = Vec::new();
        self.child.stdout.take().expect("piped").read_to_end(&mut said).expect("it has ended");
        Some(said)
    }

    fn pid(&self) -> pid_t {
        self.child.id().try_into().expect("process numbers are positive")
    }

    fn request(&self, request: libc::c_uint, data: usize) -> std::io::Result<()> {
        // SAFETY: `data` is a number, or the address of a structure of the type that the request wants.
        match unsafe { libc::ptrace(request, self.pid(), null_mut::<u8>(), data) } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Until it stops for us (`None`) or ends (with its exit code).
    fn wait(&mut self) -> Option<c_int> {
        let mut status = 0;
        // SAFETY: our own child, which nobody else waits for; the status is ours to write.
        let found = unsafe { libc::waitpid(self.pid(), &raw mut status, 0) };
        assert_eq!(found, self.pid(), "{}", std::io::Error::last_os_error());
        if libc::WIFSTOPPED(status) {
            assert_eq!(libc::WSTOPSIG(status), libc::SIGTRAP, "stopped by another signal");
            return None;
        }
        self.ended = true;
        assert!(libc::WIFEXITED(status), "killed by signal {}", libc::WTERMSIG(status));
        Some(libc::WEXITSTATUS(status))
    }
}

/// Binds this thread, and what it starts, to the core that it is on: handing control to and fro is cheaper so.
/// Returns the cores that it had before; where that is not allowed, everything takes longer.
fn share_a_core() -> Option<CpuSet> {
    let before = sched_getaffinity(None).ok()?;
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one).ok()?;
    Some(before)
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.ended {
            // SAFETY: our own child, not yet waited for.
            unsafe {
                libc::kill(self.pid(), libc::SIGKILL);
                libc::waitpid(self.pid(), null_mut(), 0);
            }
        }
        if let Some(cores) = &self.cores {
            sched_setaffinity(None, cores).expect("they were allowed before");
        }
    }
}
