//! The server's side: reading a request, and laying out the answer to it.

use std::io::{self, BufRead};

use crate::parts::{Framing, MAX_FIELDS, exactly, fields, read_head};
use crate::{bad, field};

/// A request that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    /// The method, `GET` for instance.
    pub method: String,
    /// The target, as it came.
    pub path: String,
    /// Names and values, in their order.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the connection may be used for another request.
    pub keeps: bool,
}

impl Incoming {
    /// A field by its name, whose case does not count; of several the first.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.fields, name)
    }

    /// A cookie by its name.
    #[must_use]
    pub fn cookie(&self, name: &str) -> Option<&str> {
        let all = self.field("cookie")?.split(';').filter_map(|pair| pair.trim().split_once('='));
        all.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

/// Reads one request, with a body of at most `most` bytes whose length is said in its head; `None` if the client has ended the connection
/// between two requests.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] when it is none, or too long; else what reading says.
pub fn read_request(from: &mut impl BufRead, most: usize) -> io::Result<Option<Incoming>> {
    if from.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let head = read_head(from)?;
    let mut room = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut room);
    match request.parse(&head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(bad("its head is cut short")),
        Err(error) => return Err(bad(&error.to_string())),
    }
    let (Some(method), Some(path)) = (request.method, request.path) else { return Err(bad("no first line")) };
    let found = fields(request.headers, request.version == Some(1), most)?;
    let length = match found.framing {
        Framing::Length(length) => length,
        Framing::Unsaid => 0,
        Framing::Chunked => return Err(bad("a body in chunks is not taken here")),
    };
    let (method, path) = (method.to_string(), path.to_string());
    Ok(Some(Incoming { method, path, fields: found.all, body: exactly(from, length)?, keeps: found.keeps }))
}

/// An answer as bytes: JSON, which nobody is to keep. `fields` have no line feeds, which the caller sees to.
#[must_use]
pub fn answer(status: u16, fields: &[(&str, &str)], body: &str, keeps: bool) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        503 => "Service Unavailable",
        _ => "Status",
    };
    let mut text = format!("HTTP/1.1 {status} {reason}\r\n");
    for (name, value) in fields {
        text += &format!("{name}: {value}\r\n");
    }
    if !keeps {
        text += "Connection: close\r\n";
    }
    text += "Content-Type: application/json\r\nCache-Control: no-store\r\n";
    text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    fn read(text: &str) -> io::Result<Option<Incoming>> {
        // In small pieces, as a network may bring them.
        read_request(&mut BufReader::with_capacity(3, text.as_bytes()), 16)
    }

    #[test]
    fn requests_are_read_with_their_cookies() {
        let text =
            "POST /a HTTP/1.1\r\nHost: x\r\nCookie: b=1; session=two; c\r\nContent-Length: 2\r\n\r\n{}rest";
        let request = read(text).unwrap().unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str(), request.keeps), ("POST", "/a", true));
        assert_eq!((&request.body[..], request.field("HOST")), (&b"{}"[..], Some("x")));
        assert_eq!((request.cookie("session"), request.cookie("c")), (Some("two"), None));
        let get = read("GET /b HTTP/1.0\r\n\r\n").unwrap().unwrap();
        assert_eq!((get.keeps, get.body.len(), get.cookie("session")), (false, 0, None));
        assert_eq!(read("").unwrap(), None);
    }

    #[test]
    fn what_is_none_or_too_long_is_refused() {
        for text in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "POST /a HTTP/1.1\r\nContent-Length: 17\r\n\r\n",
            "POST /a HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n1",
            "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET /a\x01 HTTP/1.1\r\n\r\n",
            &format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000)),
        ] {
            let error = read(text).expect_err(&text[..text.len().min(60)]);
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        }
        assert!(read("POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}").is_err(), "cut short");
    }

    #[test]
    fn what_is_laid_out_is_read_by_our_client() {
        let bytes = answer(401, &[("Set-Cookie", "a=b")], "{}", true);
        let read = crate::read_response(&mut &bytes[..], 16).unwrap();
        assert_eq!((read.status, &read.body[..], read.keeps), (401, &b"{}"[..], true));
        assert_eq!(read.field("set-cookie"), Some("a=b"));
    }
}
