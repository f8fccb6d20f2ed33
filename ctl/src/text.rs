//! Numbers and tables for people.

use std::fmt::Display;
use std::io::Write;

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

/// Rows of cells under a heading, each column as wide as its widest cell; numbers (cells that begin with a digit) to the
/// right.
pub(crate) fn table<R: AsRef<[String]>>(heading: &[&str], rows: &[R]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column)).map(|cell| cell.chars().count());
        cells.chain(heading.get(column).map(|h| h.len())).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..heading.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, &width)| {
            if cell.starts_with(|c: char| c.is_ascii_digit()) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:width$}")
            }
        });
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let body = rows.iter().map(|row| line(&mut row.as_ref().iter().map(String::as_str)));
    std::iter::once(line(&mut heading.iter().copied())).chain(body).collect()
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

    #[test]
    fn tables_line_up() {
        let rows = [["a".to_owned(), "10".to_owned()], ["long".to_owned(), "9".to_owned()]];
        assert_eq!(table(&["what", "n"], &rows), "what  n\na     10\nlong   9\n");
    }
}
