//! From files to a stream.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use tar::{Builder, EntryType, Header};

use super::{Digesting, MAX_ENTRIES, MAX_NAME, stays_inside};
use crate::error::{Context, Error, Result};
use crate::manifest::Resource;

/// A file or a directory that is to be packed.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// A path of this machine. A link at its end is followed, none below it.
    Here(&'a Path),
    /// A path inside another root, whose owner may have laid links to lead a reader out: none leads out of the root.
    Below(&'a Path, &'a str),
}

impl Source<'_> {
    fn open(self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let (path, resolve) = match self {
            Self::Here(path) => (path.to_path_buf(), ResolveFlags::empty()),
            Self::Below(root, path) => {
                let root = File::open(root)?;
                let fd = openat2(
                    &root,
                    path,
                    flags,
                    Mode::empty(),
                    ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
                )?;
                return Ok(fd.into());
            }
        };
        Ok(openat2(CWD, path, flags, Mode::empty(), resolve)?.into())
    }
}

/// One file or directory, opened, with its name in the stream.
struct Entry {
    name: String,
    file: File,
}

/// Packs a file or directory under `name`. The result lists each regular file with its digest, in the stream's order.
///
/// # Errors
/// If something cannot be read, is of a kind that does not travel, changes its size meanwhile, or its name does not travel; and what the writer
/// says.
pub fn pack<W: Write>(source: Source<'_>, name: &str, to: W) -> Result<(W, Vec<Resource>)> {
    let file = source.open().of(name)?;
    let mut packer = Packer { builder: Builder::new(to), found: Vec::new(), entries: 0 };
    packer.entry(Entry { name: name.into(), file })?;
    let writer = packer.builder.into_inner().of("the stream")?;
    Ok((writer, packer.found))
}

struct Packer<W: Write> {
    builder: Builder<W>,
    found: Vec<Resource>,
    entries: usize,
}

impl<W: Write> Packer<W> {
    fn entry(&mut self, Entry { name, file }: Entry) -> Result<()> {
        self.entries += 1;
        if self.entries > MAX_ENTRIES || name.len() > MAX_NAME {
            return Err(Error::usage(format!(
                "{name}: more than {MAX_ENTRIES} files, or a name above {MAX_NAME} bytes, do not travel"
            )));
        }
        let status = file.metadata().of(&name)?;
        if status.is_dir() {
            self.header(&name, EntryType::Directory, 0o755, 0, io::empty())?;
            return self.below(&name, &file);
        }
        if !status.is_file() {
            return Err(Error::usage(format!("{name}: only regular files, directories and links travel")));
        }
        let mode = if status.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 };
        let mut reader = Reading { file, digest: Digesting::new(io::sink()) };
        self.header(&name, EntryType::Regular, mode, status.len(), (&mut reader).take(status.len()))?;
        if reader.digest.count != status.len() {
            return Err(Error::io(format!("{name}: it became shorter while it was read")));
        }
        self.found.push(Resource::new(name, reader.digest.finish().1));
        Ok(())
    }

    /// What a directory holds, by its open descriptor: it cannot be exchanged for a link meanwhile.
    fn below(&mut self, name: &str, directory: &File) -> Result<()> {
        let mut names = BTreeMap::<OsString, rustix::fs::FileType>::new();
        for entry in rustix::fs::Dir::read_from(directory).map_err(io::Error::from).of(name)? {
            let entry = entry.map_err(io::Error::from).of(name)?;
            let text = entry.file_name().to_bytes().to_vec();
            if text != b"." && text != b".." {
                names.insert(std::os::unix::ffi::OsStringExt::from_vec(text), entry.file_type());
            }
        }
        for file in names.into_keys() {
            let Some(text) = file.to_str() else {
                return Err(Error::usage(format!(
                    "{name}/{}: its name is no UTF-8, and does not travel",
                    file.display()
                )));
            };
            self.child(&format!("{name}/{text}"), text, directory)?;
        }
        Ok(())
    }

    fn child(&mut self, path: &str, name: &str, directory: &File) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            Ok(fd) => self.entry(Entry { name: path.into(), file: fd.into() }),
            Err(rustix::io::Errno::LOOP) => self.link(path, name, directory),
            Err(rustix::io::Errno::NXIO) => Err(Error::usage(format!("{path}: sockets do not travel"))),
            Err(error) => Err(Error::file(Path::new(path), error.into())),
        }
    }

    fn link(&mut self, path: &str, name: &str, directory: &File) -> Result<()> {
        let target = rustix::fs::readlinkat(directory, name, Vec::new()).map_err(io::Error::from).of(path)?;
        let target =
            target.into_string().map_err(|_| Error::usage(format!("{path}: its target is no UTF-8")))?;
        if !stays_inside(path, &target) {
            return Err(Error::usage(format!(
                "{path}: this link leads to {target}, outside of what travels"
            )));
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_mode(0o777);
        header.set_size(0);
        self.builder.append_link(&mut header, path, target).of(path)
    }

    fn header(
        &mut self,
        name: &str,
        kind: EntryType,
        mode: u32,
        size: u64,
        content: impl Read,
    ) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        self.builder.append_data(&mut header, name, content).of(name)
    }
}

/// A file whose digest is taken as it is read.
struct Reading {
    file: File,
    digest: Digesting<io::Sink>,
}

impl Read for Reading {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.digest.write_all(&buffer[..count])?;
        Ok(count)
    }
}

/// Bytes of a file or of all files below a directory, and their number; links are not followed.
///
/// # Errors
/// If something cannot be read.
pub fn size(path: &Path) -> io::Result<(u64, u64)> {
    let mut waiting = vec![PathBuf::from(path)];
    let (mut bytes, mut files) = (0_u64, 0_u64);
    let mut is_first = true;
    while let Some(path) = waiting.pop() {
        let status =
            if std::mem::take(&mut is_first) { fs::metadata(&path)? } else { fs::symlink_metadata(&path)? };
        files += 1;
        if status.is_dir() {
            for entry in fs::read_dir(&path)? {
                waiting.push(entry?.path());
            }
        } else {
            bytes = bytes.saturating_add(status.len());
        }
    }
    Ok((bytes, files))
}
