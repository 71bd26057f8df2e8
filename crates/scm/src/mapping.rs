//! A region's file, mapped and shared: the medium of real regions.
//!
//! Invariants: the mapping is touched by raw pointers and by system calls only, since a guest may write to its data pages at any time; every
//! access is checked against the length that was mapped. A file that is cut short, or a medium that fails a page, raises SIGBUS: `sigbus`
//! puts zeros there and notes it, and every access looks at the note afterwards, so that no byte from behind it is used.

mod sigbus;

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use rustix::fs::{FlockOperation, MemfdFlags, StatFs};
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync, munmap};

use crate::Error;
use crate::flush::{self, Instruction};
use crate::medium::{Fault, Medium};
use sigbus::Watched;

const TMPFS: i64 = 0x0102_1994;
const HUGETLBFS: i64 = 0x9584_58f6;
const PAGE: u64 = 4096;

/// What makes stores durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Cache lines that were written back: a DAX file system (mapped with `MAP_SYNC`), tmpfs, hugetlbfs.
    CacheLines,
    /// msync(2): any other file system. Every fence waits for the disk.
    Msync,
}

/// Who else may have the region meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nobody: to serve or recover it.
    Exclusive,
    /// Other readers: to look at it.
    ReadOnly,
    /// Anybody: for a look that proves nothing.
    Peek,
}

/// A mapped file.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: u64,
    file: File,
    path: PathBuf,
    durability: Durability,
    huge_page_size: Option<u64>,
    instruction: Instruction,
    watched: Watched,
}

// SAFETY: plain memory, touched by raw pointers only; who touches which part when is settled by the engine's locks.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps an existing file, and locks it.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process has it, [`Error::Usage`] if its file system has no shared mappings, [`Error::Io`].
    pub fn open(path: &Path, access: Access) -> Result<Mapping, Error> {
        let doing = |what: &str| format!("{what} {}", path.display());
        let file = File::options().read(true).write(access == Access::Exclusive).open(path);
        let file = file.map_err(|error| Error::io(doing("opening"), error))?;
        lock(&file, path, access)?;
        if access == Access::Exclusive {
            keep_others_out(&file, path)?;
        }
        let len = file.metadata().map_err(|error| Error::io(doing("looking at"), error))?.len();
        if len == 0 || len % 8 != 0 {
            return Err(Error::Usage(format!("{}: it is no region: it has {len} bytes", path.display())));
        }
        Mapping::map(file, path, len, access)
    }

    /// Makes a file of so many bytes, all zeros and with memory behind them, and maps it. The file is new, and locked.
    ///
    /// # Errors
    /// [`Error::Io`] if it exists already or the space is not there, [`Error::Usage`] if its file system has no shared mappings.
    pub fn create(path: &Path, len: u64) -> Result<Mapping, Error> {
        // Its pages are in the clear while they are open, and whoever can open it can lock out the server.
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| Error::io(format!("creating {}", path.display()), error))?;
        let made = Mapping::fill(file, path, len);
        if made.is_err() {
            // It is ours, new, and no region.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn fill(file: File, path: &Path, len: u64) -> Result<Mapping, Error> {
        lock(&file, path, Access::Exclusive)?;
        let grown = file.set_len(len).and_then(|()| {
            let allocated = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len);
            allocated.map_err(io::Error::from)
        });
        let huge = rustix::fs::fstatfs(&file).is_ok_and(|found| kind(&found) == HUGETLBFS);
        grown.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSPC | libc::ENOMEM) if huge => Error::Usage(format!(
                "{}: there are not enough huge pages for {len} bytes: reserve more with the sysctl vm.nr_hugepages, or in \
                 /sys/kernel/mm/hugepages",
                path.display()
            )),
            _ => Error::io(format!("making {} {len} bytes long", path.display()), error),
        })?;
        Mapping::map(file, path, len, Access::Exclusive)
    }

    /// A memory file without a name, for tests and for regions that need not outlive the process.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn memory(len: u64) -> Result<Mapping, Error> {
        let name = Path::new("memory");
        let file = rustix::fs::memfd_create("scm", MemfdFlags::CLOEXEC);
        let file = file.map_err(|errno| Error::io("making a memory file", errno))?;
        Mapping::fill(file.into(), name, len)
    }

    /// The multiple of bytes that files in this directory have: the huge page of hugetlbfs, else a page.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn granule(directory: &Path) -> Result<u64, Error> {
        let found = rustix::fs::statfs(directory)
            .map_err(|errno| Error::io(format!("looking at {}", directory.display()), errno))?;
        Ok(granule(&found))
    }

    fn map(file: File, path: &Path, len: u64, access: Access) -> Result<Mapping, Error> {
        let found = rustix::fs::fstatfs(&file)
            .map_err(|errno| Error::io(format!("looking at {}", path.display()), errno))?;
        let bytes =
            usize::try_from(len).map_err(|_| Error::Usage(format!("{len} bytes cannot be mapped")))?;
        let mut protection = ProtFlags::READ;
        if access == Access::Exclusive {
            protection |= ProtFlags::WRITE;
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let attempt = |flags| unsafe { mmap(ptr::null_mut(), bytes, protection, flags, &file, 0) };
        // MAP_SYNC is refused wherever cache lines that are written back would not be enough.
        let synchronous = attempt(MapFlags::SHARED_VALIDATE | MapFlags::SYNC);
        let in_memory = [TMPFS, HUGETLBFS].contains(&kind(&found));
        let durability =
            if synchronous.is_ok() || in_memory { Durability::CacheLines } else { Durability::Msync };
        let base = synchronous.or_else(|_| attempt(MapFlags::SHARED)).map_err(|errno| match errno {
            rustix::io::Errno::NODEV | rustix::io::Errno::INVAL => Error::Usage(format!(
                "{}: its file system has no shared mappings ({errno}): put the region on tmpfs, hugetlbfs or a DAX file system, or at least \
                 on one that can share a mapping, such as ext4",
                path.display()
            )),
            errno => Error::io(format!("mapping {}", path.display()), errno),
        })?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Error::io("mapping", io::ErrorKind::OutOfMemory))?;
        // Neighbours of a page must not come with it. A kernel without transparent huge pages refuses the advice.
        // SAFETY: the range was just mapped, and the advice does not change its content.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxNoHugepage) };
        let watched = Watched::new(base.as_ptr().addr(), bytes, granule(&found));
        let watched = watched.map_err(|error| Error::io("handling SIGBUS", error))?;
        let huge_page_size = (kind(&found) == HUGETLBFS).then(|| granule(&found));
        let instruction = Instruction::of_this_processor()[0];
        Ok(Mapping { base, len, file, path: path.into(), durability, huge_page_size, instruction, watched })
    }

    /// The same mapping, whose lines are written back by another instruction than the best one.
    ///
    /// # Errors
    /// [`Error::Usage`] if this processor does not have it.
    pub fn with_instruction(mut self, instruction: Instruction) -> Result<Mapping, Error> {
        if !Instruction::of_this_processor().contains(&instruction) {
            return Err(Error::Usage(format!("this processor has no instruction {instruction:?}")));
        }
        self.instruction = instruction;
        Ok(self)
    }

    /// What makes stores durable here.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Whether userfaultfd can tell of touches of pages that have memory: on tmpfs (and memory files) and hugetlbfs.
    #[must_use]
    pub fn has_minor_faults(&self) -> bool {
        rustix::fs::fstatfs(&self.file).is_ok_and(|found| [TMPFS, HUGETLBFS].contains(&kind(&found)))
    }

    /// The size of the pages that it lies on, if that is hugetlbfs.
    #[must_use]
    pub fn huge_page_size(&self) -> Option<u64> {
        self.huge_page_size
    }

    /// The mapped file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Another open file description of the file, for a VMM: its locks are not ours.
    ///
    /// # Errors
    /// As open(2) says.
    pub fn reopen(&self) -> io::Result<File> {
        use std::os::fd::AsRawFd;
        File::options().read(true).write(true).open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Whether the file has memory for all of a range; a hole would read as zeros. hugetlbfs does not tell.
    #[must_use]
    pub fn is_whole(&self, at: u64, len: u64) -> bool {
        if self.huge_page_size.is_some() {
            return true;
        }
        // The offset of this descriptor is used nowhere else. To ask for the next hole would walk through the whole file.
        let has_data =
            |at| rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(at)).is_ok_and(|data| data == at);
        (at..at + len).step_by(4096).all(has_data)
    }

    /// The address of a range that lies inside of the mapping.
    fn at(&self, at: u64, len: u64) -> *mut u8 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "inside of the mapping");
        let offset = usize::try_from(at).expect("the mapping has so many bytes");
        self.base.as_ptr().wrapping_add(offset)
    }

    fn intact(&self) -> Result<(), Fault> {
        self.watched.lost().map_or(Ok(()), |offset| Err(Fault::Lost { offset }))
    }
}

impl Medium for Mapping {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Fault> {
        let from = self.at(at, out.len() as u64);
        // SAFETY: the range is mapped for as long as `self` lives, `out` is private memory, so they don't overlap; bytes that a guest changes
        // meanwhile are of no type that minds, and are fetched into private memory before anything looks at them.
        unsafe { ptr::copy_nonoverlapping(from.cast_const(), out.as_mut_ptr(), out.len()) };
        self.intact()
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        let to = self.at(at, bytes.len() as u64);
        // SAFETY: as in `read`, the other way round.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        self.intact()
    }

    fn load(&self, at: u64) -> Result<u64, Fault> {
        assert!(at.is_multiple_of(8), "a word");
        // SAFETY: eight mapped bytes, aligned since the mapping is.
        #[expect(clippy::cast_ptr_alignment, reason = "asserted")]
        let word = unsafe { self.at(at, 8).cast::<u64>().read_volatile() };
        self.intact()?;
        Ok(u64::from_le(word))
    }

    fn store(&self, at: u64, word: u64) -> Result<(), Fault> {
        assert!(at.is_multiple_of(8), "a word");
        // SAFETY: as in `load`. An aligned store of eight bytes is one store.
        #[expect(clippy::cast_ptr_alignment, reason = "asserted")]
        unsafe {
            self.at(at, 8).cast::<u64>().write_volatile(word.to_le());
        }
        self.intact()
    }

    fn write_back(&self, at: u64, len: u64) -> Result<(), Fault> {
        match self.durability {
            Durability::CacheLines => {
                let bytes = usize::try_from(len).expect("the mapping has so many bytes");
                // SAFETY: the range is mapped.
                unsafe { self.instruction.write_back(self.at(at, len), bytes) };
            }
            Durability::Msync => {
                let first = at / PAGE * PAGE;
                let bytes = usize::try_from(at + len - first).expect("the mapping has so many bytes");
                // SAFETY: the range is mapped, and begins at a page; writing back does not change its content.
                unsafe { msync(self.at(first, at + len - first).cast(), bytes, MsyncFlags::SYNC) }
                    .map_err(|errno| Fault::Sync(errno.into()))?;
            }
        }
        self.intact()
    }

    fn fence(&self) -> Result<(), Fault> {
        if self.durability == Durability::CacheLines {
            flush::fence();
        }
        self.intact()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.watched.forget();
        // SAFETY: mapped in `map` with this address and length, and `self` is the last to know it.
        let result = unsafe { munmap(self.base.as_ptr().cast(), usize::try_from(self.len).unwrap_or(0)) };
        debug_assert!(result.is_ok(), "a mapping of ours can be unmapped: {result:?}");
    }
}

/// Has a region that others may open, since it was copied or made by something else, be for its owner alone: its open pages are in the clear, and
/// whoever can open it can keep a server from it by a lock.
fn keep_others_out(file: &File, path: &Path) -> Result<(), Error> {
    let found =
        file.metadata().map_err(|error| Error::io(format!("looking at {}", path.display()), error))?;
    if found.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(0o600)).map_err(|error| {
        Error::Usage(format!(
            "{}: others than its owner may open it, and that cannot be changed ({error}): have its owner chmod it to 600",
            path.display()
        ))
    })
}

fn lock(file: &File, path: &Path, access: Access) -> Result<(), Error> {
    let wanted = match access {
        Access::Exclusive => FlockOperation::NonBlockingLockExclusive,
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::Peek => return Ok(()),
    };
    rustix::fs::flock(file, wanted).map_err(|errno| match errno {
        rustix::io::Errno::WOULDBLOCK => Error::Busy(format!(
            "{}: another process serves, recovers or checks this region: end it first, or ask it for its status",
            path.display()
        )),
        errno => Error::io(format!("locking {}", path.display()), errno),
    })
}

fn kind(found: &StatFs) -> i64 {
    found.f_type
}

fn granule(found: &StatFs) -> u64 {
    if kind(found) == HUGETLBFS { u64::try_from(found.f_bsize).unwrap_or(PAGE) } else { PAGE }
}
