//! Angles of the rotary position embedding, with `YaRN`.

use super::header::Header;

/// Angles per position and the factor on cosine and sine.
#[derive(Debug, PartialEq)]
pub(super) struct Rope {
    pub(super) freqs: Vec<f64>,
    pub(super) scale: f32,
}

/// What a file says about contexts that are longer than the model was trained for (`YaRN`).
struct Yarn {
    /// The longer context over the original one.
    factor: f64,
    original_context: f64,
    /// Rotations within the original context above which a pair keeps its angle.
    beta_fast: f64,
    /// Rotations below which a pair's angle is divided by `factor`.
    beta_slow: f64,
}

const SCALING: &str = "rope.scaling.";
const SCALING_KEYS: [&str; 7] =
    ["type", "factor", "original_context_length", "attn_factor", "finetuned", "yarn_beta_fast", "yarn_beta_slow"];

/// Reads the base and the scaling keys for `dims` rotated dimensions, an even number.
pub(super) fn read(header: &mut Header<'_>, dims: usize) -> Option<Rope> {
    let base = f64::from(header.required::<f32>("rope.freq_base")?);
    if !(base > 1.0 && base.is_finite()) {
        return header.bad("rope.freq_base", base, "a number over 1");
    }
    let prefix = Header::key(SCALING);
    let unknown: Vec<_> = header
        .file
        .metadata()
        .filter_map(|(key, _)| key.strip_prefix(&prefix).filter(|name| !SCALING_KEYS.contains(name)))
        .map(|name| format!("{SCALING}{name}"))
        .collect();
    for name in &unknown {
        header.unknown(name);
    }
    match header.optional::<&str>("rope.scaling.type")? {
        None | Some("none") => Some(rope(dims, base, None, 1.0)),
        Some("yarn") => {
            let yarn = Yarn {
                factor: positive(header, "factor", None)?,
                original_context: header.size("rope.scaling.original_context_length", 1..=u64::from(u32::MAX))? as f64,
                beta_fast: positive(header, "yarn_beta_fast", Some(32.0))?,
                beta_slow: positive(header, "yarn_beta_slow", Some(1.0))?,
            };
            let attn_factor = positive(header, "attn_factor", Some(1.0))?;
            Some(rope(dims, base, Some(&yarn), attn_factor))
        }
        Some(other) => header.bad("rope.scaling.type", format!("{other:?}"), "\"none\" or \"yarn\""),
    }
}

/// A positive number under `rope.scaling.`, required without `default`.
fn positive(header: &mut Header<'_>, name: &str, default: Option<f64>) -> Option<f64> {
    let name = format!("{SCALING}{name}");
    let value = match default {
        Some(default) => header.optional::<f32>(&name)?.map_or(default, f64::from),
        None => header.required::<f32>(&name)?.into(),
    };
    if value > 0.0 && value < 1e6 { Some(value) } else { header.bad(&name, value, "a number over 0 and under 1000000") }
}

/// Pair `i` turns by `base^(-2 i / dims)` a position. `YaRN` divides the angles of slow pairs by its factor, keeps those of
/// fast pairs and blends between (Peng et al., "`YaRN`: Efficient Context Window Extension of Large Language Models").
fn rope(dims: usize, base: f64, yarn: Option<&Yarn>, attn_factor: f64) -> Rope {
    let plain = |i: usize| base.powf(-2.0 * i as f64 / dims as f64);
    let Some(Yarn { factor, original_context, beta_fast, beta_slow }) = yarn else {
        return Rope { freqs: (0..dims / 2).map(plain).collect(), scale: 1.0 };
    };
    // The (fractional) pair that turns `rotations` times within the original context.
    let pair = |rotations: f64| {
        dims as f64 * (original_context / (rotations * std::f64::consts::TAU)).ln() / (2.0 * base.ln())
    };
    let low = pair(*beta_fast).floor().max(0.0);
    let high = pair(*beta_slow).ceil().min(dims as f64 - 1.0);
    let freqs = (0..dims / 2).map(|i| {
        let slow = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        plain(i) * (slow / factor + (1.0 - slow))
    });
    Rope { freqs: freqs.collect(), scale: (attn_factor * (1.0 + 0.1 * factor.ln())) as f32 }
}
