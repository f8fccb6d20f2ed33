//! Conversations on disk: they come back after a restart, equal, and what is damaged or another model's is not trusted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

#[path = "common/serving.rs"]
mod serving;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::engine::{Engine, EngineConfig, StoreOptions};
use openjet_engine::model::Model;
use openjet_engine::request::Request;
use serving::*;

/// An engine that keeps conversations, and its thread.
struct Keeper {
    engine: Engine,
    thread: JoinHandle<()>,
}

impl Keeper {
    fn start(model: &Arc<Model>, folder: &Path, change: impl FnOnce(&mut StoreOptions)) -> Self {
        let options = BackendOptions { slots: 4, pages: 192, kv: KvType::Q8_0, draft_max: 3 };
        let backend = CpuBackend::new(Arc::clone(model), options).unwrap();
        let mut config = EngineConfig::new(64 * 192, model.config.vocab, Vec::new());
        (config.agents, config.draft) = (2, 3);
        let mut store = StoreOptions {
            folder: folder.to_owned(),
            model: [7; 32],
            limit: 1 << 30,
            keep_for: Duration::from_secs(3600),
            // Written when it is asked for, no sooner.
            settle: Duration::from_secs(3600),
        };
        change(&mut store);
        config.store = Some(store);
        let (engine, thread) = Engine::start(Box::new(backend), config).unwrap();
        Self { engine, thread }
    }

    fn ask(&self, session: &str, prompt: &[u32], n: u32) -> (Vec<u32>, usize) {
        let request = Request { session: Some(session.to_owned()), ..request(prompt, n) };
        let (text, finish) = finish(self.engine.submit(request).unwrap());
        (text, finish.usage.cached_tokens)
    }

    fn keep(&self) {
        block_on(self.engine.keep()).unwrap();
    }

    fn sessions(&self) -> Vec<String> {
        let list = block_on(self.engine.conversations()).unwrap();
        list.into_iter().filter_map(|c| c.session).collect()
    }

    /// Ends the engine without another word to the disk than what was asked before.
    fn stop(self) {
        drop(self.engine);
        self.thread.join().unwrap();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn files(folder: &Path, place: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder.join(place)).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

fn flip_a_byte(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// ggml-org/llama.cpp issues 25913 and 26676: saved and restored, a hybrid model's conversation was read again.
#[test]
fn llama_cpp_25913_a_conversation_goes_on_after_a_restart_as_if_there_had_been_none() {
    let (model, folder) = (small(), tempfile::tempdir().unwrap());
    let prompt = text(1, 700);
    let first = Keeper::start(&model, folder.path(), |_| ());
    let (answer, _) = first.ask("a", &prompt, 40);
    first.keep();
    let next = [&prompt[..], &answer, &text(2, 30)].concat();
    let expected = first.ask("a", &next, 40);
    first.stop();

    let second = Keeper::start(&model, folder.path(), |_| ());
    assert_eq!(second.sessions(), ["a"]);
    assert_eq!(second.ask("a", &next, 40), expected);
    assert_eq!(expected.1, 700 + 39);
    // And what was added is written in turn, under the same name.
    second.keep();
    assert_eq!(second.sessions(), ["a"]);
    second.stop();
    let third = Keeper::start(&model, folder.path(), |_| ());
    let more = [&next[..], &expected.0, &text(3, 10)].concat();
    assert_eq!(third.ask("a", &more, 5).1, next.len() + 39);
}

#[test]
fn rewritten_history_goes_on_from_a_snapshot_on_disk_with_the_bits_of_a_cold_read() {
    let (model, folder) = (small(), tempfile::tempdir().unwrap());
    let prompt = text(4, 700);
    let first = Keeper::start(&model, folder.path(), |_| ());
    let (answer, _) = first.ask("a", &prompt, 40);
    first.keep();
    first.stop();
    let next = [&prompt[..], &answer[10..], &text(5, 30)].concat();
    let second = Keeper::start(&model, folder.path(), |_| ());
    let (written, cached) = second.ask("a", &next, 30);
    assert_eq!(cached, 640, "the last multiple of 64 before the prompt's last token");
    assert_eq!(written, cold(&model, &next, 30));
    // Others share it from then on.
    let other = [&prompt[..650], &text(6, 20)].concat();
    let (written, cached) = second.ask("b", &other, 20);
    assert_eq!((written, cached), (cold(&model, &other, 20), 640));
}

#[test]
fn damaged_files_are_set_aside_and_never_trusted() {
    let model = small();
    let prompt = text(7, 500);
    for place in ["parts", "heads"] {
        let folder = tempfile::tempdir().unwrap();
        let first = Keeper::start(&model, folder.path(), |_| ());
        let (answer, _) = first.ask("a", &prompt, 20);
        first.keep();
        first.stop();
        files(folder.path(), place).iter().for_each(|file| flip_a_byte(file));
        let second = Keeper::start(&model, folder.path(), |_| ());
        let next = [&prompt[..], &answer, &text(8, 10)].concat();
        let (written, cached) = second.ask("a", &next, 20);
        assert_eq!((written, cached), (cold(&model, &next, 20), 0));
        assert!(!files(folder.path(), "damaged").is_empty(), "{place}");
        second.keep();
        // What took its place is sound.
        second.stop();
        let third = Keeper::start(&model, folder.path(), |_| ());
        assert_eq!(third.ask("a", &[&next[..], &text(9, 5)].concat(), 1).1, 512);
    }
}

#[test]
fn a_part_that_is_cut_off_or_missing_is_found_at_the_start() {
    let (model, prompt) = (small(), text(10, 400));
    for damage in [|file: &Path| fs::remove_file(file).unwrap(), |file: &Path| fs::write(file, "x").unwrap()] {
        let folder = tempfile::tempdir().unwrap();
        let first = Keeper::start(&model, folder.path(), |_| ());
        first.ask("a", &prompt, 5);
        first.keep();
        first.stop();
        damage(&files(folder.path(), "parts")[0]);
        let second = Keeper::start(&model, folder.path(), |_| ());
        assert_eq!(second.sessions(), [""; 0]);
        assert_eq!((files(folder.path(), "damaged").len(), files(folder.path(), "parts").len()), (1, 0));
    }
}

#[test]
fn another_model_finds_nothing_and_leaves_it_alone() {
    let (model, folder, prompt) = (small(), tempfile::tempdir().unwrap(), text(11, 400));
    let first = Keeper::start(&model, folder.path(), |_| ());
    first.ask("a", &prompt, 5);
    first.keep();
    first.stop();
    let other = Keeper::start(&model, folder.path(), |o| o.model = [8; 32]);
    assert_eq!(other.ask("a", &[&prompt[..], &text(12, 5)].concat(), 5).1, 0);
    assert_eq!(other.sessions(), [""; 0]);
    other.stop();
    let again = Keeper::start(&model, folder.path(), |_| ());
    assert_eq!(again.ask("a", &[&prompt[..], &text(12, 5)].concat(), 5).1, 384);
}

#[test]
fn files_are_private_and_a_second_process_keeps_off() {
    let (model, folder) = (small(), tempfile::tempdir().unwrap());
    let place = folder.path().join("made/conversations");
    let first = Keeper::start(&model, &place, |_| ());
    first.ask("a", &text(13, 300), 5);
    first.keep();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place), 0o700);
    for (sub, least) in [("heads", 1), ("parts", 2)] {
        assert_eq!(mode(&place.join(sub)), 0o700);
        let found = files(&place, sub);
        assert!(found.len() >= least);
        found.iter().for_each(|file| assert_eq!(mode(file), 0o600, "{}", file.display()));
    }
    let second = Keeper::start(&model, &place, |_| ());
    assert_eq!(second.ask("b", &text(14, 300), 5).0.len(), 5);
    second.keep();
    assert_eq!((second.sessions(), first.sessions()), (vec![], vec!["a".to_owned()]));
}

#[test]
fn the_limits_of_size_and_age_are_kept_and_the_oldest_leaves_first() {
    let (model, folder) = (small(), tempfile::tempdir().unwrap());
    let keeper = Keeper::start(&model, folder.path(), |_| ());
    keeper.ask("a", &text(20, 300), 5);
    keeper.keep();
    let one = block_on(keeper.engine.conversations()).unwrap()[0].bytes;
    keeper.stop();
    let keeper = Keeper::start(&model, folder.path(), |o| o.limit = one * 5 / 2);
    for (i, session) in ["b", "c", "d"].into_iter().enumerate() {
        keeper.ask(session, &text(21 + i as u32, 300), 5);
        keeper.keep();
    }
    assert_eq!(keeper.sessions(), ["d", "c"]);
    let bytes: u64 = files(folder.path(), "parts").iter().map(|f| f.metadata().unwrap().len()).sum();
    assert_eq!(bytes, 2 * one);
    keeper.stop();
    let later = Keeper::start(&model, folder.path(), |o| o.keep_for = Duration::ZERO);
    assert_eq!(later.sessions(), [""; 0]);
    assert_eq!((files(folder.path(), "heads").len(), files(folder.path(), "parts").len()), (0, 0));
}

#[test]
fn a_shared_beginning_is_on_disk_once() {
    let (model, folder) = (small(), tempfile::tempdir().unwrap());
    let keeper = Keeper::start(&model, folder.path(), |_| ());
    let system = text(30, 1100);
    let size = || files(folder.path(), "parts").iter().map(|f| f.metadata().unwrap().len()).sum::<u64>();
    keeper.ask("a", &[&system[..], &text(31, 40)].concat(), 5);
    keeper.keep();
    let one = size();
    keeper.ask("b", &[&system[..], &text(32, 40)].concat(), 5);
    keeper.keep();
    let list = block_on(keeper.engine.conversations()).unwrap();
    assert_eq!(list.len(), 2);
    // The first 1,024 tokens are one part of both.
    let page = fs::metadata(&files(folder.path(), "parts")[0]).unwrap().len();
    println!("{one} bytes for one, {} for two, a part has {page}", size());
    assert!(list.iter().map(|c| c.bytes).sum::<u64>() > size());
}

#[test]
fn what_is_forgotten_is_gone_from_disk() {
    let (model, folder) = (small(), tempfile::tempdir().unwrap());
    let keeper = Keeper::start(&model, folder.path(), |_| ());
    for (i, session) in ["a", "b", "c"].into_iter().enumerate() {
        keeper.ask(session, &text(40 + i as u32, 300), 5);
    }
    keeper.keep();
    let name = block_on(keeper.engine.conversations()).unwrap().into_iter().find(|c| c.session.as_deref() == Some("c"));
    let forget = |which: Option<&str>| block_on(keeper.engine.forget(which.map(ToOwned::to_owned))).unwrap();
    assert_eq!(forget(Some("nobody")), 0);
    assert_eq!(forget(Some("a")), 1);
    assert_eq!(forget(Some(&name.unwrap().id)), 1);
    assert_eq!((keeper.sessions(), files(folder.path(), "heads").len()), (vec!["b".to_owned()], 1));
    assert_eq!(forget(None), 1);
    assert_eq!((files(folder.path(), "heads").len(), files(folder.path(), "parts").len()), (0, 0));
}
