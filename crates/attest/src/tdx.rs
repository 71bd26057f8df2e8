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

/// The certificate (DER) of Intel's root, `Intel SGX Root CA`.
pub(crate) const INTEL_ROOT: &[u8] = include_bytes!("tdx/intel-sgx-root.der");
