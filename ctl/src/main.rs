//! `openjetctl`: looks into model files and talks to the daemon.

mod agents;
mod bench;
mod cards;
mod cli;
mod client;
mod doctor;
mod events;
mod failure;
mod forget;
mod inspect;
mod log;
mod metrics;
mod models;
mod plan;
mod pull;
mod setup;
mod status;
mod synth;
mod text;
mod top;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use cli::{Agents, Cli, Log, Verb};
use client::Client;
use failure::Failure;
use openjet_proto::control::LoadModel;

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
        Verb::Agents { verb: Some(Agents::Kick { id }) } => agents::kick(&client(), *id, cli.json, out),
        Verb::Models => models::list(&client(), cli.json, out),
        Verb::Load { model, agents, ctx, replace } => {
            let asked = LoadModel { model: model.clone(), agents: *agents, ctx: *ctx, replace: *replace };
            models::load(&client(), asked, cli.json, out)
        }
        Verb::Unload => models::unload(&client(), cli.json, out),
        Verb::Drain { off, no_wait } => models::drain(&client(), !off, !no_wait, cli.json, out),
        Verb::Events { count } => events::follow(&client(), *count, cli.json),
        Verb::Metrics { part } => metrics::run(&client(), part.as_deref(), cli.json, out),
        Verb::Log { verb: Log::Level { filter } } => log::level(&client(), filter.as_deref(), cli.json, out),
        Verb::Forget { id, all } => forget::run(&client(), id.as_deref(), *all, cli.json, out),
        Verb::Inspect { file, tensors } => inspect::run(file, *tensors, cli.json, out),
        Verb::Plan(args) => plan::run(args, cli.json, out),
        Verb::Setup(args) => setup::run(args, cli.json, out),
        Verb::Pull(args) => pull::run(args, cli.json, out),
        Verb::Doctor => doctor::run(&client(), cli.json, out),
        Verb::Top(args) => top::run(&client(), args, cli.json),
        Verb::Synth { file, tiny, acceptance, seed } => synth::run(file, *tiny, *acceptance, *seed, cli.json, out),
        Verb::Bench(args) => bench::run(&client(), args, cli.json, out),
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
