//! `openjetctl synth`: writes a model of a real shape whose greedy text and whose drafts are known in advance.
//!
//! Every matrix has random bits of its own type. The branches' output matrices are so small that the residual stream stays
//! near the token's embedding, and the head is the embedding with its rows moved: after token t comes `next[t]`, a single long
//! cycle over the ordinary tokens. The draft head has a head of its own, right but for a known share of the tokens. So a wrong
//! token means a broken engine, whatever was slow about it, and drafts are accepted at a known rate. A JSON file beside the
//! model tells the cycle and the wrong drafts.

mod blocks;
mod chain;
pub(crate) mod shape;
mod tensors;
mod write;

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;

use crate::failure::Failure;
use crate::text;

/// Writes the model to `file` and its chain beside it.
pub(crate) fn run(
    file: &Path,
    tiny: bool,
    acceptance: f64,
    seed: u64,
    json: bool,
    out: &mut Vec<u8>,
) -> Result<(), Failure> {
    let started = Instant::now();
    let shape = if tiny { shape::TINY } else { shape::REAL_27B };
    let chain = chain::Chain::new(shape.vocab, acceptance, seed);
    let tensors = tensors::all(&shape, seed);
    let bytes = write::model(file, &shape, &tensors, &chain)?;
    let chain_file = file.with_extension("chain.json");
    let describe = serde_json::to_vec(&chain.description()).context("the chain can't be written as JSON")?;
    std::fs::write(&chain_file, describe).with_context(|| format!("{} can't be written", chain_file.display()))?;
    let seconds = started.elapsed().as_secs_f64();
    if json {
        let report = serde_json::json!({
            "model": file, "chain": chain_file, "bytes": bytes, "tensors": tensors.len(), "seconds": seconds,
        });
        writeln!(out, "{report}")?;
    } else {
        writeln!(
            out,
            "{}: {}, {} tensors, in {seconds:.1} s\n{}: the known text and the wrong drafts",
            file.display(),
            text::bytes(bytes),
            tensors.len(),
            chain_file.display()
        )?;
    }
    Ok(())
}

/// Writes a file that has a model's sizes and nothing else, to plan with.
pub(crate) fn outline(file: &Path, shape: &shape::Shape) -> anyhow::Result<()> {
    write::outline(file, shape, &tensors::all(shape, 0))
}

#[cfg(test)]
mod tests;
