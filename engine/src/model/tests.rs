#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::gguf::GgufFile;
use crate::quant::TensorType;

fn load(path: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    Model::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap()
}

#[test]
fn the_small_model_loads() {
    let start = std::time::Instant::now();
    let model = load("../assets/openjet-tiny-Q4_K_M.gguf");
    let elapsed = start.elapsed();
    assert!(elapsed.as_millis() < 300, "took {elapsed:?}");
    let c = &model.config;
    assert_eq!((c.blocks, c.has_draft_head, c.hidden, c.ffn, c.vocab), (8, true, 256, 768, 8192));
    assert_eq!((c.heads, c.kv_heads, c.head_dim, c.rope_dims, c.context), (4, 2, 256, 64, 32768));
    assert_eq!((c.conv_taps, c.key_heads, c.value_heads, c.state_dim), (4, 2, 6, 128));
    assert_eq!((c.conv_channels(), c.inner(), c.kv_layers()), (1280, 768, 3));
    assert_eq!(c.recurrent, [true, true, true, false, true, true, true, false]);
    assert_eq!((c.rope_freqs.len(), c.rope_freqs[0], c.rope_scale, c.norm_eps), (32, 1.0, 1.0, 1e-6));
    assert!((c.rope_freqs[31] - 1e7_f64.powf(-62.0 / 64.0)).abs() < 1e-18);
    assert_eq!(c.name, "openjet-tiny");
    assert!(model.unused_tensors.is_empty());
    assert_eq!(model.output.ty, TensorType::Q6_K);
    assert_eq!((model.output.rows, model.output.cols, model.output.row_bytes()), (8192, 256, 210));
    assert_eq!(model.output.row(8191).len(), 210);
    let Mixer::DeltaNet(layer) = &model.blocks[0].mixer else { panic!("block 0 is recurrent") };
    assert_eq!((layer.conv.len(), layer.a.len(), layer.alpha.rows), (4 * 1280, 6, 6));
    assert!(layer.a.iter().all(|a| *a < 0.0));
    let head = model.draft_head.as_ref().unwrap();
    assert_eq!((head.join.rows, head.join.cols), (256, 512));
    assert_eq!((head.embedding.name.as_str(), head.output.name.as_str()), ("token_embd.weight", "output.weight"));
}

#[test]
fn the_other_shapes_load() {
    let tied = load("tests/fixtures/models/toy-equal-heads.gguf");
    assert_eq!((tied.config.key_heads, tied.config.value_heads, tied.config.has_draft_head), (4, 4, false));
    assert_eq!(tied.output.name, "token_embd.weight");
    assert!(tied.draft_head.is_none());
    let double = load("tests/fixtures/models/toy-double-heads.gguf");
    assert_eq!((double.config.key_heads, double.config.value_heads), (2, 4));
    assert_eq!((double.config.heads, double.config.kv_heads), (6, 1));
    let mixed = load("tests/fixtures/models/openjet-tiny-mixed.gguf");
    assert_eq!(mixed.draft_head.unwrap().join.ty, TensorType::BF16);
}
