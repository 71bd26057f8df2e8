//! The guest's side of a job: what the image boots into.
//!
//! [`boot`] makes the guest's keys, answers one challenge, and lets the owner's key in by SSH. Whoever logs in with it can say the words of
//! [`session`] and nothing else. [`work`] runs the container, beside all of these.

mod boot;
mod container;
mod evidence;
mod log;
mod place;
mod session;
mod volume;
mod words;
mod work;

pub use boot::boot;
pub use log::{Frame, Stream};
pub use session::session;
pub use words::{Phase, Setup, State, Word};
pub use work::work;

/// The port of the challenge.
pub const CHALLENGE_PORT: u16 = 1024;
/// The port of SSH.
pub const SSH_PORT: u16 = 22;
/// Where an input, an output or a context lies in its stream.
pub const CONTENT: &str = "content";
