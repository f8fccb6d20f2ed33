//! `OpenJet`'s inference engine for the dense Qwen3.5 family.
//!
//! The life of a request: [`text`] turns messages into token ids, [`engine`] gives the request a slot and puts its rows
//! into [`step`] tables, a [`backend`] runs each step (the CPU twin here, the CUDA one in `openjet-kernels`), and the
//! sampled tokens go back to the caller as events.

pub mod backend;
pub mod constraint;
pub mod drafts;
pub mod engine;
pub mod gguf;
pub mod inspect;
pub mod memory;
pub mod model;
pub mod quant;
pub mod request;
pub mod sampling;
pub mod step;
mod store;
pub mod text;
