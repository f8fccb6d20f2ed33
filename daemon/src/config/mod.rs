//! Settings: command line over `OPENJET_*` environment over file over defaults.

pub mod cli;
mod load;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use openjet_engine::backend::KvType;
use openjet_kernels::Embedding;
use openjet_kernels::tuning::Tune;
use serde::{Deserialize, Serialize};

pub(crate) use load::nearest;
pub use load::{ConfigError, load, misspelt_variables};

use crate::models;

/// The file that is read when none is named, if it exists.
pub const DEFAULT_FILE: &str = "/etc/openjet/openjet.toml";

/// Where models are found without a setting.
pub const DEFAULT_MODELS: &str = "/var/lib/openjet/models";

/// What runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendChoice {
    /// CUDA where there is a usable device, else the CPU if the model is small.
    #[default]
    Auto,
    /// CUDA or nothing.
    Cuda,
    /// The CPU, whatever the model's size.
    Cpu,
}

/// Every setting. The names are the keys of the file and, with `OPENJET_` before them, of the environment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// GGUF file; the model that ships with the program without it.
    pub model: Option<PathBuf>,
    /// Folders in which models are found by name.
    pub model_paths: Vec<PathBuf>,
    /// Seconds without a request after which the model is unloaded; the next request loads it again. Never without it.
    pub idle_unload_s: Option<u64>,
    /// Conversations that are worked on at once.
    pub agents: usize,
    /// Most agents that there can be while the daemon runs; memory for them is taken at the start. Without it 8 on a GPU and
    /// 64 on the CPU.
    pub agents_max: Option<usize>,
    /// Address and port of the HTTP API.
    pub listen: String,
    /// File of API keys; without it systemd's credential `api-keys`, if there is one.
    pub api_keys: Option<PathBuf>,
    /// Origins whose web pages may use the API.
    pub cors_origins: Vec<String>,
    /// File of the key with which the page may change things; without it systemd's credential `admin-key`, if there is one.
    pub admin_key: Option<PathBuf>,
    /// Let everybody who reaches the page change things; only where `listen` is a loopback address.
    pub admin_on_loopback: bool,
    /// Listen on an address that other machines reach, though no key is asked for.
    pub listen_without_key: bool,
    /// Unix socket for control; a place that suits the machine without it.
    pub control: Option<PathBuf>,
    /// What runs the model.
    pub backend: BackendChoice,
    /// Index or UUID of the GPU; the first that can be used without it.
    #[serde(deserialize_with = "load::index_or_name")]
    pub gpu: Option<String>,
    /// Seconds to wait for the GPU's driver at the start; without it 60 under systemd, else none.
    pub gpu_wait_s: Option<u64>,
    /// MiB of the GPU's memory to leave alone; without it some where the GPU shows a display.
    pub gpu_reserve_mib: Option<u64>,
    /// Where the embedding table lies when a GPU runs the model.
    pub embedding: Embedding,
    /// Whether a self-test chooses how a GPU's matmuls are shared out.
    pub tune: Tune,
    /// Deepest draft; 0 for none.
    pub draft: usize,
    /// Tokens of the pool that the agents share; without it the smaller of the model's limit and 131,072.
    pub ctx: Option<usize>,
    /// Type of the key-value cells.
    pub kv: KvType,
    /// Requests that may wait for an agent.
    pub queue: usize,
    /// MiB of host memory for conversations without a slot, and as many again for states of prompts; without it an eighth of
    /// the machine's memory.
    pub host_cache_mib: Option<usize>,
    /// Keep conversations on disk where there is a state directory.
    pub keep_conversations: bool,
    /// The state directory; without it the one that systemd gives, if it does.
    pub state_dir: Option<PathBuf>,
    /// Most GiB that conversations take on disk.
    pub conversations_gib: u64,
    /// Days that a conversation is kept without being used.
    pub conversations_days: u64,
    /// Show the end of each agent's text on the page and to openjetctl; without it only where `listen` is a loopback address.
    pub show_text: Option<bool>,
    /// Refuse a request that names another model than the loaded one.
    pub strict_model: bool,
    /// Hold every tool call to the tool's schema, asked or not.
    pub strict_calls: bool,
    /// What a request that leaves it to the model means where the user speaks last: "auto", "required" or a tool's name.
    pub tool_choice: String,
    /// Softmax temperature for requests that don't say; without it what the model's file says, else the family's.
    pub temperature: Option<f64>,
    /// Most tokens of thinking for requests that don't say; without it as many as the model likes.
    pub thinking_budget: Option<usize>,
    /// Largest request body, in MiB.
    pub body_limit_mib: usize,
    /// Seconds that a client has for a request's headers.
    pub header_timeout_s: u64,
    /// Seconds that a client has for a request's body.
    pub body_timeout_s: u64,
    /// Seconds that a client may leave what it is sent unread before its connection is closed.
    pub write_timeout_s: u64,
    /// Most open connections to the HTTP API.
    pub connections: usize,
    /// Seconds between signs of life in a stream that has nothing to say.
    pub ping_s: u64,
    /// Seconds that running requests have to end after SIGTERM.
    pub drain_s: u64,
    /// What is logged: a level, or filters as the `tracing` crate writes them.
    pub log: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            model: None,
            model_paths: vec![DEFAULT_MODELS.into()],
            idle_unload_s: None,
            agents: 4,
            agents_max: None,
            listen: "127.0.0.1:18080".to_owned(),
            api_keys: None,
            cors_origins: Vec::new(),
            admin_key: None,
            admin_on_loopback: false,
            listen_without_key: false,
            control: None,
            backend: BackendChoice::Auto,
            gpu: None,
            gpu_wait_s: None,
            gpu_reserve_mib: None,
            embedding: Embedding::Auto,
            tune: Tune::Auto,
            draft: 7,
            ctx: None,
            kv: KvType::Q8_0,
            queue: 64,
            host_cache_mib: None,
            keep_conversations: true,
            state_dir: None,
            conversations_gib: 20,
            conversations_days: 14,
            show_text: None,
            strict_model: false,
            strict_calls: false,
            tool_choice: "auto".to_owned(),
            temperature: None,
            thinking_budget: None,
            body_limit_mib: 32,
            header_timeout_s: 15,
            body_timeout_s: 60,
            write_timeout_s: 60,
            connections: 4096,
            ping_s: 10,
            drain_s: 30,
            log: "info".to_owned(),
        }
    }
}

impl Config {
    /// The model's file; none for the model that ships with the program.
    ///
    /// # Errors
    /// Where it was looked for when no file has that name.
    pub fn model_file(&self) -> Result<Option<PathBuf>, String> {
        let Some(model) = &self.model else { return Ok(None) };
        if model == Path::new(models::SHIPPED) && !model.exists() {
            return Ok(None);
        }
        let file = models::find(model, &self.model_paths)?;
        Ok(Some(std::path::absolute(&file).unwrap_or(file)))
    }

    /// How long to wait for the GPU's driver.
    #[must_use]
    pub fn gpu_wait(&self) -> Duration {
        let under_systemd = std::env::var_os("NOTIFY_SOCKET").is_some();
        Duration::from_secs(self.gpu_wait_s.unwrap_or(if under_systemd { 60 } else { 0 }))
    }

    /// The state directory: the setting's, or the one that systemd gives.
    #[must_use]
    pub fn state(&self) -> Option<PathBuf> {
        let given = || {
            let all = std::env::var_os("STATE_DIRECTORY")?;
            std::env::split_paths(&all).next().filter(|first| first.is_absolute())
        };
        self.state_dir.clone().or_else(given)
    }

    /// Bytes of host memory for conversations without a slot, and as many again for states of prompts.
    #[must_use]
    pub fn host_cache(&self) -> usize {
        self.host_cache_mib.map_or_else(openjet_engine::memory::host_cache, |mib| mib << 20)
    }

    /// Whether status may show what agents write.
    #[must_use]
    pub fn shows_text(&self) -> bool {
        self.show_text.unwrap_or(is_loopback(&self.listen))
    }

    /// The control socket's path.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.control
            .clone()
            .unwrap_or_else(|| openjet_proto::socket::default_control_socket(rustix::process::geteuid().as_raw()))
    }
}

/// Whether `address`, a host and perhaps a port, is reached by this machine alone.
pub(crate) fn is_loopback(address: &str) -> bool {
    let host = match address.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => host,
        _ => address,
    };
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
}
