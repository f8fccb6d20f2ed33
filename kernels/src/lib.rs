//! The CUDA backend: device code, launchers and the fatbin that holds them.

pub mod args;
mod backend;
mod compose;
pub mod device;
mod memory;
pub mod program;
pub mod repack;
pub mod table;
mod weights;

pub use backend::{CudaBackend, plan};
pub use memory::MemoryPlan;
pub use weights::Progress;
