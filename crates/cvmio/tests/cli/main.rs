//! What is typed and what is printed: help, manual pages, prompts, refusals; and the commands that other programs carry out.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod demo;
mod help;
mod json_errors;
mod manual;
mod prompt;
mod refusals;
