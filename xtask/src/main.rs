//! `cargo xtask`: builds, runs and tests OpenJet.
#![allow(clippy::print_stdout, reason = "printing is what a command-line tool does")]

mod daemon;
mod env;
mod run;
mod setup;
mod sh;
mod soak;
mod test;
mod web;

use clap::Parser;

/// Builds, runs and tests OpenJet.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
enum Verb {
    /// Build everything and start the daemon in the foreground.
    Run(run::Args),
    /// Run every test that this machine can run.
    Test(test::Args),
    /// Let many clients work with the daemon for half an hour: no error, and memory stays flat.
    Soak(soak::Args),
    /// Install what building and testing need, where it is missing.
    Setup(setup::Args),
    /// Build the page that the daemon serves, into web/dist.
    Web,
    /// Tell when a daemon that is starting is ready (used by `run`).
    #[command(hide = true)]
    Announce(run::Announce),
}

fn main() -> anyhow::Result<()> {
    match Verb::parse() {
        Verb::Run(args) => run::run(&args),
        Verb::Test(args) => test::run(&args),
        Verb::Soak(args) => soak::run(&args),
        Verb::Setup(args) => setup::run(&args),
        Verb::Web => web::build().map(|folder| println!("{}", folder.display())),
        Verb::Announce(args) => run::announce(&args),
    }
}
