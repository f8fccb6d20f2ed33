//! `cargo xtask setup`: what building and testing need beyond Rust. Everything but Debian packages goes into
//! `.tools`, and each step does nothing where its thing is already there.

pub(crate) mod apt;
pub(crate) mod browser;
pub(crate) mod node;
pub(crate) mod nvcc;
pub(crate) mod promtool;
pub(crate) mod python;
pub(crate) mod systemd;
pub(crate) mod wasm;

use anyhow::Result;
use clap::ValueEnum;
use std::time::Instant;

/// Options of `setup`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to install.
    #[arg(default_value = "all")]
    what: Vec<What>,
}

/// A thing to install.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// The CUDA compiler, from PyPI.
    Nvcc,
    /// Rust's standard library for wasm32, for the page.
    Wasm,
    /// Python with the clients that the tests use, and Prometheus' checker.
    Python,
    /// systemd's own programs, for the service's tests.
    Systemd,
    /// Chromium, for the page's tests.
    Browser,
    /// All of these.
    All,
}

/// Installs what is asked for and says where it is.
pub(crate) fn run(args: &Args) -> Result<()> {
    let all = [What::Nvcc, What::Wasm, What::Python, What::Systemd, What::Browser];
    let wanted = if args.what.contains(&What::All) { &all[..] } else { &args.what };
    for what in wanted {
        let start = Instant::now();
        let place = match what {
            What::Nvcc => nvcc::install()?.display().to_string(),
            What::Wasm => wasm::install()?.to_string(),
            What::Python => {
                promtool::install()?;
                python::install()?.display().to_string()
            }
            What::Systemd => systemd::install()?.display().to_string(),
            What::Browser => browser::install()?.display().to_string(),
            What::All => continue,
        };
        let name = what.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        println!("{name:<8} {place} ({:.1} s)", start.elapsed().as_secs_f64());
    }
    Ok(())
}
