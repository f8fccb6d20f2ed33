//! The thread that reads and writes conversations.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::files::{Files, Place};
use super::head::{About, Head, PartRecord};
use super::index::{Entry, Id, Index};
use super::part::{Key, PartKind};
use super::{Conversation, Fetched, ImageSizes, Job, Payload, Piece, Plan, bytes_of, lock, matches};
use crate::step::PAGE_TOKENS;

/// How often conversations are looked at that may have become too old.
const EXPIRY: Duration = Duration::from_secs(3600);

/// Most bytes of a head: the description, and the tokens of any context.
const HEAD_BYTES: u64 = 1 << 28;

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) files: Files,
    pub(super) index: Arc<Mutex<Index>>,
    pub(super) limit: u64,
    pub(super) keep_for: Duration,
    pub(super) sizes: ImageSizes,
    pub(super) answers: Sender<Fetched>,
    pub(super) waiting: Arc<AtomicUsize>,
}

impl Thread {
    /// Works until the engine's side is gone.
    pub(super) fn run(self, jobs: &Receiver<Job>) {
        loop {
            match jobs.recv_timeout(EXPIRY) {
                Ok(Job::Save { id, plan, new, bytes }) => {
                    if let Err(error) = self.save(id, plan, &new) {
                        tracing::warn!("conversation {id} can't be kept on disk: {error}");
                    }
                    self.waiting.fetch_sub(bytes, Ordering::AcqRel);
                    self.tidy(Some(id));
                }
                Ok(Job::Fetch { request, id, at }) => {
                    let conversation = self.fetch(id, at).map(Box::new);
                    // The engine may have ended meanwhile.
                    let _ = self.answers.send(Fetched { request, conversation });
                }
                Ok(Job::Forget(which)) => {
                    self.remove_where(|id, entry| matches(which.as_deref(), id, &entry.head));
                    self.tidy(None);
                }
                Ok(Job::Sync(reply)) => {
                    // Whoever asked may have gone away.
                    let _ = reply.send(());
                }
                Err(RecvTimeoutError::Timeout) => self.tidy(None),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Reads all heads. Damaged ones are set aside; parts that no head names are removed.
    pub(super) fn scan(&mut self) -> io::Result<()> {
        let parts = self.files.list(Place::Parts)?;
        let sizes: HashMap<Key, u64> =
            parts.iter().filter_map(|(name, meta)| Some((Key::parse(name)?, meta.len()))).collect();
        for (name, meta) in self.files.list(Place::Heads)? {
            let read = self.files.read(Place::Heads, &name, HEAD_BYTES, None).map_err(|error| error.to_string());
            let head = read.and_then(|bytes| Head::decode(&bytes)).and_then(|head| {
                match head.about.parts.iter().find(|part| sizes.get(&part.key) != Some(&part.bytes)) {
                    None => Ok(head),
                    Some(part) => Err(format!("its part {} is not there as a whole", part.key)),
                }
            });
            match (head, u64::from_str_radix(&name, 16)) {
                (Ok(head), Ok(id)) => lock(&self.index).insert(Id(id), head, meta.modified()?),
                (Ok(_), Err(_)) => self.files.set_aside(Place::Heads, &name, "its name is no conversation's"),
                (Err(reason), _) => self.files.set_aside(Place::Heads, &name, &reason),
            }
        }
        for (name, _) in &parts {
            if Key::parse(name).is_none_or(|key| lock(&self.index).part(key).is_none()) {
                self.files.remove(Place::Parts, name);
            }
        }
        for (name, meta) in self.files.list(Place::Damaged)? {
            if self.expired(meta.modified()?) {
                self.files.remove(Place::Damaged, &name);
            }
        }
        self.tidy(None);
        let index = lock(&self.index);
        let (count, bytes) = (index.conversations.len(), index.bytes());
        tracing::info!("{count} conversations on disk, {:.1} MB", bytes as f64 / 1e6);
        Ok(())
    }

    fn expired(&self, used: SystemTime) -> bool {
        used.elapsed().is_ok_and(|age| age > self.keep_for)
    }

    /// Removes what is too old and, `newest` last, what is too much.
    fn tidy(&self, newest: Option<Id>) {
        self.remove_where(|_, entry| self.expired(entry.used));
        self.remove_unused_parts();
        loop {
            let index = lock(&self.index);
            if index.bytes() <= self.limit {
                return;
            }
            let oldest = index.oldest(newest);
            drop(index);
            let Some(oldest) = oldest else { return };
            self.remove(oldest);
            self.remove_unused_parts();
        }
    }

    fn remove(&self, id: Id) {
        // The head first: without it nobody looks for the parts.
        self.files.remove(Place::Heads, &id.to_string());
        lock(&self.index).conversations.remove(&id);
    }

    fn remove_where(&self, wanted: impl Fn(Id, &Entry) -> bool) {
        let gone: Vec<Id> =
            lock(&self.index).conversations.iter().filter(|(id, e)| wanted(**id, e)).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.remove(id));
    }

    fn remove_unused_parts(&self) {
        let unused = lock(&self.index).drop_unused();
        unused.into_iter().for_each(|key| self.files.remove(Place::Parts, &key.to_string()));
    }

    fn save(&self, id: Id, plan: Plan, new: &[Payload]) -> Result<(), String> {
        let Plan { mut head, missing, _pins } = plan;
        let bytes = bytes_of(new);
        if bytes as u64 > self.limit {
            return Err(format!("its {bytes} bytes are more than the limit of {}", self.limit));
        }
        for (i, payload) in missing.into_iter().zip(new) {
            let part = &mut head.about.parts[i];
            let pieces: Result<Vec<&[u8]>, String> = payload.iter().map(Piece::bytes).collect();
            let written = pieces.and_then(|pieces| {
                let mut hasher = blake3::Hasher::new();
                pieces.iter().for_each(|piece| {
                    hasher.update(piece);
                });
                part.bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
                part.hash = hasher.finalize().to_hex().to_string();
                let name = part.key.to_string();
                self.files.write(Place::Parts, &name, pieces.into_iter()).map_err(|error| error.to_string())
            });
            if let Err(error) = written {
                self.remove_written(&head);
                return Err(error);
            }
        }
        let encoded = head.encode().map_err(|error| error.to_string())?;
        let written = self.files.write(Place::Heads, &id.to_string(), std::iter::once(&encoded[..]));
        if let Err(error) = written {
            self.remove_written(&head);
            return Err(error.to_string());
        }
        lock(&self.index).insert(id, head, SystemTime::now());
        Ok(())
    }

    /// Removes the parts of a head that was not written, as far as no other names them.
    fn remove_written(&self, head: &Head) {
        for part in &head.about.parts {
            if lock(&self.index).part(part.key).is_none() {
                self.files.remove(Place::Parts, &part.key.to_string());
            }
        }
    }

    /// Reads a conversation's first `at` tokens. What is damaged is set aside with the conversation.
    fn fetch(&self, id: Id, at: usize) -> Option<Conversation> {
        let head = lock(&self.index).conversations.get(&id)?.head.clone();
        match self.read(id, &head, at) {
            Ok(conversation) => {
                if let Err(error) = self.files.touch(Place::Heads, &id.to_string()) {
                    tracing::warn!("conversation {id}: its time can't be set: {error}");
                }
                if let Some(entry) = lock(&self.index).conversations.get_mut(&id) {
                    entry.used = SystemTime::now();
                }
                Some(conversation)
            }
            Err((part, reason)) => {
                self.files.set_aside(Place::Parts, &part.to_string(), &reason);
                // So are all conversations that it was part of.
                let broken = |head: &Head| head.about.parts.iter().any(|p| p.key == part);
                let mut index = lock(&self.index);
                let gone: Vec<Id> =
                    index.conversations.iter().filter(|(_, e)| broken(&e.head)).map(|(id, _)| *id).collect();
                gone.iter().for_each(|id| drop(index.conversations.remove(id)));
                drop(index);
                let because = format!("its part {part} is damaged");
                gone.iter().for_each(|id| self.files.set_aside(Place::Heads, &id.to_string(), &because));
                self.remove_unused_parts();
                None
            }
        }
    }

    fn read(&self, id: Id, head: &Head, at: usize) -> Result<Conversation, (Key, String)> {
        let whole = at == head.tokens.len();
        let mut conversation = Conversation {
            id: whole.then_some(id),
            about: About { read: head.about.read.min(at), ..head.about.clone() },
            tokens: head.tokens[..at].to_vec(),
            state: Vec::new(),
            snapshots: Vec::new(),
            pages: Vec::new(),
        };
        let wanted = at.div_ceil(PAGE_TOKENS);
        for part in &head.about.parts {
            match part.kind {
                PartKind::Pages { first, count } if first < wanted => {
                    let bytes = self.read_part(part, count * self.sizes.page)?;
                    let pages = bytes.chunks_exact(self.sizes.page).take(wanted - first);
                    conversation.pages.extend(pages.map(<[u8]>::to_vec));
                }
                PartKind::Snapshot { at: here } if here == at && !whole => {
                    conversation.state = self.read_part(part, self.sizes.state)?;
                }
                PartKind::Snapshot { at: here } if here < at => {
                    conversation.snapshots.push((here, self.read_part(part, self.sizes.state)?));
                }
                PartKind::End if whole => conversation.state = self.read_part(part, self.sizes.state)?,
                _ => {}
            }
        }
        Ok(conversation)
    }

    /// Reads a part and compares its hash.
    fn read_part(&self, part: &PartRecord, expected: usize) -> Result<Vec<u8>, (Key, String)> {
        let name = part.key.to_string();
        let read = self.files.read(Place::Parts, &name, u64::MAX, Some(expected as u64));
        let bytes = read.map_err(|error| (part.key, error.to_string()))?;
        if blake3::hash(&bytes).to_hex().as_str() != part.hash {
            return Err((part.key, "its bytes are not those that were written".into()));
        }
        Ok(bytes)
    }
}
