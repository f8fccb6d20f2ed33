//! The sampler against its golden distributions, its invariants, and the law of what it draws.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

#[path = "support/chi_square.rs"]
mod chi_square;

use openjet_engine::sampling::{Distribution, History, SamplingError, SamplingParams, all_finite, logprobs};
use proptest::prelude::*;
use serde_json::Value;

fn plain(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, ..SamplingParams::default() }
}

fn distribution(logits: &[f32], params: &SamplingParams) -> Distribution {
    Distribution::new(logits, params, &History::default(), None).unwrap()
}

fn dense(d: &Distribution, vocab: usize) -> Vec<f64> {
    (0..vocab as u32).map(|t| f64::from(d.prob(t))).collect()
}

#[test]
fn golden_distributions() {
    let golden: Value = serde_json::from_str(include_str!("fixtures/golden/sampler.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 9);
    for (n, case) in cases.iter().enumerate() {
        let floats = |v: &Value| -> Vec<f64> { v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect() };
        let logits: Vec<f32> = floats(&case["logits"]).iter().map(|&x| x as f32).collect();
        let history: Vec<u32> = floats(&case["history"]).iter().map(|&x| x as u32).collect();
        let mut params = SamplingParams::default();
        for (name, value) in case["params"].as_object().unwrap() {
            let number = value.as_f64().unwrap_or_default() as f32;
            match name.as_str() {
                "temperature" => params.temperature = number,
                "top_k" => params.top_k = number as u32,
                "top_p" => params.top_p = number,
                "min_p" => params.min_p = number,
                "repetition_penalty" => params.repetition_penalty = number,
                "presence_penalty" => params.presence_penalty = number,
                "frequency_penalty" => params.frequency_penalty = number,
                "logit_bias" => {
                    let pairs = value.as_object().unwrap().iter();
                    params.logit_bias = pairs.map(|(t, b)| (t.parse().unwrap(), b.as_f64().unwrap() as f32)).collect();
                }
                other => panic!("unknown parameter {other}"),
            }
        }
        params.validate_for(logits.len()).unwrap();
        let history = History::new(&params, &[], &history);
        let found = Distribution::new(&logits, &params, &history, None).unwrap();
        for (token, expected) in floats(&case["probabilities"]).into_iter().enumerate() {
            let p = f64::from(found.prob(token as u32));
            // Ten decimals are printed; beyond that, a part in a million.
            assert!((p - expected).abs() <= 0.5e-10 + 1e-6 * expected, "case {n}, token {token}: {p}, not {expected}");
        }
    }
}

#[test]
fn repetition_sees_the_prompt_and_counts_only_the_output() {
    let params =
        SamplingParams { repetition_penalty: 2.0, frequency_penalty: 0.5, presence_penalty: 0.25, ..plain(1.0) };
    let logits = [1.0, 1.0, -1.0, 1.0, 1.0];
    let mut history = History::new(&params, &[0, 2], &[1]);
    history.push(1);
    history.push(2);
    let found = Distribution::new(&logits, &params, &history, None).unwrap();
    let expected = distribution(&[0.5, 0.5 - 1.25, -2.0 - 0.75, 1.0, 1.0], &plain(1.0));
    for t in 0..5 {
        assert!((found.prob(t) - expected.prob(t)).abs() < 1e-7, "token {t}");
    }
}

#[test]
fn greedy_is_the_argmax_after_penalties_bias_and_mask() {
    let logits = [1.0, 5.0, 5.0, 4.9];
    assert_eq!(distribution(&logits, &plain(0.0)), Distribution::one_hot(1));
    let penalised = SamplingParams { presence_penalty: 1.0, ..plain(0.0) };
    let history = History::new(&penalised, &[], &[1]);
    assert_eq!(Distribution::new(&logits, &penalised, &history, None), Ok(Distribution::one_hot(2)));
    let biased = SamplingParams { logit_bias: vec![(0, 4.5)], ..plain(0.0) };
    assert_eq!(distribution(&logits, &biased), Distribution::one_hot(0));
    let masked = |mask: &[u32]| Distribution::new(&logits, &plain(0.0), &History::default(), Some(mask));
    assert_eq!(masked(&[0b1001]), Ok(Distribution::one_hot(3)));
    assert_eq!(masked(&[0b10000]), Err(SamplingError::NothingAllowed));
    assert_eq!(masked(&[]), Err(SamplingError::NothingAllowed));
}

#[test]
fn spoilt_logits_are_found() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut logits = vec![0.5; 3000];
        assert!(all_finite(&logits));
        logits[2999] = bad;
        assert!(!all_finite(&logits));
        let found = Distribution::new(&logits, &plain(1.0), &History::default(), None);
        assert_eq!(found, Err(SamplingError::NotFinite));
    }
}

#[test]
fn bad_parameters_are_named() {
    let ok =
        SamplingParams { temperature: 1.0, top_p: 0.9, logit_bias: vec![(3, -100.0)], ..SamplingParams::default() };
    assert_eq!(ok.validate_for(4), Ok(()));
    let field = |change: &dyn Fn(&mut SamplingParams)| {
        let mut params = ok.clone();
        change(&mut params);
        params.validate_for(4).unwrap_err().field
    };
    assert_eq!(field(&|p| p.temperature = f32::NAN), "temperature");
    assert_eq!(field(&|p| p.temperature = -0.1), "temperature");
    assert_eq!(field(&|p| p.temperature = f32::INFINITY), "temperature");
    assert_eq!(field(&|p| p.top_p = 1.1), "top_p");
    assert_eq!(field(&|p| p.top_p = f32::NAN), "top_p");
    assert_eq!(field(&|p| p.min_p = -0.5), "min_p");
    assert_eq!(field(&|p| p.repetition_penalty = 0.0), "repetition_penalty");
    assert_eq!(field(&|p| p.presence_penalty = 2.5), "presence_penalty");
    assert_eq!(field(&|p| p.frequency_penalty = f32::NEG_INFINITY), "frequency_penalty");
    assert_eq!(field(&|p| p.logit_bias[0].1 = 101.0), "logit_bias");
    assert_eq!(field(&|p| p.logit_bias[0].0 = 4), "logit_bias");
    assert_eq!(field(&|p| p.logprobs = Some(21)), "logprobs");
}

#[test]
fn log_probabilities_are_the_models_own() {
    let logits = [1.0, 3.0, 3.0, -200.0];
    let found = logprobs(&logits, None, 0, 3);
    let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let expected = |l: f64| (l - sum.ln()) as f32;
    assert_eq!(found.chosen, expected(1.0));
    assert_eq!(found.top, [(1, expected(3.0)), (2, expected(3.0)), (0, expected(1.0))]);
    assert_eq!(logprobs(&logits, None, 3, 0).chosen, expected(-200.0));
    assert!(logprobs(&logits, None, 3, 0).top.is_empty());
    assert_eq!(logprobs(&[1e30, 0.0], None, 0, 1).chosen, 0.0);
}

#[test]
fn fillers_of_the_vocabulary_have_no_log_probability() {
    let found = logprobs(&[1.0, 9.0, 1.0, 50.0], Some(&[0b101]), 0, 4);
    let half = -std::f32::consts::LN_2;
    assert_eq!((found.chosen, found.top), (half, vec![(0, half), (2, half)]));
}

#[test]
fn extreme_temperatures_are_the_limits() {
    let logits = [0.0, 1.0, 2.0];
    assert_eq!(distribution(&logits, &plain(f32::MIN_POSITIVE)), Distribution::one_hot(2));
    assert_eq!(distribution(&logits, &plain(1e-45)), Distribution::one_hot(2));
    assert!((distribution(&logits, &plain(f32::MAX)).prob(0) - 1.0 / 3.0).abs() < 1e-6);
}

prop_compose! {
    fn any_params()(temperature in 0.05f32..3.0, top_k in 0u32..12, top_p in 0f32..=1.0, min_p in 0f32..=1.0)
        -> SamplingParams {
        SamplingParams { temperature, top_k, top_p, min_p, ..SamplingParams::default() }
    }
}

proptest! {
    #[test]
    fn probabilities_sum_to_one_and_filters_only_remove(
        logits in prop::collection::vec(-20f32..20.0, 1..60), params in any_params(), seed: u64,
    ) {
        let filtered = distribution(&logits, &params);
        let whole = distribution(&logits, &plain(params.temperature));
        let sum: f64 = filtered.iter().map(|(_, p)| f64::from(p)).sum();
        prop_assert!((sum - 1.0).abs() < 1e-6);
        prop_assert!(filtered.iter().all(|(t, p)| p > 0.0 && p >= whole.prob(t) * (1.0 - 1e-6)));
        prop_assert!(filtered.iter().zip(filtered.iter().skip(1)).all(|(a, b)| a.0 < b.0));
        prop_assert!(params.top_k == 0 || filtered.iter().len() <= params.top_k as usize);
        let greedy = distribution(&logits, &plain(0.0)).sample(seed, 7);
        prop_assert!(filtered.iter().all(|(_, p)| p <= filtered.prob(greedy)));
        prop_assert!(filtered.prob(filtered.sample(seed, 7)) > 0.0);
        // A token that stays out-ranks every token that goes.
        let least = filtered.iter().map(|(t, _)| logits[t as usize]).fold(f32::INFINITY, f32::min);
        prop_assert!(logits.iter().enumerate().all(|(t, &l)| l <= least || filtered.prob(t as u32) > 0.0));
    }

    #[test]
    fn tighter_filters_keep_less(logits in prop::collection::vec(-5f32..5.0, 1..60), params in any_params()) {
        let kept = |params: &SamplingParams| distribution(&logits, params).iter().len();
        let tighter = [
            SamplingParams { top_p: params.top_p * 0.7, ..params.clone() },
            SamplingParams { min_p: params.min_p.midpoint(1.0), ..params.clone() },
            SamplingParams { top_k: if params.top_k == 0 { 12 } else { params.top_k.div_ceil(2) }, ..params.clone() },
        ];
        for tight in &tighter {
            prop_assert!(kept(tight) <= kept(&params), "{:?}", tight);
        }
    }
}

const VOCAB: usize = 12;
const TARGET: [f32; VOCAB] = [2.0, -1.0, 0.5, 1.7, -3.0, 0.0, 1.1, -0.4, 2.3, -2.0, 0.9, 0.2];
const DRAFT: [f32; VOCAB] = [0.3, 0.8, 2.1, 1.5, -1.0, -2.0, 1.3, 0.4, 1.0, 0.0, -1.5, 2.2];
const DRAWS: u32 = 200_000;

/// p-value of what is drawn at `DRAWS` positions against another distribution, `law`.
fn drawn(p: &Distribution, seed: u64, law: &Distribution) -> f64 {
    let mut counts = vec![0; VOCAB];
    (0..DRAWS).for_each(|position| counts[p.sample(seed, position) as usize] += 1);
    chi_square::p_value(&counts, &dense(law, VOCAB))
}

#[test]
fn draws_follow_the_distribution() {
    for (i, temperature) in [0.4, 1.0, 1.8].into_iter().enumerate() {
        let tight = SamplingParams { top_k: 6, top_p: 0.95, min_p: 0.02, ..plain(temperature) };
        for (j, params) in [plain(temperature), tight].iter().enumerate() {
            let p = distribution(&TARGET, params);
            let value = drawn(&p, (i * 2 + j) as u64, &p);
            assert!(value > 1e-3, "{params:?}: {value}");
            // So many draws tell it from one that is not far off.
            let near = distribution(&TARGET, &SamplingParams { temperature: 1.1 * temperature, ..params.clone() });
            assert!(drawn(&p, (i * 2 + j) as u64, &near) < 1e-6, "{params:?}");
        }
    }
    assert!((0..1000).all(|position| distribution(&TARGET, &plain(0.0)).sample(3, position) == 8));
}

/// What positions, seeds and prefixes of the vocabulary draw has nothing to do with each other.
#[test]
fn draws_of_different_positions_and_seeds_are_independent() {
    let p = distribution(&TARGET, &plain(1.5));
    let pairs: [(&str, &dyn Fn(u32) -> u32); 3] = [
        ("next position", &|i| p.sample(5, i + 1)),
        ("next seed", &|i| p.sample(6, i)),
        ("seed in its upper half", &|i| p.sample(5 | 1 << 32, i)),
    ];
    let law: Vec<f64> =
        dense(&p, VOCAB).iter().flat_map(|a| dense(&p, VOCAB).into_iter().map(move |b| a * b)).collect();
    for (name, other) in pairs {
        let mut counts = vec![0; VOCAB * VOCAB];
        (0..DRAWS).for_each(|i| counts[p.sample(5, i) as usize * VOCAB + other(i) as usize] += 1);
        let value = chi_square::p_value(&counts, &law);
        assert!(value > 1e-3, "{name}: {value}");
    }
}

/// A draft head that is near the model mostly draws the same token, and no token is drawn by neither of them.
#[test]
fn distributions_that_are_alike_draw_the_same_token() {
    for (i, temperature) in [0.4, 1.0, 1.8].into_iter().enumerate() {
        let near: Vec<f32> = TARGET.iter().zip(DRAFT).map(|(t, d)| t + 0.2 * (d - t)).collect();
        let pairs = [
            (distribution(&TARGET, &plain(temperature)), distribution(&near, &plain(temperature))),
            (distribution(&TARGET, &plain(temperature)), distribution(&DRAFT, &plain(temperature))),
            (
                distribution(&TARGET, &SamplingParams { top_k: 4, ..plain(temperature) }),
                distribution(&DRAFT, &SamplingParams { top_p: 0.9, ..plain(temperature) }),
            ),
        ];
        for (p, q) in pairs {
            let distance = dense(&p, VOCAB).iter().zip(dense(&q, VOCAB)).map(|(p, q)| (p - q).max(0.0)).sum::<f64>();
            let same = (0..DRAWS).filter(|&at| p.sample(i as u64, at) == q.sample(i as u64, at)).count();
            let share = same as f64 / f64::from(DRAWS);
            // Four standard deviations at most.
            let slack = 2.0 / f64::from(DRAWS).sqrt();
            assert!(share >= (1.0 - distance) / (1.0 + distance) - slack, "{share} of a distance of {distance}");
            assert!(share <= 1.0 - distance + slack, "{share} of a distance of {distance}");
        }
        let p = distribution(&TARGET, &plain(temperature));
        assert!((0..1000).all(|at| p.sample(1, at) == p.clone().sample(1, at)));
    }
}
