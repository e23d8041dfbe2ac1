//! Options of a log.

use crate::error::Error;
use crate::id::GroupId;

/// Bounds and sizes. [`Options::default`] is what a node uses.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of a segment's file in bytes; 4 KiB to 4 GiB. An existing segment keeps its size. A record that does
    /// not fit gets a file of its own size.
    pub segment_bytes: u64,
    /// Bytes kept as empty segments for records that free space when the disk is full. At least two segments are
    /// kept.
    pub reserve_bytes: u64,
    /// Groups whose entries are written first, because others wait for them. One empty segment of the reserve is
    /// theirs when the disk is full.
    pub urgent: &'static [GroupId],
    /// Maximum number of bytes of one commit, unless a single record is larger.
    pub commit_bytes_max: u64,
    /// Maximum number of bytes of parts in one commit, so that checkpoints do not delay entries. One part is always
    /// included.
    pub low_bytes_per_commit: u64,
    /// Random bytes for the id and the secret of a new log. `None`: the operating system provides them.
    pub entropy: Option<[u8; 48]>,
    /// Wall clock in milliseconds since 1970, to record when a log was created.
    pub now_ms: u64,
    #[cfg(feature = "trial")]
    #[doc(hidden)]
    pub mutation: Option<crate::Mutation>,
}

/// Minimum size of a segment, for tests. A setting should have a higher minimum.
const SEGMENT_MIN: u64 = 4 << 10;
const SEGMENT_MAX: u64 = 4 << 30;
/// Maximum number of empty segments that are kept ready.
const SPARES_MAX: u64 = 4096;

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            reserve_bytes: 128 << 20,
            urgent: &[],
            commit_bytes_max: 8 << 20,
            low_bytes_per_commit: 1 << 20,
            entropy: None,
            now_ms: 0,
            #[cfg(feature = "trial")]
            mutation: None,
        }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(SEGMENT_MIN..=SEGMENT_MAX).contains(&self.segment_bytes)
            || !self.segment_bytes.is_multiple_of(512)
        {
            return Err(Error::Invalid(format!(
                "a segment of {} bytes: the size is a multiple of 512 from {SEGMENT_MIN} to {SEGMENT_MAX}",
                self.segment_bytes
            )));
        }
        if self.reserve_bytes / self.segment_bytes > SPARES_MAX {
            return Err(Error::Invalid(format!(
                "a reserve of {} bytes is more than {SPARES_MAX} segments: lower it, or make segments larger",
                self.reserve_bytes
            )));
        }
        Ok(())
    }

    /// Returns the number of empty segments that are kept ready.
    pub(crate) fn spares(&self) -> usize {
        (self.reserve_bytes.div_ceil(self.segment_bytes) as usize).max(2)
    }

    /// Returns the number of spares that are reserved for urgent groups and for records that free space.
    pub(crate) fn spares_kept(&self) -> usize {
        usize::from(!self.urgent.is_empty())
    }

    #[cfg(feature = "trial")]
    pub(crate) fn is(&self, mutation: crate::Mutation) -> bool {
        self.mutation == Some(mutation)
    }
}

/// Returns whether the named mutation is active; never in a product build.
macro_rules! mutated {
    ($options:expr, $name:ident) => {{
        #[cfg(feature = "trial")]
        let is = $options.is(crate::Mutation::$name);
        #[cfg(not(feature = "trial"))]
        let is = {
            let _: &$crate::Options = &$options;
            false
        };
        is
    }};
}
pub(crate) use mutated;
