//! The memory plan against the published arithmetic of the 27B.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/gguf.rs"]
mod gguf;

use std::sync::Arc;

use gguf::{Gguf, Q8_0, Shape};
use openjet_engine::backend::KvType;
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::plan::{PlanOptions, page_bytes, plan, state_bytes, workspace_estimate};
use openjet_engine::step::PAGE_TOKENS;

/// A model of the 27B's file, with holes instead of numbers.
fn big() -> (Model, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("27b.gguf");
    Gguf::model(&Shape::BIG, true).write_with_holes(&path);
    (Model::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap(), dir)
}

fn options(pool_tokens: usize, kv: KvType) -> PlanOptions {
    PlanOptions { agents: 1, pool_tokens, kv, draft: 3, embedding_on_host: false, workspace: 0, driver: 0, reserve: 0 }
}

fn gib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / f64::from(1 << 30))
}

#[test]
fn the_27b_takes_what_its_table_says() {
    let (model, _dir) = big();
    // Pool tokens, type; GiB of the pool, in all, with 3 more planes of state, with the embedding table on the host.
    for (tokens, kv, pool, total, planes, host) in [
        (135_168, KvType::F16, "8.77", "24.56", "25.00", "23.89"),
        (135_168, KvType::Q8_0, "4.66", "20.45", "20.89", "19.78"),
        (135_168, KvType::Q4_0, "2.47", "18.26", "18.70", "17.59"),
        (150_528, KvType::F16, "9.76", "25.55", "25.99", "24.89"),
        (150_528, KvType::Q8_0, "5.19", "20.98", "21.42", "20.31"),
        (150_528, KvType::Q4_0, "2.75", "18.54", "18.98", "17.87"),
        (262_144, KvType::F16, "17.00", "32.79", "33.23", "32.13"),
        (262_144, KvType::Q8_0, "9.03", "24.82", "25.26", "24.16"),
        (262_144, KvType::Q4_0, "4.78", "20.57", "21.01", "19.91"),
    ] {
        let options = options(tokens, kv);
        let one = plan(&model, &options);
        assert_eq!(gib(one.parts[1].bytes), pool, "pool of {tokens} {kv:?}");
        assert_eq!(gib(one.total), total, "{tokens} {kv:?}");
        assert_eq!(gib(plan(&model, &PlanOptions { agents: 4, ..options }).total), planes, "{tokens} {kv:?}");
        let on_host = plan(&model, &PlanOptions { embedding_on_host: true, ..options });
        assert_eq!(gib(on_host.total), host, "{tokens} {kv:?}");
        assert_eq!(on_host.host, 715_161_600);
        assert_eq!(on_host.total + on_host.host, one.total);
    }
}

#[test]
fn parts_of_the_27b_to_the_byte() {
    let (model, _dir) = big();
    let c = &model.config;
    for (kv, trunk, with_head) in
        [(KvType::F16, 65_536, 69_632), (KvType::Q8_0, 34_816, 36_992), (KvType::Q4_0, 18_432, 19_584)]
    {
        assert_eq!(page_bytes(c, kv, false), PAGE_TOKENS as u64 * trunk, "{kv:?}");
        assert_eq!(page_bytes(c, kv, true), PAGE_TOKENS as u64 * with_head, "{kv:?}");
    }
    assert_eq!(page_bytes(c, KvType::F32, true), 2 * page_bytes(c, KvType::F16, true));
    assert_eq!(state_bytes(c), 150_994_944 + 5_898_240);
    // 149.625 MiB.
    assert_eq!(state_bytes(c) * 8, 1197 << 20);

    let with_head = plan(&model, &options(64, KvType::F16));
    assert_eq!(with_head.parts[0].bytes, 16_799_719_424);
    let without = plan(&model, &PlanOptions { draft: 0, ..options(64, KvType::F16) });
    assert_eq!(with_head.parts[0].bytes - without.parts[0].bytes, 263_313_408);
    assert_eq!(without.page_bytes, page_bytes(c, KvType::F16, false));
    // Logits of 32 rows, 24 draft distributions, 108 MiB of replayed rows, activations of a chunk.
    let workspace = workspace_estimate(c, 8, 3);
    assert!((256 << 20..512 << 20).contains(&workspace), "{workspace}");
}

#[test]
fn everything_asked_for_is_counted() {
    let model =
        Model::load(Arc::new(GgufFile::from_bytes("m", Gguf::model(&Shape::SMALL, false).bytes()).unwrap())).unwrap();
    let base = PlanOptions { workspace: 1000, driver: 200, reserve: 30, agents: 3, ..options(65, KvType::Q8_0) };
    let plan_of = |options: &PlanOptions| plan(&model, options);
    let one = plan_of(&base);
    // 65 tokens need two pages.
    assert_eq!((one.pages, one.parts[1].bytes), (2, 2 * one.page_bytes));
    assert_eq!(one.total, one.parts.iter().map(|part| part.bytes).sum::<u64>());
    assert_eq!(one.parts[2].bytes, 3 * state_bytes(&model.config));
    assert_eq!(one.parts[3..].iter().map(|part| part.bytes).collect::<Vec<_>>(), [1000, 200, 30]);
    // The weights of this file are all its tensors.
    let bytes: usize = open_small().tensors().iter().map(|tensor| tensor.bytes.len()).sum();
    assert_eq!(one.parts[0].bytes, bytes as u64);

    assert!(one.fits(one.total) && !one.fits(one.total - 1));
    assert_eq!(one.largest_pool(one.total), 128);
    assert_eq!(one.largest_pool(one.total - 1), 64);
    assert_eq!(one.largest_pool(one.total + 5 * one.page_bytes), 7 * 64);
    assert_eq!(one.largest_pool(0), 0);
    let pool = one.largest_pool(1 << 30);
    assert!(plan_of(&PlanOptions { pool_tokens: pool as usize, ..base }).fits(1 << 30));
    assert!(!plan_of(&PlanOptions { pool_tokens: pool as usize + 64, ..base }).fits(1 << 30));
}

fn open_small() -> GgufFile {
    GgufFile::from_bytes("m", Gguf::model(&Shape::SMALL, false).bytes()).unwrap()
}

#[test]
fn a_tied_table_stays_and_an_own_one_is_counted() {
    let mut file = Gguf::model(&Shape::SMALL, false);
    let load = |file: &Gguf| Model::load(Arc::new(GgufFile::from_bytes("m", file.bytes()).unwrap())).unwrap();
    let table = load(&file).embedding.bytes().len() as u64;
    file.tensors.retain(|tensor| tensor.name != "output.weight");
    let on_host = PlanOptions { embedding_on_host: true, ..options(64, KvType::F16) };
    let tied = plan(&load(&file), &on_host);
    assert_eq!(tied.host, 0);
    file.add("blk.4.nextn.embed_tokens.weight", &[64, 288], Q8_0);
    file.add("blk.4.nextn.shared_head_head.weight", &[64, 288], Q8_0);
    let own = plan(&load(&file), &on_host);
    assert_eq!((own.host, own.total), (table, tied.total + table));
    // Without drafts neither is of use.
    let none = PlanOptions { draft: 0, ..on_host };
    let mut without = file.clone();
    without.tensors.retain(|tensor| !tensor.name.contains("embed_tokens") && !tensor.name.contains("shared_head_head"));
    assert_eq!(plan(&load(&file), &none), plan(&load(&without), &none));
}
