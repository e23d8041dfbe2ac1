//! Primitive types of Kafka's protocol, in the encoding before flexible versions, and of its records.

/// Bytes of a request.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn i8(&mut self, value: i8) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub fn i16(&mut self, value: i16) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub fn i32(&mut self, value: i32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub fn i64(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    /// Number of elements of an array.
    pub fn count(&mut self, count: usize) {
        self.i32(i32::try_from(count).unwrap_or(i32::MAX));
    }

    /// The caller has checked that the text is short.
    pub fn string(&mut self, text: &str) {
        debug_assert!(text.len() <= i16::MAX as usize);
        self.i16(i16::try_from(text.len()).unwrap_or(i16::MAX));
        self.0.extend_from_slice(text.as_bytes());
    }

    pub fn null_string(&mut self) {
        self.i16(-1);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub fn bool(&mut self, value: bool) {
        self.i8(i8::from(value));
    }

    /// Integer in the zigzag encoding of records.
    pub fn varint(&mut self, value: i64) {
        let mut rest = ((value << 1) ^ (value >> 63)) as u64;
        while rest >= 0x80 {
            self.0.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.0.push(rest as u8);
    }

    /// Bytes of a record; `None` is null.
    pub fn varbytes(&mut self, bytes: Option<&[u8]>) {
        self.varint(bytes.map_or(-1, |bytes| bytes.len() as i64));
        self.0.extend_from_slice(bytes.unwrap_or_default());
    }
}

/// Bytes of an answer that are not read yet.
#[derive(Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

/// An answer ends too early, or a length in it is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl<'a> Reader<'a> {
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub fn bool(&mut self) -> Result<bool, Malformed> {
        Ok(self.array::<1>()?[0] != 0)
    }

    pub fn i16(&mut self) -> Result<i16, Malformed> {
        self.array().map(i16::from_be_bytes)
    }

    pub fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    /// Text; `None` is null. Bytes that are not UTF-8 are replaced, because the text is only shown.
    pub fn nullable_string(&mut self) -> Result<Option<String>, Malformed> {
        let len = self.i16()?;
        if len < 0 {
            return Ok(None);
        }
        Ok(Some(String::from_utf8_lossy(self.take(len as usize)?).into_owned()))
    }

    pub fn string(&mut self) -> Result<String, Malformed> {
        self.nullable_string()?.ok_or(Malformed)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(self.i32()?).map_err(|_| Malformed)?;
        self.take(len)
    }

    /// Reads an array. Each element has at least one byte, so the size of the answer limits the number of elements.
    pub fn items<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.i32()?.max(0) as usize;
        if count > self.0.len() {
            return Err(Malformed);
        }
        let mut items = vec![];
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_the_zigzag_encoding() {
        for (value, bytes) in [
            (0, &[0][..]),
            (-1, &[1]),
            (1, &[2]),
            (63, &[126]),
            (64, &[0x80, 1]),
            (-65, &[0x81, 1]),
            (300, &[0xd8, 4]),
            (i64::MIN, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ] {
            let mut writer = Writer::default();
            writer.varint(value);
            assert_eq!(writer.0, bytes, "{value}");
        }
    }

    #[test]
    fn impossible_lengths_are_refused_without_memory_for_them() {
        let huge = [0x7f, 0xff, 0xff, 0xff];
        assert_eq!(Reader(&huge).items(|reader| reader.i32()), Err(Malformed));
        assert_eq!(Reader(&huge).bytes(), Err(Malformed));
        assert_eq!(Reader(&[0x7f, 0xff, 1]).string(), Err(Malformed));
        assert_eq!(Reader(&[0xff, 0xff]).nullable_string(), Ok(None));
        assert_eq!(Reader(&[0xff, 0xff, 0xff, 0xff]).items(|reader| reader.i32()), Ok(vec![]));
        assert_eq!(Reader(&[]).i16(), Err(Malformed));
    }
}
