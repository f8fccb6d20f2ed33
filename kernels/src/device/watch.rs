//! What NVML knows of a card, without opening it.

use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

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

/// The driver's version, such as `580.159.04`; `None` where NVML is missing.
#[must_use]
pub fn driver_version() -> Option<String> {
    nvml().and_then(|nvml| nvml.sys_driver_version()).ok()
}

fn nvml() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init()
}

/// Looks at the card with this UUID (`GPU-...`). `None` where NVML is missing or doesn't know the card, as in some containers.
#[must_use]
pub fn card(uuid: &str) -> Option<Card> {
    let look = || {
        let nvml = nvml()?;
        let device = nvml.device_by_uuid(uuid)?;
        let memory = device.memory_info()?;
        Ok(Card {
            total: memory.total as usize,
            free: memory.free as usize,
            // Cards for computing don't answer.
            display: device.is_display_active().unwrap_or(false),
        })
    };
    look().map_err(|error: NvmlError| tracing::debug!(%error, uuid, "NVML says nothing")).ok()
}
