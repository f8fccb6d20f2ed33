//! `cargo xtask bench`: what each op of the CUDA backend reaches on this machine's GPU, and whole steps.

use crate::programs::{self, Programs};
use crate::{env, sh};
use anyhow::{Result, bail};

/// Options of `bench`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Options of the bench, for example `--json FILE --plot FILE --model FILE.gguf` (`--help` lists them).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    bench: Vec<String>,
}

/// Finds or builds the bench, and runs it in the folder that this was called in.
pub(crate) fn run(args: &Args) -> Result<()> {
    let asks_for_help = args.bench.iter().any(|arg| arg == "--help" || arg == "-h");
    if !env::has_gpu() && !asks_for_help {
        bail!("no NVIDIA GPU here: the bench measures one");
    }
    let programs = Programs::find(false)?;
    let mut bench = programs::with_files(&programs.bench);
    bench.current_dir(std::env::current_dir()?).env("OPENJET_COMMIT", &programs.commit).args(&args.bench);
    sh::run(&mut bench)
}
