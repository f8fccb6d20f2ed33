//! The command line.

use std::path::PathBuf;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

/// What the manual page says after the options.
const AFTER: &str = "\
Settings that have no option stand in /etc/openjet/openjet.toml, which shows every one with its default. Each can be given in
the environment too, as OPENJET_ and its name in capitals.

SIGTERM and SIGINT refuse new requests, let running ones end within the setting drain_s, and end the daemon; a second one ends
it at once. SIGHUP reads the settings again.

Exit status:
  0  it was stopped
  1  it could not start, or the engine failed; the message says why
  2  the command line is wrong";

/// `OpenJet`: serves a Qwen3.5-family model to several coding agents over the OpenAI API.
#[derive(Clone, Debug, Default, Parser, Serialize)]
#[command(name = "openjetd", version, max_term_width = 110, after_long_help = AFTER)]
pub struct Cli {
    /// GGUF file of the model; without it the small model that ships with openjetd
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,

    /// Conversations that are worked on at once [default: 4]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<usize>,

    /// Address and port of the HTTP API [default: 127.0.0.1:18080]
    #[arg(long, value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,

    /// Unix socket for openjetctl [default: /run/openjet/control.sock; without /run/openjet, openjet/control.sock in
    /// $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "SOCKET")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<PathBuf>,

    /// What runs the model; auto takes a CUDA device if there is one [default: auto]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(["auto", "cuda", "cpu"]))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,

    /// GPU to use, by index or UUID (GPU-...), as nvidia-smi -L lists them [default: the first that can be used]
    #[arg(long, value_name = "GPU")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,

    /// MiB of the GPU's memory to leave alone [default: 512 where it shows a display, else 0]
    #[arg(long, value_name = "MIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_reserve_mib: Option<u64>,

    /// Where the embedding table lies; auto puts it into host memory if not everything fits on the GPU [default: auto]
    #[arg(long, value_name = "WHERE", value_parser = PossibleValuesParser::new(["auto", "gpu", "host"]))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding: Option<String>,

    /// Self-test of at most 0.3 s that chooses how matmuls are shared out among the GPU's processors; auto keeps what it chose in the state
    /// directory and measures once for each GPU and model [default: auto]
    #[arg(long, value_name = "WHEN", value_parser = PossibleValuesParser::new(["auto", "off", "again"]))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tune: Option<String>,

    /// Deepest draft, in tokens; 0 for none [default: 7]
    #[arg(long, value_name = "K")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<usize>,

    /// Tokens of the pool that the agents share; one agent may use up to the smaller of it and the model's own limit
    /// [default: the model's limit, 131072 at most]
    #[arg(long, value_name = "T")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ctx: Option<usize>,

    /// Type of the key-value cells [default: q8_0]
    #[arg(long, value_name = "TYPE", value_parser = PossibleValuesParser::new(["f32", "f16", "q8_0", "q4_0"]))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv: Option<String>,

    /// Settings file [default: /etc/openjet/openjet.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "OPENJET_CONFIG")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Print the manual page and end
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub man: bool,
}
