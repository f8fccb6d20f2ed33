//! The CUDA backend: device code, launchers and the fatbin that holds them.

pub mod args;
pub mod device;
pub mod program;
pub mod repack;
pub mod table;
