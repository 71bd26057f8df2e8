//! An NBD server, on a unix socket or over TCP.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use export::nbd::{Listen, Options, Peer, Server, Tls};
use serde::{Deserialize, Serialize};

use super::{Disk, Front, Shown, holders, in_use};
use crate::runtime::Place;
use cli::failure::Failure;

/// Where to listen, and for whom.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Where {
    /// TCP; without it, a unix socket in the runtime directory.
    pub listen: Option<SocketAddr>,
    /// With TLS, and these files for it.
    pub tls: Option<Files>,
}

/// The files of TLS.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Files {
    /// The server's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Authorities of clients, who need a certificate then.
    pub clients: Option<PathBuf>,
}

impl Where {
    fn options(&self, place: &Place, read_only: bool) -> Options {
        let Self { listen, tls } = self.clone();
        let tls = tls.map(|Files { certificate, key, clients }| Tls { certificate, key, clients });
        Options {
            name: place.name(),
            listen: listen.map_or_else(|| Listen::Unix(place.nbd()), Listen::Tcp),
            tls,
            read_only,
        }
    }

    /// See [`super::Show::check`].
    pub fn check(&self, place: &Place) -> Result<(), Failure> {
        Ok(self.options(place, false).check()?)
    }

    /// What a user of this should know.
    pub fn warning(&self) -> Option<String> {
        let open = self.tls.as_ref().is_none_or(|files| files.clients.is_none());
        (open && self.listen.is_some()).then(|| {
            "every user of this machine may connect over TCP, and then has all of the volume; the unix socket, which is the default, is \
             for its owner only"
                .into()
        })
    }
}

/// A server.
pub struct Nbd(Server);

impl Nbd {
    /// Starts to listen.
    ///
    /// # Errors
    /// When the socket cannot be made, or a file of TLS cannot be used.
    pub fn show(wanted: &Where, place: &Place, disk: Disk, read_only: bool) -> Result<Self, Failure> {
        Ok(Self(Server::start(Arc::new(disk), &wanted.options(place, read_only))?))
    }
}

impl Front for Nbd {
    fn shown(&self) -> Shown {
        Shown::Nbd { uri: self.0.uri().into() }
    }

    fn hide(&self) -> Result<(), Failure> {
        self.0.close().map_err(|peers| in_use(&peers.iter().map(name).collect::<Vec<_>>()))
    }
}

fn name(peer: &Peer) -> String {
    match peer {
        Peer::Process(process) => format!("{} is connected", holders::name(*process)),
        other => format!("{other} is connected"),
    }
}
