//! The protected volume: a block device on a store that nobody trusts.
//!
//! The host can neither read it, nor change it, nor put an older state of it back. `docs/disk-format.md` has the bytes and the
//! protocols, `docs/semantics.md` what is promised when. Start at [`create`] and [`attach`]; then open a [`Queue`] per thread and drive
//! [`Volume::maintenance`] from one more.
#![forbid(unsafe_code)]

mod admission;
mod allocation;
mod attach;
mod block_cache;
mod cache;
mod check;
mod checkpoint;
mod commit;
mod core;
mod create;
mod data_room;
mod discarding;
pub mod dump;
mod error;
pub mod format;
pub mod geometry;
mod grow;
mod header_backup;
mod header_change;
mod io;
mod journal;
mod key_slots;
mod keys;
mod landing;
mod merge;
mod migrate;
#[cfg(not(feature = "mutations"))]
mod mutation;
#[cfg(feature = "mutations")]
pub mod mutation;
mod node_room;
mod old_key;
mod open_header;
mod overlay;
mod pace;
mod places;
pub mod policy;
mod queue;
mod read;
mod readers;
mod reanchor;
mod rekey;
mod replay;
mod request;
mod reseal;
mod reservation;
mod space;
mod start;
mod store_room;
mod stream;
mod superblock_io;
mod survey;
mod tour;
mod tree;
mod unanchored;
mod untold;
mod volume;
mod witness;

pub use crate::core::{Clock, Environment};
pub use allocation::Extent;
pub use attach::{AttachOptions, Left, Reading, Window, attach, attach_read_only};
pub use check::{CheckProgress, CheckReport};
pub use create::{CreateOptions, SavePolicy, create, create_as, create_by_policy};
pub use error::{Error, Kind, Remedy, Result};
pub use grow::{Enlarge, Grown, Growth, check_growth, grow};
pub use header_backup::{BackedUp, HeaderInfo, Restored, backup_header, restore_header};
pub use io::Driven;
pub use key_slots::{KeyChange, KeyNotice, KeysChanged, change_keys};
pub use migrate::{Migrated, Migration, migrate};
pub use queue::{Completion, Queue, Request};
pub use reanchor::{Reanchor, reanchor};
pub use rekey::{RekeyOrder, Rekeyed, begin_rekey, check_rekey};
pub use reseal::{ResealProgress, ResealReport};
pub use store_room::WaitsForRoom;
pub use stream::{Imported, StreamProgress, StreamReader, StreamWriter, Tail};
pub use survey::{Choice, Found, History, StateName, Survey, survey};
pub use tour::Sharing;
pub use unanchored::Unanchored;
pub use volume::{AnchorAway, Status, Volume};
