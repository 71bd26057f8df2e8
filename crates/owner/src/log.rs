//! The audit log: every change of the service's state, and every refusal, chained by hash. It is also the truth that the table of volumes is
//! checked against.

mod chain;
mod entry;
mod state;

pub use chain::{Chain, Fault, Head};
pub use entry::{ClientId, ENTRY_SIZE, Entry, EntryError, Event, Machine, Move, Shown};
pub use state::{MAX_CLIENTS, MAX_VOLUMES, State, StateError, Volume};
