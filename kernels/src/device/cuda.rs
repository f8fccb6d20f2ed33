//! A CUDA GPU through the driver API.

use std::ffi::{CStr, c_void};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};

use super::{Api, DeviceError, PinnedAddress, card};

/// Threads of a block; as in `cuda/common.cuh`.
const THREADS: u32 = 512;

/// First number of the lowest compute capability that the kernels are for.
const LOWEST_CAPABILITY: i32 = 8;

/// Lowest CUDA version of a driver that loads the kernels: that of the compiler, as the driver counts.
const LOWEST_DRIVER: i32 = 13_000;

#[cfg(has_fatbin)]
static FATBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openjet.fatbin"));

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

fn explain(error: DriverError) -> String {
    let words = |text: Result<&CStr, DriverError>| text.map(|t| t.to_string_lossy().into_owned()).unwrap_or_default();
    format!("{} ({})", words(error.error_string()), words(error.error_name()))
}

fn call<T>(what: impl Into<String>, result: Result<T, DriverError>) -> Result<T, DeviceError> {
    result.map_err(|error| DeviceError { call: what.into(), reason: explain(error) })
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

pub(super) struct Cuda {
    info: DeviceInfo,
    context: sys::CUcontext,
    device: sys::CUdevice,
    module: sys::CUmodule,
    kernel: sys::CUfunction,
    stream: sys::CUstream,
    blocks: u32,
    shared: usize,
    context_bytes: Option<usize>,
    display: bool,
}

// SAFETY: the driver's handles may be used from any thread; every call binds the context to its thread first.
unsafe impl Send for Cuda {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Cuda {}

impl Cuda {
    pub(super) fn open(selector: &Selector) -> Result<Self, DeviceProblem> {
        let info = find(selector)?;
        let unfit = |reason: String| DeviceProblem::Unfit { gpu: info.name.clone(), reason };
        let (major, minor) = info.capability;
        let before = card(&info.uuid);
        let device = call("find a GPU", result::device::get(info.index as i32))?;
        // SAFETY: the device was just given by the driver.
        let context = call("open the GPU", unsafe { result::primary_ctx::retain(device) })?;
        // SAFETY: the context was just retained.
        call("bind the GPU to this thread", unsafe { result::ctx::set_current(context) })?;
        let mut opened = Self::load(info.clone(), device, context).map_err(|error| match error {
            DeviceProblem::Call(DeviceError { call, reason }) if call == "load the kernels" => {
                unfit(format!(
                    "this build's kernels don't load on compute capability {major}.{minor}: {reason} (a newer driver, or a build \
                     for this GPU, may help)"
                ))
            }
            other => other,
        })?;
        let free = opened.free_bytes()?;
        opened.display = before.is_some_and(|card| card.display);
        opened.context_bytes = before.and_then(|card| card.free.checked_sub(free));
        Ok(opened)
    }

    #[cfg(not(has_fatbin))]
    fn load(_: DeviceInfo, _: sys::CUdevice, _: sys::CUcontext) -> Result<Self, DeviceProblem> {
        Err(DeviceProblem::NoKernels)
    }

    #[cfg(has_fatbin)]
    fn load(info: DeviceInfo, device: sys::CUdevice, context: sys::CUcontext) -> Result<Self, DeviceProblem> {
        use sys::CUfunction_attribute_enum as FunctionAttribute;
        // SAFETY: the device is the driver's.
        let attribute = |a| call("ask for a GPU's properties", unsafe { result::device::get_attribute(device, a) });
        let sms = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        // SAFETY: the fatbin is a whole image, made by nvcc, that lives as long as the program.
        let module = call("load the kernels", unsafe { result::module::load_data(FATBIN.as_ptr().cast::<c_void>()) })?;
        let name = std::ffi::CString::from(c"openjet_run");
        // SAFETY: the module was just loaded.
        let kernel = call("find the kernel", unsafe { result::module::get_function(module, name) })?;
        let stream = call("make a stream", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        // SAFETY: the kernel was just found.
        let of_kernel =
            |a| call("ask for the kernel's properties", unsafe { result::function::get_function_attribute(kernel, a) });
        let fixed = of_kernel(FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let dynamic = shared - fixed;
        let most = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        call("raise the kernel's shared memory", unsafe {
            result::function::set_function_attribute(kernel, most, dynamic)
        })?;
        tracing::debug!(gpu = info.name, sms, shared = dynamic, "opened");
        let (blocks, shared) = (sms as u32, dynamic as usize);
        Ok(Self { info, context, device, module, kernel, stream, blocks, shared, context_bytes: None, display: false })
    }

    fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained as long as `self` lives.
        call("bind the GPU to this thread", unsafe { result::ctx::set_current(self.context) })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: handles made in `open`, released once. Errors no longer matter.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::destroy(self.stream);
            let _ = result::module::unload(self.module);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

impl Api for Cuda {
    fn describe(&self) -> String {
        let DeviceInfo { name, capability: (major, minor), memory, .. } = &self.info;
        format!("{name}, compute capability {major}.{minor}, {} SMs, {} MiB", self.blocks, memory >> 20)
    }

    fn blocks(&self) -> u32 {
        self.blocks
    }

    fn shared_bytes(&self) -> usize {
        self.shared
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DeviceError> {
        self.bind()?;
        // SAFETY: the memory is not read before it is written: `Device::allocate` clears it.
        call(format!("allocate {bytes} bytes on the GPU"), unsafe { result::malloc_sync(bytes) })
    }

    fn free(&self, address: u64) {
        // SAFETY: `address` came from `allocate` and is freed once.
        let freed = self.bind().and_then(|()| call("free GPU memory", unsafe { result::free_sync(address) }));
        if let Err(error) = freed {
            tracing::warn!(%error, "GPU memory is lost");
        }
    }

    fn fill_zero(&self, address: u64, bytes: usize) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: `Buffer` checks that the range lies in one allocation.
        call("clear GPU memory", unsafe { result::memset_d8_async(address, 0, bytes, self.stream) })?;
        self.synchronize()
    }

    fn upload(&self, address: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: `Buffer` checks that the range lies in one allocation; the copy is done when this returns.
        call("copy to the GPU", unsafe { result::memcpy_htod_async(address, bytes, self.stream) })?;
        self.synchronize()
    }

    fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: as in `upload`.
        call("copy from the GPU", unsafe { result::memcpy_dtoh_async(bytes, address, self.stream) })?;
        self.synchronize()
    }

    fn run(&self, ops: u64, count: u32, table: u64, counter: u64) -> Result<(), DeviceError> {
        self.bind()?;
        let shared = self.shared as i32;
        let mut arguments = [
            (&raw const ops) as *mut c_void,
            (&raw const count) as *mut c_void,
            (&raw const table) as *mut c_void,
            (&raw const counter) as *mut c_void,
            (&raw const shared) as *mut c_void,
        ];
        // SAFETY: `counter` is a word of device memory; the arguments are the kernel's, in its order, and outlive the call.
        unsafe {
            call("clear the barrier", result::memset_d8_async(counter, 0, 4, self.stream))?;
            let (grid, block) = ((self.blocks, 1, 1), (THREADS, 1, 1));
            let launched = result::launch_cooperative_kernel(
                self.kernel,
                grid,
                block,
                self.shared as u32,
                self.stream,
                &mut arguments,
            );
            call("launch a step", launched)
        }
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream lives as long as `self`.
        call("wait for the GPU", unsafe { result::stream::synchronize(self.stream) })
    }

    fn free_bytes(&self) -> Result<usize, DeviceError> {
        self.bind()?;
        Ok(call("ask for free GPU memory", result::mem_get_info())?.0)
    }

    fn context_bytes(&self) -> Option<usize> {
        self.context_bytes
    }

    fn shows_display(&self) -> bool {
        self.display
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<PinnedAddress, DeviceError> {
        self.bind()?;
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: `Pinned` writes the memory before it reads it.
        let host = call(format!("pin {bytes} bytes of host memory"), unsafe { result::malloc_host(bytes, flags) })?;
        let mut device = 0;
        // SAFETY: `host` was just pinned for devices to map.
        let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut device, host, 0).result() };
        let address = PinnedAddress { host: host.cast(), device, bytes };
        if let Err(error) = call("map pinned memory", mapped) {
            self.free_pinned(address);
            return Err(error);
        }
        Ok(address)
    }

    fn free_pinned(&self, address: PinnedAddress) {
        // SAFETY: it came from `allocate_pinned` and is freed once.
        let freed =
            self.bind().and_then(|()| call("free pinned memory", unsafe { result::free_host(address.host.cast()) }));
        if let Err(error) = freed {
            tracing::warn!(%error, "pinned memory is lost");
        }
    }

    fn create_queue(&self) -> Result<u64, DeviceError> {
        self.bind()?;
        Ok(call("make a stream", result::stream::create(result::stream::StreamKind::NonBlocking))? as u64)
    }

    fn destroy_queue(&self, queue: u64) {
        // SAFETY: the stream came from `create_queue` and is destroyed once. Errors no longer matter.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::destroy(queue as sys::CUstream);
        }
    }

    fn enqueue_upload(&self, queue: u64, address: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: `Buffer` checks the range; `Lane` keeps the bytes as they are until it has waited.
        call("copy to the GPU", unsafe { result::memcpy_htod_async(address, bytes, queue as sys::CUstream) })
    }

    unsafe fn enqueue_download(&self, queue: u64, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: `Lane` checks the range; the caller leaves the bytes alone until it has waited.
        call("copy from the GPU", unsafe { result::memcpy_dtoh_async(bytes, address, queue as sys::CUstream) })
    }

    fn wait_for_queue(&self, queue: u64) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: the stream came from `create_queue` and lives.
        call("wait for a copy", unsafe { result::stream::synchronize(queue as sys::CUstream) })
    }
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
