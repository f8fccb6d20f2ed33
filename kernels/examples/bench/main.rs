//! The bench of the kernels.

fn main() {}
