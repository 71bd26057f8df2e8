//! The anchor on a real (emulated) TPM: swtpm on a Unix socket.

mod attacks;
mod bed;
mod cuts;
mod life;
