//! Where conversations are kept on disk, and under which model's hash.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use openjet_engine::engine::StoreOptions;
use openjet_engine::gguf::GgufFile;

use crate::config::Config;

/// A conversation is written when nobody went on with it for so long.
const SETTLE: Duration = Duration::from_secs(2);

/// Name of the folder in the state directory.
const FOLDER: &str = "conversations";

/// The model file's hash on its way: a large file takes seconds, which pass while the backend takes it in.
#[derive(Debug)]
pub struct Hashing {
    folder: PathBuf,
    thread: JoinHandle<[u8; 32]>,
}

impl Hashing {
    /// Starts to hash `file`, if conversations are to be kept at all.
    #[must_use]
    pub fn start(config: &Config, file: &Arc<GgufFile>) -> Option<Self> {
        let folder = folder(config)?;
        let file = Arc::clone(file);
        let thread = std::thread::Builder::new().name("hash".into()).spawn(move || file.hash());
        let thread = thread.inspect_err(|error| tracing::warn!("conversations are not kept on disk: {error}")).ok()?;
        Some(Self { folder, thread })
    }

    /// Waits for the hash.
    #[must_use]
    pub fn options(self, config: &Config) -> Option<StoreOptions> {
        // A panic has been told already.
        let model = self.thread.join().ok()?;
        Some(StoreOptions {
            folder: self.folder,
            model,
            limit: config.conversations_gib << 30,
            keep_for: Duration::from_secs(config.conversations_days * 86_400),
            settle: SETTLE,
        })
    }
}

/// The folder of conversations.
fn folder(config: &Config) -> Option<PathBuf> {
    Some(config.keep_conversations.then(|| config.state()).flatten()?.join(FOLDER))
}
