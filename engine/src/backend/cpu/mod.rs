//! The CPU twin: the forward pass in f32, readable first.
