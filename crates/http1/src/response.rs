//! Reading a response.

use std::io::{self, BufRead};

use crate::parts::{Fields, Framing, MAX_FIELDS, chunks, exactly, fields, read_head, until_end};
use crate::{bad, field};

/// What a server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code, 200 for instance.
    pub status: u16,
    /// Names and values, in their order.
    pub fields: Vec<(String, String)>,
    /// The body, decoded.
    pub body: Vec<u8>,
    /// Whether the connection may be used for another request.
    pub keeps: bool,
}

impl Response {
    /// A field by its name, whose case does not count; of several the first.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.fields, name)
    }
}

/// Reads one response, with a body of at most `most` bytes.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] when it is none, or too long; else what reading says.
pub fn read_response(from: &mut impl BufRead, most: usize) -> io::Result<Response> {
    loop {
        let head = read_head(from)?;
        let (status, found) = parse_head(&head, most)?;
        // 1xx is followed by the response proper (RFC 9110, section 15.2).
        if (100..200).contains(&status) {
            continue;
        }
        let body = match found.framing {
            Framing::Length(length) => exactly(from, length)?,
            Framing::Chunked => chunks(from, most)?,
            Framing::Unsaid => until_end(from, most)?,
        };
        let keeps = found.keeps && found.framing != Framing::Unsaid;
        return Ok(Response { status, fields: found.all, body, keeps });
    }
}

fn parse_head(bytes: &[u8], most: usize) -> io::Result<(u16, Fields)> {
    let mut room = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut room);
    match response.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(bad("its head is cut short")),
        Err(error) => return Err(bad(&error.to_string())),
    }
    let status = response.code.ok_or_else(|| bad("no status"))?;
    let mut found = fields(response.headers, response.version == Some(1), most)?;
    if status == 204 || status == 304 {
        found.framing = Framing::Length(0);
    }
    Ok((status, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufReader, ErrorKind};

    const MAX_BODY: usize = 64 * 1024;

    fn read(text: &str) -> io::Result<Response> {
        // In small pieces, as a network may bring them.
        read_response(&mut BufReader::with_capacity(3, text.as_bytes()), MAX_BODY)
    }

    fn said(status: u16, body: &str, keeps: bool) -> (u16, Vec<u8>, bool) {
        (status, body.into(), keeps)
    }

    #[test]
    fn responses_are_read() {
        for (text, wanted) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}rest", said(200, "{}", true)),
            ("HTTP/1.1 503 No\r\ncontent-length: 2\r\nConnection: Close\r\n\r\n{}", said(503, "{}", false)),
            ("HTTP/1.0 200 OK\r\n\r\nto the end", said(200, "to the end", false)),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nA;x=y\r\n0123456789\r\n0\r\nT: 1\r\n\r\n",
                said(200, "{}0123456789", true),
            ),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", said(204, "", true)),
        ] {
            let read = read(text).expect(text);
            assert_eq!((read.status, read.body, read.keeps), wanted, "{text}");
        }
    }

    #[test]
    fn what_is_none_or_too_long_is_refused() {
        let long = |text: &str| text.to_owned() + &"x".repeat(MAX_BODY + 2);
        for text in [
            "SSH-2.0-OpenSSH_9.2\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: 65537\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}".into(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".into(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n".into(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n".into(),
            long("HTTP/1.1 200 OK\r\n\r\n"),
            long("HTTP/1.1 200 OK\r\nX: "),
            "HTTP/1.1 200 OK\r\n".to_owned() + &"X: y\r\n".repeat(100) + "\r\n",
        ] {
            let error = read(&text).expect_err(&text[..text.len().min(80)]);
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        }
        for cut in [0, 8, 30, 36, 40] {
            let text = &"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"[..cut];
            assert_eq!(read(text).expect_err("cut").kind(), ErrorKind::UnexpectedEof, "{cut}");
        }
    }
}
