//! The documents against the code: vectors that other programs made from the specifications, and tables and promises of the documents.

mod promises;
mod sizes;
mod vectors;
