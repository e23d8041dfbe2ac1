//! Files with secrets that settings name. An admin of the API may name them, so a read always ends: it does not wait
//! for a pipe, and takes little memory.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Reads the first line of a file, without its line end.
///
/// # Errors
/// A sentence that names the file and not its content.
pub fn secret_line(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = beginning(path, LINE_MAX + 2)?;
    if let Some(end) = text.iter().position(|byte| *byte == b'\n') {
        text.truncate(end);
    }
    if text.ends_with(b"\r") {
        text.pop();
    }
    match text.len() as u64 {
        0..=LINE_MAX => Ok(text),
        _ => Err(format!("{}: the first line has more than {LINE_MAX} bytes", path.display())),
    }
}

/// Reads the first line of a file as text.
///
/// # Errors
/// As for [`secret_line`].
pub fn secret_text(path: &Path) -> Result<String, String> {
    String::from_utf8(secret_line(path)?).map_err(|_| format!("{}: it is not UTF-8", path.display()))
}

/// Reads all bytes of a file that has at most this many.
///
/// # Errors
/// As for [`secret_line`].
pub fn secret_bytes(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let bytes = beginning(path, bytes_max.saturating_add(1))?;
    match bytes.len() as u64 > bytes_max {
        true => Err(format!("{}: it has more than {bytes_max} bytes", path.display())),
        false => Ok(bytes),
    }
}

/// Reads at most this many bytes of a file.
fn beginning(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    // A pipe would block, and a device has no end.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(format!("{}: it is not a regular file", path.display()));
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(bytes_max).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Maximum number of bytes of a line.
const LINE_MAX: u64 = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_read_and_large_or_strange_files_are_refused() {
        let path = std::env::temp_dir().join(format!("meridian-secret-line-{}", std::process::id()));
        let write = |text: &[u8]| std::fs::write(&path, text).unwrap();
        for (text, line) in [
            (&b" a b \r\nmore"[..], &b" a b "[..]),
            (b"one", b"one"),
            (b"\nsecond", b""),
            (b"", b""),
            (&[b'x'; 8192], &[b'x'; 8192]),
            (&[&[b'x'; 8192][..], b"\r\n"].concat(), &[b'x'; 8192]),
        ] {
            write(text);
            assert_eq!(secret_line(&path).as_deref(), Ok(line));
            assert_eq!(secret_bytes(&path, text.len() as u64).as_deref(), Ok(text));
        }
        write(&[b'x'; 100_000]);
        let error = secret_line(&path).unwrap_err();
        assert!(error.ends_with("the first line has more than 8192 bytes"), "{error}");
        let error = secret_bytes(&path, 99_999).unwrap_err();
        assert!(error.ends_with("it has more than 99999 bytes"), "{error}");
        write(b"\xff");
        assert!(secret_line(&path).is_ok());
        assert!(secret_text(&path).unwrap_err().ends_with("it is not UTF-8"));
        std::fs::remove_file(&path).unwrap();
        assert!(secret_line(&path).is_err() && secret_bytes(&path, 1).is_err());
        for endless in ["/dev/zero", "/"] {
            let path = Path::new(endless);
            for error in [secret_line(path).unwrap_err(), secret_bytes(path, 1 << 20).unwrap_err()] {
                assert!(error.ends_with("it is not a regular file"), "{error}");
            }
        }
    }
}
