//! The card that the model runs on, and where its memory goes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A card at one moment. What its driver doesn't tell is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory_total: Option<u64>,
    /// Of these, used by anybody.
    pub memory_used: Option<u64>,
    /// Bytes a second that its memory can deliver.
    pub bandwidth: Option<f64>,
    /// Percent of the time that something ran on it.
    pub load: Option<u32>,
    /// Watts.
    pub power: Option<f64>,
    /// Watts that it may use.
    pub power_limit: Option<f64>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Megahertz of its cores.
    pub clock: Option<u32>,
    /// Megahertz of its memory.
    pub memory_clock: Option<u32>,
}

/// How a GPU's matmuls are shared out among its blocks, which changes their speed only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningStatus {
    /// Where the choice comes from.
    pub source: TuningSource,
    /// What was chosen, for people.
    pub name: String,
    /// Percent of the time of those matmuls that it saves against what is built in; 0 for that itself.
    pub faster_percent: f64,
    /// Seconds that the self-test took.
    pub seconds: f64,
    /// Cycles that the start of a part of a share is taken to cost.
    pub part_cycles: u32,
    /// Cycles that a tile of weights of each type is taken to cost.
    pub tile_cycles: BTreeMap<String, u32>,
}

/// Where a choice comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuningSource {
    /// The table by compute capability.
    BuiltIn,
    /// The self-test at this load.
    Measured,
    /// The self-test at an earlier one.
    Cached,
}

/// The memory plan that the model was loaded by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Device memory, every part in a fixed order.
    pub parts: Vec<MemoryPart>,
    /// Bytes of all parts.
    pub total: u64,
    /// Host memory.
    pub host: Vec<MemoryPart>,
    /// Bytes of a page of the pool.
    pub page_bytes: u64,
}

/// One entry of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPart {
    /// What it is for.
    pub name: String,
    /// How it comes about, for people.
    pub detail: String,
    /// Bytes.
    pub bytes: u64,
}
