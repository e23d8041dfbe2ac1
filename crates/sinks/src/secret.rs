//! Secrets, which are in files of the node.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Reads the first line of a file, without its line end.
///
/// # Errors
/// A sentence that names the file and not its content.
pub fn first_line(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    // A pipe would block, and a device has no end.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(format!("{}: it is not a regular file", path.display()));
    }
    let mut text = Vec::new();
    File::open(path).map_err(failed)?.take(SECRET_MAX + 2).read_to_end(&mut text).map_err(failed)?;
    if let Some(end) = text.iter().position(|byte| *byte == b'\n') {
        text.truncate(end);
    }
    if text.ends_with(b"\r") {
        text.pop();
    }
    match text.len() as u64 {
        0..=SECRET_MAX => Ok(text),
        _ => Err(format!("{}: the first line has more than {SECRET_MAX} bytes", path.display())),
    }
}

/// Reads the first line of a file as text.
///
/// # Errors
/// As for [`first_line`].
pub fn first_text(path: &Path) -> Result<String, String> {
    String::from_utf8(first_line(path)?).map_err(|_| format!("{}: it is not UTF-8", path.display()))
}

/// Maximum number of bytes of a secret.
const SECRET_MAX: u64 = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_read_and_large_or_strange_files_are_refused() {
        let path = std::env::temp_dir().join(format!("meridian-secret-{}", std::process::id()));
        let read = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            first_line(&path)
        };
        for (text, line) in [
            (&b" a b \r\nmore"[..], &b" a b "[..]),
            (b"one", b"one"),
            (b"\nsecond", b""),
            (b"", b""),
            (&[b'x'; 8192], &[b'x'; 8192]),
            (&[&[b'x'; 8192][..], b"\r\n"].concat(), &[b'x'; 8192]),
        ] {
            assert_eq!(read(text).as_deref(), Ok(line));
        }
        let error = read(&[b'x'; 100_000]).unwrap_err();
        assert!(error.ends_with("the first line has more than 8192 bytes"), "{error}");
        read(b"\xff").unwrap();
        assert!(first_text(&path).unwrap_err().ends_with("it is not UTF-8"));
        std::fs::remove_file(&path).unwrap();
        assert!(first_line(&path).is_err());
        for endless in ["/dev/zero", "/"] {
            assert!(first_line(Path::new(endless)).unwrap_err().ends_with("it is not a regular file"));
        }
    }
}
