//! Requests that wait for an agent: a bounded line, first come first served.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use super::parked::Parked;
use crate::request::{Event, Request, RequestError};

/// A request on its way to an agent.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) id: u64,
    pub(super) request: Request,
    pub(super) events: UnboundedSender<Event>,
    /// Its place in the line; given up when it is dropped.
    pub(super) ticket: Ticket,
    pub(super) at: Instant,
    pub(super) disk: OnDisk,
}

/// What is known of conversations on disk that a request could go on from.
#[derive(Debug, Default)]
pub(super) enum OnDisk {
    /// Nobody has looked.
    #[default]
    Unasked,
    /// There is one; it is being read, and the request waits for it.
    Asked,
    /// It is here.
    Found(Box<Parked>),
    /// There is none that helps.
    Nothing,
}

impl Submission {
    /// Whether it can be given to an agent.
    pub(super) fn ready(&self) -> bool {
        !matches!(self.disk, OnDisk::Asked)
    }
}

/// The places in the line.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    taken: Arc<AtomicUsize>,
    limit: usize,
}

/// One place in the line.
#[derive(Debug)]
pub(super) struct Ticket(Arc<AtomicUsize>);

impl Waiting {
    pub(super) fn new(limit: usize) -> Self {
        Self { taken: Arc::default(), limit }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// [`RequestError::QueueFull`].
    pub(super) fn enter(&self) -> Result<Ticket, RequestError> {
        let enter = |n| (n < self.limit).then_some(n + 1);
        match self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter) {
            Ok(_) => Ok(Ticket(Arc::clone(&self.taken))),
            Err(waiting) => Err(RequestError::QueueFull { waiting, retry_after_s: 1 + waiting as u64 / 4 }),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
