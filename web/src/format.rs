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
    if tokens_per_second < 10.0 { format!("{tokens_per_second:.1}") } else { format!("{tokens_per_second:.0}") }
}

/// A duration given in milliseconds.
pub(crate) fn time(milliseconds: f64) -> String {
    if milliseconds < 1000.0 { format!("{milliseconds:.0} ms") } else { format!("{:.1} s", milliseconds / 1000.0) }
}

/// `part` of `whole` in percent; a dash if there is no whole.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "–".to_owned() } else { format!("{:.0} %", part as f64 * 100.0 / whole as f64) }
}
