//! A thread that serves clients for a device in memory, as a volume's queue threads do.

use export::{Attend, Attendance, Client, Wish};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

/// The way to such a thread, which ends when this is gone.
pub struct Attendant {
    bell: Arc<Bell>,
    clients: Mutex<Option<Sender<Client>>>,
}

struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).unwrap();
    }
}

impl Attendant {
    pub fn start() -> Self {
        let bell = Arc::new(Bell(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
        let (sender, receiver) = channel();
        let heard = Arc::clone(&bell);
        std::thread::spawn(move || serve(&heard, &receiver));
        Self { bell, clients: Mutex::new(Some(sender)) }
    }
}

impl Attend for Attendant {
    fn attend(&self, client: Client) {
        if let Some(clients) = &*self.clients.lock().unwrap() {
            clients.send(client).unwrap();
        }
        Arc::clone(&self.bell).wake();
    }
}

impl Attendant {
    pub fn end(&self) {
        drop(self.clients.lock().unwrap().take());
        Arc::clone(&self.bell).wake();
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        self.end();
    }
}

fn serve(bell: &Arc<Bell>, clients: &Receiver<Client>) {
    let waker = Waker::from(Arc::clone(bell));
    let mut attendance = Attendance::default();
    let mut wishes: Vec<Wish> = Vec::new();
    loop {
        let _ = rustix::io::read(&bell.0, &mut [0; 8]);
        loop {
            match clients.try_recv() {
                Ok(client) => attendance.admit(client),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        attendance.run(&waker, &mut wishes);
        let mut looked = vec![PollFd::new(&bell.0, PollFlags::IN)];
        looked.extend(wishes.iter().map(|wish| PollFd::new(&wish.descriptor, PollFlags::IN)));
        poll(&mut looked, None).unwrap();
        let seen: Vec<bool> = looked.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect();
        for index in (0..seen.len()).rev().filter(|&index| seen[index]) {
            let _ = wishes.swap_remove(index).seen.send(Ok(()));
        }
    }
}
