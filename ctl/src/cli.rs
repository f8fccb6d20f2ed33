//! The command line: the one definition that parsing, `--help`, completions and manual pages come from.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use openjet_engine::backend::KvType;
use openjet_kernels::Embedding;

use crate::cards::CARDS;

/// Control OpenJet and look into model files.
///
/// Verbs that ask or change the daemon go over its control socket.
#[derive(Debug, Parser)]
#[command(name = "openjetctl", version, max_term_width = 110, after_long_help = AFTER)]
pub(crate) struct Cli {
    /// Unix socket of the daemon [default: /run/openjet/control.sock; without /run/openjet, openjet/control.sock in
    /// $XDG_RUNTIME_DIR]
    #[arg(long, global = true, value_name = "SOCKET")]
    pub(crate) socket: Option<PathBuf>,

    /// Print JSON for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// What to do
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const AFTER: &str = "\
Exit status:
  0  done
  1  it failed, the inspected file can't be run, or the plan does not fit; the message says why
  2  the command line is wrong
  3  the daemon can't be reached";

/// What `openjetctl` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show what the daemon is doing
    Status,
    /// Show the agents, or change how many there are
    Agents {
        /// What to change
        #[command(subcommand)]
        verb: Option<Agents>,
    },
    /// Show the models that can be loaded
    Models,
    /// Load a model while the daemon runs
    ///
    /// It is planned first, and refused if it can't fit. If it fits beside the one that serves, it takes over once it is ready,
    /// and running requests end with the old one. Else the old one goes first, and its requests have the time of the setting
    /// drain_s. If it can't be loaded, the old one serves again.
    Load {
        /// A name that `models` lists, or a file; without it, the model that was loaded last
        #[arg(value_name = "MODEL")]
        model: Option<String>,
        /// Conversations that are worked on at once [default: the setting agents]
        #[arg(long, value_name = "N")]
        agents: Option<usize>,
        /// Tokens of the pool that the agents share [default: the setting ctx]
        #[arg(long, value_name = "T")]
        ctx: Option<usize>,
        /// Give the old model's memory up first, though both would fit
        #[arg(long)]
        replace: bool,
    },
    /// Unload the model and give its memory back; the daemon goes on without one
    Unload,
    /// Refuse new requests and wait until the running ones have ended; the daemon goes on
    Drain {
        /// Take requests again
        #[arg(long)]
        off: bool,
        /// Don't wait
        #[arg(long)]
        no_wait: bool,
    },
    /// Print what happens, as it happens
    Events {
        /// Stop after so many
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// Print the numbers that Prometheus reads
    Metrics {
        /// Only those whose name contains this
        #[arg(value_name = "PART")]
        part: Option<String>,
    },
    /// Show or change what the daemon logs
    Log {
        /// What about it
        #[command(subcommand)]
        verb: Log,
    },
    /// Forget a conversation that rests, or all, in memory and on disk; without a name, list those on disk
    Forget {
        /// A conversation's name, or a session's
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// All conversations, and every prompt that was read
        #[arg(long, conflicts_with = "id")]
        all: bool,
    },
    /// Show what is in a model file, and whether it can be run
    Inspect {
        /// The GGUF file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// List every tensor (JSON always does)
        #[arg(long)]
        tensors: bool,
    },
    /// Plan a GPU's memory for a model before it is loaded
    Plan(PlanArgs),
    /// Look at this machine and say which public model of the family fits, with how many agents and how much context
    Setup(SetupArgs),
    /// Fetch a model from the model hub or a URL into the models' folder; going on where it broke off
    Pull(PullArgs),
    /// Look at the driver, the GPU, permissions, the model and the sockets, and say how to mend what is wrong
    Doctor,
    /// Show the agents in the terminal, live
    ///
    /// With --json: the status, an object on a line of its own, several times a second.
    Top(TopArgs),
    /// Write a synthetic model of the 27B's shape, with a known greedy text, for measuring speed
    Synth {
        /// The file to write, 17.8 GB; OUT.chain.json beside it tells the known text and the wrong drafts
        #[arg(value_name = "OUT.gguf")]
        file: PathBuf,
        /// Write a small one of the same kind, 15 MB
        #[arg(long)]
        tiny: bool,
        /// Share of the tokens whose drafts are right, from 0 to 1
        #[arg(long, value_name = "SHARE", default_value_t = 0.75, value_parser = share)]
        acceptance: f64,
        /// Of the random numbers
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
    },
    /// Measure a running daemon over HTTP
    ///
    /// Writing for 1 to 8 agents with drafts of 0 to 6 tokens, prompts, long contexts and their next requests, and writing
    /// while another's prompt is read. Prompts are made up, and the same every time. The daemon should have nothing else to do.
    Bench(Box<crate::bench::BenchArgs>),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for every verb into a folder
    Man {
        /// Folder for openjetctl.1 and the others
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// What setup is to look at.
#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// As if this machine had this card
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(CARDS.map(|card| card.0)))]
    pub(crate) card: Option<String>,
}

/// What is to be fetched.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Environment:
  HF_TOKEN     sent to the model hub, for files that are not open to all
  HF_ENDPOINT  another hub with the same interface")]
pub(crate) struct PullArgs {
    /// OWNER/REPOSITORY, OWNER/REPOSITORY:FILE (a part of the file's name is enough, such as Q4_K_M), or a URL
    #[arg(value_name = "REPO[:FILE]|URL")]
    pub(crate) what: String,
    /// Folder for the file [default: /var/lib/openjet/models]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// What the file's SHA-256 must be; the hub says it for its own files
    #[arg(long, value_name = "HEX", value_parser = digest)]
    pub(crate) sha256: Option<String>,
    /// Replace a file that is there already
    #[arg(long)]
    pub(crate) force: bool,
}

/// How the view looks, and what it starts.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Start N small coding agents with tasks of their own, to see the daemon at work; they end with the view
    ///
    /// With OPENJET_API_KEY in the environment they use that key.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) run: Option<u32>,
    /// No colours; the environment variable NO_COLOR says the same
    #[arg(long)]
    pub(crate) no_color: bool,
    /// With --json: print one look and end
    #[arg(long)]
    pub(crate) once: bool,
}

/// What a plan is made for.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The model's GGUF file
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Conversations that are worked on at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) agents: u32,
    /// Most agents that there can be while the daemon runs; memory for them is taken at the start [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) agents_max: Option<u32>,
    /// Tokens of the pool that the agents share [default: the model's limit, 131072 at most]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ctx: Option<u32>,
    /// Type of the key-value cells
    #[arg(long, value_name = "TYPE", default_value = "q8_0")]
    pub(crate) kv: Kv,
    /// Deepest draft, in tokens; 0 for none
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=16))]
    pub(crate) draft: u32,
    /// Where the embedding table lies
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    pub(crate) embedding: Place,
    /// MiB to leave alone [default: 512 where the GPU shows a display, else 0]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    pub(crate) reserve: Option<u64>,
    /// MiB of host memory for states of prompts, and as many again for conversations without a slot [default: an eighth of
    /// this machine's memory for each]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(0..=1 << 24))]
    pub(crate) host_cache: Option<u64>,
    /// GiB that the GPU has
    #[arg(long, value_name = "GB", value_parser = gib, conflicts_with = "card")]
    pub(crate) gpu_memory: Option<f64>,
    /// A GPU of this machine, by index or UUID
    #[arg(long, value_name = "GPU", conflicts_with_all = ["card", "gpu_memory"])]
    pub(crate) gpu: Option<String>,
    /// A GPU by its name
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(CARDS.map(|card| card.0)))]
    pub(crate) card: Option<String>,
}

/// Types of key-value cells that a GPU has.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Kv {
    /// Half precision
    F16,
    /// 8 bits in blocks of 32
    #[value(name = "q8_0")]
    Q8,
    /// 4 bits in blocks of 32
    #[value(name = "q4_0")]
    Q4,
}

impl From<Kv> for KvType {
    fn from(kv: Kv) -> Self {
        match kv {
            Kv::F16 => Self::F16,
            Kv::Q8 => Self::Q8_0,
            Kv::Q4 => Self::Q4_0,
        }
    }
}

/// Places of the embedding table.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Place {
    /// On the GPU if everything fits there, else in host memory
    Auto,
    /// On the GPU
    Gpu,
    /// In host memory
    Host,
}

impl From<Place> for Embedding {
    fn from(place: Place) -> Self {
        match place {
            Place::Auto => Self::Auto,
            Place::Gpu => Self::Gpu,
            Place::Host => Self::Host,
        }
    }
}

fn gib(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(gib) if (0.0..=100_000.0).contains(&gib) => Ok(gib),
        _ => Err("expected a number of GiB".into()),
    }
}

/// What can be done to the agents.
#[derive(Debug, Subcommand)]
pub(crate) enum Agents {
    /// Change how many conversations are worked on at once; running ones are finished first
    Set {
        /// At least 1
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
        count: u32,
    },
    /// End what an agent is doing; its client is told, its conversation stays
    Kick {
        /// The agent's number
        #[arg(value_name = "ID")]
        id: u32,
    },
}

/// What can be done to the log.
#[derive(Debug, Subcommand)]
pub(crate) enum Log {
    /// Show the level, or set it until the daemon is restarted or reloaded
    Level {
        /// error, warn, info, debug, trace, or filters such as info,openjetd::http=debug
        #[arg(value_name = "LEVEL")]
        filter: Option<String>,
    },
}

fn digest(text: &str) -> Result<String, String> {
    let hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if hex { Ok(text.to_lowercase()) } else { Err("expected 64 hexadecimal digits".to_owned()) }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("must be a number from 0 to 1".to_owned()),
    }
}

/// The definition itself.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }
}
