use bytes::Bytes;

/// A frame that is to be sent. It has a short head in front of its body, so that the sender need not copy the body to
/// put some bytes before it. The receiver gets one sequence of bytes.
#[derive(Clone, Debug)]
pub struct Frame {
    head: [u8; Self::HEAD_MAX],
    head_length: u8,
    body: Bytes,
}

impl Frame {
    /// Maximum length of a head.
    pub const HEAD_MAX: usize = 7;

    /// # Panics
    /// The head is longer than [`Self::HEAD_MAX`].
    pub fn new(head: &[u8], body: Bytes) -> Self {
        let mut frame = Self { head: [0; Self::HEAD_MAX], head_length: head.len() as u8, body };
        frame.head[..head.len()].copy_from_slice(head);
        frame
    }

    pub(crate) fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_length)]
    }

    pub(crate) fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the length of the head and the body together.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.head_length) + self.body.len()
    }
}

impl From<Bytes> for Frame {
    fn from(body: Bytes) -> Self {
        Self::new(&[], body)
    }
}

impl From<Vec<u8>> for Frame {
    fn from(body: Vec<u8>) -> Self {
        Self::new(&[], body.into())
    }
}
