//! Volumes that are attached: their whole life, beside users, and under a host that attacks.

#[path = "../common/mod.rs"]
mod common;

mod at_once;
mod before;
mod closed;
mod detach;
mod documents;
mod grow;
mod hands;
mod key;
mod left;
mod life;
mod limits;
mod metrics;
mod nbd;
mod paths;
mod read_only;
mod rekey;
mod served;
mod silent;
mod tamper;
mod thin;
mod top;
mod unprivileged;
mod waiting;
