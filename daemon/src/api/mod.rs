//! The HTTP API's endpoints.

pub mod answer;
pub mod chat;
pub mod completions;
pub mod conversation;
pub mod fields;
pub mod head;
pub mod health;
pub mod logprobs;
pub mod messages;
pub mod models;
pub mod reference;
pub mod responses;
pub mod sampling;
pub mod stop;
pub mod text;
pub mod usage;
pub mod writer;
