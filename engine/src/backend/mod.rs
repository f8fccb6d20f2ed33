//! What runs a step. The CPU twin is the readable description of the model and the judge of the CUDA one.

mod check;
pub mod cpu;
mod image;
mod warm;

pub use check::{check_size, check_step};
pub use image::{Arrival, StateImage};
pub use warm::warm_up;

use std::sync::Arc;

use crate::drafts::StepCost;
use crate::step::{PageId, SegmentOutput, SlotId, Step};

/// Type of the cells in the key-value pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvType {
    /// Exact; CPU only.
    F32,
    /// Half precision.
    F16,
    /// Blocks of 32 signed bytes with an f16 scale.
    #[default]
    #[serde(rename = "q8_0")]
    Q8_0,
    /// Blocks of 32 nibbles with an f16 scale, after a Hadamard rotation.
    #[serde(rename = "q4_0")]
    Q4_0,
}

/// Tokens of the pool without a setting, if the model's own limit is not smaller.
pub const DEFAULT_POOL: usize = 131_072;

/// Most agents that there can be without a setting.
pub const DEFAULT_AGENTS_MAX: usize = 8;

/// Rows of a prompt that a backend reads at once where it does not say.
const DEFAULT_PROMPT_ROWS: usize = 512;

/// What a backend is built with. Everything is allocated then; nothing later.
#[derive(Clone, Copy, Debug)]
pub struct BackendOptions {
    /// Places for conversations' recurrent state.
    pub slots: usize,
    /// Pages in the pool.
    pub pages: usize,
    /// Type of the pool's cells.
    pub kv: KvType,
    /// Deepest draft that a step may ask for; 0 leaves the draft head out altogether.
    pub draft_max: usize,
}

/// Why a step or a transfer failed. The engine is of no use afterwards.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackendError {
    /// The table breaks a rule of [`Step`]; names the segment and the rule.
    #[error("bad step table: {0}")]
    BadStep(String),
    /// The device failed.
    #[error("{0}")]
    Device(String),
}

/// Runs steps on one device, from one thread.
pub trait Backend: std::fmt::Debug + Send {
    /// A line for people: the device and what is special about it.
    fn describe(&self) -> String;

    /// Names the layout and the bits of its images: one that was saved is loaded only where this is equal.
    fn layout(&self) -> String {
        self.describe()
    }

    /// The options it was built with.
    fn options(&self) -> BackendOptions;

    /// What rows and drafts cost beside a plain step; decides how deep to draft.
    fn cost(&self) -> StepCost;

    /// Rows of a prompt that it reads at once, a multiple of a page: more of them in one step cost as much as in several.
    fn prompt_rows(&self) -> usize {
        DEFAULT_PROMPT_ROWS
    }

    /// Runs every segment of `step` and advances its slots.
    ///
    /// # Errors
    /// [`BackendError::BadStep`] before anything has changed, or [`BackendError::Device`].
    fn step(&mut self, step: &Step<'_>) -> Result<Vec<SegmentOutput>, BackendError>;

    /// Forgets a slot's recurrent state: its next segment starts at position 0.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn reset_slot(&mut self, slot: SlotId) -> Result<(), BackendError>;

    /// Copies a slot's recurrent state (all `DeltaNet` layers, convolution inputs, the draft head's pending hidden state) as it is
    /// now; its bytes may come later.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn save_state(&mut self, slot: SlotId) -> Result<Arc<StateImage>, BackendError>;

    /// Puts a saved state into a slot, which need not be the one that it came from.
    ///
    /// # Errors
    /// [`BackendError::BadStep`] when the image has another size, or [`BackendError::Device`].
    fn load_state(&mut self, slot: SlotId, image: &StateImage) -> Result<(), BackendError>;

    /// Copies one page's cells of all layers.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn save_page(&mut self, page: PageId) -> Result<Vec<u8>, BackendError>;

    /// Copies several pages' cells, where that is faster at once.
    ///
    /// # Errors
    /// As [`Self::save_page`].
    fn save_pages(&mut self, pages: &[PageId]) -> Result<Vec<Vec<u8>>, BackendError> {
        pages.iter().map(|&page| self.save_page(page)).collect()
    }

    /// Puts saved cells into a page.
    ///
    /// # Errors
    /// [`BackendError::BadStep`] when they have another size, or [`BackendError::Device`].
    fn load_page(&mut self, page: PageId, cells: &[u8]) -> Result<(), BackendError>;

    /// Puts saved cells into several pages, where that is faster at once.
    ///
    /// # Errors
    /// As [`Self::load_page`].
    fn load_pages(&mut self, pages: &[(PageId, &[u8])]) -> Result<(), BackendError> {
        pages.iter().try_for_each(|&(page, cells)| self.load_page(page, cells))
    }
}
