//! `cargo xtask`: builds, runs and tests OpenJet.
#![allow(clippy::print_stdout, reason = "printing is what a command-line tool does")]

mod bench;
mod daemon;
mod deb;
mod env;
mod pack;
mod programs;
mod readers;
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
    /// Measure each op of the CUDA backend, and whole steps, on this machine's GPU.
    Bench(bench::Args),
    /// Put the programs for a machine with a GPU but without Rust into a folder: tests, bench, daemon, tool.
    Pack(pack::Args),
    /// Let many clients work with the daemon for half an hour: no error, and memory stays flat.
    Soak(soak::Args),
    /// Keep many pages open on a daemon that writes: no slower, no more memory.
    Readers(readers::Args),
    /// Build the Debian package.
    Deb(deb::Args),
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
        Verb::Bench(args) => bench::run(&args),
        Verb::Pack(args) => pack::run(&args),
        Verb::Soak(args) => soak::run(&args),
        Verb::Readers(args) => readers::run(&args),
        Verb::Deb(args) => deb::run(&args),
        Verb::Setup(args) => setup::run(&args),
        Verb::Web => web::build().map(|folder| println!("{}", folder.display())),
        Verb::Announce(args) => run::announce(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Verb::command().debug_assert();
    }
}
