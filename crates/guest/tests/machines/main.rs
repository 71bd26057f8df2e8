//! What runs in virtual machines. One program, so that two machines run at a time: most of them use one processor only.

mod boot;
mod conformance;
mod host;
mod job;
mod launch;
mod measure;
mod nbd;
mod pmem;
mod root;
mod system;
mod tpm;
mod ublk;
mod volume;
