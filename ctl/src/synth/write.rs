//! The file: GGUF header, then all tensors, made and written by all cores.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;

use super::chain::{CONTROL_TOKENS, Chain, FIRST_ORDINARY};
use super::shape::{HEAD_DIM, INTERVAL, STATE_DIM, Shape};
use super::tensors::Tensor;

/// Tensors begin at multiples of this.
const ALIGNMENT: usize = 32;
/// Bytes that one task makes at a time.
const PIECE: usize = 4 << 20;

/// Offsets of the tensors in the data, and the data's length.
fn layout(tensors: &[Tensor]) -> (Vec<usize>, usize) {
    let mut end = 0;
    let place = |tensor: &Tensor| {
        let at = end;
        end = (end + tensor.bytes()).next_multiple_of(ALIGNMENT);
        at
    };
    let offsets = tensors.iter().map(place).collect();
    (offsets, end)
}

/// Writes a file of the model's sizes and no content: what a plan needs. It takes no space on disk.
pub(super) fn outline(path: &Path, shape: &Shape, tensors: &[Tensor]) -> anyhow::Result<()> {
    let (offsets, end) = layout(tensors);
    let header = header(shape, tensors, &offsets);
    let file = File::create(path).with_context(|| format!("{} can't be written", path.display()))?;
    file.write_all_at(&header, 0)?;
    file.set_len((header.len().next_multiple_of(ALIGNMENT) + end) as u64)?;
    Ok(())
}

/// Writes the model, under another name until it is whole. Returns its length.
pub(super) fn model(path: &Path, shape: &Shape, tensors: &[Tensor], chain: &Chain) -> anyhow::Result<u64> {
    let (offsets, end) = layout(tensors);
    let mut header = header(shape, tensors, &offsets);
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);

    let unfinished = path.with_extension("gguf.part");
    let failed = || format!("{} can't be written", unfinished.display());
    let file = File::create(&unfinished).with_context(failed)?;
    let length = (header.len() + end) as u64;
    file.set_len(length).with_context(failed)?;
    file.write_all_at(&header, 0).with_context(failed)?;

    let bar = ProgressBar::new(length).with_style(
        ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let pieces: Vec<(usize, std::ops::Range<usize>)> = tensors
        .iter()
        .enumerate()
        .flat_map(|(i, tensor)| {
            let rows = (PIECE / tensor.row_bytes()).max(1);
            (0..tensor.rows()).step_by(rows).map(move |first| (i, first..(first + rows).min(tensor.rows())))
        })
        .collect();
    pieces.into_par_iter().try_for_each(|(i, rows)| {
        let tensor = &tensors[i];
        let mut bytes = Vec::with_capacity(rows.len() * tensor.row_bytes());
        let at = header.len() + offsets[i] + rows.start * tensor.row_bytes();
        tensor.write_rows(rows, chain, &mut bytes);
        bar.inc(bytes.len() as u64);
        file.write_all_at(&bytes, at as u64).with_context(failed)
    })?;
    bar.finish_and_clear();
    std::fs::rename(&unfinished, path).with_context(|| format!("{} can't be written", path.display()))?;
    Ok(length)
}

/// Header, metadata and tensor list.
fn header(shape: &Shape, tensors: &[Tensor], offsets: &[usize]) -> Vec<u8> {
    let mut metadata = Metadata { bytes: Vec::new(), count: 0 };
    metadata.text("general.architecture", "qwen35");
    metadata.text("general.name", shape.name);
    metadata.u32("general.file_type", 15);
    metadata.u32("qwen35.block_count", shape.blocks + 1);
    metadata.u32("qwen35.nextn_predict_layers", 1);
    metadata.u32("qwen35.context_length", 262_144);
    metadata.u32("qwen35.embedding_length", shape.hidden);
    metadata.u32("qwen35.feed_forward_length", shape.ffn);
    metadata.u32("qwen35.attention.head_count", shape.heads);
    metadata.u32("qwen35.attention.head_count_kv", shape.kv_heads);
    metadata.u32("qwen35.attention.key_length", HEAD_DIM);
    metadata.u32("qwen35.attention.value_length", HEAD_DIM);
    metadata.f32("qwen35.attention.layer_norm_rms_epsilon", 1e-6);
    metadata.u32("qwen35.full_attention_interval", INTERVAL);
    metadata.u32("qwen35.rope.dimension_count", 64);
    metadata.i32s("qwen35.rope.dimension_sections", &[11, 11, 10, 0]);
    metadata.f32("qwen35.rope.freq_base", 1e7);
    metadata.u32("qwen35.ssm.conv_kernel", 4);
    metadata.u32("qwen35.ssm.state_size", STATE_DIM);
    metadata.u32("qwen35.ssm.group_count", shape.key_heads);
    metadata.u32("qwen35.ssm.time_step_rank", shape.value_heads);
    metadata.u32("qwen35.ssm.inner_size", shape.inner());
    tokenizer(shape.vocab, &mut metadata);

    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(metadata.count.to_le_bytes());
    out.extend(metadata.bytes);
    for (tensor, &offset) in tensors.iter().zip(offsets) {
        text(&mut out, &tensor.name);
        out.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|&n| out.extend((n as u64).to_le_bytes()));
        out.extend(tensor.ty.ggml_id().to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
    }
    out
}

/// Bytes, then words that name their own number, then the control tokens.
fn tokenizer(vocab: usize, metadata: &mut Metadata) {
    let control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let ordinary = (FIRST_ORDINARY + 1..vocab - CONTROL_TOKENS).map(|i| format!("\u{120}t{i}"));
    let tokens: Vec<String> = (0..=255u8)
        .map(|byte| byte_alias(byte).to_string())
        .chain(["ab".to_owned()])
        .chain(ordinary)
        .chain(control.map(str::to_owned))
        .collect();
    let kinds: Vec<i32> = (0..vocab).map(|i| if i < vocab - CONTROL_TOKENS { 1 } else { 3 }).collect();
    metadata.text("tokenizer.ggml.model", "gpt2");
    metadata.text("tokenizer.ggml.pre", "qwen35");
    metadata.texts("tokenizer.ggml.tokens", &tokens);
    metadata.i32s("tokenizer.ggml.token_type", &kinds);
    metadata.texts("tokenizer.ggml.merges", &["a b".to_owned()]);
    metadata.u32("tokenizer.ggml.eos_token_id", vocab - 1);
    metadata.u32("tokenizer.ggml.padding_token_id", vocab - 3);
    metadata.text(
        "tokenizer.chat_template",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
    );
}

/// The printable character that stands for a byte in byte-level vocabularies: itself where it has one, else the next from
/// U+0100 on.
fn byte_alias(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Key-value pairs with the format's numbers of types.
struct Metadata {
    bytes: Vec<u8>,
    count: u64,
}

impl Metadata {
    fn key(&mut self, key: &str, ty: u32) {
        self.count += 1;
        text(&mut self.bytes, key);
        self.bytes.extend(ty.to_le_bytes());
    }

    fn array(&mut self, key: &str, ty: u32, len: usize) {
        self.key(key, 9);
        self.bytes.extend(ty.to_le_bytes());
        self.bytes.extend((len as u64).to_le_bytes());
    }

    fn u32(&mut self, key: &str, value: usize) {
        self.key(key, 4);
        self.bytes.extend((value as u32).to_le_bytes());
    }

    fn f32(&mut self, key: &str, value: f32) {
        self.key(key, 6);
        self.bytes.extend(value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key, 8);
        text(&mut self.bytes, value);
    }

    fn i32s(&mut self, key: &str, values: &[i32]) {
        self.array(key, 5, values.len());
        values.iter().for_each(|v| self.bytes.extend(v.to_le_bytes()));
    }

    fn texts(&mut self, key: &str, values: &[String]) {
        self.array(key, 8, values.len());
        values.iter().for_each(|v| text(&mut self.bytes, v));
    }
}
