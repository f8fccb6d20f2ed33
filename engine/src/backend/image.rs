//! Recurrent states in host memory, some of which are still on their way there.

use std::sync::{Arc, OnceLock};

use super::BackendError;

/// A conversation's recurrent state: one slot's bytes, in the backend's own layout. A backend may hand it out before its bytes
/// have come; whoever asks for them then waits.
#[derive(Debug)]
pub struct StateImage {
    len: usize,
    bytes: OnceLock<Result<Vec<u8>, BackendError>>,
}

impl StateImage {
    /// An image whose bytes are here.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { len: bytes.len(), bytes: OnceLock::from(Ok(bytes)) }
    }

    /// An image of `len` bytes that are to come.
    #[must_use]
    pub fn coming(len: usize) -> (Arc<Self>, Arrival) {
        let image = Arc::new(Self { len, bytes: OnceLock::new() });
        (Arc::clone(&image), Arrival(image))
    }

    /// Its length, known before its bytes are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its bytes, once they are here.
    ///
    /// # Errors
    /// Why they did not come.
    pub fn bytes(&self) -> Result<&[u8], BackendError> {
        self.bytes.wait().as_deref().map_err(Clone::clone)
    }
}

impl PartialEq for StateImage {
    fn eq(&self, other: &Self) -> bool {
        self.bytes().is_ok_and(|bytes| other.bytes().is_ok_and(|others| bytes == others))
    }
}

/// Whoever brings an image's bytes. If it is dropped before, they will not come.
#[derive(Debug)]
pub struct Arrival(Arc<StateImage>);

impl Arrival {
    /// Hands the bytes over, or says why there are none.
    pub fn arrive(self, bytes: Result<Vec<u8>, BackendError>) {
        let wrong = |bytes: &Vec<u8>| bytes.len() != self.0.len;
        let bytes = match bytes {
            Ok(bytes) if wrong(&bytes) => {
                Err(BackendError::Device(format!("a state of {} bytes came, not of {}", bytes.len(), self.0.len)))
            }
            bytes => bytes,
        };
        // Nobody else has set it: there is one arrival for each image.
        let _ = self.0.bytes.set(bytes);
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.0.bytes.get_or_init(|| Err(BackendError::Device("a state's copy was given up".into())));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn bytes_are_waited_for_and_a_lost_copy_is_an_error() {
        let (image, arrival) = StateImage::coming(3);
        assert_eq!(image.len(), 3);
        let reader = std::thread::spawn({
            let image = Arc::clone(&image);
            move || image.bytes().map(<[u8]>::to_vec)
        });
        arrival.arrive(Ok(vec![1, 2, 3]));
        assert_eq!(reader.join().unwrap().unwrap(), [1, 2, 3]);
        assert!(*image == StateImage::new(vec![1, 2, 3]));
        let (image, arrival) = StateImage::coming(3);
        drop(arrival);
        assert_eq!(image.bytes().unwrap_err().to_string(), "a state's copy was given up");
        let (image, arrival) = StateImage::coming(3);
        arrival.arrive(Ok(vec![1]));
        assert_eq!(image.bytes().unwrap_err().to_string(), "a state of 1 bytes came, not of 3");
    }
}
