//! HTTP: connections, limits, bodies, errors. What the endpoints do is in [`crate::api`] and [`crate::control`].

pub mod admin;
pub mod body;
pub mod cors;
pub mod error;
pub mod keys;
mod limits;
pub mod router;
pub mod server;
pub mod sse;
