//! Log lines for systemd's journal: a line for people, and each field of it on its own for programs.

use std::fmt::{Debug, Write as _};
use std::io::{self, Write as _};
use std::os::unix::net::UnixDatagram;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Where the journal takes what is logged.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Writes to the journal. A request's line, for example, has the fields `OPENJET_PROMPT` and `OPENJET_FINISH` among others.
#[derive(Debug)]
pub struct Journal(UnixDatagram);

impl Journal {
    /// The journal, if it is what reads this process's standard error.
    #[must_use]
    pub fn of_stderr() -> Option<Self> {
        let stream = std::env::var("JOURNAL_STREAM").ok()?;
        let stat = rustix::fs::fstat(io::stderr()).ok()?;
        if stream != format!("{}:{}", stat.st_dev, stat.st_ino) {
            return None;
        }
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect(SOCKET).ok()?;
        Some(Self(socket))
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let entry = fields.entry(*event.metadata().level(), event.metadata().target());
        if self.0.send(&entry).is_err() {
            // Too large, or no journal any more. Where standard error is closed too there is nobody left to tell.
            let _closed = writeln!(io::stderr(), "{}", fields.line());
        }
    }
}

/// What an event says.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, String)>,
}

impl Fields {
    /// The message, then each field with its name.
    fn line(&self) -> String {
        let mut line = self.message.clone();
        for (name, value) in &self.others {
            // Writing to a string can't fail.
            let _ = write!(line, " {name}={value}");
        }
        line
    }

    /// An entry in the journal's own form.
    fn entry(&self, level: Level, target: &str) -> Vec<u8> {
        let priority = match level {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "6",
            _ => "7",
        };
        let mut out = Vec::new();
        put(&mut out, "PRIORITY", priority);
        put(&mut out, "SYSLOG_IDENTIFIER", "openjetd");
        put(&mut out, "MESSAGE", &self.line());
        put(&mut out, "OPENJET_TARGET", target);
        for (name, value) in &self.others {
            put(&mut out, &format!("OPENJET_{}", name.to_uppercase().replace('.', "_")), value);
        }
        out
    }
}

/// A value of one line follows an equals sign, others their length.
fn put(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        out.push(b'\n');
        out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        out.push(b'=');
    }
    out.extend_from_slice(value.as_bytes());
    out.push(b'\n');
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => self.others.push((name, value.to_owned())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_entry_has_a_line_for_people_and_fields_for_programs() {
        let fields =
            Fields { message: "request".to_owned(), others: vec![("prompt", "31".into()), ("tok_s", "9.5".into())] };
        let entry = String::from_utf8(fields.entry(Level::INFO, "openjetd::api")).unwrap();
        let expected = "PRIORITY=6\nSYSLOG_IDENTIFIER=openjetd\nMESSAGE=request prompt=31 tok_s=9.5\nOPENJET_TARGET=openjetd::api\n\
                        OPENJET_PROMPT=31\nOPENJET_TOK_S=9.5\n";
        assert_eq!(entry, expected);
        let mut out = Vec::new();
        put(&mut out, "MESSAGE", "a\nb");
        assert_eq!(out, b"MESSAGE\n\x03\0\0\0\0\0\0\0a\nb\n");
    }
}
