//! Conversations on disk, so that they survive a restart.
//!
//! A conversation is a head, which holds its tokens and names its parts, and parts, which hold the cells of its pages and
//! recurrent states. A part is named after what decides its bits (`part.rs`), so conversations that share a beginning share
//! its parts, and a conversation that goes on writes what is new. Heads and parts carry hashes; what does not match is set
//! aside. A thread of its own reads and writes: the engine never waits for a disk.

mod files;
mod head;
mod index;
mod part;
mod thread;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use openjet_proto::control::ConversationStatus;
use tokio::sync::oneshot;

use crate::backend::StateImage;
use files::Files;
pub(crate) use head::{About, Head, PartRecord};
use index::Index;
pub(crate) use index::{Id, reach};
pub(crate) use part::{Key, PartKind};
use thread::Thread;

/// Where and how conversations are kept on disk.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// A folder of its own; made, for this user alone, if it is missing.
    pub folder: PathBuf,
    /// Hash of the model file: conversations of other models are left alone.
    pub model: [u8; 32],
    /// Most bytes on disk; the conversations that were used longest ago leave first.
    pub limit: u64,
    /// Conversations that were not used for so long are removed.
    pub keep_for: Duration,
    /// A conversation is written when nobody went on with it for so long.
    pub settle: Duration,
}

/// Bytes of the backend's images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageSizes {
    pub(crate) state: usize,
    pub(crate) page: usize,
}

/// A conversation as it is brought back.
#[derive(Debug)]
pub(crate) struct Conversation {
    /// Its name on disk, if this is all of it.
    pub(crate) id: Option<Id>,
    pub(crate) about: About,
    pub(crate) tokens: Vec<u32>,
    /// After all of `tokens`.
    pub(crate) state: Vec<u8>,
    /// After so many of them.
    pub(crate) snapshots: Vec<(usize, Vec<u8>)>,
    pub(crate) pages: Vec<Vec<u8>>,
}

/// What came of looking for a conversation on disk.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The request that asked for it.
    pub(crate) request: u64,
    pub(crate) conversation: Option<Box<Conversation>>,
}

/// Bytes of a part, in pieces.
pub(crate) type Payload = Vec<Piece>;

/// Bytes that are shared with the engine.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Page(Arc<Vec<u8>>),
    State(Arc<StateImage>),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Page(cells) => cells.len(),
            Self::State(state) => state.len(),
        }
    }

    /// The bytes, once they have come.
    fn bytes(&self) -> Result<&[u8], String> {
        match self {
            Self::Page(cells) => Ok(cells),
            Self::State(state) => state.bytes().map_err(|error| error.to_string()),
        }
    }
}

fn bytes_of(payloads: &[Payload]) -> usize {
    payloads.iter().flatten().map(Piece::len).sum()
}

/// What the thread is to do.
#[derive(Debug)]
enum Job {
    Save { id: Id, plan: Plan, new: Vec<Payload>, bytes: usize },
    Fetch { request: u64, id: Id, at: usize },
    Forget(Option<String>),
    Sync(oneshot::Sender<()>),
}

/// A conversation that is about to be written.
#[derive(Debug)]
pub(crate) struct Plan {
    head: Head,
    /// Which of the head's parts are not on disk yet.
    pub(crate) missing: Vec<usize>,
    _pins: Pins,
}

impl Plan {
    /// What part `i` of the head holds.
    pub(crate) fn kind(&self, i: usize) -> PartKind {
        self.head.about.parts[i].kind
    }
}

/// Keeps parts from being dropped for as long as it lives.
#[derive(Debug)]
struct Pins {
    index: Arc<Mutex<Index>>,
    keys: Vec<Key>,
}

impl Drop for Pins {
    fn drop(&mut self) {
        lock(&self.index).unpin(&self.keys);
    }
}

fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    // The index is whole between any two of its methods.
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The engine's side of the store.
#[derive(Debug)]
pub(crate) struct Store {
    identity: Key,
    index: Arc<Mutex<Index>>,
    /// `None` once it is to end.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    fetched: Receiver<Fetched>,
    /// Bytes that wait to be written.
    waiting: Arc<AtomicUsize>,
    pub(crate) settle: Duration,
    ids: u64,
}

impl Store {
    /// Opens a store for images of these sizes in this layout, looks through what is there, and starts its thread.
    ///
    /// # Errors
    /// With the path and the reason when the folder can't be used.
    pub(crate) fn open(options: &StoreOptions, layout: &str, sizes: ImageSizes) -> Result<Self, String> {
        let numbers = [sizes.state as u64, sizes.page as u64].map(u64::to_le_bytes).concat();
        let identity = Key::new(&[&options.model, layout.as_bytes(), &numbers]);
        let files = Files::open(&options.folder)?;
        let index = Arc::new(Mutex::new(Index::default()));
        let (jobs, inbox) = channel();
        let (answers, fetched) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut thread = Thread {
            files,
            index: Arc::clone(&index),
            limit: options.limit,
            keep_for: options.keep_for,
            sizes,
            answers,
            waiting: Arc::clone(&waiting),
        };
        thread.scan().map_err(|error| format!("{} can't be read: {error}", options.folder.display()))?;
        let spawned = std::thread::Builder::new().name("store".into()).spawn(move || thread.run(&inbox));
        let thread = Some(spawned.map_err(|error| format!("its thread can't be started: {error}"))?);
        let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        Ok(Self { identity, index, jobs: Some(jobs), thread, fetched, waiting, settle: options.settle, ids: seed })
    }

    /// A number that no other conversation has.
    pub(crate) fn new_id(&mut self) -> Id {
        self.ids += 1;
        let key = Key::new(&[&self.ids.to_le_bytes(), &std::process::id().to_le_bytes()]);
        Id(u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| key.0[i])))
    }

    /// The conversation that `prompt` can go on from the furthest, and from where.
    pub(crate) fn best(&self, prompt: &[u32]) -> Option<(Id, usize)> {
        lock(&self.index).best(self.identity, prompt)
    }

    /// Asks for a conversation's first `at` tokens, which [`Self::best`] has named.
    pub(crate) fn fetch(&self, request: u64, id: Id, at: usize) {
        self.send(Job::Fetch { request, id, at });
    }

    /// The next conversation that was asked for, waiting for it up to `patience`.
    pub(crate) fn fetched(&self, patience: Duration) -> Option<Fetched> {
        self.fetched.recv_timeout(patience).ok()
    }

    /// Bytes that wait to be written.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Finds out what must be written of a conversation whose description lacks its parts.
    pub(crate) fn plan(&self, mut about: About, tokens: Vec<u32>, snapshots: &[usize]) -> Plan {
        about.identity = self.identity;
        let parts = part::parts(self.identity, about.lineage, &tokens, about.read, snapshots);
        let keys = parts.iter().map(|(_, key)| *key).collect::<Vec<_>>();
        let mut missing = Vec::new();
        let mut index = lock(&self.index);
        index.pin(&keys);
        for (i, (kind, key)) in parts.into_iter().enumerate() {
            let known = index.part(key).map(|part| (part.bytes, part.hash.clone()));
            if known.is_none() {
                missing.push(i);
            }
            let (bytes, hash) = known.unwrap_or_default();
            about.parts.push(PartRecord { kind, key, bytes, hash });
        }
        drop(index);
        Plan { head: Head { about, tokens }, missing, _pins: Pins { index: Arc::clone(&self.index), keys } }
    }

    /// Writes a conversation; `new` are the missing parts, in the plan's order.
    pub(crate) fn save(&self, id: Id, plan: Plan, new: Vec<Payload>) {
        let bytes = bytes_of(&new);
        self.waiting.fetch_add(bytes, Ordering::AcqRel);
        self.send(Job::Save { id, plan, new, bytes });
    }

    /// Forgets conversations: those with this name or session, or all of every model. Returns their names.
    pub(crate) fn forget(&self, which: Option<&str>) -> Vec<Id> {
        let index = lock(&self.index);
        let gone = index.conversations.iter().filter(|(id, e)| matches(which, **id, &e.head)).map(|(id, _)| *id);
        let gone = gone.collect();
        drop(index);
        self.send(Job::Forget(which.map(ToOwned::to_owned)));
        gone
    }

    /// Answers when everything asked for so far is done.
    pub(crate) fn sync(&self, reply: oneshot::Sender<()>) {
        self.send(Job::Sync(reply));
    }

    /// What is kept for this model, most recently used first.
    pub(crate) fn list(&self) -> Vec<ConversationStatus> {
        let index = lock(&self.index);
        let own = index.conversations.iter().filter(|(_, e)| e.head.about.identity == self.identity);
        let status = |(id, e): (&Id, &index::Entry)| ConversationStatus {
            id: id.to_string(),
            session: e.head.about.session.clone(),
            tokens: e.head.tokens.len(),
            bytes: Index::bytes_of(&e.head),
            unused_s: e.used.elapsed().unwrap_or_default().as_secs_f64(),
        };
        let mut list: Vec<_> = own.map(status).collect();
        list.sort_by(|a, b| a.unused_s.total_cmp(&b.unused_s));
        list
    }

    fn send(&self, job: Job) {
        if self.jobs.as_ref().is_none_or(|jobs| jobs.send(job).is_err()) {
            tracing::error!("the thread that keeps conversations on disk has ended");
        }
    }
}

impl Drop for Store {
    /// Waits until all is written.
    fn drop(&mut self) {
        self.jobs = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that kept conversations on disk has panicked");
        }
    }
}

/// Whether a conversation is the one meant: by name or session, or any.
fn matches(which: Option<&str>, id: Id, head: &Head) -> bool {
    which.is_none_or(|which| head.about.session.as_deref() == Some(which) || id.to_string() == which)
}
