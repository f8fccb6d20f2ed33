//! `cargo xtask run`: from a clone to a running daemon.

use crate::daemon::{self, Health};
use crate::{env, setup, sh, web};
use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, parent_id};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Options of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Don't build the page; the daemon then serves a plain one.
    #[arg(long)]
    no_page: bool,
    /// Options of openjetd, for example `--model FILE --agents 4` (see `openjetd --help`).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    daemon: Vec<String>,
}

/// Options of the helper that waits for the daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct Announce {
    address: SocketAddr,
}

const DEFAULT_LISTEN: &str = "127.0.0.1:18080";

/// Builds all, then becomes the daemon.
pub(crate) fn run(args: &Args) -> Result<()> {
    let start = Instant::now();
    if env::has_gpu() {
        // Without the compiler the daemon would quietly be one for the CPU alone.
        setup::nvcc::install().context("a GPU is there, but its compiler can't be set up")?;
    } else {
        println!("No NVIDIA GPU here: the daemon will run on the CPU.");
    }
    if args.no_page {
        println!("The page is not built, as asked.");
    } else if let Err(error) = web::build() {
        println!("The page can't be built, so the daemon serves a plain one in its place: {error:#}");
    }
    println!("Building openjetd and openjetctl ...");
    sh::run(sh::cargo().args(["build", "--release", "--package", "openjetd", "--package", "openjetctl"]))?;
    println!("Built in {:.0} s.", start.elapsed().as_secs_f64());

    let listen = value_of(&args.daemon, "--listen").unwrap_or(DEFAULT_LISTEN);
    if let Ok(mut address) = listen.parse::<SocketAddr>() {
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        if matches!(daemon::health(address), Health::Ready | Health::Other) {
            bail!("something already serves on {address}: stop it, or choose another address with --listen");
        }
        let own = std::env::current_exe().context("can't find this program's own file")?;
        sh::cmd(own).arg("announce").arg(address.to_string()).spawn().context("can't start the helper")?;
    }
    let mut daemon = sh::cmd(env::target().join("release/openjetd"));
    daemon.args(&args.daemon);
    // This process becomes the daemon, so that signals and the exit status are its own.
    let error = daemon.exec();
    Err(error).with_context(|| format!("can't start {}", sh::line(&daemon)))
}

/// Waits until the daemon, our parent, is ready, and prints how to use it.
pub(crate) fn announce(args: &Announce) -> Result<()> {
    let daemon = parent_id();
    while !matches!(daemon::health(args.address), Health::Ready) {
        if parent_id() != daemon {
            return Ok(());
        }
        sleep(Duration::from_millis(100));
    }
    let address = args.address;
    println!(
        "
OpenJet is ready (stop it with Ctrl-C).
  API      http://{address}/v1
  page     http://{address}/
  control  {ctl} status

Try it:
  curl -N http://{address}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{\"stream\": true, \"temperature\": 0, \"messages\": [{{\"role\": \"user\", \"content\": \"Write a Python function `add` that does this: Return the sum of two numbers.\"}}]}}'
",
        ctl = env::target().join("release/openjetctl").display()
    );
    Ok(())
}

/// The value of an option among the daemon's, as `--name value` or `--name=value`.
fn value_of<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    args.iter().enumerate().find_map(|(place, arg)| {
        let rest = arg.strip_prefix(name)?;
        if rest.is_empty() { args.get(place + 1).map(String::as_str) } else { rest.strip_prefix('=') }
    })
}

#[cfg(test)]
mod tests {
    use super::value_of;

    #[test]
    fn options_are_found_in_both_spellings() {
        let args = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(value_of(&args(&["--agents", "4", "--listen", "[::1]:9"]), "--listen"), Some("[::1]:9"));
        assert_eq!(value_of(&args(&["--listen=[::1]:9"]), "--listen"), Some("[::1]:9"));
        assert_eq!(value_of(&args(&["--listener", "x"]), "--listen"), None);
        assert_eq!(value_of(&args(&["--listen"]), "--listen"), None);
    }
}
