//! The latest requests that are over, for people who watch.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use openjet_proto::live::RequestRecord;

/// How many are kept.
const KEPT: usize = 100;

/// The latest requests, oldest first.
#[derive(Debug, Default)]
pub struct RequestLog(Mutex<VecDeque<RequestRecord>>);

impl RequestLog {
    /// Adds a request that is over; the oldest one leaves when there are too many.
    pub fn add(&self, record: RequestRecord) {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() == KEPT {
            records.pop_front();
        }
        records.push_back(record);
    }

    /// All that are kept.
    #[must_use]
    pub fn list(&self) -> Vec<RequestRecord> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}

/// A request to `path` that was not taken, and why.
#[must_use]
pub fn refused(path: String, session: Option<String>, error: String) -> RequestRecord {
    RequestRecord {
        id: None,
        ended_ms: now_ms(),
        path,
        session,
        agent: None,
        prompt_tokens: 0,
        cached_tokens: 0,
        generated_tokens: 0,
        tokens_per_second: 0.0,
        drafts_offered: 0,
        drafts_accepted: 0,
        queued_ms: 0.0,
        first_token_ms: 0.0,
        finish: "refused".to_owned(),
        error: Some(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept() {
        let log = RequestLog::default();
        for i in 0..KEPT + 5 {
            log.add(refused(format!("/{i}"), None, "no".to_owned()));
        }
        let paths: Vec<_> = log.list().into_iter().map(|record| record.path).collect();
        assert_eq!((paths.len(), paths.first().map(String::as_str)), (KEPT, Some("/5")));
    }
}
