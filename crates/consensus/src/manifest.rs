//! Parts of a snapshot: their numbers, sizes and checksums. Little endian:
//!
//! ```text
//! manifest  version u8 = 1, three bytes of 0, count u32, CRC-32C u32, part*
//! part      number u32, length u32, CRC-32C u32
//! ```
//!
//! The checksum of the manifest is that of its other bytes. The numbers of the parts increase. A snapshot that is sent
//! is its manifest, and then the bytes of the parts in this order.

use std::collections::BTreeMap;

/// Maximum number of bytes of a part.
pub(crate) const PART_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// Maximum number of parts of a snapshot.
pub(crate) const PARTS_MAX: usize = 1 << 18;

/// Size of the header and of a part in the encoding.
pub(crate) const HEADER: usize = 12;
const ENTRY: usize = 12;
/// Offset of the checksum of a manifest.
const CHECKSUM: usize = 8;
const VERSION: u8 = 1;

/// Size and checksum of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartInfo {
    pub length: u32,
    checksum: u32,
}

impl PartInfo {
    pub fn of(bytes: &[u8]) -> Self {
        Self { length: bytes.len() as u32, checksum: crc32c::crc32c(bytes) }
    }
}

/// Parts of a snapshot by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest(pub BTreeMap<u32, PartInfo>);

impl Manifest {
    /// Number of bytes of all parts.
    pub fn parts_bytes(&self) -> u64 {
        self.0.values().map(|part| u64::from(part.length)).sum()
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.0.len() * ENTRY);
        out.extend([VERSION, 0, 0, 0]);
        out.extend((self.0.len() as u32).to_le_bytes());
        out.extend([0; 4]);
        for (number, part) in &self.0 {
            out.extend(number.to_le_bytes());
            out.extend(part.length.to_le_bytes());
            out.extend(part.checksum.to_le_bytes());
        }
        let checksum = checksum(&out).to_le_bytes();
        out[CHECKSUM..HEADER].copy_from_slice(&checksum);
        out
    }

    /// Size of a manifest whose encoding begins with these bytes. Returns `None` for other bytes, and for a manifest of
    /// a later version.
    pub fn encoded_len(header: &[u8; HEADER]) -> Option<usize> {
        let (version, count) = header.split_at(4);
        let count = u32::from_le_bytes(*count.first_chunk()?) as usize;
        (version == [VERSION, 0, 0, 0] && count <= PARTS_MAX).then_some(HEADER + count * ENTRY)
    }

    /// Decodes a whole manifest. Returns `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, entries) = bytes.split_first_chunk()?;
        let expected = u32::from_le_bytes(*header[CHECKSUM..].first_chunk()?);
        if Self::encoded_len(header)? != bytes.len() || checksum(bytes) != expected {
            return None;
        }
        let (entries, _) = entries.as_chunks::<ENTRY>();
        let mut parts = BTreeMap::new();
        for entry in entries {
            let (numbers, _) = entry.as_chunks::<4>();
            let [number, length, checksum] = *<&[[u8; 4]; 3]>::try_from(numbers).ok()?;
            let number = u32::from_le_bytes(number);
            let part =
                PartInfo { length: u32::from_le_bytes(length), checksum: u32::from_le_bytes(checksum) };
            let is_in_order = parts.last_key_value().is_none_or(|(last, _)| *last < number);
            let is_sized = (1..=PART_BYTES_MAX).contains(&(part.length as usize));
            if !is_in_order || !is_sized || number == u32::MAX {
                return None;
            }
            parts.insert(number, part);
        }
        Some(Self(parts))
    }
}

/// Checksum of a manifest: of the bytes before and after it.
fn checksum(manifest: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&manifest[..CHECKSUM]), &manifest[HEADER..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest([(3, PartInfo::of(b"abc")), (0x1_0000, PartInfo::of(b"d"))].into())
    }

    /// Version 1 keeps these bytes for ever.
    #[test]
    fn a_manifest_has_these_bytes() {
        let bytes = manifest().encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0100000002000000d54491680300000003000000b73f4b3600000100010000002c5721f4");
        assert_eq!(Manifest::decode(&bytes), Some(manifest()));
        assert_eq!(Manifest::encoded_len(bytes.first_chunk().expect("a header")), Some(bytes.len()));
    }

    #[test]
    fn bytes_that_are_no_manifest_are_refused() {
        let bytes = manifest().encode();
        for length in 0..bytes.len() {
            assert_eq!(Manifest::decode(&bytes[..length]), None);
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(Manifest::decode(&bad), None, "byte {at}");
        }
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bad = bytes.clone();
            change(&mut bad);
            let checksum = checksum(&bad).to_le_bytes();
            bad[CHECKSUM..HEADER].copy_from_slice(&checksum);
            Manifest::decode(&bad)
        };
        assert_eq!(with(&|_| ()), Some(manifest()));
        assert_eq!(with(&|bad| bad[0] = 2), None, "a later version");
        assert_eq!(with(&|bad| bad[1] = 1), None, "a later version");
        assert_eq!(with(&|bad| bad[4] = 3), None, "a part is missing");
        assert_eq!(with(&|bad| bad[7] = 255), None, "too many parts");
        assert_eq!(with(&|bad| bad[24..28].copy_from_slice(&[3, 0, 0, 0])), None, "the numbers increase");
        assert_eq!(with(&|bad| bad[24..28].fill(255)), None, "no part has this number");
        assert_eq!(with(&|bad| bad[16] = 0), None, "an empty part");
        assert_eq!(with(&|bad| bad[19] = 1), None, "a part that is too large");
    }
}
