//! A network between the anchor and one member that does what the test says. It sees ciphertext only, as a host does.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// What becomes of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Pass,
    /// What the member says is lost, and the connection with it.
    LoseAnswers,
    /// What the member says comes so much later.
    Delay(Duration),
    /// What the member is asked waits here; the member hears it when the way is free again, also from a client that is gone.
    HoldQuestions,
    /// Nobody gets through.
    Closed,
}

struct Shared {
    way: Mutex<Way>,
    changed: Condvar,
}

pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    pub fn to(member: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let shared = Arc::new(Shared { way: Mutex::new(Way::Pass), changed: Condvar::new() });
        let inside = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if *inside.lock() == Way::Closed {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", member)) else { continue };
                let (up, down) = (Arc::clone(&inside), Arc::clone(&inside));
                let streams = (client.try_clone().expect("a stream"), server.try_clone().expect("a stream"));
                std::thread::spawn(move || up.questions(client, server));
                std::thread::spawn(move || down.answers(streams.1, streams.0));
            }
        });
        Proxy { port, shared }
    }

    pub fn set(&self, way: Way) {
        *self.shared.lock() = way;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Way> {
        self.way.lock().expect("no thread panics")
    }

    fn questions(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let way =
                self.changed.wait_while(self.lock(), |way| *way == Way::HoldQuestions).expect("no panic");
            let closed = *way == Way::Closed;
            drop(way);
            if closed || to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    fn answers(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let way = *self.lock();
            match way {
                Way::Delay(time) => std::thread::sleep(time),
                Way::LoseAnswers | Way::Closed => break,
                Way::Pass | Way::HoldQuestions => {}
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}
