//! Entry point of `openjetd`.

use std::process::ExitCode;

use clap::Parser;
use openjetd::config::cli::Cli;
use openjetd::{config, log, run};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let config = match config::load(&cli) {
        Ok(config) => config,
        Err(error) => return log::fatal(&error.into()),
    };
    if let Err(error) = log::start(&config.log) {
        return log::fatal(&error);
    }
    for (found, meant) in config::misspelt_variables() {
        tracing::warn!("{found} is no setting and is not read; did you mean {meant}?");
    }
    match run::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => log::fatal(&error),
    }
}
