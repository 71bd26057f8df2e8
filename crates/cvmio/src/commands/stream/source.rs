//! Where an import reads its stream.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use seal::slot::SlotLimits;
use volume::format::stream::StreamHeader;
use volume::{Kind, StreamReader};

use crate::cli::CredentialArgs;
use crate::cli::stream::Import;
use cli::failure::Failure;
use cli::output;
use daemon::input::{self, Origin};
use daemon::system;

/// The stream, opened and of the state that is expected; and its length, if that is known.
pub(super) fn open(args: &Import) -> Result<(StreamReader<File>, Option<u64>), Failure> {
    let stream = args.stream.as_credential();
    check_input(args, &stream)?;
    system::protect()?.iter().for_each(|warning| output::warning(warning));
    let (file, length) = open_input(&args.from)?;
    let credential = input::load(&stream, Origin::KnownStream)?;
    let reader = StreamReader::open(file, &credential, &SlotLimits::default())?;
    check_state(args, reader.header())?;
    Ok((reader, length))
}

/// Standard input is one thing only.
fn check_input(args: &Import, stream: &CredentialArgs) -> Result<(), Failure> {
    let files = [&stream.key_file, &stream.passphrase_file, &args.new.credential.key_file];
    let files = files.into_iter().chain([&args.new.credential.passphrase_file]).flatten();
    let named = std::iter::once(&args.from).chain(files).filter(|path| *path == Path::new("-")).count();
    if named > 1 {
        return Err(Failure::usage("only one of stream, keys and passphrases can come from standard input"));
    }
    cli::input::take(&args.from, "stream")
}

fn open_input(path: &Path) -> Result<(File, Option<u64>), Failure> {
    let fail = |error| Failure::usage(format!("the stream {} cannot be read: {error}", path.display()));
    let file = match path == Path::new("-") {
        true => File::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(fail)?),
        false => File::open(path).map_err(fail)?,
    };
    let metadata = file.metadata().map_err(fail)?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!("{} is a directory, and no stream", path.display())));
    }
    Ok((file, metadata.is_file().then_some(metadata.len())))
}

fn check_state(args: &Import, header: &StreamHeader) -> Result<(), Failure> {
    match args.expect {
        Some(expected) if expected != header.state() => Err(volume::Error::new(
            Kind::Stale,
            format!(
                "the stream holds the state {}, and {expected} is expected: it is an older one, or of another volume. Nothing was written; get the right one, and suspect the place where it was kept",
                header.state()
            ),
        )
        .into()),
        _ => Ok(()),
    }
}
