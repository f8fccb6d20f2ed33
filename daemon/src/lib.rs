//! `openjetd`: serves a model to several coding agents over the OpenAI API, and is controlled over a Unix socket.

pub mod api;
pub mod app;
pub mod config;
pub mod control;
pub mod http;
pub mod kept;
pub mod load;
pub mod log;
pub mod metrics;
pub mod page;
pub mod run;
pub mod serving;
pub mod unreadable;
