//! Secrets for attested guests, by the KBS protocol: what a guest gets is what a catalogue names for it, if its evidence satisfies the policy there.
//!
//! A connection has TLS, and no certificate of the guest's: its evidence says who it is. What is released is encrypted for the key in that
//! evidence. Each nonce is good for one attempt. Each release is in the audit log before it is sent.

mod catalogue;
mod desk;
mod listener;
mod sessions;
mod token;

pub use catalogue::Catalogue;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use attest::Roots;
use attest::simulated::RootKey;

use crate::error::Error;
use crate::keeper::{Job, Report};
use crate::log::Event;
use desk::Desk;
use sessions::Sessions;

/// How releases are set up.
pub struct Releasing {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The catalogue: what is released, and to whom.
    pub catalogue: PathBuf,
    /// A directory with certificates, revocation lists and collateral, of `cvmio attest fetch`.
    pub cache: Option<PathBuf>,
    /// Roots of simulated platforms. None is trusted unless it is named here; each proves nothing.
    pub simulated: Vec<RootKey>,
    /// The service's certificate (PEM).
    pub certificate: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
    /// How long a guest's attestation counts.
    pub lifetime: Duration,
    /// Where lines for the owner go.
    pub report: Report,
}

/// How long the log may take for an entry.
const LOG_PATIENCE: Duration = Duration::from_secs(10);

/// Begins to serve.
pub(crate) fn serve(
    releasing: Releasing,
    jobs: SyncSender<Job>,
    closing: Arc<AtomicBool>,
) -> Result<SocketAddr, Error> {
    let catalogue = Catalogue::read(&releasing.catalogue)?;
    catalogue.check()?;
    let allow_simulated = !releasing.simulated.is_empty();
    let roots = releasing.simulated.iter().fold(Roots::builtin(), |roots, root| roots.with_simulated(*root));
    if allow_simulated {
        (releasing.report)(
            "evidence of simulated platforms is accepted where a policy has a table for it: no chip vouches for such a guest",
        );
    }
    let desk = Desk {
        catalogue: releasing.catalogue,
        cache: releasing.cache,
        roots,
        allow_simulated,
        sessions: Mutex::new(Sessions::new(releasing.lifetime)),
        mac: seal::MacKey::generate(&seal::SystemRandom),
        record: Box::new(move |event| record(&jobs, event)),
        report: Arc::clone(&releasing.report),
    };
    let files = listener::Files { certificate: releasing.certificate, key: releasing.key };
    listener::start(releasing.listen, files, Arc::new(desk), closing, releasing.report)
}

/// Whether the log has the entry.
fn record(jobs: &SyncSender<Job>, event: Event) -> bool {
    let (sender, receiver) = sync_channel(1);
    match jobs.try_send(Job::Record(event, sender)) {
        Ok(()) => receiver.recv_timeout(LOG_PATIENCE).is_ok(),
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
    }
}
