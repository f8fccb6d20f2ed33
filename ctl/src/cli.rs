//! The command line: the one definition that parsing, `--help`, completions and manual pages come from.

use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};

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
  1  it failed, or the inspected file can't be run; the message says why
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
    /// Show what is in a model file, and whether it can be run
    Inspect {
        /// The GGUF file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// List every tensor (JSON always does)
        #[arg(long)]
        tensors: bool,
    },
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

/// What can be done to the agents.
#[derive(Debug, Subcommand)]
pub(crate) enum Agents {
    /// Change how many conversations are worked on at once; running ones are finished first
    Set {
        /// At least 1
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
        count: u32,
    },
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
