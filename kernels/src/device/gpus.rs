//! Which GPU is used, and why one can't be.

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};

use super::DeviceError;
use super::cuda::call;

/// First number of the lowest compute capability that the kernels are for.
const LOWEST_CAPABILITY: i32 = 8;

/// Lowest CUDA version of a driver that loads the kernels: that of the compiler, as the driver counts.
const LOWEST_DRIVER: i32 = 13_000;

/// Which GPU to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selector {
    /// The first that can be used.
    #[default]
    First,
    /// By its index among the driver's devices.
    Index(usize),
    /// By its UUID, as `nvidia-smi -L` prints it (`GPU-...`).
    Uuid(String),
    /// The device code on the CPU, where something may go wrong. Only for tests.
    #[cfg(has_host_device)]
    Emulated(Option<super::Fault>),
}

impl std::str::FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        #[cfg(has_host_device)]
        if let Some(fault) = text.strip_prefix("emulated") {
            return fault.strip_prefix(':').map(str::parse).transpose().map(Self::Emulated);
        }
        if text.starts_with("GPU-") {
            return Ok(Self::Uuid(text.to_owned()));
        }
        text.parse().map(Self::Index).map_err(|_| format!("`{text}` is neither a GPU's index nor its UUID (GPU-...)"))
    }
}

/// Why no GPU can be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceProblem {
    /// Built where there was no nvcc.
    #[error(
        "this build has no CUDA code: it was made where no nvcc was found (run `cargo xtask setup nvcc` and build again)"
    )]
    NoKernels,
    /// No libcuda.
    #[error("no NVIDIA driver: libcuda.so.1 can't be loaded (install the driver, or use --backend cpu)")]
    NoDriver,
    /// The driver is too old.
    #[error("the NVIDIA driver knows CUDA {}, and this build needs {} (install a newer driver)", version(*found), version(*needed))]
    OldDriver {
        /// What the driver knows, as it counts: 1000 for a version, 10 for a part of one.
        found: i32,
        /// What is needed.
        needed: i32,
    },
    /// The driver has no GPU, or not this one.
    #[error("no GPU {wanted}; there are: {found}")]
    NoSuchGpu {
        /// What was asked for.
        wanted: String,
        /// What the driver has.
        found: String,
    },
    /// The GPU can't run the kernels.
    #[error("{gpu} can't be used: {reason}")]
    Unfit {
        /// Its name.
        gpu: String,
        /// Why.
        reason: String,
    },
    /// A call failed.
    #[error("{0}")]
    Call(#[from] DeviceError),
}

/// What is known of a GPU before it is opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its index.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its UUID, as `nvidia-smi -L` prints it.
    pub uuid: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Memory in bytes.
    pub memory: usize,
}

/// Whether device code is built in and a driver is there. Says nothing about GPUs.
///
/// # Errors
/// What is missing.
pub fn available() -> Result<(), DeviceProblem> {
    if cfg!(not(has_fatbin)) {
        return Err(DeviceProblem::NoKernels);
    }
    // SAFETY: only tries to open the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceProblem::NoDriver);
    }
    Ok(())
}

/// The driver's GPUs.
///
/// # Errors
/// When there is no driver or it fails.
pub fn list() -> Result<Vec<DeviceInfo>, DeviceProblem> {
    available()?;
    call("start the NVIDIA driver", result::init())?;
    check_driver(driver_version()?)?;
    let count = call("count GPUs", result::device::get_count())?;
    (0..count).map(|index| Ok(info(index)?)).collect()
}

/// The GPU that a selector names, without opening it.
///
/// # Errors
/// Why there is no such GPU or why it can't be used.
pub fn find(selector: &Selector) -> Result<DeviceInfo, DeviceProblem> {
    choose(&list()?, selector)
}

fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

fn driver_version() -> Result<i32, DeviceError> {
    let mut version = 0;
    // SAFETY: the driver writes one number.
    call("ask for the driver's version", unsafe { sys::cuDriverGetVersion(&raw mut version).result() })?;
    Ok(version)
}

fn check_driver(found: i32) -> Result<(), DeviceProblem> {
    if found < LOWEST_DRIVER {
        return Err(DeviceProblem::OldDriver { found, needed: LOWEST_DRIVER });
    }
    Ok(())
}

fn info(index: i32) -> Result<DeviceInfo, DeviceError> {
    let device = call("find a GPU", result::device::get(index))?;
    // SAFETY: `device` was just given by the driver, here and below.
    let attribute = |a| call("ask for a GPU's properties", unsafe { result::device::get_attribute(device, a) });
    let uuid = call("ask for a GPU's UUID", result::device::get_uuid(device))?.bytes.map(|b| b as u8);
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let groups = [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(hex);
    Ok(DeviceInfo {
        index: index as usize,
        name: call("ask for a GPU's name", result::device::get_name(device))?,
        uuid: format!("GPU-{}", groups.join("-")),
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        // SAFETY: as above.
        memory: call("ask for a GPU's memory", unsafe { result::device::total_mem(device) })?,
    })
}

/// The GPU that a selector names, if it can run the kernels.
fn choose(all: &[DeviceInfo], selector: &Selector) -> Result<DeviceInfo, DeviceProblem> {
    let chosen = all.iter().find(|gpu| match selector {
        Selector::First => gpu.capability.0 >= LOWEST_CAPABILITY,
        Selector::Index(index) => gpu.index == *index,
        Selector::Uuid(uuid) => gpu.uuid.eq_ignore_ascii_case(uuid),
        #[cfg(has_host_device)]
        Selector::Emulated(_) => false,
    });
    let Some(gpu) = chosen else {
        let found = all.iter().map(|gpu| {
            let DeviceInfo { index, name, uuid, capability: (major, minor), .. } = gpu;
            format!("{index} ({name}, compute capability {major}.{minor}, {uuid})")
        });
        let found = found.collect::<Vec<_>>();
        let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
        let wanted = match selector {
            Selector::Index(index) => index.to_string(),
            Selector::Uuid(uuid) => uuid.clone(),
            _ => format!("of compute capability {LOWEST_CAPABILITY}.0 or higher"),
        };
        return Err(DeviceProblem::NoSuchGpu { wanted, found });
    };
    let (major, minor) = gpu.capability;
    if major < LOWEST_CAPABILITY {
        let reason = format!("its compute capability is {major}.{minor}, and {LOWEST_CAPABILITY}.0 is the lowest");
        return Err(DeviceProblem::Unfit { gpu: gpu.name.clone(), reason });
    }
    Ok(gpu.clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn gpu(index: usize, name: &str, capability: (i32, i32)) -> DeviceInfo {
        DeviceInfo { index, name: name.into(), uuid: format!("GPU-{index}"), capability, memory: 24 << 30 }
    }

    #[test]
    fn a_gpu_is_chosen_or_refused_with_the_reason() {
        let all = [gpu(0, "Old", (7, 5)), gpu(1, "Good", (8, 6)), gpu(2, "Better", (9, 0))];
        let chosen = |text: &str| choose(&all, &text.parse().unwrap()).map(|gpu| gpu.index).map_err(|e| e.to_string());
        assert_eq!(choose(&all, &Selector::First).unwrap().index, 1);
        assert_eq!((chosen("2"), chosen("gpu-1".to_uppercase().as_str())), (Ok(2), Ok(1)));
        assert_eq!(chosen("0").unwrap_err(), "Old can't be used: its compute capability is 7.5, and 8.0 is the lowest");
        let message = chosen("GPU-9").unwrap_err();
        assert!(
            message.starts_with("no GPU GPU-9; there are: 0 (Old, compute capability 7.5, GPU-0), 1 (Good"),
            "{message}"
        );
        let message = choose(&all[..1], &Selector::First).unwrap_err().to_string();
        assert!(message.starts_with("no GPU of compute capability 8.0 or higher; there are: 0 (Old"), "{message}");
        assert_eq!(choose(&[], &Selector::Index(0)).unwrap_err().to_string(), "no GPU 0; there are: none");
        assert_eq!("first".parse::<Selector>().unwrap_err(), "`first` is neither a GPU's index nor its UUID (GPU-...)");
    }

    #[test]
    fn an_old_driver_is_told_so() {
        assert!(check_driver(13_010).is_ok());
        assert_eq!(
            check_driver(12_080).unwrap_err().to_string(),
            "the NVIDIA driver knows CUDA 12.8, and this build needs 13.0 (install a newer driver)"
        );
    }
}
