//! The sampler against its golden distributions, its invariants, and the exactness of speculative sampling.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

#[path = "support/chi_square.rs"]
mod chi_square;

use openjet_engine::sampling::{
    Distribution, History, Purpose, SamplingError, SamplingParams, Verdict, all_finite, logprobs, residual, uniform,
    verify,
};
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
        logits in prop::collection::vec(-20f32..20.0, 1..60), params in any_params(), u in 0f32..1.0,
    ) {
        let filtered = distribution(&logits, &params);
        let whole = distribution(&logits, &plain(params.temperature));
        let sum: f64 = filtered.iter().map(|(_, p)| f64::from(p)).sum();
        prop_assert!((sum - 1.0).abs() < 1e-6);
        prop_assert!(filtered.iter().all(|(t, p)| p > 0.0 && p >= whole.prob(t) * (1.0 - 1e-6)));
        prop_assert!(filtered.iter().zip(filtered.iter().skip(1)).all(|(a, b)| a.0 < b.0));
        prop_assert!(params.top_k == 0 || filtered.iter().len() <= params.top_k as usize);
        let greedy = distribution(&logits, &plain(0.0)).sample(u);
        prop_assert!(filtered.iter().all(|(_, p)| p <= filtered.prob(greedy)));
        prop_assert!(filtered.prob(filtered.sample(u)) > 0.0);
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

    #[test]
    fn a_residual_is_a_distribution_over_what_the_draft_underrates(
        a in prop::collection::vec(-5f32..5.0, 20), b in prop::collection::vec(-5f32..5.0, 20), params in any_params(),
    ) {
        let (p, q) = (distribution(&a, &params), distribution(&b, &plain(1.0)));
        let r = residual(&p, &q);
        prop_assert!((r.iter().map(|(_, p)| f64::from(p)).sum::<f64>() - 1.0).abs() < 1e-6);
        prop_assert!(r.iter().all(|(t, _)| p.prob(t) > q.prob(t)));
    }
}

/// How a token is decided; the right way and two that look plausible.
#[derive(Clone, Copy)]
enum Scheme {
    Exact,
    /// Draws from p, not from the residual, after a rejection.
    NoResidual,
    /// Uses the number of the accept test again to draw from the residual.
    SharedNumber,
}

/// p-value of `draws` tokens, decided speculatively with drafts from `q`, against `p`.
fn speculate(p: &Distribution, q: &Distribution, vocab: usize, seed: u64, scheme: Scheme) -> f64 {
    let mut counts = vec![0_u64; vocab];
    let rest = residual(p, q);
    for position in 0..200_000 {
        let draft = q.sample(uniform(seed, position, Purpose::Draft));
        let test = uniform(seed, position, Purpose::Accept);
        let fresh = uniform(seed, position, Purpose::Sample);
        let token = match (verify(p, draft, q, test), scheme) {
            (Verdict::Accept, _) => draft,
            (Verdict::Reject, Scheme::Exact) => rest.sample(fresh),
            (Verdict::Reject, Scheme::NoResidual) => p.sample(fresh),
            (Verdict::Reject, Scheme::SharedNumber) => rest.sample(test),
        };
        counts[token as usize] += 1;
    }
    chi_square::p_value(&counts, &dense(p, vocab))
}

const VOCAB: usize = 12;
const TARGET: [f32; VOCAB] = [2.0, -1.0, 0.5, 1.7, -3.0, 0.0, 1.1, -0.4, 2.3, -2.0, 0.9, 0.2];
const DRAFT: [f32; VOCAB] = [0.3, 0.8, 2.1, 1.5, -1.0, -2.0, 1.3, 0.4, 1.0, 0.0, -1.5, 2.2];

#[test]
fn speculative_sampling_is_exact() {
    for (i, temperature) in [0.4, 1.0, 1.8].into_iter().enumerate() {
        let p = distribution(&TARGET, &plain(temperature));
        let filtered =
            distribution(&TARGET, &SamplingParams { top_k: 6, top_p: 0.95, min_p: 0.02, ..plain(temperature) });
        let q = distribution(&DRAFT, &plain(temperature));
        let only = |mask: u32, logits: &[f32]| {
            Distribution::new(logits, &plain(temperature), &History::default(), Some(&[mask])).unwrap()
        };
        let pairs = [
            ("ordinary", p.clone(), q.clone()),
            ("equal", p.clone(), p.clone()),
            ("target filtered", filtered.clone(), q.clone()),
            (
                "both filtered",
                filtered.clone(),
                distribution(&DRAFT, &SamplingParams { top_k: 3, ..plain(temperature) }),
            ),
            ("disjoint", only(0b0101_0101_0101, &TARGET), only(0b1010_1010_1010, &DRAFT)),
            ("draft certain and likely", p.clone(), Distribution::one_hot(8)),
            ("draft certain and unlikely", p.clone(), Distribution::one_hot(4)),
            ("draft certain and excluded", filtered, Distribution::one_hot(4)),
            ("greedy", distribution(&TARGET, &plain(0.0)), q),
        ];
        for (j, (name, p, q)) in pairs.iter().enumerate() {
            let value = speculate(p, q, VOCAB, (i * 100 + j) as u64, Scheme::Exact);
            assert!(value > 1e-3, "temperature {temperature}, {name}: p-value {value}");
        }
    }
}

/// The test above can tell: the same counts for schemes that are slightly wrong fail it by far.
#[test]
fn inexact_schemes_fail_the_same_test() {
    for temperature in [0.4, 1.0, 1.8] {
        let (p, q) = (distribution(&TARGET, &plain(temperature)), distribution(&DRAFT, &plain(temperature)));
        for scheme in [Scheme::NoResidual, Scheme::SharedNumber] {
            assert!(speculate(&p, &q, VOCAB, 1, scheme) < 1e-9);
        }
    }
}

#[test]
fn plain_sampling_follows_the_distribution() {
    let p = distribution(&TARGET, &SamplingParams { top_p: 0.97, ..plain(1.2) });
    let mut counts = vec![0; VOCAB];
    for position in 0..200_000 {
        counts[p.sample(uniform(9, position, Purpose::Sample)) as usize] += 1;
    }
    let value = chi_square::p_value(&counts, &dense(&p, VOCAB));
    assert!(value > 1e-3, "{value}");
}

/// At temperature 0 a draft passes just when it is the greedy token, and a rejection yields that token, whatever `u` is.
#[test]
fn greedy_is_a_limit_of_the_same_path() {
    let p = distribution(&TARGET, &plain(0.0));
    let q = distribution(&DRAFT, &plain(0.7));
    for draft in 0..VOCAB as u32 {
        for u in [0.0, 0.25, 0.999_999_94] {
            for q in [&q, &Distribution::one_hot(draft)] {
                assert_eq!(verify(&p, draft, q, u) == Verdict::Accept, draft == 8);
                if draft != 8 {
                    assert_eq!(residual(&p, q).sample(u), 8);
                }
            }
        }
    }
}
