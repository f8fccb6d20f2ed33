//! Any bytes as a model file: the parser, the loader, the report, and the ends of every loaded matrix.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use openjet_engine::gguf::GgufFile;
use openjet_engine::inspect::Inspection;
use openjet_engine::model::{Block, Matrix, Mixer, Model};
use openjet_engine::quant::dequantize_row;

/// Zeros after the input: room for the tensors of a small model, so that the input is a header alone.
const TENSOR_BYTES: usize = 256 << 10;

fuzz_target!(|header: &[u8]| {
    let mut bytes = header.to_vec();
    bytes.resize(header.len() + TENSOR_BYTES, 0);
    let Ok(file) = GgufFile::from_bytes("input", bytes) else { return };
    let file = Arc::new(file);
    let runnable = Inspection::of(&file).runnable;
    let model = Model::load(file);
    assert!(model.is_ok() || !runnable);
    let Ok(model) = model else { return };
    decode(&[&model.embedding, &model.output]);
    model.blocks.iter().for_each(decode_block);
    if let Some(head) = &model.draft_head {
        decode(&[&head.join, &head.embedding, &head.output]);
        decode_block(&head.block);
    }
});

fn decode_block(block: &Block) {
    decode(&[&block.ffn_gate, &block.ffn_up, &block.ffn_down]);
    match &block.mixer {
        Mixer::Attention(layer) => decode(&[&layer.q, &layer.k, &layer.v, &layer.output]),
        Mixer::DeltaNet(layer) => decode(&[&layer.qkv, &layer.gate, &layer.alpha, &layer.beta, &layer.output]),
    }
}

fn decode(matrices: &[&Matrix]) {
    for matrix in matrices {
        let mut row = vec![0.0; matrix.cols];
        dequantize_row(matrix.ty, matrix.row(0), &mut row);
        dequantize_row(matrix.ty, matrix.row(matrix.rows - 1), &mut row);
    }
}
