//! Attention, `DeltaNet` and sampling ops against plain f64 references: on the CPU (device code compiled for it) and on the
//! GPU where there is one. Also: a row's bits are the same whatever its company, order and grid.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

#[path = "gpu_ops/attention.rs"]
mod attention;
#[path = "gpu_ops/deltanet.rs"]
mod deltanet;
#[path = "gpu_ops/machine.rs"]
mod machine;
#[path = "gpu_ops/sampling.rs"]
mod sampling;
