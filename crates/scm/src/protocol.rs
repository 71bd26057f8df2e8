//! What a client says on the server's socket, and what it hears. Every message is one JSON value and a line feed, at most [`LIMIT`] bytes.
//! `docs/scm-protocol.md` says what a VMM does from its first message to its last.
//!
//! | message | from | with a descriptor | meaning |
//! | --- | --- | --- | --- |
//! | `{"version":2,"region":{}}` | VMM | | which region is it |
//! | `{"region":{"length":L,"huge_page":H}}` | server | the region's file | so many bytes of data, on huge pages of H bytes, or 0 |
//! | `{"version":2,"attach":{"address":A,"length":L,"offset":O,"device":D,"inode":I}}` | VMM | userfaultfd | my mapping of that file is registered |
//! | `{"ok":{"hold_ms":M}}`, `{"error":"..."}` | server | | the answer to `attach`, and the first thing that is said to its client |
//! | `{"zap":{"id":N,"ranges":[[A,L], ...]}}` | server | | take these ranges out of the page tables, then answer |
//! | `{"version":2,"zapped":N}` | VMM | | the ranges of N are not in the page tables any more |
//! | `{"version":2,"kept":{"id":N,"why":"..."}}` | VMM | | they may be: the kernel refuses |
//! | `{"version":2,"status":{}}` | anybody | | how is it |
//! | `[{"base_host_virt_addr":A,"size":L,"offset":O,"page_size":P}, ...]` | Firecracker | userfaultfd | its page-fault handler's |
//!
//! Addresses are of the client's process, in bytes, as are lengths and offsets. What a client says is checked here, and in no other place.

use serde::{Deserialize, Serialize};

use crate::Geometry;

/// Most bytes of a message.
pub const LIMIT: usize = 64 << 10;
/// The version of this protocol.
pub const VERSION: u32 = 2;
/// The sizes of pages that a Firecracker guest has.
const SMALL: u64 = 4096;
const HUGE: u64 = 2 << 20;
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

/// The file that a client has mapped, as stat(2) names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// The file system.
    pub device: u64,
    /// The file in it.
    pub inode: u64,
}

/// A mapping that is filled from the region, in memory of its process alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// Where it is.
    pub mapped: Mapped,
    /// Bytes of a page of that memory: what is filled at once.
    pub unit: u64,
}

/// What a client says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientMessage {
    /// It asks for the region's file.
    Region,
    /// It has mapped the region, by this file.
    Attach(Mapped, FileId),
    /// It asks how the server is.
    Status,
    /// It has taken ranges out of its page tables.
    Zapped(u64),
    /// It could not, and why.
    Kept(u64, String),
    /// It is Firecracker, whose memory is to be filled from the region.
    Firecracker(Vec<Filled>),
}

/// What the server says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerMessage {
    /// The region, whose file comes with it.
    Region {
        /// Bytes of data, from the file's beginning on.
        length: u64,
        /// Bytes of the huge pages that the file lies on; 0 if on none.
        huge_page: u64,
    },
    /// Attached.
    Ok {
        /// How long the client keeps its lease behind the moment at which it took everything out of its page tables.
        hold_ms: u64,
    },
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
    region: Option<Empty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attach: Option<Attach>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Empty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zapped: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<Kept>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Attach {
    address: u64,
    length: u64,
    offset: u64,
    device: u64,
    inode: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    id: u64,
    why: String,
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
    #[serde(default = "small")]
    page_size: u64,
}

fn small() -> u64 {
    SMALL
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
        let filled = |it: GuestRegion| {
            let mapped = Mapped { address: it.base_host_virt_addr, length: it.size, offset: it.offset };
            Filled { mapped, unit: it.page_size }
        };
        let mappings: Vec<Filled> = regions.into_iter().map(filled).collect();
        for Filled { mapped, unit } in &mappings {
            if ![SMALL, HUGE].contains(unit) {
                return Err(format!(
                    "guest memory with pages of {unit} bytes cannot be filled: {SMALL} and {HUGE} are possible"
                ));
            }
            if !mapped.address.is_multiple_of(*unit) {
                return Err(format!("guest memory with pages of {unit} bytes begins at one"));
            }
            check(mapped, geometry, *unit)?;
        }
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
    match own {
        Own { attach: Some(it), region: None, status: None, zapped: None, kept: None, .. } => {
            let mapped = Mapped { address: it.address, length: it.length, offset: it.offset };
            check(&mapped, geometry, geometry.page_size())?;
            Ok(Some(ClientMessage::Attach(mapped, FileId { device: it.device, inode: it.inode })))
        }
        Own { region: Some(_), attach: None, status: None, zapped: None, kept: None, .. } => {
            Ok(Some(ClientMessage::Region))
        }
        Own { status: Some(_), attach: None, region: None, zapped: None, kept: None, .. } => {
            Ok(Some(ClientMessage::Status))
        }
        Own { zapped: Some(id), attach: None, region: None, status: None, kept: None, .. } => {
            Ok(Some(ClientMessage::Zapped(id)))
        }
        Own { kept: Some(it), attach: None, region: None, status: None, zapped: None, .. } => {
            Ok(Some(ClientMessage::Kept(it.id, it.why)))
        }
        _ => Err("a message is one of `region`, `attach`, `status`, `zapped` and `kept`".into()),
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
        let empty =
            Own { version: VERSION, region: None, attach: None, status: None, zapped: None, kept: None };
        let encoded = match self {
            ClientMessage::Region => serde_json::to_vec(&Own { region: Some(Empty {}), ..empty }),
            ClientMessage::Attach(Mapped { address, length, offset }, FileId { device, inode }) => {
                let (address, length, offset) = (*address, *length, *offset);
                let attach = Attach { address, length, offset, device: *device, inode: *inode };
                serde_json::to_vec(&Own { attach: Some(attach), ..empty })
            }
            ClientMessage::Status => serde_json::to_vec(&Own { status: Some(Empty {}), ..empty }),
            ClientMessage::Zapped(id) => serde_json::to_vec(&Own { zapped: Some(*id), ..empty }),
            ClientMessage::Kept(id, why) => {
                let kept = Kept { id: *id, why: why.clone() };
                serde_json::to_vec(&Own { kept: Some(kept), ..empty })
            }
            ClientMessage::Firecracker(mappings) => {
                let region = |Filled { mapped: it, unit }: &Filled| {
                    serde_json::json!({
                        "base_host_virt_addr": it.address, "size": it.length, "offset": it.offset, "page_size": unit
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
        let filled = Filled { mapped, unit: 4096 };
        for message in [
            ClientMessage::Region,
            ClientMessage::Attach(mapped, FileId { device: 3, inode: 4 }),
            ClientMessage::Status,
            ClientMessage::Zapped(7),
            ClientMessage::Kept(7, "locked".into()),
            ClientMessage::Firecracker(vec![filled, filled]),
        ] {
            let bytes = message.encode();
            assert_eq!(decode(&bytes, &shape()), Ok(Some(message)));
            for end in 1..bytes.len() - 1 {
                assert_eq!(decode(&bytes[..end], &shape()), Ok(None), "{end}");
            }
        }
        for message in [
            ServerMessage::Region { length: 4096, huge_page: 0 },
            ServerMessage::Ok { hold_ms: 7 },
            ServerMessage::Error("x".into()),
            ServerMessage::Zap { id: 1, ranges: vec![(4096, 4096)] },
        ] {
            assert_eq!(ServerMessage::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for bad in [
            r#"{"version":1,"status":{}}"#,
            r#"{"version":2}"#,
            r#"{"version":2,"status":{},"zapped":1}"#,
            r#"{"version":2,"attach":{"address":1,"length":4096,"offset":0,"device":1,"inode":1}}"#,
            r#"{"version":2,"attach":{"address":4096,"length":4096,"offset":0}}"#,
            r#"{"version":2,"attach":{"address":4096,"length":0,"offset":0,"device":1,"inode":1}}"#,
            r#"{"version":2,"attach":{"address":4096,"length":8192,"offset":61440,"device":1,"inode":1}}"#,
            r#"{"version":2,"attach":{"address":18446744073709547520,"length":8192,"offset":0,"device":1,"inode":1}}"#,
            "[]",
            r#"[{"base_host_virt_addr":4096,"size":1,"offset":0}]"#,
            r#"[{"base_host_virt_addr":4096,"size":4096,"offset":0,"page_size":8192}]"#,
            r#"[{"base_host_virt_addr":4096,"size":4096,"offset":0,"page_size":2097152}]"#,
            "status",
            "7",
        ] {
            assert!(decode(bad.as_bytes(), &shape()).is_err(), "{bad}");
        }
    }
}
