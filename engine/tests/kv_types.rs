//! What each type of key-value cell changes stays within bounds (docs/performance.md has the measured figures).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;

use common::*;
use openjet_engine::backend::KvType;

#[test]
fn r_llamacpp_28455_every_cell_type_is_as_close_as_its_precision_allows() {
    let model = model(TINY);
    let prompt = golden(TINY).0.prompts.into_iter().find(|p| p.name == "long").unwrap().tokens;
    let logits = |kv| {
        let mut backend = backend(&model, kv, 1);
        let mut seen = Seen::default();
        Conversation::new(0).read(&mut backend, &prompt, 512, &Choice::greedy(), &mut seen);
        backend.logits(&seen.hidden)
    };
    let exact = logits(KvType::F32);
    for (kv, at_least, at_most) in [(KvType::F16, 1e-5, 0.02), (KvType::Q8_0, 1e-3, 0.3), (KvType::Q4_0, 1e-2, 2.5)] {
        let difference = max_difference(&exact, &logits(kv));
        println!("{kv:?}: logits differ by at most {difference:.1e}");
        assert!((at_least..at_most).contains(&difference), "{kv:?}: {difference}");
    }
}
