//! What requests and responses have in common: a head, and a body whose length is known.

use std::io::{self, BufRead, ErrorKind};

use crate::bad;

/// Most bytes of the first line with the fields.
pub(crate) const MAX_HEAD: usize = 16 * 1024;
/// Most fields of a head.
pub(crate) const MAX_FIELDS: usize = 64;
/// Most bytes of the line in front of a chunk.
const MAX_CHUNK_LINE: usize = 256;

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(usize),
    Chunked,
    /// Nothing says so: a response goes on to the end of the connection, a request has no body.
    Unsaid,
}

/// The fields of a head.
#[derive(Debug)]
pub(crate) struct Fields {
    pub(crate) framing: Framing,
    /// Whether the connection may be used again.
    pub(crate) keeps: bool,
    pub(crate) all: Vec<(String, String)>,
}

/// One line with its end; nothing longer than `most` bytes.
fn read_line(from: &mut impl BufRead, most: usize) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    io::Read::take(&mut *from, most as u64 + 1).read_until(b'\n', &mut line)?;
    match line.last() {
        Some(b'\n') => Ok(line),
        _ if line.len() > most => Err(bad("a line is too long")),
        _ => Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed")),
    }
}

/// The first line and the fields, up to and with the empty line.
pub(crate) fn read_head(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let line = read_line(from, MAX_HEAD - head.len())?;
        head.extend_from_slice(&line);
        if line == b"\r\n" || line == b"\n" {
            return Ok(head);
        }
    }
}

/// What the fields say. `keeps` is what the version says about the connection; `most` is how long a body may be.
pub(crate) fn fields(parsed: &[httparse::Header<'_>], keeps: bool, most: usize) -> io::Result<Fields> {
    let mut found = Fields { framing: Framing::Unsaid, keeps, all: Vec::new() };
    for field in parsed {
        let value = std::str::from_utf8(field.value).unwrap_or_default().trim();
        found.all.push((field.name.to_string(), value.to_string()));
        if field.name.eq_ignore_ascii_case("connection") {
            found.keeps &= !value.eq_ignore_ascii_case("close");
        }
        let is_length = field.name.eq_ignore_ascii_case("content-length");
        if is_length || field.name.eq_ignore_ascii_case("transfer-encoding") {
            // Two of them are how requests are smuggled (RFC 9112, section 6.3).
            if found.framing != Framing::Unsaid {
                return Err(bad("its length is said twice"));
            }
            found.framing =
                if is_length { Framing::Length(length_of(value, most)?) } else { coding_of(value)? };
        }
    }
    Ok(found)
}

fn length_of(value: &str, most: usize) -> io::Result<usize> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let length =
        value.parse::<usize>().ok().filter(|_| digits).ok_or_else(|| bad("its length is no number"))?;
    if length > most { Err(bad("its body is too long")) } else { Ok(length) }
}

fn coding_of(value: &str) -> io::Result<Framing> {
    if value.eq_ignore_ascii_case("chunked") { Ok(Framing::Chunked) } else { Err(bad("an unknown coding")) }
}

/// So many bytes.
pub(crate) fn exactly(from: &mut impl BufRead, length: usize) -> io::Result<Vec<u8>> {
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(body)
}

/// All that comes until the connection ends.
pub(crate) fn until_end(from: &mut impl BufRead, most: usize) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(from, most as u64 + 1), &mut body)?;
    if body.len() > most { Err(bad("its body is too long")) } else { Ok(body) }
}

/// A chunked body (RFC 9112, section 7.1).
pub(crate) fn chunks(from: &mut impl BufRead, most: usize) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = read_line(from, MAX_CHUNK_LINE)?;
        let size = match httparse::parse_chunk_size(&line) {
            Ok(httparse::Status::Complete((_, size))) => size,
            _ => return Err(bad("a chunk without its size")),
        };
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).ok().filter(|size| *size <= most - body.len());
        let size = size.ok_or_else(|| bad("its body is too long"))?;
        body.extend_from_slice(&exactly(from, size)?);
        if exactly(from, 2)? != b"\r\n" {
            return Err(bad("a chunk of another length than it says"));
        }
    }
    // Fields behind the body say nothing that is needed.
    let mut room = MAX_HEAD;
    loop {
        let line = read_line(from, room)?;
        room -= line.len();
        if line == b"\r\n" || line == b"\n" {
            return Ok(body);
        }
    }
}
