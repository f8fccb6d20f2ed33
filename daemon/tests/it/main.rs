//! Tests against a real daemon on the model that ships with it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod client;
mod server;

mod completions;
mod connections;
mod control;
mod page;
mod process;
mod text;
