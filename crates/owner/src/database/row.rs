//! A row of the table of volumes:
//!
//! | bytes | field |
//! | --- | --- |
//! | 1 | bit 0: retired; bit 1: a stamp follows |
//! | 1 | number of clients |
//! | 0 or 192 | the stamp |
//! | 32 each | the clients, in their order |

use crate::log::{ClientId, MAX_CLIENTS, Volume};
use anchor::{STAMP_SIZE, Stamp, StampError};
use std::collections::BTreeSet;
use std::fmt;

/// Why bytes are no row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowError {
    /// The length does not fit the first two bytes.
    Length,
    /// The first byte has a bit that has no meaning.
    Flags,
    /// There are too many clients, or they are not in their order.
    Clients,
    /// The stamp is no stamp.
    Stamp(StampError),
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowError::Length => f.write_str("the row has another length than it says"),
            RowError::Flags => f.write_str("the row has an unknown flag"),
            RowError::Clients => f.write_str("the clients of the row are too many, or not in order"),
            RowError::Stamp(error) => write!(f, "the stamp of the row: {error}"),
        }
    }
}

/// The row of a volume, which has at most [`MAX_CLIENTS`] clients.
pub fn encode(volume: &Volume) -> Vec<u8> {
    let flags = u8::from(volume.retired) | u8::from(volume.stamp.is_some()) << 1;
    let count = u8::try_from(volume.clients.len()).unwrap_or(u8::MAX);
    let mut out = vec![flags, count];
    if let Some(stamp) = &volume.stamp {
        out.extend(stamp.encode());
    }
    volume.clients.iter().for_each(|client| out.extend(client));
    out
}

/// Reads what [`encode`] wrote.
pub fn decode(bytes: &[u8]) -> Result<Volume, RowError> {
    let ([flags, count], mut rest) = bytes.split_first_chunk().ok_or(RowError::Length)?;
    if flags & !3 != 0 {
        return Err(RowError::Flags);
    }
    let mut stamp = None;
    if flags & 2 != 0 {
        let (held, after) = rest.split_first_chunk::<STAMP_SIZE>().ok_or(RowError::Length)?;
        stamp = Some(Box::new(Stamp::decode(held).map_err(RowError::Stamp)?));
        rest = after;
    }
    let count = usize::from(*count);
    let (clients, remainder) = rest.as_chunks::<32>();
    if clients.len() != count || !remainder.is_empty() {
        return Err(RowError::Length);
    }
    let ordered = clients.is_sorted_by(|one, next| one < next);
    if !ordered || count > MAX_CLIENTS {
        return Err(RowError::Clients);
    }
    let clients: BTreeSet<ClientId> = clients.iter().copied().collect();
    Ok(Volume { retired: flags & 1 != 0, clients, stamp })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_volume() -> impl Strategy<Value = Volume> {
        let stamp = Stamp::decode(&{
            let mut bytes = [0; STAMP_SIZE];
            bytes[..8].copy_from_slice(b"cvmioST1");
            (bytes[8], bytes[10]) = (1, 2);
            bytes
        });
        let stamp = prop::option::of(Just(Box::new(stamp.unwrap())));
        let clients = prop::collection::btree_set(any::<ClientId>(), 0..=MAX_CLIENTS);
        (any::<bool>(), clients, stamp).prop_map(|(retired, clients, stamp)| Volume {
            retired,
            clients,
            stamp,
        })
    }

    #[test]
    fn what_is_no_row_is_refused_by_name() {
        assert_eq!(decode(&[]), Err(RowError::Length));
        assert_eq!(decode(&[4, 0]), Err(RowError::Flags));
        assert_eq!(decode(&[2, 0]), Err(RowError::Length));
        assert_eq!(decode(&[[0_u8, 2].as_slice(), &[7; 64]].concat()), Err(RowError::Clients));
        assert_eq!(
            decode(&[[2_u8, 0].as_slice(), &[7; 192]].concat()),
            Err(RowError::Stamp(StampError::Magic))
        );
    }

    proptest! {
        #[test]
        fn rows_round_trip(volume in any_volume()) {
            prop_assert_eq!(decode(&encode(&volume)), Ok(volume));
        }

        #[test]
        fn what_is_accepted_is_canonical(
            volume in any_volume(),
            changes in prop::collection::vec((0..800_usize, any::<u8>()), 0..3),
            cut in 0..3_usize,
        ) {
            let mut bytes = encode(&volume);
            for (offset, byte) in changes {
                if let Some(at) = bytes.get_mut(offset) {
                    *at = byte;
                }
            }
            bytes.truncate(bytes.len() - cut);
            if let Ok(decoded) = decode(&bytes) {
                prop_assert_eq!(encode(&decoded), bytes);
            }
        }
    }
}
