//! What templates expect of Python: `json.dumps` as the originals call it, and `strftime`.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// The filter `tojson`: `json.dumps(value, ensure_ascii=False)`, which keeps the order of keys, puts a space after `,` and
/// `:`, and escapes nothing for HTML. Takes `indent`, `ensure_ascii`, `sort_keys` and `separators` as Python does.
#[allow(clippy::needless_pass_by_value, reason = "a filter takes its arguments so")]
pub(super) fn tojson(state: &State, value: &Value, indent: Option<usize>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = indent.or(kwargs.get::<Option<usize>>("indent")?);
    let separators = match kwargs.get::<Option<Vec<String>>>("separators")? {
        Some(pair) => <[String; 2]>::try_from(pair)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "separators must be a pair of strings"))?,
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(String::from),
    };
    let [item_separator, key_separator] = separators;
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let mut dumper =
        Dumper { out: String::new(), state, indent, item_separator, key_separator, ensure_ascii, sort_keys };
    dumper.value(value, 0)?;
    Ok(Value::from_safe_string(dumper.out))
}

/// Deepest nesting that is written.
const MAX_DEPTH: usize = 128;

struct Dumper<'a> {
    out: String,
    state: &'a State<'a, 'a>,
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl Dumper<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.state.consume_fuel(1)?;
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items('[', ']', &items, depth, |d, item| d.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.items('{', '}', &keys, depth, |d, key| {
                    // Keys that are no strings are written as such, as Python does.
                    let name = match key.kind() {
                        ValueKind::None => "null".into(),
                        ValueKind::Bool => key.is_true().to_string(),
                        _ => key.to_string(),
                    };
                    d.string(&name)?;
                    d.out.push_str(&d.key_separator);
                    d.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("tojson: {kind} can't be written as JSON"),
                ));
            }
        }
        Ok(())
    }

    fn items(
        &mut self,
        open: char,
        close: char,
        items: &[Value],
        depth: usize,
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.out.push_str(&self.item_separator);
            }
            self.new_line(depth + 1)?;
            write(self, item)?;
        }
        if !items.is_empty() {
            self.new_line(depth)?;
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = self.indent {
            let spaces = indent.saturating_mul(depth);
            self.state.consume_fuel(spaces as u64 / 64)?;
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', spaces));
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            write!(self.out, "{value}").map_err(|_| Error::from(ErrorKind::WriteFailure))
        } else {
            self.out.push_str(&float(f64::try_from(value.clone())?));
            Ok(())
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(text.len() as u64 / 64)?;
        let quoted = serde_json::Value::from(text).to_string();
        if self.ensure_ascii {
            for c in quoted.chars() {
                if c.is_ascii() {
                    self.out.push(c);
                } else {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            }
        } else {
            self.out.push_str(&quoted);
        }
        Ok(())
    }
}

/// A float as Python's `json` writes it: the shortest digits that read back the same, with an exponent outside of 1e-4 to
/// 1e16.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    // Rust's `Debug` has the same digits and limits, but writes 1e16 for 1e+16.
    let text = format!("{x:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => format!("{digits}e{:+03}", exponent.parse::<i32>().unwrap_or_default()),
        None => text,
    }
}

/// The function `strftime_now`: the present time, in UTC.
pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    strftime(format, now).map_err(|directive| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now: %{directive} is not supported"))
    })
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats `seconds` since 1970; the directive that is unknown otherwise.
fn strftime(format: &str, seconds: u64) -> Result<String, String> {
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(days);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[(days as usize + 4) % 7]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        let text = match directive {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('B') => month_name.into(),
            Some('b') => month_name[..3].into(),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('A') => day_name.into(),
            Some('a') => day_name[..3].into(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".into(),
            Some('z') => "+0000".into(),
            Some('%') => "%".into(),
            other => return Err(other.map(String::from).unwrap_or_default()),
        };
        out.push_str(&text);
    }
    Ok(out)
}

/// Year, month and day of a day since 1970-01-01 in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years begin in March, so that the leap day is the last; eras of 400 years have 146,097 days.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        for (x, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123.456, "123.456"),
        ] {
            assert_eq!(float(x), text);
        }
    }

    #[test]
    fn dates() {
        let at = |seconds| strftime("%Y-%m-%d %B %b %A %a %H:%M:%S %I %p %y %%", seconds);
        assert_eq!(at(0).as_deref(), Ok("1970-01-01 January Jan Thursday Thu 00:00:00 12 AM 70 %"));
        assert_eq!(at(951_827_696).as_deref(), Ok("2000-02-29 February Feb Tuesday Tue 12:34:56 12 PM 00 %"));
        assert_eq!(at(4_107_542_399).as_deref(), Ok("2100-02-28 February Feb Sunday Sun 23:59:59 11 PM 00 %"));
        assert_eq!(at(4_107_542_400).as_deref(), Ok("2100-03-01 March Mar Monday Mon 00:00:00 12 AM 00 %"));
        assert_eq!(strftime("%Q", 0), Err("Q".into()));
    }
}
