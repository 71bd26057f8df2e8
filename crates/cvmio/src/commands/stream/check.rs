//! `cvmio volume import --check`: a whole stream is verified, and no volume made of it.

use std::fs::File;

use serde_json::json;
use store::BLOCK_SIZE;
use volume::StreamReader;

use super::source;
use crate::cli::stream::Import;
use cli::failure::Failure;
use cli::output;

/// What is in a stream that is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Whole {
    chunks: u64,
    /// Blocks of data.
    blocks: u64,
    /// Bytes of the stream.
    bytes: u64,
}

pub fn run(args: &Import) -> Result<(), Failure> {
    let (mut reader, length) = source::open(args)?;
    let whole = verify(&mut reader, length)?;
    let header = reader.header();
    let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
    if args.new.json {
        return output::print_json(&json!({
            "file": args.from,
            "volume": hex::encode(header.volume),
            "state": header.state().to_string(),
            "size": bytes(header.blocks),
            "chunks": whole.chunks,
            "data-bytes": bytes(whole.blocks),
            "bytes": whole.bytes,
        }));
    }
    output::print(&format!(
        "the stream is whole: volume {} in its state {}, {} of data, {}\n  {} in {} chunks, all verified",
        hex::encode(header.volume),
        header.state(),
        output::bytes(bytes(whole.blocks)),
        output::bytes(bytes(header.blocks)),
        output::bytes(whole.bytes),
        output::count(whole.chunks)
    ));
    Ok(())
}

/// Reads a stream to its end.
fn verify(reader: &mut StreamReader<File>, length: Option<u64>) -> Result<Whole, Failure> {
    let bar = output::bytes_bar("verifying", length);
    let mut whole = Whole::default();
    while let Some(opened) = reader.chunk()? {
        whole.chunks += 1;
        whole.blocks += opened.chunk.data_blocks() as u64;
        bar.set_position(reader.bytes());
    }
    bar.finish_and_clear();
    whole.bytes = reader.bytes();
    Ok(whole)
}
