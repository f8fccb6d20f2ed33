//! Finds model files by name, in the folders that the settings name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use openjet_engine::gguf::GgufFile;
use openjet_engine::inspect::Inspection;
use openjet_proto::control::{ModelFile, ModelStatus};

use crate::load;

/// The name under which the model that ships with the program is loaded.
pub const SHIPPED: &str = "openjet-tiny";

/// The ending of model files.
const ENDING: &str = "gguf";

/// The file that `model` means: a path, or the name of a file in one of `folders`, with or without its ending.
///
/// # Errors
/// Where it was looked for.
pub fn find(model: &Path, folders: &[PathBuf]) -> Result<PathBuf, String> {
    if model.is_file() || model.components().count() != 1 {
        return Ok(model.to_owned());
    }
    let with_ending = PathBuf::from(format!("{}.{ENDING}", model.display()));
    let places = folders.iter().flat_map(|folder| [folder.join(model), folder.join(&with_ending)]);
    places.into_iter().find(|place| place.is_file()).ok_or_else(|| {
        let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        format!(
            "there is no model {} in {}; `openjetctl models` lists those that are there",
            model.display(),
            if folders.is_empty() { "any folder: model_paths is empty".to_owned() } else { folders.join(", ") }
        )
    })
}

/// The models in `folders`, the one that ships with the program first. Reads the head of each file.
#[must_use]
pub fn list(folders: &[PathBuf], loaded: Option<&ModelStatus>) -> Vec<ModelFile> {
    let mut files: Vec<PathBuf> = folders.iter().flat_map(|folder| files_in(folder)).collect();
    let loaded_file = loaded.and_then(|model| model.file.clone()).map(PathBuf::from);
    files.extend(loaded_file.clone());
    files.sort();
    files.dedup();
    let is_loaded = |file: Option<&Path>| loaded.is_some() && file == loaded_file.as_deref();
    let shipped = load::shipped().map_err(|error| error.to_string());
    let shipped = entry(SHIPPED.to_owned(), None, shipped, is_loaded(None));
    let others = files.into_iter().map(|file| {
        let id = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let content = GgufFile::open(&file).map_err(|error| error.to_string());
        let loaded = is_loaded(Some(&file));
        entry(id, Some(&file), content, loaded)
    });
    std::iter::once(shipped).chain(others).collect()
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    // A folder that is not there, or may not be read, has no models.
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == ENDING) && path.is_file()).collect()
}

fn entry(id: String, file: Option<&Path>, content: Result<GgufFile, String>, loaded: bool) -> ModelFile {
    let bytes = content.as_ref().map_or_else(
        |_| file.and_then(|file| file.metadata().ok()).map_or(0, |meta| meta.len()),
        |content| content.bytes().len() as u64,
    );
    let (name, problem) = match content {
        Ok(content) => {
            let inspection = Inspection::of(&Arc::new(content));
            (inspection.name, inspection.problems.into_iter().next())
        }
        Err(problem) => (None, Some(problem)),
    };
    ModelFile { id, file: file.map(|file| file.display().to_string()), bytes, name, problem, loaded }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_are_found_with_and_without_their_ending_and_the_first_folder_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let folders = ["one", "two"].map(|name| folder.path().join(name));
        for (folder, name) in folders.iter().zip(["a.gguf", "a.gguf"]) {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join(name), "no model").unwrap();
        }
        std::fs::write(folders[1].join("b.gguf"), "").unwrap();
        let find = |name: &str| super::find(Path::new(name), &folders);
        assert_eq!(find("a").unwrap(), folders[0].join("a.gguf"));
        assert_eq!(find("b.gguf").unwrap(), folders[1].join("b.gguf"));
        assert_eq!(find("/x/y.gguf").unwrap(), Path::new("/x/y.gguf"));
        let error = find("c").unwrap_err();
        assert!(error.contains("there is no model c in ") && error.contains("two"), "{error}");

        let list = list(&folders, None);
        let ids: Vec<_> = list.iter().map(|model| model.id.as_str()).collect();
        assert_eq!(ids, ["openjet-tiny", "a", "a", "b"]);
        assert_eq!((list[0].problem.as_ref(), list[0].file.as_ref()), (None, None));
        assert!(list[1].problem.as_ref().unwrap().contains("is not a GGUF file"), "{list:?}");
    }
}
