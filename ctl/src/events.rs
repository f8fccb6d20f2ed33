//! `openjetctl events`.

use std::io::{ErrorKind, Write, stdout};

use openjet_proto::events::{Event, RequestEnd, What};

use crate::client::Client;
use crate::failure::Failure;

/// Prints what happens as it happens, until the daemon ends, the reader leaves, or `count` events were printed.
pub(crate) fn follow(client: &Client, count: Option<u64>, json: bool) -> Result<(), Failure> {
    let mut left = count.unwrap_or(u64::MAX);
    client.events("/v1/events", |data| {
        let line = if json { data.to_owned() } else { describe(&serde_json::from_str(data)?) };
        let mut out = stdout().lock();
        left -= 1;
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            Ok(()) => Ok(left > 0),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(error.into()),
        }
    })
}

/// One line for people.
fn describe(event: &Event) -> String {
    let seconds = event.at_ms / 1000;
    let (h, m, s, ms) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60, event.at_ms % 1000);
    format!("{h:02}:{m:02}:{s:02}.{ms:03}Z  {}", what(&event.what))
}

fn what(what: &What) -> String {
    match what {
        What::Loading { detail } => format!("loading   {detail}"),
        What::Loaded { model } => format!("loaded    {model}"),
        What::Unloaded { model } => format!("unloaded  {model}"),
        What::Drain { on: true } => "drain     new requests are refused".to_owned(),
        What::Drain { on: false } => "drain     requests are taken again".to_owned(),
        What::Request(end) => request(end),
        What::Action { action, uid, pid, status } => {
            let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
            let who = uid.map_or_else(|| "over HTTP".to_owned(), |uid| format!("by user {uid}, process {pid}"));
            format!("action    {action} {who}: {status}")
        }
        What::Missed { events } => format!("missed    {events} events: this reader was too slow"),
    }
}

fn request(end: &RequestEnd) -> String {
    let RequestEnd { request, prompt_tokens, cached_tokens, first_token_ms, tokens, tokens_per_second, .. } = end;
    let (offered, accepted, finish) = (end.drafts_offered, end.drafts_accepted, &end.finish);
    let session = end.session.as_deref().map(|session| format!(", session {session}")).unwrap_or_default();
    format!(
        "request   {request}: prompt {prompt_tokens} ({cached_tokens} cached), first token after {first_token_ms} ms, {tokens} \
         tokens at {tokens_per_second:.1}/s, drafts {accepted}/{offered}, {finish}{session}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_time_of_day() {
        let event = Event { at_ms: 86_400_000 + 3_723_004, what: What::Drain { on: true } };
        assert_eq!(describe(&event), "01:02:03.004Z  drain     new requests are refused");
    }
}
