//! Who is connected.

use super::link::Socket;
use slab::Slab;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine.
    Process(u32),
    /// Somebody at this address.
    Address(SocketAddr),
    /// Somebody who is gone, or in another namespace.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Process(process) => write!(f, "process {process}"),
            Peer::Address(address) => write!(f, "{address}"),
            Peer::Unknown => f.write_str("an unknown process"),
        }
    }
}

/// The list of those who are connected.
#[derive(Debug)]
pub(super) struct Clients {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    all: Slab<Client>,
}

#[derive(Debug)]
struct Client {
    socket: Arc<Socket>,
    uses_device: bool,
}

/// A place in the list. Dropping it leaves.
#[derive(Debug)]
pub(super) struct Seat {
    clients: Arc<Clients>,
    key: usize,
}

impl Clients {
    pub(super) fn new(most: usize) -> Clients {
        Clients { most, state: Mutex::default() }
    }

    /// A seat, if one is free.
    pub(super) fn enter(self: &Arc<Clients>, socket: &Arc<Socket>) -> Option<Seat> {
        let mut state = self.lock();
        if state.closed || state.all.len() >= self.most {
            return None;
        }
        let key = state.all.insert(Client { socket: Arc::clone(socket), uses_device: false });
        Some(Seat { clients: Arc::clone(self), key })
    }

    /// Lets nobody in any more, and hangs up on those who have not asked for anything yet; unless somebody uses the device.
    pub(super) fn close(&self) -> Result<(), Vec<Peer>> {
        let mut state = self.lock();
        let users: Vec<Peer> = state
            .all
            .iter()
            .filter(|(_, client)| client.uses_device)
            .map(|(_, client)| client.socket.peer())
            .collect();
        if !users.is_empty() && !state.closed {
            return Err(users);
        }
        state.cut();
        Ok(())
    }

    /// Lets nobody in any more, and hangs up on everybody.
    pub(super) fn cut(&self) {
        self.lock().cut();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn cut(&mut self) {
        self.closed = true;
        self.all.iter().for_each(|(_, client)| client.socket.cut());
    }
}

impl Seat {
    /// From now on the device is in use.
    pub(super) fn uses_device(&self) {
        if let Some(client) = self.clients.lock().all.get_mut(self.key) {
            client.uses_device = true;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.clients.lock().all.try_remove(self.key);
    }
}
