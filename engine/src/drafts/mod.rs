//! Where draft tokens come from besides the draft head, and how many are worth their cost.

mod depth;
mod lookup;

pub use depth::{DepthController, Rows, StepCost, depths};
pub use lookup::Lookup;
