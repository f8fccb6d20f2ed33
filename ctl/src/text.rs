//! Numbers and tables for people.

use std::fmt::Display;
use std::io::Write;

pub(crate) use openjet_bench::table;

use crate::failure::Failure;

/// Bytes in the largest binary unit that leaves a whole part: `15.6 GiB`.
pub(crate) fn bytes(n: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64 / 1024.0;
    if value < 1.0 {
        return format!("{n} B");
    }
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

/// A count in thousands, millions or billions: `27.3 B`.
pub(crate) fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{:.1} k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

/// Seconds as `1 d 2 h`, `3 min 4 s` and the like: the two largest units.
pub(crate) fn duration(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// `value` as JSON for programs, on lines of its own.
pub(crate) fn json(value: &impl serde::Serialize, out: &mut Vec<u8>) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)?;
    Ok(())
}

/// `text`, or a dash for nothing.
pub(crate) fn or_dash(text: Option<impl Display>) -> String {
    text.map_or_else(|| "-".into(), |text| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(16_799_719_424), "15.6 GiB");
        assert_eq!(count(27_320_697_856), "27.32 B");
        assert_eq!(count(8192), "8192");
        assert_eq!(duration(3.9), "3 s");
        assert_eq!(duration(90_061.0), "1 d 1 h");
    }
}
