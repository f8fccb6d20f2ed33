//! The file in which choices are kept, so that the next start needs no self-test.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Chosen;

/// Of the file: another number where it looks otherwise.
const FORM: u32 = 1;

/// Most choices that are kept: one for each card, driver, version of the kernels and model.
const MOST: usize = 16;

#[derive(Serialize, Deserialize)]
struct File {
    form: u32,
    /// The newest first.
    choices: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    /// What it was chosen for.
    key: String,
    chosen: Chosen,
}

/// The choice for `key`. A file that can't be read is told of and taken for an empty one.
pub(super) fn load(path: &Path, key: &str) -> Option<Chosen> {
    let choices = parse(path).unwrap_or_else(|reason| {
        tracing::warn!("{} is not used: {reason}", path.display());
        Vec::new()
    });
    choices.into_iter().find(|entry| entry.key == key).map(|entry| entry.chosen)
}

/// Keeps the choice for `key` beside those for others, as far as they can be read. Whoever reads meanwhile sees the old file or the
/// new one.
pub(super) fn store(path: &Path, key: String, chosen: &Chosen) -> io::Result<()> {
    let mut choices = vec![Entry { key, chosen: chosen.clone() }];
    let others = parse(path).unwrap_or_default();
    let others: Vec<_> = others.into_iter().filter(|entry| entry.key != choices[0].key).take(MOST - 1).collect();
    choices.extend(others);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let new = path.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&new, serde_json::to_vec_pretty(&File { form: FORM, choices })?)?;
    std::fs::rename(&new, path).inspect_err(|_| drop(std::fs::remove_file(&new)))
}

/// What the file holds; nothing where there is none.
fn parse(path: &Path) -> Result<Vec<Entry>, String> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.to_string()),
    };
    let file: File = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if file.form != FORM {
        return Err(format!("it has form {}, and this version reads form {FORM}", file.form));
    }
    match file.choices.iter().find(|entry| !entry.chosen.tuning.is_sane()) {
        Some(entry) => Err(format!("costs out of range for {}", entry.key)),
        None => Ok(file.choices),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::tuning::{Source, Tuning};

    fn chosen(part: u32) -> Chosen {
        let tuning = Tuning { part, ..Tuning::built_in(None) };
        Chosen { tuning, name: format!("{part}"), source: Source::Measured, gain: 0.02, seconds: 0.2 }
    }

    #[test]
    fn a_choice_comes_back_for_its_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/tuning.json");
        assert_eq!(load(&path, "a"), None);
        store(&path, "a".into(), &chosen(1)).unwrap();
        store(&path, "b".into(), &chosen(2)).unwrap();
        assert_eq!((load(&path, "a"), load(&path, "b"), load(&path, "c")), (Some(chosen(1)), Some(chosen(2)), None));
        store(&path, "a".into(), &chosen(3)).unwrap();
        assert_eq!((load(&path, "a"), load(&path, "b")), (Some(chosen(3)), Some(chosen(2))));
        // The oldest leave, and nothing else lies in the folder.
        (0..MOST).for_each(|i| store(&path, format!("more {i}"), &chosen(9)).unwrap());
        assert_eq!((load(&path, "b"), load(&path, "more 0")), (None, Some(chosen(9))));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_taken_for_none_and_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tuning.json");
        store(&path, "a".into(), &chosen(1)).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        let zero = whole.replacen("\"part\": 1,", "\"part\": 4000000000,", 1);
        let other_form = whole.replacen("\"form\": 1", "\"form\": 2", 1);
        assert!(zero != whole && other_form != whole);
        for damaged in [&whole[..whole.len() / 2], "", "{}", "[1]", &zero, &other_form] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(load(&path, "a"), None, "{damaged}");
            store(&path, "b".into(), &chosen(2)).unwrap();
            assert_eq!(load(&path, "b"), Some(chosen(2)));
        }
    }
}
