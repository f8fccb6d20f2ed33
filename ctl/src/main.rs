//! `openjetctl`: looks into model files and talks to the daemon.

mod agents;
mod cards;
mod cli;
mod client;
mod failure;
mod forget;
mod inspect;
mod plan;
mod status;
mod synth;
mod text;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use cli::{Agents, Cli, Verb};
use client::Client;
use failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = Vec::new();
    let done = run(&cli, &mut out);
    // What was printed before a failure is part of the answer: a file's report, then that it can't be run.
    match std::io::stdout().write_all(&out) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => eprintln!("openjetctl: can't print: {error}"),
        _ => {}
    }
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("openjetctl: {failure}");
            failure.exit_code()
        }
    }
}

fn run(cli: &Cli, out: &mut Vec<u8>) -> Result<(), Failure> {
    let client = || Client::new(cli.socket.clone());
    match &cli.verb {
        Verb::Status => status::run(&client(), cli.json, out),
        Verb::Agents { verb: None } => agents::list(&client(), cli.json, out),
        Verb::Agents { verb: Some(Agents::Set { count }) } => agents::set(&client(), *count, cli.json, out),
        Verb::Forget { id, all } => forget::run(&client(), id.as_deref(), *all, cli.json, out),
        Verb::Inspect { file, tensors } => inspect::run(file, *tensors, cli.json, out),
        Verb::Plan(args) => plan::run(args, cli.json, out),
        Verb::Synth { file, tiny, acceptance, seed } => synth::run(file, *tiny, *acceptance, *seed, cli.json, out),
        Verb::Completions { shell } => {
            clap_complete::generate(*shell, &mut cli::command(), "openjetctl", out);
            Ok(())
        }
        Verb::Man { dir: None } => Ok(clap_mangen::Man::new(cli::command()).render(out)?),
        Verb::Man { dir: Some(dir) } => {
            std::fs::create_dir_all(dir)?;
            Ok(clap_mangen::generate_to(cli::command(), dir)?)
        }
    }
}
