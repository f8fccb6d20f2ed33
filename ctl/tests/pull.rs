//! `openjetctl pull` against servers that behave and servers that do not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/openjet-tiny-Q4_K_M.gguf");

/// How a server serves its file.
#[derive(Clone, Default)]
struct Manners {
    /// Closes each connection after so many bytes of the file.
    breaks_after: Option<usize>,
    /// Knows nothing of ranges.
    no_ranges: bool,
    /// Says that the file is so much longer than it is.
    lies_by: usize,
    /// Sends other bytes than the hub's list promises.
    wrong: bool,
    /// Answers all requests for the file with this.
    refuses: Option<&'static str>,
    /// Sends so many bytes more than it announced.
    sends_more: usize,
    /// Starts a range elsewhere than asked.
    shifts: usize,
    /// Says that the file has so many bytes, and so does the hub's list.
    announces: Option<u64>,
}

/// A hub with one repository; counts requests for its file.
struct Hub {
    address: String,
    asked: Arc<AtomicUsize>,
    sum: String,
}

impl Hub {
    fn start(manners: Manners) -> Self {
        let file = Arc::new(std::fs::read(TINY).unwrap());
        let sum: String = Sha256::digest(&file[..]).iter().map(|byte| format!("{byte:02x}")).collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let (count, listed) = (asked.clone(), sum.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (manners, file, count, listed) = (manners.clone(), file.clone(), count.clone(), listed.clone());
                // A client that leaves early is no concern of the server's.
                std::thread::spawn(move || drop(serve(stream.unwrap(), &manners, &file, &count, &listed)));
            }
        });
        Self { address, asked, sum }
    }

    fn pull(&self, folder: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_openjetctl"));
        command.args(["--json", "pull"]).args(args).arg("--dir").arg(folder);
        command.env("HF_ENDPOINT", format!("http://{}", self.address)).env_remove("HF_TOKEN");
        for proxy in ["ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"] {
            command.env_remove(proxy);
        }
        command.output().unwrap()
    }

    /// Pulls the repository's only file.
    fn get(&self, folder: &Path) -> Output {
        self.pull(folder, &["someone/models"])
    }

    fn url(&self) -> String {
        format!("http://{}/someone/models/resolve/main/tiny.gguf", self.address)
    }
}

fn serve(mut stream: TcpStream, manners: &Manners, file: &[u8], count: &AtomicUsize, sum: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap()?;
    let path = first.split(' ').nth(1).unwrap().to_owned();
    let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let range = head.iter().find_map(|line| {
        let (start, end) = line
            .to_lowercase()
            .strip_prefix("range: bytes=")?
            .split_once('-')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))?;
        Some((start.parse::<usize>().unwrap(), end.parse::<usize>().ok()))
    });
    let mut respond = |status: &str, headers: &str, length: usize, body: &[u8]| -> std::io::Result<()> {
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n")?;
        stream.write_all(body)
    };
    match path.as_str() {
        "/api/models/someone/models/tree/main?recursive=true" => {
            let size = manners.announces.unwrap_or(file.len() as u64);
            let list = json!([
                {"type": "file", "path": "README.md", "size": 3},
                {"type": "file", "path": "tiny.gguf", "size": size, "lfs": {"oid": sum, "size": size}},
            ])
            .to_string();
            respond("200 OK", "", list.len(), list.as_bytes())
        }
        "/someone/models/resolve/main/tiny.gguf" => {
            count.fetch_add(1, Ordering::SeqCst);
            if let Some(status) = manners.refuses {
                return respond(status, "", 0, b"");
            }
            let mut content = file.to_vec();
            if manners.wrong {
                content[1000] ^= 1;
            }
            let total = manners.announces.map_or(content.len() + manners.lies_by, |bytes| bytes as usize);
            let (start, end) = match range.filter(|_| !manners.no_ranges) {
                Some((start, end)) => (start, end.map_or(total, |end| end + 1)),
                None => (0, total),
            };
            let from = if end == total { (start + manners.shifts).min(total) } else { start };
            let mut body = content.get(from..end.min(content.len())).unwrap_or_default().to_vec();
            if let Some(most) = manners.breaks_after {
                body.truncate(most);
            }
            body.extend(std::iter::repeat_n(7, manners.sends_more));
            let headers = format!("Content-Range: bytes {from}-{}/{total}\r\nETag: \"x\"\r\n", end - 1);
            if range.is_some() && !manners.no_ranges {
                respond("206 Partial Content", &headers, end - from + manners.sends_more, &body)
            } else {
                respond("200 OK", "", total, &body)
            }
        }
        _ => respond("404 Not Found", "", 0, b""),
    }
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_comes_whole_with_its_sum_and_is_not_fetched_again() {
    let (hub, folder) = (Hub::start(Manners::default()), tempfile::tempdir().unwrap());
    let output = hub.get(folder.path());
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["sha256"], &report["runnable"]), (&json!(hub.sum), &json!(true)));
    assert_eq!(std::fs::read(folder.path().join("tiny.gguf")).unwrap(), std::fs::read(TINY).unwrap());
    assert_eq!(names(folder.path()), ["tiny.gguf"]);
    let asked = hub.asked.load(Ordering::SeqCst);
    assert!(hub.get(folder.path()).status.success());
    assert_eq!(hub.asked.load(Ordering::SeqCst), asked);
    // A part of the name is enough; what is not there is refused with what is.
    let output = hub.pull(folder.path(), &["someone/models:q2_k", "--force"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("someone/models:tiny.gguf"), "{}", said(&output));
    let output = hub.pull(folder.path(), &["someone/else"]);
    assert!(
        said(&output).contains("the hub knows no someone/else") && said(&output).contains("HF_TOKEN"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_connection_that_breaks_is_gone_on_with() {
    let manners = Manners { breaks_after: Some(5 << 20), ..Manners::default() };
    let (hub, folder) = (Hub::start(manners), tempfile::tempdir().unwrap());
    let output = hub.get(folder.path());
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(std::fs::read(folder.path().join("tiny.gguf")).unwrap(), std::fs::read(TINY).unwrap());
    // One look, then pieces of 5 MiB.
    let pieces = std::fs::metadata(TINY).unwrap().len().div_ceil(5 << 20) as usize;
    assert_eq!(hub.asked.load(Ordering::SeqCst), 1 + pieces);
}

#[test]
fn a_later_call_goes_on_where_an_earlier_one_ended() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(Manners::default());
    let part = folder.path().join("tiny.gguf.part");
    let content = std::fs::read(TINY).unwrap();
    std::fs::write(&part, &content[..9 << 20]).unwrap();
    std::fs::write(folder.path().join("tiny.gguf.part.from"), format!("{}\n\"x\"\n", hub.url())).unwrap();
    let output = hub.get(folder.path());
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(std::fs::read(folder.path().join("tiny.gguf")).unwrap(), content);
    // A part of another origin is not built upon.
    std::fs::write(&part, vec![1; 9 << 20]).unwrap();
    std::fs::write(folder.path().join("tiny.gguf.part.from"), "http://elsewhere/tiny.gguf\n\n").unwrap();
    let output = hub.pull(folder.path(), &["someone/models", "--force"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(names(folder.path()), ["tiny.gguf"]);
}

#[test]
fn wrong_bytes_are_not_kept() {
    let (hub, folder) = (Hub::start(Manners { wrong: true, ..Manners::default() }), tempfile::tempdir().unwrap());
    let output = hub.get(folder.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("its SHA-256 is") && said(&output).contains(&hub.sum), "{}", said(&output));
    assert!(names(folder.path()).is_empty(), "{:?}", names(folder.path()));
    // A URL has no sum of its own: the one that is given counts.
    let zeros = "0".repeat(64);
    let output = hub.pull(folder.path(), &[&hub.url(), "--sha256", &zeros]);
    assert!(said(&output).contains(&zeros), "{}", said(&output));
    assert_eq!(hub.pull(folder.path(), &[&hub.url(), "--sha256", "12"]).status.code(), Some(2));
}

#[test]
fn lies_about_lengths_are_seen() {
    let cases = [
        (Manners { lies_by: 1000, ..Manners::default() }, "the server says that tiny.gguf has"),
        (Manners { sends_more: 10, ..Manners::default() }, "sends more than the"),
        (Manners { shifts: 5, ..Manners::default() }, "was asked for bytes from 0 on"),
    ];
    for (manners, words) in cases {
        let (hub, folder) = (Hub::start(manners), tempfile::tempdir().unwrap());
        let output = hub.get(folder.path());
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
        assert!(!folder.path().join("tiny.gguf").exists());
    }
}

#[test]
fn a_file_that_the_disk_has_no_room_for_is_not_begun() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(Manners { announces: Some(1 << 50), ..Manners::default() });
    let output = hub.get(folder.path());
    assert_eq!(output.status.code(), Some(1));
    for words in [" free, but 1024.0 TiB are to come", "choose another folder with --dir"] {
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
    }
    // One look at the server, and nothing is left behind.
    assert_eq!(hub.asked.load(Ordering::SeqCst), 1);
    assert!(names(folder.path()).is_empty(), "{:?}", names(folder.path()));
}

#[test]
fn a_server_without_ranges_or_without_the_file_is_dealt_with() {
    let (hub, folder) = (Hub::start(Manners { no_ranges: true, ..Manners::default() }), tempfile::tempdir().unwrap());
    assert!(hub.pull(folder.path(), &[&hub.url()]).status.success());
    for (status, words) in [("404 Not Found", "404"), ("403 Forbidden", "403")] {
        let hub = Hub::start(Manners { refuses: Some(status), ..Manners::default() });
        let output = hub.pull(folder.path(), &[&hub.url(), "--force"]);
        assert!(output.status.code() == Some(1) && said(&output).contains(words), "{}", said(&output));
    }
    for bad in ["nothing", "https://x/y.bin", "a/b/c"] {
        assert_eq!(hub.pull(folder.path(), &[bad]).status.code(), Some(1), "{bad}");
    }
}
