//! A stream that limits what the server sends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Number of bytes that the server may still send.
#[derive(Clone, Debug)]
pub struct Allowance(Arc<AtomicUsize>);

impl Allowance {
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    pub fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Takes the bytes of a message. All of them count as soon as its length is known, because the library then
    /// reserves memory for them.
    fn take(&self, bytes: usize) -> io::Result<()> {
        let left = self.0.load(Ordering::Relaxed);
        let rest = left.checked_sub(bytes).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the server sends more than {left} further bytes"),
            )
        })?;
        self.0.store(rest, Ordering::Relaxed);
        Ok(())
    }
}

/// A stream of messages of a PostgreSQL server. It ends with an error before the allowance is exceeded.
#[derive(Debug)]
pub struct Limited<S> {
    stream: S,
    allowance: Allowance,
    frame: Frame,
}

/// Part of a message that is read next.
#[derive(Debug)]
enum Frame {
    /// Type and length; this many bytes of them are known.
    Header {
        known: [u8; 5],
        len: usize,
    },
    Body {
        left: usize,
    },
}

impl Frame {
    const START: Self = Self::Header { known: [0; 5], len: 0 };
}

impl<S> Limited<S> {
    pub fn new(stream: S, allowance: Allowance) -> Self {
        Self { stream, allowance, frame: Frame::START }
    }

    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    fn check(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some((first, rest)) = bytes.split_first() {
            match &mut self.frame {
                Frame::Body { left } => {
                    let len = bytes.len().min(*left);
                    *left -= len;
                    bytes = &bytes[len..];
                    if *left == 0 {
                        self.frame = Frame::START;
                    }
                }
                Frame::Header { known, len } => {
                    known[*len] = *first;
                    *len += 1;
                    bytes = rest;
                    if let [_, a, b, c, d] = *known
                        && *len == HEADER
                    {
                        // The length includes its own four bytes.
                        let body = (u32::from_be_bytes([a, b, c, d]) as usize).saturating_sub(4);
                        self.allowance.take(HEADER.saturating_add(body))?;
                        self.frame = if body == 0 { Frame::START } else { Frame::Body { left: body } };
                    }
                }
            }
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Limited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        Poll::Ready(self.check(&buf.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Limited<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Number of bytes of the type and the length of a message.
const HEADER: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_when_their_length_is_known() {
        let ok = b"1\0\0\0\x04Z\0\0\0\x05I".as_slice();
        let huge = b"E\x7f\xff\xff\xff".as_slice();
        for (name, bytes, allowance, left) in [
            ("two messages", ok.to_vec(), 100, Some(89)),
            ("exactly the allowance", ok.to_vec(), 11, Some(0)),
            ("one byte too many", ok.to_vec(), 10, None),
            ("a length beyond all memory", [ok, huge].concat(), 100, None),
            ("half a header", b"E\x7f\xff".to_vec(), 0, Some(0)),
            ("a length below the minimum", b"E\0\0\0\0".to_vec(), 5, Some(0)),
        ] {
            for size in 1..=bytes.len() {
                let limit = Allowance::new(allowance);
                let mut stream = Limited::new((), limit.clone());
                let result: io::Result<()> = bytes.chunks(size).try_for_each(|part| stream.check(part));
                assert_eq!(result.is_ok(), left.is_some(), "{name} in parts of {size}");
                if let Some(left) = left {
                    assert_eq!(limit.0.load(Ordering::Relaxed), left, "{name} in parts of {size}");
                }
            }
        }
    }
}
