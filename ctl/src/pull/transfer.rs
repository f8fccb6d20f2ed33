//! Bytes of a file from a server into a part, however often the connection breaks.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use ureq::http::{HeaderMap, StatusCode};
use ureq::{Agent, Body};

use super::source::Source;

/// Longest wait for a connection and for the head of an answer.
const HEAD: Duration = Duration::from_secs(30);

/// Time that one request may take where the next one can go on: a connection that has fallen silent is given up then.
const WINDOW: Duration = Duration::from_secs(120);

/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;

/// Requests in a row that may bring nothing.
const TRIES: u32 = 5;

/// A file on its way.
pub(super) struct Transfer<'a> {
    source: &'a Source,
    agent: Agent,
    part: PathBuf,
    file: File,
    hash: Sha256,
    have: u64,
    /// Bytes of the whole, if the server or the hub says so.
    size: Option<u64>,
    /// The server can go on in the middle.
    ranges: bool,
    bar: ProgressBar,
}

/// What one request came to.
enum Outcome {
    /// All is here.
    Whole,
    /// It broke off.
    Broken(anyhow::Error),
}

impl<'a> Transfer<'a> {
    /// Asks the server about the file and opens the part, or goes on with one that is there.
    pub(super) fn begin(source: &'a Source, part: &Path) -> anyhow::Result<Self> {
        let agent: Agent = Agent::config_builder()
            .timeout_connect(Some(HEAD))
            .timeout_recv_response(Some(HEAD))
            .http_status_as_error(false)
            .build()
            .into();
        let answer = get(&agent, source, Some("bytes=0-0"), None)?;
        let ranges = answer.status() == StatusCode::PARTIAL_CONTENT;
        let size = if ranges { range(answer.headers()).map(|(_, total)| total) } else { length(answer.headers()) };
        if let (Some(said), Some(listed)) = (size, source.size)
            && said != listed
        {
            bail!(
                "the server says that {} has {said} bytes, the hub's list says {listed}; try again later",
                source.name
            );
        }
        let origin = format!("{}\n{}\n", source.url, text(answer.headers(), "etag"));
        let goes_on = ranges && std::fs::read_to_string(note(part)).is_ok_and(|note| note == origin);
        std::fs::write(note(part), &origin).with_context(|| format!("{} can't be written", note(part).display()))?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(!goes_on)
            .open(part)
            .with_context(|| format!("{} can't be written", part.display()))?;
        let mut hash = Sha256::new();
        let mut have = read(&mut file, &mut hash).with_context(|| format!("{} can't be read", part.display()))?;
        let size = size.or(source.size);
        if size.is_some_and(|size| have > size) {
            file.set_len(0)?;
            (have, hash) = (0, Sha256::new());
        }
        let style = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        let bar = size.map_or_else(ProgressBar::new_spinner, ProgressBar::new).with_message(source.name.clone());
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(have);
        Ok(Self { source, agent, part: part.to_owned(), file, hash, have, size, ranges, bar })
    }

    /// Bytes that are still to come, as far as that is known.
    pub(super) fn missing(&self) -> u64 {
        self.size.unwrap_or_default().saturating_sub(self.have)
    }

    /// Whether nothing has come yet.
    pub(super) fn has_nothing(&self) -> bool {
        self.have == 0
    }

    /// Fetches what is missing.
    pub(super) fn run(&mut self) -> anyhow::Result<()> {
        let mut idle = 0;
        while self.size.is_none_or(|size| self.have < size) {
            let before = self.have;
            match self.request()? {
                Outcome::Whole => return Ok(()),
                Outcome::Broken(_) if self.have > before => idle = 0,
                Outcome::Broken(error) if idle + 1 == TRIES => {
                    return Err(error.context(format!(
                        "{} broke off {TRIES} times in a row at {} bytes; the same command goes on from there",
                        self.source.url, self.have
                    )));
                }
                Outcome::Broken(_) => {
                    std::thread::sleep(Duration::from_millis(500 << idle));
                    idle += 1;
                }
            }
        }
        Ok(())
    }

    /// The SHA-256 of the whole, which is on disk then.
    pub(super) fn finish(self) -> anyhow::Result<String> {
        self.bar.finish_and_clear();
        self.file.sync_all().with_context(|| format!("{} can't be written", self.part.display()))?;
        Ok(self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn request(&mut self) -> anyhow::Result<Outcome> {
        let from = self.ranges.then(|| format!("bytes={}-", self.have));
        let answer = match get(&self.agent, self.source, from.as_deref(), self.ranges.then_some(WINDOW)) {
            Ok(answer) => answer,
            Err(error) if error.is::<Refused>() => return Err(error),
            Err(error) => return Ok(Outcome::Broken(error)),
        };
        if answer.status() == StatusCode::PARTIAL_CONTENT {
            match range(answer.headers()) {
                Some((start, total)) if start == self.have && self.size.is_none_or(|size| size == total) => {
                    self.size = Some(total);
                }
                other => {
                    bail!("the server was asked for bytes from {} on and sends {other:?} (start, total)", self.have)
                }
            }
        } else {
            // All of it, from the beginning.
            self.restart()?;
        }
        let mut body = answer.into_body();
        let mut reader = body.with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; PIECE];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) if self.size.is_none_or(|size| size == self.have) => return Ok(Outcome::Whole),
                Ok(0) => return Ok(Outcome::Broken(anyhow::anyhow!("the connection was closed early"))),
                Ok(n) => self.take(&buffer[..n])?,
                Err(error) => return Ok(Outcome::Broken(error.into())),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.have += bytes.len() as u64;
        if let Some(size) = self.size.filter(|&size| self.have > size) {
            bail!("the server sends more than the {size} bytes that it announced");
        }
        self.file.write_all(bytes).with_context(|| format!("{} can't be written", self.part.display()))?;
        self.hash.update(bytes);
        self.bar.set_position(self.have);
        Ok(())
    }

    fn restart(&mut self) -> anyhow::Result<()> {
        use std::io::Seek;
        self.file.set_len(0)?;
        self.file.rewind()?;
        (self.have, self.hash) = (0, Sha256::new());
        Ok(())
    }
}

/// Hashes what is there already; returns how much that is.
fn read(file: &mut File, hash: &mut Sha256) -> std::io::Result<u64> {
    let mut buffer = vec![0; PIECE];
    let mut have = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(have),
            n => {
                hash.update(&buffer[..n]);
                have += n as u64;
            }
        }
    }
}

/// The server says no, which asking again does not change.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// Asks for the file, or for a range of it.
fn get(
    agent: &Agent,
    source: &Source,
    range: Option<&str>,
    limit: Option<Duration>,
) -> anyhow::Result<ureq::http::Response<Body>> {
    let mut request = agent.get(&source.url).config().timeout_recv_body(limit).build();
    if let Some(range) = range {
        request = request.header("Range", range);
    }
    if let Some(token) = &source.token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let answer = request.call().with_context(|| format!("{} can't be reached", source.url))?;
    match answer.status().as_u16() {
        200 | 206 => Ok(answer),
        429 | 500.. => bail!("{} answered {}", source.url, answer.status()),
        _ => bail!(Refused(format!("{} answered {}", source.url, answer.status()))),
    }
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

fn length(headers: &HeaderMap) -> Option<u64> {
    text(headers, "content-length").parse().ok()
}

/// Start and total of `Content-Range: bytes START-END/TOTAL`.
fn range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let value = text(headers, "content-range");
    let (bounds, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    Some((bounds.split_once('-')?.0.parse().ok()?, total.parse().ok()?))
}

/// The file that says where a part comes from.
fn note(part: &Path) -> PathBuf {
    part.with_extension("part.from")
}

/// Removes it.
pub(super) fn forget(part: &Path) {
    // It may not be there.
    let _gone = std::fs::remove_file(note(part));
}
