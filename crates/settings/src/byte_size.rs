//! A number of bytes with its unit, such as `1MiB`.

use std::fmt;

use crate::value::{Invalid, Raw, Value};

/// A number of bytes. Written `64B`, `1KiB`, `1MiB`, `1GiB`, `1TiB`, or with decimal units `1kB`, `1MB`, `1GB`,
/// `1TB`, or as a bare number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    pub const fn bytes(self) -> u64 {
        self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let (digits, unit) = text.split_at(unit_at);
        let number: u64 = digits.replace('_', "").parse().ok()?;
        let unit = unit.trim();
        let (_, factor) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
        number.checked_mul(*factor).map(Self)
    }
}

/// Units in the order in which they are tried for printing; the empty one is for reading.
const UNITS: [(&str, u64); 10] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
    ("", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0");
        }
        for (name, factor) in UNITS {
            if self.0.is_multiple_of(factor) {
                return write!(f, "{}{name}", self.0 / factor);
            }
        }
        unreachable!("every number is a multiple of 1")
    }
}

impl Value for ByteSize {
    const TYPE: &'static str = "size";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let size = match raw {
            Raw::Integer(number) => u64::try_from(*number).ok().map(Self),
            Raw::Text(text) | Raw::String(text) => Self::parse(text),
            _ => None,
        };
        size.ok_or_else(|| raw.expected("a size such as 512B, 64KiB, 1MiB or 2GiB"))
    }

    fn to_toml(&self) -> Option<String> {
        Some(if self.0 == 0 { "0".to_owned() } else { format!("\"{self}\"") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<u64, String> {
        ByteSize::from_raw(&Raw::Text(text.to_owned()))
            .map(ByteSize::bytes)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn units_are_binary_with_an_i_and_decimal_without() {
        assert_eq!(read("64B"), Ok(64));
        assert_eq!(read("64"), Ok(64));
        assert_eq!(read("1KiB"), Ok(1024));
        assert_eq!(read("1kB"), Ok(1000));
        assert_eq!(read("3 MiB"), Ok(3 << 20));
        assert_eq!(read("2gib"), Ok(2 << 30));
        assert_eq!(read("1_000"), Ok(1000));
    }

    #[test]
    fn a_text_that_is_not_a_size_is_refused_with_an_example() {
        for text in ["", "MiB", "1.5MiB", "-1", "1 parsec", "99999999999999999999", "99999999TiB"] {
            let error = read(text).unwrap_err();
            assert!(error.contains("a size such as"), "{text:?}: {error}");
        }
    }

    #[test]
    fn printing_uses_the_largest_whole_unit() {
        assert_eq!(ByteSize::mib(1).to_string(), "1MiB");
        assert_eq!(ByteSize(1536).to_string(), "1536B");
        assert_eq!(ByteSize(1537).to_string(), "1537B");
        assert_eq!(ByteSize(0).to_string(), "0");
    }

    proptest::proptest! {
        #[test]
        fn a_printed_size_reads_back(number: u64) {
            proptest::prop_assert_eq!(read(&ByteSize(number).to_string()), Ok(number));
        }
    }
}
