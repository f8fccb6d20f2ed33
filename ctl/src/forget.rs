//! `openjetctl forget`.

use std::io::Write;

use openjet_proto::control::{ConversationStatus, Forget, Forgotten};

use crate::client::Client;
use crate::failure::Failure;
use crate::text;

/// Forgets what is named; without a name shows what there is.
pub(crate) fn run(
    client: &Client,
    which: Option<&str>,
    all: bool,
    json: bool,
    out: &mut Vec<u8>,
) -> Result<(), Failure> {
    let which = match which {
        Some(which) => Forget::Conversation(which.to_owned()),
        None if all => Forget::All,
        None => return list(client, json, out),
    };
    let forgotten: Forgotten = client.post("/v1/forget", &which)?;
    if json {
        serde_json::to_writer(&mut *out, &forgotten)?;
        writeln!(out)?;
    }
    match (forgotten.count, which) {
        (0, Forget::Conversation(which)) => {
            return Err(Failure::Failed(anyhow::anyhow!(
                "there is no conversation {which} that rests; `openjetctl forget` lists those on disk, `openjetctl agents` the \
                 ones that run"
            )));
        }
        _ if json => {}
        (1, _) => writeln!(out, "1 conversation forgotten")?,
        (count, _) => writeln!(out, "{count} conversations forgotten")?,
    }
    Ok(())
}

fn list(client: &Client, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let kept: Vec<ConversationStatus> = client.get("/v1/conversations")?;
    if json {
        serde_json::to_writer_pretty(&mut *out, &kept)?;
        writeln!(out)?;
        return Ok(());
    }
    if kept.is_empty() {
        writeln!(out, "No conversation is on disk.")?;
        return Ok(());
    }
    let row = |c: &ConversationStatus| {
        [
            c.id.clone(),
            text::or_dash(c.session.as_deref()),
            c.tokens.to_string(),
            text::bytes(c.bytes),
            text::duration(c.unused_s),
        ]
    };
    let rows: Vec<_> = kept.iter().map(row).collect();
    out.write_all(text::table(&["id", "session", "tokens", "size", "unused for"], &rows).as_bytes())?;
    writeln!(out, "\n`openjetctl forget ID` forgets one (a session's name works too), `openjetctl forget --all` all.")?;
    Ok(())
}
