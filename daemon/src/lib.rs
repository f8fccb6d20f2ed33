//! `openjetd`: serves a model to several coding agents over the OpenAI API, and is controlled over a Unix socket.

pub mod api;
pub mod app;
pub mod card;
pub mod change;
pub mod config;
pub mod control;
pub mod counter;
pub mod events;
pub mod http;
pub mod idle;
pub mod journal;
pub mod kept;
pub mod load;
pub mod log;
pub mod metrics;
pub mod models;
pub mod page;
pub mod phase;
pub mod reload;
pub mod requests;
pub mod run;
pub mod serving;
pub mod systemd;
pub mod unreadable;
pub mod watchdog;
