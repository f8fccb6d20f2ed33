//! Who may use the control actions over HTTP: whoever has the admin key, or every user of this machine where that is set.

use std::path::{Path, PathBuf};

use hyper::Request;
use hyper::header::{HOST, HeaderMap, HeaderValue, ORIGIN};
use hyper::http::uri::Authority;
use openjet_proto::live::Actions;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::ApiError;
use crate::config::{Config, is_loopback};

/// The header that carries the key.
pub const HEADER: &str = "x-openjet-admin";

/// The credential's name for systemd: `LoadCredential=admin-key:FILE`.
const CREDENTIAL: &str = "admin-key";

/// Shortest key, in bytes: a shorter one can be guessed.
const SHORTEST: usize = 16;

/// Who may change things over HTTP.
#[derive(Clone, Copy, Debug)]
pub struct Admin {
    digest: Option<[u8; 32]>,
    open: bool,
}

/// A key file that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AdminKeyError(String);

impl Admin {
    /// As the settings say.
    ///
    /// # Errors
    /// [`AdminKeyError`] names the file.
    pub fn load(config: &Config) -> Result<Self, AdminKeyError> {
        let credential = || {
            let folder = std::env::var_os("CREDENTIALS_DIRECTORY")?;
            Some(PathBuf::from(folder).join(CREDENTIAL)).filter(|path| path.exists())
        };
        let file = config.admin_key.clone().or_else(credential);
        let digest = file.as_deref().map(digest_of).transpose()?;
        Ok(Self { digest, open: config.admin_on_loopback })
    }

    /// What the page may say about it.
    #[must_use]
    pub fn actions(&self) -> Actions {
        match (self.open, self.digest) {
            (true, _) => Actions::Open,
            (false, Some(_)) => Actions::Key,
            (false, None) => Actions::Off,
        }
    }

    /// Lets a request change things.
    ///
    /// # Errors
    /// 403 where nobody may, or for a page of another site; 401 without the right key.
    pub fn admit<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let headers = request.headers();
        if let Some(given) = headers.get(HEADER) {
            let digest: [u8; 32] = Sha256::digest(given.as_bytes()).into();
            let right = self.digest.is_some_and(|known| known.ct_eq(&digest).into());
            if !right {
                return Err(ApiError::unauthorized_admin("the admin key is not the right one", HEADER));
            }
            return same_site(headers);
        }
        // A page that lured its name onto this address must not get in: only this machine's own names count.
        if self.open && host(headers).is_some_and(|host| is_loopback(host.as_str())) {
            return same_site(headers);
        }
        if self.digest.is_some() {
            return Err(ApiError::unauthorized_admin("the admin key is needed", HEADER));
        }
        Err(ApiError::forbidden(
            "nothing can be changed over HTTP here: set admin_key or admin_on_loopback, or use openjetctl",
        ))
    }
}

/// Refuses what a web page of another site sends: browsers say where a page is from.
///
/// # Errors
/// 403 naming the site.
pub fn same_site(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let site = origin.to_str().ok().and_then(|origin| origin.parse::<hyper::Uri>().ok()?.into_parts().authority);
    if site.is_some() && site == host(headers) {
        return Ok(());
    }
    Err(ApiError::forbidden(format!("pages of {} can't use this", String::from_utf8_lossy(origin.as_bytes()))))
}

fn host(headers: &HeaderMap) -> Option<Authority> {
    headers.get(HOST).map(HeaderValue::as_bytes).and_then(|host| Authority::try_from(host).ok())
}

fn digest_of(file: &Path) -> Result<[u8; 32], AdminKeyError> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| AdminKeyError(format!("the admin key in {shown} can't be read: {error}")))?;
    let key = text.trim();
    if key.len() < SHORTEST || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = format!("{SHORTEST} ASCII characters or more without a space");
        return Err(AdminKeyError(format!(
            "{shown}: the admin key must be {what}, such as `openssl rand -hex 16` makes"
        )));
    }
    Ok(Sha256::digest(key).into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const KEY: &str = "0123456789abcdef";

    fn admin(key: bool, open: bool) -> Admin {
        Admin { digest: key.then(|| Sha256::digest(KEY).into()), open }
    }

    fn status(admin: Admin, headers: &[(&str, &str)]) -> u16 {
        let request = headers.iter().fold(Request::builder(), |r, (name, value)| r.header(*name, *value));
        admin.admit(&request.body(()).unwrap()).map_or_else(|error| error.status().as_u16(), |()| 200)
    }

    #[test]
    fn the_key_or_the_loopback_lets_in_and_other_sites_never() {
        let (host, evil) = (("host", "127.0.0.1:18080"), ("origin", "http://evil.example"));
        let own = ("origin", "http://127.0.0.1:18080");
        let (right, wrong) = ((HEADER, KEY), (HEADER, "0123456789abcdeX"));
        for (key, open, headers, expected) in [
            (false, false, vec![host], 403),
            (false, false, vec![host, right], 401),
            (true, false, vec![host], 401),
            (true, false, vec![host, wrong], 401),
            (true, false, vec![host, right], 200),
            (true, false, vec![host, right, own], 200),
            (true, false, vec![host, right, evil], 403),
            (true, false, vec![host, right, ("origin", "null")], 403),
            (false, true, vec![host], 200),
            (false, true, vec![host, own], 200),
            (false, true, vec![host, evil], 403),
            (false, true, vec![("host", "localhost:18080"), ("origin", "http://localhost:18080")], 200),
            (false, true, vec![("host", "evil.example"), evil], 403),
            (false, true, vec![], 403),
            (true, true, vec![host, wrong], 401),
            (true, true, vec![("host", "box.example"), right], 200),
        ] {
            assert_eq!(status(admin(key, open), &headers), expected, "{key} {open} {headers:?}");
        }
    }

    #[test]
    fn bad_key_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        let config = Config { admin_key: Some(file.clone()), ..Config::default() };
        let message = || Admin::load(&config).unwrap_err().to_string();
        assert!(message().contains("can't be read"), "{}", message());
        std::fs::write(&file, "short\n").unwrap();
        assert!(message().contains("16 ASCII characters"), "{}", message());
        std::fs::write(&file, format!("{KEY}\n")).unwrap();
        assert_eq!(Admin::load(&config).unwrap().actions(), Actions::Key);
    }
}
