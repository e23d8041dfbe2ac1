use bytes::Bytes;

/// Bytes for one connection, in order. Small records are gathered; large frames are passed on without a copy.
#[derive(Debug, Default)]
pub struct Output {
    chunks: Vec<Bytes>,
    gathered: Vec<u8>,
    /// Expected size of the next chunk, in bytes: the size of the last one.
    likely: usize,
    length: usize,
}

/// Length in bytes from which a frame gets a chunk of its own.
const LARGE: usize = 4096;
/// Maximum size of a chunk before it is filled, in bytes.
const LIKELY_MAX: usize = 256 * 1024;

impl Output {
    /// Returns the bytes added since the last [`Self::take`].
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Takes the bytes to write, as chunks; the output is empty then.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.drain().collect()
    }

    /// Takes the bytes like [`Self::take`], for an output that is used repeatedly.
    pub fn drain(&mut self) -> impl Iterator<Item = Bytes> {
        self.seal();
        self.length = 0;
        self.chunks.drain(..)
    }

    /// Appends the bytes of another output.
    pub(crate) fn append(&mut self, other: &mut Self) {
        for chunk in other.take() {
            self.put_frame(&[], &chunk);
        }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        self.make_room(bytes.len());
        self.gathered.extend_from_slice(bytes);
    }

    /// Appends a frame after its header.
    pub(crate) fn put_frame(&mut self, header: &[u8], frame: &Bytes) {
        self.length += header.len() + frame.len();
        if frame.len() < LARGE {
            self.make_room(header.len() + frame.len());
            self.gathered.extend_from_slice(header);
            self.gathered.extend_from_slice(frame);
            return;
        }
        self.gathered.extend_from_slice(header);
        self.seal();
        self.chunks.push(frame.clone());
    }

    fn make_room(&mut self, bytes: usize) {
        if self.gathered.capacity() == 0 {
            self.gathered.reserve(bytes.max(self.likely));
        }
    }

    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            self.likely = self.gathered.len().next_power_of_two().min(LIKELY_MAX);
            self.chunks.push(std::mem::take(&mut self.gathered).into());
        }
    }
}
