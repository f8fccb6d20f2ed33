//! `openjetctl log`.

use std::io::Write;

use openjet_proto::control::LogFilter;

use crate::client::Client;
use crate::failure::Failure;
use crate::text;

/// Shows what is logged, or changes it until the daemon is restarted or reloaded.
pub(crate) fn level(client: &Client, filter: Option<&str>, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let now: LogFilter = match filter {
        Some(filter) => client.put("/v1/log", &LogFilter { filter: filter.to_owned() })?,
        None => client.get("/v1/log")?,
    };
    if json {
        return text::json(&now, out);
    }
    writeln!(out, "{}", now.filter)?;
    Ok(())
}
