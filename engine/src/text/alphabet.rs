//! The byte alphabet: a printable character for each byte, in which vocabularies of byte-level BPE are spelled.
//!
//! Bytes 33 to 126, 161 to 172 and 174 to 255 are the characters of the same number; the others, in ascending order, are
//! U+0100, U+0101 and so on (a space is U+0120).

use std::sync::LazyLock;

/// The character of each byte.
pub(super) static CHARS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut chars = ['\0'; 256];
    let mut next = 0x100_u32;
    for byte in 0..=255_u8 {
        chars[usize::from(byte)] = if matches!(byte, 33..=126 | 161..=172 | 174..=255) {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).unwrap_or_default()
        };
    }
    chars
});

/// The byte of each character below U+0144, `None` where it stands for none.
static BYTES: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut bytes = [None; 0x144];
    for (byte, &c) in (0..=255).zip(CHARS.iter()) {
        bytes[c as usize] = Some(byte);
    }
    bytes
});

/// The byte that a character stands for.
pub(super) fn byte(c: char) -> Option<u8> {
    *BYTES.get(c as usize)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        for b in 0..=255 {
            assert_eq!(byte(CHARS[usize::from(b)]), Some(b));
        }
        assert_eq!((CHARS[32], CHARS[10], CHARS[255], CHARS[173]), ('\u{120}', '\u{10a}', 'ÿ', '\u{143}'));
        assert_eq!((byte(' '), byte('\u{144}'), byte('語')), (None, None, None));
    }
}
