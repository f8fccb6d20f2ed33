//! Tests against a real daemon on the model that ships with it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::needless_pass_by_value)]

mod client;
mod server;

mod change;
mod chat;
mod completions;
mod connections;
mod control;
mod errors;
#[cfg(target_arch = "x86_64")]
mod faults;
mod held;
mod keys;
mod malformed;
mod messages;
mod page;
mod process;
mod responses;
mod restart;
mod text;
mod turns;
