//! The operating system's clock, randomness and files, as the volume wants them: the one place where they are reached for.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anchor::Anchor;
use store::{Access, Address, Store};
use volume::format::protections::Provision;
use volume::{Clock, Environment, Kind};

use cli::failure::Failure;

/// How long a command waits for an anchor that is away. A session waits longer: `attach --anchor-timeout`.
pub const ANCHOR_PATIENCE: Duration = Duration::from_secs(30);

/// The monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// What a volume stands on.
pub fn environment(store: Arc<dyn Store>, anchor: Option<Arc<dyn Anchor>>) -> Environment {
    Environment { store, anchor, random: Arc::new(seal::SystemRandom), clock: Arc::new(SystemClock::new()) }
}

/// Opens a store that exists.
pub fn open_store(store: &Path, buffered: bool) -> Result<Arc<dyn Store>, store::Error> {
    open_store_with(store, Access { buffered, ..Access::default() })
}

/// Opens a store for reading only.
pub fn open_store_read_only(store: &Path, buffered: bool) -> Result<Arc<dyn Store>, store::Error> {
    open_store_with(store, Access { buffered, read_only: true, ..Access::default() })
}

/// Opens what an address names, or makes it.
pub fn open_store_with(store: &Path, access: Access) -> Result<Arc<dyn Store>, store::Error> {
    store::open(&Address::of(store)?, access)
}

/// The anchor that a policy names.
pub fn open_anchor(policy: &volume::policy::Policy) -> Result<Option<Arc<dyn Anchor>>, Failure> {
    open_anchor_within(policy, ANCHOR_PATIENCE)
}

/// The same for somebody with another patience.
///
/// # Errors
/// As [`open_anchor`].
pub fn open_anchor_within(
    policy: &volume::policy::Policy,
    patience: Duration,
) -> Result<Option<Arc<dyn Anchor>>, Failure> {
    let open = |address: &String| anchor::open_address(address, &policy.anchor_options, Some(patience));
    Ok(policy.anchor.as_ref().map(open).transpose()?)
}

/// The same for reading only: one that cannot be written to will do.
pub fn open_anchor_read_only(policy: &volume::policy::Policy) -> Result<Option<Arc<dyn Anchor>>, Failure> {
    let open = |address: &String| {
        anchor::open_address_read_only(address, &policy.anchor_options, Some(ANCHOR_PATIENCE))
    };
    Ok(policy.anchor.as_ref().map(open).transpose()?)
}

/// Makes a file longer. For a volume with full provisioning its space is taken at once, as when it was created.
pub fn enlarge(store: Arc<dyn Store>) -> volume::Enlarge {
    Box::new(move |blocks, provision| {
        let refused = |error: store::Error| volume::Error::new(Kind::Usage, error.to_string());
        store.extend(blocks, provision == Provision::Full).map_err(refused)
    })
}

/// Has a limit on the size of files (`ulimit -f`) be an error of the write that reaches it, and not the end of this process: SIGXFSZ is taken
/// note of, and nothing else. (Rust's runtime does that for SIGPIPE.)
pub fn keep_to_errors() {
    // It is refused for a few other signals only.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Keeps secrets inside this process, and gives the warning that there may be.
pub fn protect() -> Result<Option<String>, Failure> {
    match seal::hygiene::protect_process() {
        Ok(seal::hygiene::Locking::All) => Ok(None),
        Ok(locking) => Ok(Some(locking.to_string())),
        Err(error) => {
            Err(Failure::io(format!("this process cannot be kept from being dumped and traced: {error}")))
        }
    }
}
