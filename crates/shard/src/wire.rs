//! Little-endian fields, written to a `Vec` and read back with every length checked.

use crate::error::{Malformed, malformed};

pub(crate) trait Writer {
    fn raw(&mut self, bytes: &[u8]);

    fn u8(&mut self, value: u8) {
        self.raw(&[value]);
    }

    fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends a text after its length.
    fn text(&mut self, value: &str) {
        self.u32(value.len() as u32);
        self.raw(value.as_bytes());
    }

    /// Appends bytes after their length.
    fn blob(&mut self, value: &[u8]) {
        self.u32(value.len() as u32);
        self.raw(value);
    }
}

impl Writer for Vec<u8> {
    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Bytes that are still to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let Some((taken, rest)) = self.bytes.split_at_checked(len) else { return malformed("length") };
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((taken, rest)) = self.bytes.split_first_chunk() else { return malformed("length") };
        self.bytes = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => malformed("a Boolean"),
        }
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn str(&mut self, len: usize) -> Result<&'a str, Malformed> {
        match std::str::from_utf8(self.bytes(len)?) {
            Ok(text) => Ok(text),
            Err(_) => malformed("text that is not UTF-8"),
        }
    }

    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let len = self.u32()? as usize;
        self.str(len)
    }

    pub fn blob(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }

    /// Reads a count of items of at least `size` bytes each. A count beyond the remaining bytes is an error, so
    /// that a caller may reserve memory by it.
    pub fn count(&mut self, size: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count.checked_mul(size).is_none_or(|least| least > self.left()) {
            return malformed("count");
        }
        Ok(count)
    }

    pub fn finish(&self) -> Result<(), Malformed> {
        if self.bytes.is_empty() { Ok(()) } else { malformed("bytes after the end") }
    }
}
