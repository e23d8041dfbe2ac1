//! Identity of this node, in a small file of its own.

use crate::disk::{Disk, read_whole, replace};
use crate::error::{Corrupt, Error};
use crate::header::{put, u16_at, u32_at, u64_at};
use crate::id::SegmentId;

/// Name of the identity file.
pub const IDENTITY_FILE: &str = "identity";
const FORMAT: u16 = 1;
const MAGIC: &[u8; 8] = b"MRDNODE\n";
const BYTES: usize = 80;

/// Identity of a log. Created once, with a log or with a copy of one. Later only [`Self::copy`] can change. The secret
/// is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// Id of the log. Every segment holds it too.
    pub log: [u8; 16],
    /// Key of the node's hash tables, so that clients cannot choose names that collide.
    pub secret: [u8; 32],
    /// Creation time: milliseconds since 1970, by the wall clock.
    pub created_ms: u64,
    /// 0 for the original, and random for a copy by a backup or a repair, and for a log that has dropped
    /// [abandoned groups](crate::Log::abandon). Promises to other nodes that rest on the contents of the original may
    /// not hold for the copy.
    pub copy: u64,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Identity({})", self.log_text())
    }
}

impl Identity {
    /// Returns the log's id as text.
    #[must_use]
    pub fn log_text(&self) -> String {
        self.log.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn new(entropy: &[u8; 48], created_ms: u64) -> Self {
        let (log, secret) = entropy.split_at(16);
        Self {
            log: log.try_into().expect("16 bytes"),
            secret: secret.try_into().expect("32 bytes"),
            created_ms,
            copy: 0,
        }
    }

    /// Returns the identity for another copy.
    pub(crate) fn copied(&self) -> Result<Self, Error> {
        let mut copy = [0; 8];
        random(&mut copy)?;
        Ok(Self { copy: u64::from_le_bytes(copy) | 1, ..self.clone() })
    }

    /// Reads the file; `None` when there is none.
    ///
    /// # Errors
    /// The file is foreign, newer, damaged or unreadable.
    pub fn read(disk: &dyn Disk) -> Result<Option<Self>, Error> {
        let path = disk.path(IDENTITY_FILE);
        let bytes = match read_whole(disk, IDENTITY_FILE, 4096) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(&path, "read")(error)),
        };
        if bytes.len() < 16 || &bytes[..8] != MAGIC {
            return Err(Error::Foreign { file: path, detail: "it is not a node's identity file".to_owned() });
        }
        // In every format the last four bytes are the checksum of those before. So a flipped bit cannot look like a
        // later format.
        let body = bytes.len() - 4;
        let whole = crc32c::crc32c(&bytes[..body]) == u32_at(&bytes, body);
        let format = u16_at(&bytes, 8);
        if whole && format > FORMAT {
            return Err(Error::Newer { file: path, found: format, supported: FORMAT });
        }
        if !whole || bytes.len() != BYTES {
            return Err(Error::Corrupt(Box::new(Corrupt {
                file: path,
                segment: SegmentId(0),
                offset: 0,
                detail: "the checksum is wrong".to_owned(),
                lost: vec![],
            })));
        }
        Ok(Some(Self {
            log: bytes[12..28].try_into().expect("16 bytes"),
            secret: bytes[28..60].try_into().expect("32 bytes"),
            created_ms: u64_at(&bytes, 60),
            copy: u64_at(&bytes, 68),
        }))
    }

    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 8, &FORMAT.to_le_bytes());
        put(&mut bytes, 12, &self.log);
        put(&mut bytes, 28, &self.secret);
        put(&mut bytes, 60, &self.created_ms.to_le_bytes());
        put(&mut bytes, 68, &self.copy.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..76]);
        put(&mut bytes, 76, &crc.to_le_bytes());
        bytes
    }

    pub(crate) fn write(&self, disk: &dyn Disk) -> Result<(), Error> {
        replace(disk, IDENTITY_FILE, &self.encode()).map_err(Error::io(&disk.path(IDENTITY_FILE), "write"))
    }
}

/// Fills the buffer with random bytes of the system.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes).map_err(|error| Error::Invalid(format!("the system has no random bytes: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultDisk;

    /// Version 1 of the format. These bytes do not change; a new version gets bytes of its own.
    #[test]
    fn the_bytes_of_an_identity_are_these() {
        let identity = Identity::new(b"0123456789abcdefSECRETSECRETSECRETSECRETSECRETSE", 0x0102_0304);
        let disk = FaultDisk::new(1);
        identity.write(&disk).expect("written");
        let bytes = disk.contents(IDENTITY_FILE).expect("a file");
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let golden = "4d52444e4f44450a0100000030313233343536373839616263646566534543524554534543524554\
            53454352455453454352455453454352455453450403020100000000000000000000000047769ae8";
        assert_eq!(hex, golden);
        assert_eq!(Identity::read(&disk.crash()).expect("whole"), Some(identity.clone()));
        assert!(!format!("{identity:?}").contains("SECRET"));
    }

    #[test]
    fn a_damaged_foreign_or_newer_identity_is_refused() {
        let refuse = |at: usize, byte: u8| {
            let disk = FaultDisk::new(1);
            let mut bytes = Identity::new(&[3; 48], 1).encode();
            bytes[at] = byte;
            if at == 8 {
                let crc = crc32c::crc32c(&bytes[..76]);
                put(&mut bytes, 76, &crc.to_le_bytes());
            }
            disk.put(IDENTITY_FILE, &bytes);
            Identity::read(&disk).expect_err("refused")
        };
        assert!(matches!(refuse(0, b'X'), Error::Foreign { .. }));
        assert!(matches!(refuse(8, 9), Error::Newer { found: 9, .. }));
        assert!(matches!(refuse(40, 9), Error::Corrupt(_)));
    }
}
