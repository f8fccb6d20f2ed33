//! A CUDA GPU through the driver API.

use std::ffi::{CStr, c_void};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};

use super::{Api, DeviceError};

/// Threads of a block; as in `cuda/common.cuh`.
const THREADS: u32 = 512;

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
}

impl std::str::FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
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
    let count = call("count GPUs", result::device::get_count())?;
    (0..count).map(|index| Ok(info(index)?)).collect()
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

pub(super) struct Cuda {
    info: DeviceInfo,
    context: sys::CUcontext,
    device: sys::CUdevice,
    module: sys::CUmodule,
    kernel: sys::CUfunction,
    stream: sys::CUstream,
    blocks: u32,
    shared: usize,
}

// SAFETY: the driver's handles may be used from any thread; every call binds the context to its thread first.
unsafe impl Send for Cuda {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Cuda {}

impl Cuda {
    pub(super) fn open(selector: &Selector) -> Result<Self, DeviceProblem> {
        let all = list()?;
        let chosen = all.iter().find(|gpu| match selector {
            Selector::First => gpu.capability.0 >= 8,
            Selector::Index(index) => gpu.index == *index,
            Selector::Uuid(uuid) => gpu.uuid.eq_ignore_ascii_case(uuid),
        });
        let Some(info) = chosen.cloned() else {
            let found = all.iter().map(|gpu| format!("{} ({}, {})", gpu.index, gpu.name, gpu.uuid)).collect::<Vec<_>>();
            let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
            let wanted = match selector {
                Selector::First => "of compute capability 8.0 or higher".to_owned(),
                Selector::Index(index) => index.to_string(),
                Selector::Uuid(uuid) => uuid.clone(),
            };
            return Err(DeviceProblem::NoSuchGpu { wanted, found });
        };
        let unfit = |reason: String| DeviceProblem::Unfit { gpu: info.name.clone(), reason };
        let (major, minor) = info.capability;
        if major < 8 {
            return Err(unfit(format!("its compute capability is {major}.{minor}, and 8.0 is the lowest")));
        }
        let device = call("find a GPU", result::device::get(info.index as i32))?;
        // SAFETY: the device was just given by the driver.
        let context = call("open the GPU", unsafe { result::primary_ctx::retain(device) })?;
        // SAFETY: the context was just retained.
        call("bind the GPU to this thread", unsafe { result::ctx::set_current(context) })?;
        Self::load(info.clone(), device, context).map_err(|error| match error {
            DeviceProblem::Call(DeviceError { call, reason }) if call == "load the kernels" => {
                unfit(format!("this build's kernels don't load on compute capability {major}.{minor}: {reason}"))
            }
            other => other,
        })
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
        Ok(Self { info, context, device, module, kernel, stream, blocks: sms as u32, shared: dynamic as usize })
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
}
