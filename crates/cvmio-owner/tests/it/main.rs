//! The program as its owner runs it, with real clients over TLS on loopback.

mod admin;
mod damage;
mod errors;
mod kill;
mod release;
mod renew;
mod rollback;
mod room;
mod strangers;
mod swap;
