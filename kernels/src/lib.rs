//! The CUDA backend: device code, launchers and the fatbin that holds them.

pub mod args;
mod backend;
mod compose;
mod cost;
pub mod device;
mod memory;
mod outgoing;
pub mod plan;
pub mod program;
pub mod repack;
mod shares;
pub mod table;
mod transfer;
pub mod tuning;
mod upload;
mod weights;

pub use backend::CudaBackend;
pub use memory::{PROMPT_ROWS, splits};
pub use plan::{Embedding, MemoryPlan, PlanOptions, plan};
pub use upload::Progress;
