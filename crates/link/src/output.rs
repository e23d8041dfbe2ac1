use bytes::{BufMut as _, Bytes, BytesMut};

/// Bytes for one connection, in order. Small records are gathered, large frames are handed on without a copy.
#[derive(Debug, Default)]
pub struct Output {
    chunks: Vec<Bytes>,
    gathered: BytesMut,
    length: usize,
}

/// From this length on a frame is worth a chunk of its own.
const LARGE: usize = 4096;

impl Output {
    /// Bytes that have been put in since the last [`Self::take`].
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What is to be written, as chunks; the output is empty then.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.seal();
        self.length = 0;
        std::mem::take(&mut self.chunks)
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        self.gathered.put_slice(bytes);
    }

    pub(crate) fn put_frame(&mut self, frame: &Bytes) {
        if frame.len() < LARGE {
            return self.put(frame);
        }
        self.length += frame.len();
        self.seal();
        self.chunks.push(frame.clone());
    }

    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            self.chunks.push(self.gathered.split().freeze());
        }
    }
}
