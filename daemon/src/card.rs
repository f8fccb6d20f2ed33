//! What the driver tells of the card while the model runs on it.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::{Device, Nvml};
use openjet_kernels::device::DeviceInfo;
use openjet_proto::device::DeviceStatus;

/// Time between looks.
const PERIOD: Duration = Duration::from_secs(1);

/// A card that is looked at once a second, on a thread of its own: a driver that hangs holds nobody else up.
#[derive(Debug)]
pub struct Card(Arc<ArcSwap<DeviceStatus>>);

impl Card {
    /// Watches a card for as long as this is kept. Without NVML only its name and size are known.
    #[must_use]
    pub fn watch(info: &DeviceInfo) -> Self {
        let known = DeviceStatus {
            name: info.name.clone(),
            memory_total: Some(info.memory as u64),
            memory_used: None,
            bandwidth: None,
            load: None,
            power: None,
            power_limit: None,
            temperature: None,
            clock: None,
            memory_clock: None,
        };
        let (uuid, latest) = (info.uuid.clone(), Arc::new(ArcSwap::from_pointee(known.clone())));
        let watched = Arc::downgrade(&latest);
        let thread = std::thread::Builder::new().name("card".into()).spawn(move || {
            let nvml = match Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init() {
                Ok(nvml) => nvml,
                Err(error) => return tracing::info!(%error, "NVML is not there: power and temperature are not known"),
            };
            while let Some(latest) = watched.upgrade() {
                match nvml.device_by_uuid(uuid.as_str()) {
                    Ok(device) => latest.store(Arc::new(look(&device, &known))),
                    Err(error) => tracing::debug!(%error, uuid, "NVML says nothing"),
                }
                drop(latest);
                std::thread::sleep(PERIOD);
            }
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "the card is not watched");
        }
        Self(latest)
    }

    /// The card at the latest look.
    #[must_use]
    pub fn status(&self) -> DeviceStatus {
        (**self.0.load()).clone()
    }
}

fn look(device: &Device<'_>, known: &DeviceStatus) -> DeviceStatus {
    let memory = device.memory_info().ok();
    // Two bits a clock and line: the data rate of all memory in use on cards for computing and games.
    let rate = device.max_clock_info(Clock::Memory).ok().zip(device.memory_bus_width().ok());
    DeviceStatus {
        name: known.name.clone(),
        memory_total: memory.as_ref().map(|memory| memory.total).or(known.memory_total),
        memory_used: memory.map(|memory| memory.used),
        bandwidth: rate.map(|(mhz, bits)| f64::from(mhz) * 1e6 * 2.0 * f64::from(bits) / 8.0),
        load: device.utilization_rates().ok().map(|rates| rates.gpu),
        power: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
        power_limit: device.enforced_power_limit().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        clock: device.clock_info(Clock::SM).ok(),
        memory_clock: device.clock_info(Clock::Memory).ok(),
    }
}
