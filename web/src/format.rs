//! Numbers for people.

/// A count with a thin space between groups of three digits.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Tokens per second.
pub(crate) fn rate(tokens_per_second: f64) -> String {
    if tokens_per_second < 9.95 { format!("{tokens_per_second:.1}") } else { format!("{tokens_per_second:.0}") }
}

/// A duration given in milliseconds.
pub(crate) fn time(milliseconds: f64) -> String {
    match milliseconds {
        ..999.5 => format!("{milliseconds:.0} ms"),
        ..59_950.0 => format!("{:.1} s", milliseconds / 1000.0),
        _ => format!("{:.0} min", milliseconds / 60_000.0),
    }
}

/// `part` of `whole` in percent; a dash if there is no whole.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "–".to_owned() } else { format!("{:.0} %", part as f64 * 100.0 / whole as f64) }
}

/// A number of bytes, in units of 1024.
pub(crate) fn bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        ..1024.0 => format!("{bytes:.0} B"),
        ..1_048_576.0 => format!("{:.0} KiB", bytes / 1024.0),
        ..1_073_741_824.0 => format!("{:.1} MiB", bytes / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes / 1_073_741_824.0),
    }
}

/// A large number with a word for its size, as in 27.0 B.
pub(crate) fn short(number: u64) -> String {
    let number = number as f64;
    match number {
        ..1e6 => format!("{:.0} K", number / 1e3),
        ..1e9 => format!("{:.1} M", number / 1e6),
        _ => format!("{:.1} B", number / 1e9),
    }
}

/// `value` as `write` puts it; a dash where there is none.
pub(crate) fn or_dash<T>(value: Option<T>, write: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), write)
}
