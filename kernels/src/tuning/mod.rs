//! How a matmul's work is shared out among the blocks of a GPU: by what its parts are taken to cost there.
//!
//! Costs stand in a table by compute capability. At the start a short self-test tries variations of them on the model's own
//! matmuls, and what is chosen is kept in a file. A choice changes speed only: what a number is made of, and in which order, is a
//! function of the matrix alone (`cuda/matmul.cuh`); the shares decide who makes it and when.

mod cache;
mod measure;
mod table;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::device::{Buffer, Device, driver_version};
use crate::program::Op;
use crate::repack::WeightType;

pub use measure::Compared;
pub use table::Tuning;

pub(crate) use measure::compare;
use table::Pace;

/// Whether the self-test runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tune {
    /// Where nothing was chosen yet for this GPU and model.
    #[default]
    Auto,
    /// Never: the table is taken.
    Off,
    /// Whenever a model is loaded.
    Again,
}

/// Where a choice comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The table.
    BuiltIn,
    /// The self-test, just now.
    Measured,
    /// The self-test of an earlier start.
    Cached,
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    /// The costs.
    pub tuning: Tuning,
    /// What they are, for people.
    pub name: String,
    /// Where they come from.
    pub source: Source,
    /// Share of the time of a step's matmuls that they save against the table's; 0 for the table itself.
    pub gain: f64,
    /// Seconds that the self-test took.
    pub seconds: f64,
}

impl Chosen {
    /// The table's for a device.
    pub(crate) fn built_in(device: &Device) -> Self {
        let (tuning, name) = (Tuning::built_in(device.capability()), Pace::of(device.capability()).name());
        Self { tuning, name, source: Source::BuiltIn, gain: 0.0, seconds: 0.0 }
    }

    /// Chooses as `tune` says for a model whose step has the matmuls `ops`, and keeps what was measured in the file `cache`. `table` is
    /// the step table's buffer, and is written over. Where the self-test fails the table is taken.
    pub(crate) fn choose(device: &Device, table: &Buffer, ops: &[Op], tune: Tune, cache: Option<&Path>) -> Self {
        if tune == Tune::Off {
            return Self::built_in(device);
        }
        let key = key(device, ops);
        if tune == Tune::Auto {
            if let Some(chosen) = cache.and_then(|path| cache::load(path, &key)) {
                return Self { source: Source::Cached, ..chosen };
            }
            // Times of a device that is no GPU say nothing of one.
            if device.capability().is_none() {
                return Self::built_in(device);
            }
        }
        let chosen = match measure::choose(device, table, ops) {
            Ok(chosen) => chosen,
            Err(error) => {
                tracing::warn!("the self-test of the matmuls failed, the table is taken: {error}");
                return Self::built_in(device);
            }
        };
        if let Some(path) = cache
            && let Err(error) = cache::store(path, key, &chosen)
        {
            tracing::warn!("{} can't be written, so the next start measures again: {error}", path.display());
        }
        chosen
    }

    /// What a tile of each type is taken to cost, by the type's name.
    pub fn tiles(&self) -> impl Iterator<Item = (String, u32)> {
        WeightType::ALL.into_iter().zip(self.tuning.tile).map(|(ty, cost)| (format!("{ty:?}"), cost))
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::BuiltIn => return write!(f, "{}, not measured", self.name),
            Source::Measured => write!(f, "{}, measured in {:.2} s", self.name, self.seconds)?,
            Source::Cached => write!(f, "{}, measured at an earlier start", self.name)?,
        }
        if self.gain > 0.0 { write!(f, ": {:.1}% less time than the table's", 100.0 * self.gain) } else { Ok(()) }
    }
}

/// What a choice depends on: the card, its driver, the device code, and the matmuls.
fn key(device: &Device, ops: &[Op]) -> String {
    let mut matmuls = DefaultHasher::new();
    ops.iter().for_each(|op| op.matmul_kind().hash(&mut matmuls));
    format!(
        "{}; driver {}; kernels {:016x}; matmuls {:016x}",
        device.describe(),
        driver_version().as_deref().unwrap_or("unknown"),
        device.code(),
        matmuls.finish()
    )
}
