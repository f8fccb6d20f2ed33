//! Model files of every shape, and the message for each thing that can be wrong with one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/gguf.rs"]
mod gguf;

use std::path::Path;
use std::sync::Arc;

use gguf::{F32, Gguf, Meta, Q8_0, Shape};
use openjet_engine::gguf::GgufFile;
use openjet_engine::inspect::Inspection;
use openjet_engine::model::Model;

fn small() -> Gguf {
    Gguf::model(&Shape::SMALL, false)
}

fn open(file: &Gguf) -> Result<Arc<GgufFile>, String> {
    GgufFile::from_bytes("m.gguf", file.bytes()).map(Arc::new).map_err(|error| error.to_string())
}

fn load(file: &Gguf) -> Result<Model, String> {
    Model::load(open(file)?).map_err(|error| error.to_string())
}

/// The message for the small model after `change`.
fn refusal(change: impl FnOnce(&mut Gguf)) -> String {
    let mut file = small();
    change(&mut file);
    let message = load(&file).expect_err("the change makes it unusable");
    message.strip_prefix("m.gguf: ").expect("messages begin with the file").to_owned()
}

#[track_caller]
fn refused(expected: &str, change: impl FnOnce(&mut Gguf)) {
    assert_eq!(refusal(change), expected);
}

/// Only the beginning of the message is compared: what follows from the same cause comes after it.
#[track_caller]
fn refused_first(expected: &str, change: impl FnOnce(&mut Gguf)) {
    let message = refusal(change);
    assert!(message.starts_with(expected), "{message}\nis not\n{expected}");
}

#[test]
fn containers() {
    refused("is not a GGUF file: it begins with \"GGML\" instead of \"GGUF\"", |f| f.magic = *b"GGML");
    refused("has GGUF version 2, OpenJet reads version 3; convert the model again with current tools", |f| {
        f.version = 2;
    });
    refused("is a big-endian GGUF file; OpenJet reads little-endian ones", |f| f.version = 3 << 24);
    refused_first("the tensor table claims 18446744073709551615 entries, which need at least", |f| {
        f.tensor_count = Some(u64::MAX);
    });
    refused_first("the metadata claims 9223372036854775807 entries", |f| f.metadata_count = Some(u64::MAX / 2));
    let name = |len: u64| Meta::Raw(8, len.to_le_bytes().to_vec());
    refused_first("ends too early: the value of key \"general.name\" needs 18446744073709551615 bytes at byte", |f| {
        f.set("general.name", name(u64::MAX));
    });
    let mut array = 8_u32.to_le_bytes().to_vec();
    array.extend((1_u64 << 60).to_le_bytes());
    refused_first("the value of key \"general.name\" claims 1152921504606846976 entries", |f| {
        f.set("general.name", Meta::Raw(9, array));
    });
    let empty = GgufFile::from_bytes("m.gguf", &b""[..]).unwrap_err().to_string();
    assert_eq!(empty, "m.gguf: is not a GGUF file: it begins with \"\" instead of \"GGUF\"");
    let short = GgufFile::from_bytes("m.gguf", &b"GGUF\x03\0\0\0\x01"[..]).unwrap_err().to_string();
    assert_eq!(short, "m.gguf: ends too early: the tensor table needs 8 bytes at byte 8, but the file has only 1 more");
}

#[test]
fn metadata() {
    refused("key \"general.name\" has value type 13, the format has 0 to 12", |f| {
        f.set("general.name", Meta::Raw(13, Vec::new()));
    });
    refused("key \"general.name\" is an array of arrays, which OpenJet does not read", |f| {
        f.set("general.name", Meta::Raw(9, 9_u32.to_le_bytes().to_vec()));
    });
    refused("key \"general.name\" is a bool of value 2, expected 0 or 1", |f| {
        f.set("general.name", Meta::Raw(7, vec![2]));
    });
    refused("the value of key \"general.name\" is not UTF-8", |f| {
        f.set("general.name", Meta::Raw(8, vec![1, 0, 0, 0, 0, 0, 0, 0, 0xff]));
    });
    refused("key \"general.name\" is there twice", |f| f.metadata.push(("general.name".into(), Meta::U32(1))));
    refused("key \"general.alignment\" is u32 48, expected a power of two from 1 to 65536", |f| {
        f.set("general.alignment", Meta::U32(48));
    });
}

#[test]
fn tensor_tables() {
    refused("tensor \"output_norm.weight\" is there twice", |f| f.add("output_norm.weight", &[64], F32));
    refused("tensor \"extra\" has 0 dimensions, expected 1 to 4", |f| f.add("extra", &[], F32));
    refused("tensor \"extra\" has 5 dimensions, expected 1 to 4", |f| f.add("extra", &[1; 5], F32));
    refused("tensor \"extra\" has shape 8 x 0, which is empty or too large for any file", |f| {
        f.add("extra", &[8, 0], F32);
    });
    refused_first("tensor \"extra\" has shape 4294967296 x 4294967296, which", |f| f.add("extra", &[1 << 32; 2], F32));
    refused("tensor \"extra\" has type 99, which is no type that OpenJet knows of", |f| f.add("extra", &[8], 99));
    refused("tensor \"extra\" of type Q8_0 has rows of 33 elements, expected a multiple of 32", |f| {
        f.add("extra", &[33], Q8_0);
    });
    refused("tensor \"output_norm.weight\" begins at offset 40, expected a multiple of 32", |f| {
        f.tensor("output_norm.weight").offset = Some(40);
    });
    refused_first("tensor \"extra\" needs bytes ", |f| {
        f.add("extra", &[1 << 40], F32);
    });
    refused_first("tensors \"token_embd.weight\" and \"output.weight\" overlap at byte ", |f| {
        f.tensor("output.weight").offset = Some(32);
    });
}

#[test]
fn models_of_other_kinds() {
    let arch = |name| move |f: &mut Gguf| f.set("general.architecture", Meta::Text(name));
    refused(
        "architecture \"qwen35moe\" is the mixture-of-experts Qwen3.5, OpenJet runs the dense one (qwen35)",
        arch("qwen35moe"),
    );
    refused(
        "architecture \"llama\" is not run by OpenJet, which runs the dense Qwen3.5 family (qwen35) only",
        arch("llama"),
    );
    refused_first("architecture \"qwen3next\" is Qwen3-Next", arch("qwen3next"));
    refused_first("architecture \"clip\" is an image encoder (mmproj)", arch("clip"));
    refused("key \"general.architecture\" is missing, expected a string", |f| f.remove("general.architecture"));
    refused("is part 2 of a model split into 3 files; join them with `llama-gguf-split --merge` first", |f| {
        f.set("split.no", Meta::U32(1));
        f.set("split.count", Meta::U32(3));
    });
    refused(
        "holds a draft head only, without the model's trunk; use the whole model's file, which may include the head",
        |f| f.tensors.retain(|t| !t.name.starts_with("blk.") || t.name.starts_with("blk.4.")),
    );
    refused(
        "tensor \"blk.0.ffn_up.weight.scale\" scales another tensor, which OpenJet does not implement; use a file of another \
         quantisation",
        |f| f.add("blk.0.ffn_up.weight.scale", &[1], F32),
    );
}

#[test]
fn sizes() {
    let set = |key: &'static str, value: u32| move |f: &mut Gguf| f.set(key, Meta::U32(value));
    refused("key \"qwen35.embedding_length\" is missing, expected an integer from 0 to 18446744073709551615", |f| {
        f.remove("qwen35.embedding_length");
    });
    refused(
        "key \"qwen35.embedding_length\" is a string of 2 bytes, expected an integer from 0 to 18446744073709551615",
        |f| f.set("qwen35.embedding_length", Meta::Text("64")),
    );
    refused(
        "key \"qwen35.attention.layer_norm_rms_epsilon\" is u32 1, expected an f32",
        set("qwen35.attention.layer_norm_rms_epsilon", 1),
    );
    refused("key \"qwen35.attention.head_count\" is 0, expected a number from 1 to 1048576", |f| {
        f.set("qwen35.attention.head_count", Meta::U32(0));
    });
    for (key, value, expected) in [
        ("embedding_length", u32::MAX, "a number from 1 to 1048576"),
        ("context_length", 0, "a number from 1 to 2147483647"),
        ("attention.key_length", 48, "a multiple of 32"),
        ("rope.dimension_count", 15, "an even number up to the heads' width, 32"),
        ("rope.dimension_count", 34, "an even number up to the heads' width, 32"),
        ("ssm.conv_kernel", 1, "a number from 2 to 8"),
        ("ssm.state_size", 0, "a number from 1 to 1024"),
        ("ssm.inner_size", 127, "128 (4 value heads of width 32)"),
        ("nextn_predict_layers", 2, "a number from 0 to 1"),
        ("full_attention_interval", 0, "a number from 1 to 1048576"),
    ] {
        let key = format!("qwen35.{key}");
        let message = format!("key {key:?} is {value}, expected {expected}");
        refused_first(&message, |f| f.set(&key, Meta::U32(value)));
    }
    refused_first("key \"qwen35.attention.head_count\" is 3, expected a multiple of the 2 key-value heads", |f| {
        f.set("qwen35.attention.head_count", Meta::U32(3));
    });
    refused_first("key \"qwen35.ssm.time_step_rank\" is 8, expected 1, 2 or 3 times the 2 key heads", |f| {
        f.set("qwen35.ssm.time_step_rank", Meta::U32(8));
        f.set("qwen35.ssm.inner_size", Meta::U32(256));
    });
    refused_first("key \"qwen35.attention.value_length\" is 64, expected 32, the key heads' width", |f| {
        f.set("qwen35.attention.value_length", Meta::U32(64));
    });
    refused("key \"qwen35.block_count\" is 4000000000, expected a number from 1 to 71", |f| {
        f.set("qwen35.block_count", Meta::U32(4_000_000_000));
    });
    refused("key \"qwen35.block_count\" is 1, expected a trunk block at least, besides the draft head's", |f| {
        f.set("qwen35.block_count", Meta::U32(1));
    });
    refused("key \"tokenizer.ggml.tokens\" is an array of 1, expected 288 tokens, as many as embeddings", |f| {
        f.set("tokenizer.ggml.tokens", Meta::Texts(vec!["a".into()]));
    });
    for eps in [0.0, f32::NAN, f32::INFINITY] {
        refused_first("key \"qwen35.attention.layer_norm_rms_epsilon\" is ", |f| {
            f.set("qwen35.attention.layer_norm_rms_epsilon", Meta::F32(eps));
        });
        refused_first("key \"qwen35.rope.freq_base\" is ", |f| f.set("qwen35.rope.freq_base", Meta::F32(eps)));
    }
}

#[test]
fn several_problems_are_counted_and_listed() {
    let mut file = small();
    file.remove("qwen35.embedding_length");
    file.remove("qwen35.ssm.group_count");
    let message = load(&file).unwrap_err();
    assert!(message.ends_with("(and 1 more problem; `openjetctl inspect` lists all)"), "{message}");
    let inspection = Inspection::of(&open(&file).unwrap());
    assert_eq!(inspection.problems.len(), 2);
    assert!(inspection.problems[1].contains("qwen35.ssm.group_count"));
    assert!(!inspection.runnable && inspection.config.is_none());
}

#[test]
fn sizes_by_block() {
    let kv = "qwen35.attention.head_count_kv";
    let mut file = small();
    // Recurrent blocks have no heads; the draft head's block (the last) has.
    file.set(kv, Meta::U32s(vec![0, 0, 0, 2, 2]));
    file.set("qwen35.feed_forward_length", Meta::U32s(vec![96; 5]));
    file.set("qwen35.attention.recurrent_layers", Meta::Bools(vec![true, true, true, false, false]));
    file.remove("qwen35.full_attention_interval");
    assert_eq!(load(&file).unwrap().config.kv_heads, 2);
    refused("key \"qwen35.attention.head_count_kv\" is 4 in block 4, expected 2 as in the blocks before", |f| {
        f.set(kv, Meta::U32s(vec![0, 0, 0, 2, 4]));
    });
    refused("key \"qwen35.attention.head_count_kv\" is an array of 4, expected 5 numbers, one for each block", |f| {
        f.set(kv, Meta::U32s(vec![0, 0, 0, 2]));
    });
    let recurrent = |layers: &[bool]| {
        let layers = layers.to_vec();
        move |f: &mut Gguf| f.set("qwen35.attention.recurrent_layers", Meta::Bools(layers))
    };
    refused(
        "key \"qwen35.attention.recurrent_layers\" is an array of 2, expected 5 bools, one for each block",
        recurrent(&[true, false]),
    );
    refused(
        "key \"qwen35.attention.recurrent_layers\" is true for the draft head's block, expected false, since that block \
         attends",
        recurrent(&[true, true, true, false, true]),
    );
    refused(
        "key \"qwen35.block_count\" is 4, expected both attention and DeltaNet blocks among the trunk's",
        recurrent(&[false; 5]),
    );
}

#[test]
fn tensors() {
    refused("tensor \"blk.1.ssm_dt.bias\" is missing, expected shape 4", |f| {
        f.tensors.retain(|t| t.name != "blk.1.ssm_dt.bias");
    });
    refused("tensor \"token_embd.weight\" is missing, expected shape embedding length x vocabulary", |f| {
        f.tensors.retain(|t| t.name != "token_embd.weight");
    });
    refused("tensor \"blk.3.attn_q.weight\" has shape 64 x 128, expected 64 x 256", |f| {
        f.tensor("blk.3.attn_q.weight").dims = vec![64, 128];
    });
    refused("tensor \"blk.4.nextn.eh_proj.weight\" has shape 64 x 64, expected 128 x 64", |f| {
        f.tensor("blk.4.nextn.eh_proj.weight").dims = vec![64, 64];
    });
    refused("tensor \"blk.0.attn_norm.weight\" has type Q8_0, expected F32, F16 or BF16", |f| {
        f.tensor("blk.0.attn_norm.weight").ty = Q8_0;
    });
    refused(
        "tensor \"blk.0.ffn_up.weight\" has type IQ2_XXS, expected F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to \
         Q6_K, IQ4_NL or IQ4_XS; use a file of another quantisation",
        |f| f.tensor("blk.0.ffn_up.weight").ty = 16,
    );
}

#[test]
fn a_tokenizer_that_is_not_known_is_a_reason_too() {
    let report = |file: &Gguf| Inspection::of(&open(file).unwrap());
    let mut file = small();
    assert!(report(&file).runnable, "{:?}", report(&file).problems);
    file.set("tokenizer.ggml.pre", Meta::Text("llama-bpe"));
    assert_eq!(report(&file).problems, ["tokenizer.ggml.pre is \"llama-bpe\"; OpenJet knows qwen35 and qwen2"]);
    file.set("tokenizer.ggml.pre", Meta::Text("qwen2"));
    file.set("tokenizer.chat_template", Meta::Text("{% if %}"));
    assert!(report(&file).problems[0].starts_with("the chat template can't be read: "), "{:?}", report(&file).problems);
    file.set("general.architecture", Meta::Text("llama"));
    assert_eq!(report(&file).problems.len(), 1);
}

#[test]
fn optional_tensors_are_used() {
    let mut file = small();
    file.tensors.retain(|t| t.name != "output.weight" && !t.name.ends_with("shared_head_norm.weight"));
    file.add("blk.4.nextn.embed_tokens.weight", &[64, 288], Q8_0);
    file.add("v.patch_embd.weight", &[8], F32);
    let model = load(&file).unwrap();
    assert_eq!(model.output.name, "token_embd.weight");
    assert_eq!(model.unused_tensors, ["v.patch_embd.weight"]);
    let head = model.draft_head.unwrap();
    assert_eq!(head.embedding.name, "blk.4.nextn.embed_tokens.weight");
    assert_eq!(head.output.name, "token_embd.weight");
    assert_eq!(head.head_norm, model.output_norm);

    let shape = Shape { draft_head: false, value_heads: 6, ..Shape::SMALL };
    let model = load(&Gguf::model(&shape, false)).unwrap();
    assert!(model.draft_head.is_none());
    assert_eq!((model.config.value_heads, model.config.blocks), (6, 4));
}

#[test]
fn yarn_stretches_slow_pairs() {
    let mut file = Gguf::model(&Shape { head_dim: 64, rope_dims: 64, ..Shape::SMALL }, false);
    let plain = load(&file).unwrap().config;
    assert_eq!(plain.rope_scale, 1.0);
    file.set("qwen35.rope.scaling.type", Meta::Text("yarn"));
    let error = load(&file).unwrap_err();
    assert!(
        error.contains("\"qwen35.rope.scaling.original_context_length\"") || error.contains("scaling.factor"),
        "{error}"
    );
    file.set("qwen35.rope.scaling.factor", Meta::F32(4.0));
    file.set("qwen35.rope.scaling.original_context_length", Meta::U32(262_144));
    let yarn = load(&file).unwrap().config;
    assert!((yarn.rope_scale - 1.138_629_4).abs() < 1e-6, "{}", yarn.rope_scale);
    // In 262,144 tokens pair 14.2 turns 32 times and pair 21.1 turns once: pairs up to 14 stay, those from 22 on are
    // stretched by 4, and halfway between the factor is the mean of 1 and 1/4.
    for (i, (yarn, plain)) in yarn.rope_freqs.iter().zip(&plain.rope_freqs).enumerate() {
        let ratio = yarn / plain;
        match i {
            0..=14 => assert_eq!(ratio, 1.0, "pair {i}"),
            18 => assert!((ratio - 0.625).abs() < 1e-12, "pair {i}: {ratio}"),
            22.. => assert!((ratio - 0.25).abs() < 1e-12, "pair {i}: {ratio}"),
            _ => assert!(ratio > 0.25 && ratio < 1.0, "pair {i}: {ratio}"),
        }
    }
    file.set("qwen35.rope.scaling.type", Meta::Text("longrope"));
    let error = load(&file).unwrap_err();
    assert!(error.ends_with("is \"longrope\", expected \"none\" or \"yarn\""), "{error}");
    file.set("qwen35.rope.scaling.type", Meta::Text("none"));
    assert_eq!(load(&file).unwrap().config, plain);
    file.set("qwen35.rope.scaling.yarn_log_multiplier", Meta::F32(0.1));
    let error = load(&file).unwrap_err();
    assert!(
        error.ends_with("key \"qwen35.rope.scaling.yarn_log_multiplier\" is set, but OpenJet does not implement it")
    );
}

/// The largest model's file, with holes instead of numbers: sizes and counts as they are published.
#[test]
fn the_27b_has_the_published_inventory() {
    for (draft_head, tensors, bytes, parameters) in
        [(true, 866, 16_799_719_424, 27_320_697_856), (false, 851, 16_536_406_016, 26_895_998_464)]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("27b.gguf");
        Gguf::model(&Shape { draft_head, ..Shape::BIG }, true).write_with_holes(&path);
        let file = Arc::new(GgufFile::open(&path).unwrap());
        let inspection = Inspection::of(&file);
        assert!(inspection.runnable, "{:?}", inspection.problems);
        assert_eq!(inspection.tensors.len(), tensors);
        assert_eq!(inspection.tensor_bytes, bytes);
        assert_eq!(inspection.parameters, parameters);
        let config = inspection.config.unwrap();
        assert_eq!((config.conv_channels(), config.inner(), config.blocks), (10_240, 6144, 64));
        assert_eq!(config.kv_layers(), if draft_head { 17 } else { 16 });
    }
}

/// The fuzzer starts from the header of a model that loads.
#[test]
fn the_fuzzers_seed_is_the_small_model() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/model_file/small.gguf");
    if std::env::var_os("OPENJET_WRITE_SEEDS").is_some() {
        std::fs::write(&path, small().header().0).unwrap();
    }
    assert!(std::fs::read(&path).unwrap() == small().header().0, "run this test again with OPENJET_WRITE_SEEDS=1");
}
