//! A volume that grows under those who use it: asked for over the control socket.

use seal::slot::Credential;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::BLOCK_SIZE;

use super::events;
use super::front::Shown;
use super::service::Service;
use cli::failure::Failure;

/// What became of a volume. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Room {
    /// Whether it is larger than before.
    pub grown: bool,
    /// What it showed.
    pub size_before: u64,
    /// What it shows.
    pub size: u64,
    /// What it used of its store.
    pub store_size_before: u64,
    /// What it uses of its store.
    pub store_size: u64,
    /// How often it has grown since it was created.
    pub growths: usize,
}

impl From<volume::Grown> for Room {
    fn from(grown: volume::Grown) -> Self {
        let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
        Self {
            grown: grown.before != grown.now,
            size_before: bytes(grown.before.0),
            size: bytes(grown.now.0),
            store_size_before: bytes(grown.before.1),
            store_size: bytes(grown.now.1),
            growths: grown.growths,
        }
    }
}

/// Lets the volume grow; then `show` has the front end show the new size.
///
/// # Errors
/// What speaks against it; or that it has grown, and why its device or the policy file does not say so.
pub(super) fn grow(
    service: &Service,
    shown: &Shown,
    credentials: Vec<Credential>,
    logical_blocks: Option<u64>,
    show: impl FnOnce() -> Result<(), Failure>,
) -> Result<Value, Failure> {
    shown.can_grow()?;
    let credential = credentials.into_iter().next();
    let credential = credential.ok_or_else(|| Failure::usage("nothing was given that opens the volume"))?;
    let (grown, saved) = service.grow(&credential, logical_blocks)?;
    let room = Room::from(grown);
    if room.grown {
        events::tell(&format!("the volume has grown from {} to {} bytes", room.size_before, room.size));
        show().map_err(|failure| {
            failure.with("the volume has grown, but its device does not show it: detach and attach it")
        })?;
    }
    saved?;
    serde_json::to_value(room).map_err(|error| Failure::internal(error.to_string()))
}
