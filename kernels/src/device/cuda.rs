//! A CUDA GPU through the driver API.

use std::ffi::{CStr, c_void};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::gpus::{DeviceInfo, DeviceProblem, Selector, find};
use super::{Api, DeviceError, PinnedAddress, TileMap, card};

/// Threads of a block; as in `cuda/common.cuh`.
const THREADS: u32 = 512;

/// First number of the lowest compute capability that copies tiles by a map; `OPENJET_BULK` in `cuda/bulk.cuh`.
const MAPS_CAPABILITY: i32 = 9;

#[cfg(has_fatbin)]
static FATBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openjet.fatbin"));

fn explain(error: DriverError) -> String {
    let words = |text: Result<&CStr, DriverError>| text.map(|t| t.to_string_lossy().into_owned()).unwrap_or_default();
    format!("{} ({})", words(error.error_string()), words(error.error_name()))
}

pub(super) fn call<T>(what: impl Into<String>, result: Result<T, DriverError>) -> Result<T, DeviceError> {
    result.map_err(|error| DeviceError { call: what.into(), reason: explain(error) })
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
        use sys::CUdevice_attribute_enum as Attribute;
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

    fn capability(&self) -> Option<(i32, i32)> {
        Some(self.info.capability)
    }

    #[cfg(has_fatbin)]
    fn code(&self) -> u64 {
        let mut hash = std::hash::DefaultHasher::new();
        std::hash::Hash::hash(FATBIN, &mut hash);
        std::hash::Hasher::finish(&hash)
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

    fn map_tiles(&self, address: u64, bytes: usize) -> Result<Option<TileMap>, DeviceError> {
        if self.info.capability.0 < MAPS_CAPABILITY {
            return Ok(None);
        }
        self.bind()?;
        // A tile is a few lines of equal length in words of 8 bytes, since no side may be longer than 256. A copy names one tile, so
        // there is no need to say how many there are.
        let lines = (bytes.div_ceil(256 * 8)..=256).find(|lines| bytes.is_multiple_of(lines * 16));
        let Some(lines) = lines else {
            return Err(DeviceError {
                call: "describe tiles to the GPU".into(),
                reason: format!("no equal lines of at most 2,048 bytes make {bytes} bytes"),
            });
        };
        let words = bytes / lines / 8;
        let sizes = [words as u64, lines as u64, i32::MAX as u64];
        let strides = [words as u64 * 8, bytes as u64];
        let (tile, steps) = ([words as u32, lines as u32, 1], [1; 3]);
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the driver reads three numbers of each list (of the strides two) and writes the map; it keeps the address as a
        // number.
        let made = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT64,
                3,
                address as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        call("describe tiles to the GPU", made.result())?;
        Ok(Some(map.opaque))
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

    fn program_queue(&self) -> u64 {
        self.stream as u64
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
