//! What NVML knows of a card, without opening it.

use std::ffi::OsStr;

use nvml_wrapper::Nvml;

/// A card as NVML sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Memory in bytes.
    pub total: usize,
    /// Of it, what nobody uses.
    pub free: usize,
    /// Whether a display is shown by it.
    pub display: bool,
}

/// Looks at the card with this UUID (`GPU-...`). `None` where NVML is missing or doesn't know the card, as in some containers.
#[must_use]
pub fn card(uuid: &str) -> Option<Card> {
    let look = || {
        let nvml = Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init()?;
        let device = nvml.device_by_uuid(uuid)?;
        let memory = device.memory_info()?;
        Ok(Card {
            total: memory.total as usize,
            free: memory.free as usize,
            // Cards for computing don't answer.
            display: device.is_display_active().unwrap_or(false),
        })
    };
    look().map_err(|error: nvml_wrapper::error::NvmlError| tracing::debug!(%error, uuid, "NVML says nothing")).ok()
}
