//! What a measurement is kept as, what follows from it, and how it is shown.
//!
//! A [`run::Run`] is what one run of `cvmio bench fio` or `cvmio bench apps` writes: one JSON file with everything that was measured and
//! everything that is needed to measure it again. [`statistics`] and [`compare`] draw conclusions from runs, [`page`], [`plot`] and
//! [`table`] show them, and [`papers`] has the numbers that the papers published, to stand beside them.
//!
//! This crate makes no system calls: it takes bytes and values, and returns text and pictures.

#![forbid(unsafe_code)]

pub mod compare;
pub mod export;
pub mod figure;
pub mod page;
pub mod papers;
pub mod plot;
pub mod question;
pub mod run;
pub mod statistics;
pub mod table;
