//! Entry point of `openjetd`.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use openjetd::config::cli::Cli;
use openjetd::{config, log, run};

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.man {
        let page = clap_mangen::Man::new(Cli::command()).section("8");
        return match page.render(&mut std::io::stdout()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => log::fatal(&error.into()),
        };
    }
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
    match run::run(&cli, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => log::fatal(&error),
    }
}
