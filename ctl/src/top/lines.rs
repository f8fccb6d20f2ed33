//! The same for programs: an object a line.

use std::io::{ErrorKind, Write, stdout};

use openjet_proto::control::DaemonStatus;
use serde::Serialize;

use super::PERIOD;
use super::work::Work;
use crate::client::Client;
use crate::failure::Failure;

/// What is known at one look.
#[derive(Serialize)]
struct Look<'a> {
    #[serde(flatten)]
    status: &'a DaemonStatus,
    /// A line about each agent that `--run` has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<Vec<String>>,
}

/// Prints look after look until the reader leaves or the daemon is gone, or one only.
pub(super) fn print(client: &Client, mut status: DaemonStatus, once: bool, work: Option<&Work>) -> Result<(), Failure> {
    loop {
        let line = serde_json::to_string(&Look { status: &status, run: work.map(Work::notes) })?;
        let mut out = stdout().lock();
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        if once {
            return Ok(());
        }
        std::thread::sleep(PERIOD);
        status = client.get("/v1/status")?;
    }
}
