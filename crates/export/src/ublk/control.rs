//! The driver's control device: devices are added, started, stopped and deleted here.

use super::abi::{self, ANY, Command, INFO, Info, PARAMETERS, State, feature};
use crate::Error;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use uring::{CommandRing, opcode, types};

/// How long the kernel may be short of memory for a command, and when it is asked again.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);
const PATH: &str = "/dev/ublk-control";

/// What we need of a driver; Linux 6.5 has it all.
const NEEDED: u64 = feature::ENCODED | feature::USER_COPY;
const RECOVERABLE: u64 = feature::RECOVERY | feature::REISSUE;

/// Whether this kernel has the driver.
pub(super) fn is_there() -> bool {
    Path::new(PATH).exists()
}

/// The control device. Its commands wait for their end, so they must not be given by a thread that serves a device.
pub(super) struct Control {
    device: OwnedFd,
    ring: CommandRing,
}

impl Control {
    /// # Errors
    /// [`Error::Usage`] if this kernel, or this user, cannot have devices of this kind; says what to do.
    pub(super) fn open() -> Result<Self, Error> {
        let device = rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => Error::Usage(
                "this kernel has no ublk: load its module (modprobe ublk_drv; Linux 6.5 or later), or choose another front end".into(),
            ),
            Errno::ACCESS | Errno::PERM => Error::Usage("only root can make ublk devices".into()),
            errno => Error::at("opening", Path::new(PATH), errno),
        })?;
        let ring =
            CommandRing::new(4).map_err(|error| Error::io("setting up io_uring for ublk", &error.into()))?;
        let mut control = Self { device, ring };
        let mut features = [0; 8];
        let found =
            control.run(Command::GetFeatures, ANY, &mut features, 0).map(|()| u64::from_ne_bytes(features));
        match found {
            Ok(features) if features & NEEDED == NEEDED => Ok(control),
            Err(errno @ (Errno::PERM | Errno::ACCESS)) => Err(Error::at("asking", Path::new(PATH), errno)),
            _ => Err(Error::Usage("this kernel's ublk is too old: Linux 6.5 or later is needed".into())),
        }
    }

    /// Adds a device, which is not there yet for anybody but us. A recoverable one outlives its server.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn add(&mut self, queues: u16, depth: u16, recoverable: bool) -> Result<Info, Error> {
        let features = NEEDED | if recoverable { RECOVERABLE } else { 0 };
        let server = std::process::id();
        let info = Info { queues, depth, state: State::Dead, number: ANY, server, features };
        let mut bytes = info.encode();
        self.run(Command::Add, ANY, &mut bytes, 0)
            .map_err(|errno| Error::system("adding a ublk device", errno))?;
        // The kernel may have made queues and depth smaller.
        Ok(Info::decode(&bytes))
    }

    /// What is known about a device.
    ///
    /// # Errors
    /// [`Errno::NODEV`] if there is none.
    pub(super) fn info(&mut self, number: u32) -> Result<Info, Errno> {
        let mut bytes = [0; INFO];
        self.run(Command::GetInfo, number, &mut bytes, 0).map(|()| Info::decode(&bytes))
    }

    /// Says how large a device is to be, and what it can do.
    pub(super) fn describe(&mut self, number: u32, size: u64, read_only: bool) -> Result<(), Error> {
        let mut bytes = abi::parameters(size, read_only);
        self.command(Command::SetParameters, number, &mut bytes, 0)
    }

    pub(super) fn size(&mut self, number: u32) -> Result<u64, Error> {
        let mut bytes = [0; PARAMETERS];
        // The kernel reads how much there is room for.
        let room = u32::try_from(PARAMETERS).unwrap_or_default();
        bytes[..4].copy_from_slice(&room.to_ne_bytes());
        self.command(Command::GetParameters, number, &mut bytes, 0)?;
        Ok(abi::size(&bytes))
    }

    /// Shows the device, and returns when the kernel has looked at it: its queues must be served already. `Command::EndRecovery` for one that
    /// was there before.
    pub(super) fn start(&mut self, number: u32, by: Command) -> Result<(), Error> {
        self.command(by, number, &mut [], u64::from(std::process::id()))
    }

    pub(super) fn start_recovery(&mut self, number: u32) -> Result<(), Error> {
        self.command(Command::StartRecovery, number, &mut [], 0)
    }

    /// Takes a device away. What is in flight ends before, also what a dead server has left.
    pub(super) fn stop(&mut self, number: u32) -> Result<(), Error> {
        self.command(Command::Stop, number, &mut [], 0)
    }

    /// Forgets a device that was stopped. Its number is free when nobody has it open any more.
    pub(super) fn delete(&mut self, number: u32) -> Result<(), Error> {
        match self.run(Command::DeleteLater, number, &mut [], 0) {
            // Before Linux 6.9; then this waits.
            Err(Errno::OPNOTSUPP) => self.command(Command::Delete, number, &mut [], 0),
            result => result.map_err(|errno| Error::system(format!("ublk device {number}: Delete"), errno)),
        }
    }

    fn command(&mut self, command: Command, number: u32, buffer: &mut [u8], value: u64) -> Result<(), Error> {
        self.run(command, number, buffer, value)
            .map_err(|errno| Error::system(format!("ublk device {number}: {command:?}"), errno))
    }

    /// Gives a command and waits for its end.
    fn run(&mut self, command: Command, number: u32, buffer: &mut [u8], value: u64) -> Result<(), Errno> {
        let length = u16::try_from(buffer.len()).map_err(|_| Errno::INVAL)?;
        let mut memory = buffer.to_vec();
        let address = memory.as_mut_ptr().addr() as u64;
        let bytes = abi::command(number, if length == 0 { 0 } else { address }, length, value);
        let entry =
            opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), command.code()).cmd(bytes).build();
        // SAFETY: the kernel reads and writes `memory` until the command's completion, and we neither free nor touch it before: behind an error it
        // is left to the kernel. The device is open as long as `self` lives.
        unsafe { self.ring.push(&entry) }.map_err(|_| Errno::BUSY)?;
        let begun = Instant::now();
        loop {
            match self.ring.wait(None) {
                Ok(()) => {}
                Err(error) if error.passes() && begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
                Err(error) => {
                    std::mem::forget(memory);
                    return Err(Errno::from_raw_os_error(error.errno()));
                }
            }
            if let Some(completion) = self.ring.completions().next() {
                buffer.copy_from_slice(&memory);
                let result = completion.result;
                return if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(()) };
            }
        }
    }
}
