//! The little of HTTP/1.1 (RFC 9112) that this project speaks: one request at a time on a connection that is kept, from either side.
//!
//! Every size and every time has a limit, and all that the other side sends is read here.
#![forbid(unsafe_code)]

mod client;
mod endpoint;
mod parts;
mod request;
mod response;

pub use client::{Connection, Outgoing};
pub use endpoint::{Endpoint, split_port};
pub use request::{Incoming, answer, read_request};
pub use response::{Response, read_response};

use std::io::{self, ErrorKind};

fn bad(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("this is no message of HTTP: {why}"))
}

/// A field by its name, whose case does not count.
fn field<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}
