//! What a daemon says about its volume to Prometheus: the text format, version 0.0.4.

mod address;
mod http;
mod text;

pub use address::Address;
pub use http::Remove;
pub use text::Snapshot;

use std::sync::Arc;

use cli::failure::Failure;

/// A socket that waits for questions.
pub struct Listener(http::Socket);

impl Listener {
    /// Opens the socket, before anything else is done: an address that is taken should cost nothing.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(address: &Address) -> Result<Self, Failure> {
        http::Socket::open(address).map(Self)
    }

    /// Answers from now on, with what `look` finds at the time. What is returned is to be dropped with the volume.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn serve(
        self,
        look: impl Fn() -> Result<Snapshot, Failure> + Send + Sync + 'static,
    ) -> Result<Option<Remove>, Failure> {
        self.0.serve(Arc::new(move || look().map(|snapshot| text::page(&snapshot))))
    }
}
