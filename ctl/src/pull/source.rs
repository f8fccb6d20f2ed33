//! What is to be fetched: a file of a repository on the model hub, or a URL.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use ureq::Agent;

use crate::text;

/// The model hub, unless the environment variable that its own tools read names another.
const HUB: &str = "https://huggingface.co";
const HUB_VARIABLE: &str = "HF_ENDPOINT";

/// The variable with a token for files that are not open to all.
const TOKEN_VARIABLE: &str = "HF_TOKEN";

/// Longest list of files that is read.
const LIST_BYTES: u64 = 8 << 20;

/// A file somewhere else.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) url: String,
    /// Its name here.
    pub(super) name: String,
    /// Bytes, where they are known beforehand.
    pub(super) size: Option<u64>,
    /// In hexadecimal, where it is known.
    pub(super) sha256: Option<String>,
    /// Sent with requests to the hub alone.
    pub(super) token: Option<String>,
}

/// A file in the hub's list.
#[derive(Clone, Debug, Deserialize)]
struct Listed {
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    lfs: Option<Large>,
}

#[derive(Clone, Debug, Deserialize)]
struct Large {
    oid: String,
}

impl Source {
    /// Finds `what`: `REPO`, `REPO:FILE` (a part of the name is enough) or a URL.
    pub(super) fn find(what: &str, sha256: Option<&str>) -> anyhow::Result<Self> {
        let mut source = if what.starts_with("https://") || what.starts_with("http://") {
            Self { url: what.to_owned(), name: name_of(what)?, size: None, sha256: None, token: None }
        } else {
            on_hub(what)?
        };
        if let Some(given) = sha256 {
            source.sha256 = Some(given.to_owned());
        }
        Ok(source)
    }
}

/// The last part of a URL or path as a name for a file here.
fn name_of(url: &str) -> anyhow::Result<String> {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+ ".contains(c);
    if !name.ends_with(".gguf") || name.starts_with('.') || !name.chars().all(plain) {
        bail!("{url} does not end in the name of a .gguf file");
    }
    Ok(name.to_owned())
}

fn on_hub(what: &str) -> anyhow::Result<Source> {
    let (repository, wanted) = what.split_once(':').map_or((what, None), |(repository, file)| (repository, Some(file)));
    let part = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if repository.split('/').count() != 2 || !repository.split('/').all(part) {
        bail!("{what} is neither a URL nor OWNER/REPOSITORY or OWNER/REPOSITORY:FILE");
    }
    let hub = std::env::var(HUB_VARIABLE).unwrap_or_else(|_| HUB.to_owned());
    let hub = hub.trim_end_matches('/');
    let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
    let files = list(&format!("{hub}/api/models/{repository}/tree/main?recursive=true"), repository, token.as_deref())?;
    let file = choose(repository, wanted, &files)?;
    Ok(Source {
        url: format!("{hub}/{repository}/resolve/main/{}", file.path),
        name: name_of(&file.path)?,
        size: Some(file.size),
        sha256: file.lfs.as_ref().map(|large| large.oid.trim_start_matches("sha256:").to_owned()),
        token,
    })
}

fn list(url: &str, repository: &str, token: Option<&str>) -> anyhow::Result<Vec<Listed>> {
    let agent: Agent = Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(60)))
        .http_status_as_error(false)
        .build()
        .into();
    let mut request = agent.get(url);
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let mut response = request.call().with_context(|| format!("{url} can't be reached"))?;
    match response.status().as_u16() {
        200 => {}
        401 | 403 | 404 => bail!(
            "the hub knows no {repository}, or does not show it to all; if you may see it, put your token into {TOKEN_VARIABLE}"
        ),
        other => bail!("the hub answered {other} to {url}"),
    }
    let body = response.body_mut().with_config().limit(LIST_BYTES).read_to_vec().context("the hub's list of files")?;
    serde_json::from_slice(&body).with_context(|| format!("{url} does not give a list of files"))
}

/// The file that is meant by its name or a part of it, or the only one.
fn choose<'a>(repository: &str, wanted: Option<&str>, files: &'a [Listed]) -> anyhow::Result<&'a Listed> {
    // What comes in several files, and what belongs to a model without being one, is no model of its own.
    let whole = |file: &&Listed| {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        name.ends_with(".gguf") && !name.contains("-of-0") && !name.starts_with("mmproj") && !name.starts_with("mtp-")
    };
    let all: Vec<&Listed> = files.iter().filter(whole).collect();
    let lower = wanted.unwrap_or_default().to_lowercase();
    let exact = |file: &Listed| file.path.to_lowercase() == lower || name(file).to_lowercase() == lower;
    let ends = |file: &Listed| name(file).to_lowercase().ends_with(&format!("-{lower}.gguf"));
    let holds = |file: &Listed| file.path.to_lowercase().contains(&lower);
    let ways: [&dyn Fn(&Listed) -> bool; 3] = [&exact, &ends, &holds];
    for way in ways {
        let found: Vec<&Listed> = all.iter().copied().filter(|file| way(file)).collect();
        match found[..] {
            [] => {}
            [one] => return Ok(one),
            _ => return Err(several(repository, &found)),
        }
    }
    if all.is_empty() {
        bail!("{repository} has no single .gguf file");
    }
    Err(several(repository, &all).context(format!("no file of {repository} is called {lower}")))
}

fn name(file: &Listed) -> &str {
    file.path.rsplit('/').next().unwrap_or_default()
}

fn several(repository: &str, files: &[&Listed]) -> anyhow::Error {
    let lines: String =
        files.iter().map(|file| format!("\n  {repository}:{}  {}", file.path, text::bytes(file.size))).collect();
    anyhow!("name one of these files:{lines}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn files() -> Vec<Listed> {
        let names = [
            "a-Q4_K_M.gguf",
            "a-UD-Q4_K_M.gguf",
            "a-Q8_0.gguf",
            "mmproj-F16.gguf",
            "b-00001-of-00002.gguf",
            "README.md",
        ];
        names.map(|path| Listed { path: path.to_owned(), size: 1, lfs: None }).to_vec()
    }

    #[test]
    fn a_file_is_found_by_a_part_of_its_name() {
        let files = files();
        let choose =
            |wanted| choose("o/r", wanted, &files).map(|file| file.path.as_str()).map_err(|error| format!("{error:#}"));
        assert_eq!(choose(Some("q8_0")), Ok("a-Q8_0.gguf"));
        assert_eq!(choose(Some("ud-q4")), Ok("a-UD-Q4_K_M.gguf"));
        assert_eq!(choose(Some("a-Q4_K_M.gguf")), Ok("a-Q4_K_M.gguf"));
        assert!(choose(Some("Q4_K_M")).unwrap_err().contains("name one of these files:\n  o/r:a-Q4_K_M.gguf"));
        assert!(choose(None).unwrap_err().contains("a-Q8_0.gguf"));
        assert!(choose(Some("Q2_K")).unwrap_err().contains("no file of o/r is called q2_k"));
        assert_eq!(super::choose("o/r", None, &files[2..]).unwrap().path, "a-Q8_0.gguf");
    }

    #[test]
    fn names_are_plain_files() {
        assert_eq!(name_of("https://x/y/model.gguf?download=true").unwrap(), "model.gguf");
        for bad in ["https://x/", "https://x/.gguf", "https://x/a.bin", "https://x/a%2Fb.gguf", "https://x/a\\b.gguf"] {
            assert!(name_of(bad).is_err(), "{bad}");
        }
    }
}
