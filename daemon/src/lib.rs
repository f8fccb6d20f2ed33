//! `openjetd`: serves a model to several coding agents over the OpenAI API, and is controlled over a Unix socket.

pub mod config;
