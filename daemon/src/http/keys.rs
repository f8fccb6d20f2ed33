//! API keys: who may ask, and how many requests of one may run at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use hyper::Request;
use hyper::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// The credential's name for systemd: `LoadCredential=api-keys:FILE`.
const CREDENTIAL: &str = "api-keys";

/// Shortest key, in bytes: a shorter one can be guessed.
const SHORTEST: usize = 16;

/// The keys, of which a request must have one. None at all lets everybody in.
#[derive(Debug, Default)]
pub struct Keys(Vec<Key>);

#[derive(Debug)]
struct Key {
    name: String,
    /// Of equal length for all keys, so that comparing takes equal time.
    digest: [u8; 32],
    /// Requests that may run at once.
    limit: Option<(usize, Arc<Semaphore>)>,
}

/// A request's leave to run, for as long as it is kept.
#[derive(Debug)]
pub struct Admission(Option<OwnedSemaphorePermit>);

/// A key file that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeyFileError(String);

impl Keys {
    /// The keys in `file`, or else in systemd's credential `api-keys`; none where there is neither.
    ///
    /// # Errors
    /// [`KeyFileError`] names the file and line.
    pub fn load(file: Option<&Path>) -> Result<Self, KeyFileError> {
        let credential = || {
            let folder = std::env::var_os("CREDENTIALS_DIRECTORY")?;
            Some(PathBuf::from(folder).join(CREDENTIAL)).filter(|path| path.exists())
        };
        let Some(path) = file.map(Path::to_path_buf).or_else(credential) else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(&path)
            .map_err(|error| KeyFileError(format!("the keys in {} can't be read: {error}", path.display())))?;
        Self::parse(&text).map_err(|message| KeyFileError(format!("{}: {message}", path.display())))
    }

    /// Reads lines of a name, a key, and how many requests may run at once if that is limited.
    fn parse(text: &str) -> Result<Self, String> {
        let mut keys: Vec<Key> = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let refuse = |message: String| Err(format!("line {}: {message}", i + 1));
            let words: Vec<&str> = line.split_whitespace().collect();
            let (name, key, limit) = match words[..] {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                [name, key] => (name, key, None),
                [name, key, limit] => match limit.parse::<usize>() {
                    Ok(limit @ 1..=100_000) => (name, key, Some(limit)),
                    _ => return refuse(format!("`{limit}` is no number of requests; it is 1 to 100000")),
                },
                _ => return refuse("write a name, a key, and how many of its requests may run at once".to_owned()),
            };
            if key.len() < SHORTEST {
                return refuse(format!("the key of {name} is shorter than {SHORTEST} characters"));
            }
            let digest: [u8; 32] = Sha256::digest(key).into();
            if keys.iter().any(|known| known.name == name || known.digest == digest) {
                return refuse(format!("the name {name} or its key is there already"));
            }
            let limit = limit.map(|limit| (limit, Arc::new(Semaphore::new(limit))));
            keys.push(Key { name: name.to_owned(), digest, limit });
        }
        if keys.is_empty() {
            return Err("there is no key; write lines of a name and a key".to_owned());
        }
        Ok(Self(keys))
    }

    /// Whether nobody needs a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lets a request in.
    ///
    /// # Errors
    /// 401 without a known key, 429 when enough requests of its key run already.
    pub fn admit<B>(&self, request: &Request<B>) -> Result<Admission, ApiError> {
        if self.is_empty() {
            return Ok(Admission(None));
        }
        let Some(given) = given(request) else { return Err(ApiError::unauthorized("an API key is needed")) };
        let digest: [u8; 32] = Sha256::digest(given).into();
        // All are compared, so that the time says nothing of which one it was.
        let mut found = None;
        for key in &self.0 {
            if bool::from(key.digest.ct_eq(&digest)) {
                found = Some(key);
            }
        }
        let Some(key) = found else { return Err(ApiError::unauthorized("the API key is not known here")) };
        tracing::debug!(key = key.name, "request");
        let Some((limit, places)) = &key.limit else { return Ok(Admission(None)) };
        match places.clone().try_acquire_owned() {
            Ok(place) => Ok(Admission(Some(place))),
            Err(_) => Err(ApiError::too_many(format!("{limit} requests of the key {} run already", key.name), 1)),
        }
    }
}

impl Admission {
    /// Whether it is one of a limited number.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.0.is_some()
    }
}

/// The key in `Authorization: Bearer KEY`, in `x-api-key`, or the password of `Authorization: Basic`, which browsers send.
fn given<B>(request: &Request<B>) -> Option<Vec<u8>> {
    if let Some(key) = request.headers().get("x-api-key") {
        return Some(key.as_bytes().to_vec());
    }
    let value = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, rest) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().as_bytes().to_vec());
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let pair = base64::engine::general_purpose::STANDARD.decode(rest.trim()).ok()?;
        let colon = pair.iter().position(|&byte| byte == b':')?;
        return Some(pair[colon + 1..].to_vec());
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const FILE: &str = "# people\nann  a-key-of-some-length-1\nbob  a-key-of-some-length-2 1\n\n";

    fn with(header: &str, value: &str) -> Request<()> {
        Request::builder().header(header, value).body(()).unwrap()
    }

    #[test]
    fn known_keys_are_let_in_however_they_come() {
        let keys = Keys::parse(FILE).unwrap();
        let basic = base64::engine::general_purpose::STANDARD.encode("any:a-key-of-some-length-1");
        for (header, value) in [
            ("authorization", "Bearer a-key-of-some-length-1".to_owned()),
            ("authorization", "bearer  a-key-of-some-length-1".to_owned()),
            ("x-api-key", "a-key-of-some-length-1".to_owned()),
            ("authorization", format!("Basic {basic}")),
        ] {
            assert!(keys.admit(&with(header, &value)).is_ok(), "{header}: {value}");
        }
        for (header, value) in [
            ("authorization", "Bearer a-key-of-some-length-3"),
            ("authorization", "a-key-of-some-length-1"),
            ("x", "y"),
        ] {
            assert_eq!(keys.admit(&with(header, value)).unwrap_err().status(), 401, "{header}: {value}");
        }
        assert!(Keys::default().admit(&with("x", "y")).is_ok());
    }

    #[test]
    fn a_keys_requests_are_limited() {
        let keys = Keys::parse(FILE).unwrap();
        let request = with("x-api-key", "a-key-of-some-length-2");
        let first = keys.admit(&request).unwrap();
        assert_eq!(keys.admit(&request).unwrap_err().status(), 429);
        assert!(first.is_limited());
        drop(first);
        assert!(keys.admit(&request).is_ok());
    }

    #[test]
    fn bad_files_are_said_with_the_line() {
        for (text, part) in [
            ("", "there is no key"),
            ("ann short", "line 1: the key of ann is shorter"),
            ("ann", "line 1: write a name"),
            ("# x\nann a-key-of-some-length-1 none", "line 2: `none` is no number"),
            ("ann a-key-of-some-length-1\nann a-key-of-some-length-2", "line 2: the name ann"),
            ("ann a-key-of-some-length-1\nbob a-key-of-some-length-1", "line 2: the name bob or its key"),
        ] {
            let message = Keys::parse(text).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }
}
