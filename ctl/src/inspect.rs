//! `openjetctl inspect`.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use openjet_engine::gguf::{GgufFile, shape};
use openjet_engine::inspect::Inspection;
use openjet_engine::model::ModelConfig;

use crate::failure::Failure;
use crate::text;

pub(crate) fn run(file: &Path, tensors: bool, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let inspection = Inspection::of(&Arc::new(GgufFile::open(file)?));
    if json {
        serde_json::to_writer_pretty(&mut *out, &inspection)?;
        writeln!(out)?;
    } else {
        // Names come from the file, and must not steer the terminal.
        let report = describe(&inspection, tensors).replace(|c: char| c.is_control() && c != '\n', "\u{fffd}");
        out.write_all(report.as_bytes())?;
    }
    if inspection.runnable { Ok(()) } else { Err(anyhow!("{} can't be run", inspection.file).into()) }
}

fn describe(i: &Inspection, tensors: bool) -> String {
    let mut lines = vec![
        ("file", format!("{}, {}", i.file, text::bytes(i.file_bytes))),
        ("model", text::or_dash(i.name.as_deref())),
        ("architecture", text::or_dash(i.architecture.as_deref())),
        ("parameters", text::count(i.parameters)),
    ];
    if let Some(config) = &i.config {
        lines.extend(sizes(config));
    }
    let t = &i.tokenizer;
    let tokenizer = format!(
        "{}, {}; {} tokens, {} merges, end token {}, {}",
        text::or_dash(t.model.as_deref()),
        text::or_dash(t.pre.as_deref()),
        text::or_dash(t.tokens),
        text::or_dash(t.merges),
        text::or_dash(t.eos),
        if t.chat_template.is_some() { "with chat template" } else { "no chat template" }
    );
    lines.push(("tokenizer", tokenizer));
    if !i.unused_tensors.is_empty() {
        lines.push(("not used", i.unused_tensors.join(", ")));
    }
    let mut report: String = lines.iter().map(|(what, value)| format!("{what:14}{value}\n")).collect();

    let rows: Vec<_> = i
        .types
        .iter()
        .map(|ty| [ty.ty.clone(), ty.tensors.to_string(), text::count(ty.parameters), text::bytes(ty.bytes)])
        .collect();
    report += &format!("\n{}", text::table(&["type", "tensors", "parameters", "bytes"], &rows));
    if tensors {
        let rows: Vec<_> =
            i.tensors.iter().map(|t| [t.name.clone(), t.ty.clone(), shape(&t.shape), text::bytes(t.bytes)]).collect();
        report += &format!("\n{}", text::table(&["tensor", "type", "shape", "bytes"], &rows));
    }
    if i.runnable {
        report += "\nOpenJet can run it.\n";
    } else {
        report += "\nOpenJet can't run it:\n";
        for problem in &i.problems {
            // Writing to a string can't fail.
            let _ = writeln!(report, "  - {problem}");
        }
    }
    report
}

fn sizes(c: &ModelConfig) -> [(&'static str, String); 5] {
    let recurrent = c.recurrent.iter().filter(|&&r| r).count();
    let draft = if c.has_draft_head { "with a draft head" } else { "no draft head" };
    [
        ("blocks", format!("{}: {recurrent} DeltaNet, {} attention; {draft}", c.blocks, c.blocks - recurrent)),
        ("widths", format!("{} hidden, {} feed-forward, {} vocabulary", c.hidden, c.ffn, c.vocab)),
        (
            "attention",
            format!(
                "{} query heads, {} key-value heads of {}, {} rotated",
                c.heads, c.kv_heads, c.head_dim, c.rope_dims
            ),
        ),
        ("DeltaNet", format!("{} key heads, {} value heads of {}", c.key_heads, c.value_heads, c.state_dim)),
        ("context", format!("{} tokens", c.context)),
    ]
}
