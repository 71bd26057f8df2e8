//! Intel TDX: quotes of versions 4 and 5, Intel's collateral, event logs, and their policy.

mod check;
mod collateral;
mod event_log;
mod policy;
mod quote;

pub use event_log::{Event, EventLogError, MAX_EVENT_LOG, events, replay};
pub use policy::{AcceptedEvent, Policy};
pub use quote::{MAX_QUOTE, Report};

pub(crate) use check::judge;
