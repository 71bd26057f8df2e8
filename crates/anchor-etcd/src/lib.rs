//! An anchor in an etcd cluster: one key holds the stamp, and moves by compare-and-swap in one transaction.
//!
//! It speaks HTTP with etcd's JSON gateway (`/v3/kv/range`, `/v3/kv/txn`), on the anchor's own thread
//! ([`anchor::Threaded`]). Which cluster is a root of freshness and which is not: `docs/freshness.md`.
#![forbid(unsafe_code)]

mod address;
mod client;
mod memory;
pub mod message;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use anchor::{Access, Anchor, Created, Error, Limits, Needs, Opening, OptionKey, Options, Scheme, Threaded};

use address::Place;
use client::Etcd;
use memory::Memory;
use tls::Tls;

/// For one request, unless the options say otherwise: an election takes a second or two.
const TIMEOUT: Duration = Duration::from_secs(4);

/// What a new anchor's owner should know.
const NOTE: &str = "an etcd cluster is a root of freshness only as long as its members keep their data in memory that the \
                    volume's host can't copy or put back: see docs/freshness.md";

/// The scheme `etcd:`, to be registered.
#[must_use]
pub fn scheme() -> Scheme {
    Scheme {
        name: "etcd",
        form: address::FORM,
        options: &[
            OptionKey {
                name: "ca-file",
                secret: false,
                about: "authorities that vouch for the cluster's members",
            },
            OptionKey { name: "cert-file", secret: false, about: "our certificate" },
            OptionKey { name: "key-file", secret: false, about: "its key" },
            OptionKey { name: "request-timeout-ms", secret: false, about: "how long one request may take" },
        ],
        check,
        needs,
        open,
        create,
    }
}

fn check(rest: &str, options: &Options) -> Result<(), Error> {
    parse(rest, options).map(drop).map_err(|why| Error::Unusable(format!("anchor etcd:{rest}: {why}")))
}

/// What address and options say, without any I/O.
fn parse(rest: &str, options: &Options) -> Result<(Place, Option<Tls>, Duration), String> {
    let place = Place::parse(rest)?;
    let over_tls = place.endpoints.iter().any(|endpoint| endpoint.tls);
    let tls = over_tls.then(|| Tls::from_options(options)).transpose()?;
    let timeout = match options.get("request-timeout-ms") {
        None => TIMEOUT,
        Some(text) => text
            .parse()
            .ok()
            .filter(|ms| (1..=600_000).contains(ms))
            .map(Duration::from_millis)
            .ok_or_else(|| format!("the option request-timeout-ms is {text:?}: write 1 to 600000"))?,
    };
    Ok((place, tls, timeout))
}

fn needs(rest: &str) -> Needs {
    let loopback = Place::parse(rest).is_ok_and(|place| place.endpoints.iter().all(|endpoint| !endpoint.tls));
    Needs { network: !loopback, ..Needs::default() }
}

fn open(opening: &Opening<'_>) -> Result<Arc<dyn Anchor>, Error> {
    let unusable = |why: String| opening.address.unusable(why);
    let (place, tls, timeout) = parse(opening.address.rest(), opening.options).map_err(unusable)?;
    // What is missing is said now; later it would be waited for.
    tls.as_ref().map(Tls::load).transpose().map_err(unusable)?;
    let etcd = Etcd {
        address: opening.address.clone(),
        place,
        tls,
        access: opening.access,
        timeout,
        connection: None,
        current: 0,
        memory: Memory::default(),
        moves: 0,
        certificate_until: None,
        space: None,
    };
    Ok(Threaded::spawn(etcd, Limits { timeout: opening.timeout, ..Limits::default() })?)
}

/// A key needs no making: the first claim puts it there.
fn create(opening: &Opening<'_>) -> Result<Created, Error> {
    let anchor = open(&Opening { access: Access::ReadWrite, ..*opening })?;
    Ok(Created { anchor, undo: None, notes: vec![NOTE.into()] })
}
