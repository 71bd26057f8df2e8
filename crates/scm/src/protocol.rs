//! What a client says on the server's socket, and what it hears. Every message is one JSON value and a line feed, at most [`LIMIT`] bytes.
//!
//! | message | from | with a descriptor | meaning |
//! | --- | --- | --- | --- |
//! | `{"version":1,"attach":{"address":A,"length":L,"offset":O}}` | VMM | userfaultfd | my mapping of the region is registered |
//! | `{"version":1,"status":{}}` | anybody | | how is it |
//! | `{"version":1,"zapped":N}` | VMM | | the ranges of N are not mapped any more |
//! | `[{"base_host_virt_addr":A,"size":L,"offset":O,"page_size":P}, ...]` | Firecracker | userfaultfd | its page-fault handler's |
//! | `{"ok":{}}`, `{"error":"..."}` | server | | the answer to `attach`, and the first thing that is said to its client |
//! | `{"zap":{"id":N,"ranges":[[A,L], ...]}}` | server | | take these ranges out of the page tables, then say `zapped` |
//!
//! A client that hangs up, and whose mapping stays in use, closes its half only (shutdown(2)), and waits for the end of the other half: the server
//! closes it behind the last page that it shows.
//!
//! Addresses are of the client's process, in bytes, as are lengths and offsets. What a client says is checked here, and in no other place.

use serde::{Deserialize, Serialize};

use crate::Geometry;

/// Most bytes of a message.
pub const LIMIT: usize = 64 << 10;
/// The version of this protocol.
pub const VERSION: u32 = 1;
/// Most mappings of a Firecracker message: it has one for each region of guest memory.
const MAPPINGS: usize = 64;

/// A mapping of the region, in a client's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapped {
    /// Its address there.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Where in the region it begins.
    pub offset: u64,
}

/// What a client says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientMessage {
    /// It has mapped the region.
    Attach(Mapped),
    /// It asks how the server is.
    Status,
    /// It has taken ranges out of its page tables.
    Zapped(u64),
    /// It is Firecracker, whose memory is to be filled from the region.
    Firecracker(Vec<Mapped>),
}

/// What the server says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerMessage {
    /// Attached.
    Ok {},
    /// Refused, and why.
    Error(String),
    /// These ranges are to be taken out of the page tables.
    Zap {
        /// To be said in the answer.
        id: u64,
        /// Address and length of each.
        ranges: Vec<(u64, u64)>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    attach: Option<Mapped>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Empty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zapped: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

/// The fields of Firecracker's `GuestRegionUffdMapping`; others may come.
#[derive(Deserialize)]
struct GuestRegion {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
}

/// The message in these bytes, which anybody may have sent. `Ok(None)` if there is more to come.
///
/// # Errors
/// What is wrong with it, for its sender.
pub fn decode(bytes: &[u8], geometry: &Geometry) -> Result<Option<ClientMessage>, String> {
    let unfinished = |error: &serde_json::Error| error.is_eof() && bytes.len() < LIMIT;
    let unclear = |error: serde_json::Error| format!("this is no message of version {VERSION}: {error}");
    if bytes.first() == Some(&b'[') {
        let regions: Vec<GuestRegion> = match serde_json::from_slice(bytes) {
            Ok(regions) => regions,
            Err(error) if unfinished(&error) => return Ok(None),
            Err(error) => return Err(unclear(error)),
        };
        if regions.is_empty() || regions.len() > MAPPINGS {
            return Err(format!("{} mappings are not possible: between 1 and {MAPPINGS} are", regions.len()));
        }
        let mapped =
            |it: GuestRegion| Mapped { address: it.base_host_virt_addr, length: it.size, offset: it.offset };
        let mappings: Vec<Mapped> = regions.into_iter().map(mapped).collect();
        mappings.iter().try_for_each(|mapped| check(mapped, geometry, 4096))?;
        return Ok(Some(ClientMessage::Firecracker(mappings)));
    }
    let own: Own = match serde_json::from_slice(bytes) {
        Ok(own) => own,
        Err(error) if unfinished(&error) => return Ok(None),
        Err(error) => return Err(unclear(error)),
    };
    if own.version != VERSION {
        return Err(format!(
            "this server speaks version {VERSION}, and the client version {}: use a client library (or libcvmio_scm.so) of the server's \
             version",
            own.version
        ));
    }
    match (own.attach, own.status, own.zapped) {
        (Some(mapped), None, None) => {
            check(&mapped, geometry, geometry.page_size())?;
            Ok(Some(ClientMessage::Attach(mapped)))
        }
        (None, Some(Empty {}), None) => Ok(Some(ClientMessage::Status)),
        (None, None, Some(id)) => Ok(Some(ClientMessage::Zapped(id))),
        _ => Err("a message is one of `attach`, `status` and `zapped`".into()),
    }
}

fn check(mapped: &Mapped, geometry: &Geometry, unit: u64) -> Result<(), String> {
    let Mapped { address, length, offset } = *mapped;
    // The address need not be a multiple of a huge page: the kernel sees to that where the memory has huge pages.
    let whole =
        [length, offset].iter().all(|number| number.is_multiple_of(unit)) && address.is_multiple_of(4096);
    if !whole || length == 0 {
        return Err(format!("a mapping is whole pages of {unit} bytes, and begins at one"));
    }
    let inside = offset.checked_add(length).is_some_and(|end| end <= geometry.data_len());
    if !inside || address.checked_add(length).is_none() {
        return Err(format!(
            "a mapping of {length} bytes from {offset} on is not inside of the region's data"
        ));
    }
    Ok(())
}

impl ClientMessage {
    /// The message as bytes. Firecracker's are written by Firecracker, and by tests.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let own = |attach, status, zapped| Own { version: VERSION, attach, status, zapped };
        let encoded = match self {
            ClientMessage::Attach(mapped) => serde_json::to_vec(&own(Some(*mapped), None, None)),
            ClientMessage::Status => serde_json::to_vec(&own(None, Some(Empty {}), None)),
            ClientMessage::Zapped(id) => serde_json::to_vec(&own(None, None, Some(*id))),
            ClientMessage::Firecracker(mappings) => {
                let region = |it: &Mapped| {
                    serde_json::json!({
                        "base_host_virt_addr": it.address, "size": it.length, "offset": it.offset, "page_size": 4096
                    })
                };
                serde_json::to_vec(&mappings.iter().map(region).collect::<Vec<_>>())
            }
        };
        let mut bytes = encoded.expect("numbers and strings can be written as JSON");
        bytes.push(b'\n');
        bytes
    }
}

impl ServerMessage {
    /// The message as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("numbers and strings can be written as JSON");
        bytes.push(b'\n');
        bytes
    }

    /// The message in a line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<ServerMessage, String> {
        serde_json::from_slice(bytes)
            .map_err(|error| format!("this is no message of version {VERSION}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Geometry {
        Geometry::new(4096, 16, 1, 4096).unwrap()
    }

    #[test]
    fn messages_go_there_and_back() {
        let mapped = Mapped { address: 0x7000_0000, length: 8192, offset: 4096 };
        for message in [
            ClientMessage::Attach(mapped),
            ClientMessage::Status,
            ClientMessage::Zapped(7),
            ClientMessage::Firecracker(vec![mapped, mapped]),
        ] {
            let bytes = message.encode();
            assert_eq!(decode(&bytes, &shape()), Ok(Some(message)));
            for end in 1..bytes.len() - 1 {
                assert_eq!(decode(&bytes[..end], &shape()), Ok(None), "{end}");
            }
        }
        for message in [
            ServerMessage::Ok {},
            ServerMessage::Error("x".into()),
            ServerMessage::Zap { id: 1, ranges: vec![(4096, 4096)] },
        ] {
            assert_eq!(ServerMessage::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for bad in [
            r#"{"version":2,"status":{}}"#,
            r#"{"version":1}"#,
            r#"{"version":1,"status":{},"zapped":1}"#,
            r#"{"version":1,"attach":{"address":1,"length":4096,"offset":0}}"#,
            r#"{"version":1,"attach":{"address":4096,"length":0,"offset":0}}"#,
            r#"{"version":1,"attach":{"address":4096,"length":8192,"offset":61440}}"#,
            r#"{"version":1,"attach":{"address":18446744073709547520,"length":8192,"offset":0}}"#,
            "[]",
            r#"[{"base_host_virt_addr":4096,"size":1,"offset":0}]"#,
            "status",
            "7",
        ] {
            assert!(decode(bad.as_bytes(), &shape()).is_err(), "{bad}");
        }
    }
}
