//! What runs a model: a GPU, or the CPU where that is asked for or good enough.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use openjet_kernels::device::{Device, DeviceInfo, Selector, find};

use super::Progress;
use crate::config::{BackendChoice, Config};

/// A file of more bytes is not run on the CPU unless that is asked for.
const LARGE_MODEL: u64 = 2 << 30;

/// Time between two looks for the driver.
const LOOK: Duration = Duration::from_secs(1);

/// An open GPU.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) device: Device,
    /// The same as its driver knows it; the emulated device of tests is no card.
    pub(super) card: Option<DeviceInfo>,
}

/// Opens the GPU that `config` asks for, or the first; none where the CPU runs a model of `bytes` bytes. Where there must be a
/// GPU, it waits for its driver as long as `gpu_wait_s` says: at boot it may come later than the daemon.
///
/// # Errors
/// Why there is no such GPU.
pub(super) fn choose(config: &Config, bytes: u64, progress: Progress<'_>) -> anyhow::Result<Option<Gpu>> {
    if config.backend == BackendChoice::Cpu {
        return Ok(None);
    }
    let selector = config.gpu.as_deref().unwrap_or_default();
    let selector = if selector.is_empty() { Ok(Selector::First) } else { selector.parse() };
    let selector = selector.map_err(|e| anyhow!("`gpu`: {e}"))?;
    let asked = config.backend == BackendChoice::Cuda || config.gpu.is_some();
    let patience =
        if asked || has_nvidia_card(Path::new("/sys/bus/pci/devices")) { config.gpu_wait() } else { Duration::ZERO };
    match open(&selector, patience, progress) {
        Ok(device) => Ok(Some(Gpu { device, card: find(&selector).ok() })),
        Err(problem) if asked => Err(problem),
        Err(problem) if bytes > LARGE_MODEL => bail!(
            "{problem}; a model of {:.1} GB is very slow on a CPU; to run it there all the same, start with --backend cpu",
            bytes as f64 / 1e9
        ),
        Err(problem) => {
            tracing::info!("running on the CPU: {problem}");
            Ok(None)
        }
    }
}

fn open(selector: &Selector, patience: Duration, progress: Progress<'_>) -> anyhow::Result<Device> {
    let began = Instant::now();
    loop {
        match Device::open(selector) {
            Ok(device) => return Ok(device),
            Err(problem) if began.elapsed() >= patience => return Err(problem.into()),
            Err(problem) => {
                let left = (patience - began.elapsed()).as_secs() + 1;
                progress(format!("waiting for the GPU's driver, {left} s at most ({problem})"));
                std::thread::sleep(LOOK.min(patience));
            }
        }
    }
}

/// Whether a card of NVIDIA's stands in a list of PCI devices like `/sys/bus/pci/devices`.
fn has_nvidia_card(devices: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(devices) else { return false };
    entries.flatten().any(|device| {
        let read = |name| std::fs::read_to_string(device.path().join(name)).unwrap_or_default();
        // Class 3: displays, and cards that only compute.
        read("vendor").trim() == "0x10de" && read("class").starts_with("0x03")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_card_is_told_by_vendor_and_class() {
        let folder = tempfile::tempdir().unwrap();
        let add = |name: &str, vendor: &str, class: &str| {
            let device = folder.path().join(name);
            std::fs::create_dir(&device).unwrap();
            std::fs::write(device.join("vendor"), vendor).unwrap();
            std::fs::write(device.join("class"), class).unwrap();
        };
        add("0000:00:02.0", "0x8086\n", "0x030000\n");
        // The card's sound.
        add("0000:01:00.1", "0x10de\n", "0x040300\n");
        assert!(!has_nvidia_card(folder.path()));
        add("0000:01:00.0", "0x10de\n", "0x030200\n");
        assert!(has_nvidia_card(folder.path()));
        assert!(!has_nvidia_card(Path::new("/nowhere")));
    }
}
