//! What the benches share: the spread of repeated measurements, tables for a terminal, charts as SVG, the date.

pub mod chart;
mod date;
mod spread;
mod table;

pub use date::today;
pub use spread::Spread;
pub use table::table;
