//! Parts of the state: those that the next checkpoint has to contain, and those of the present one that are still
//! to be written.

use std::collections::BTreeMap;

use crate::ids::{PartId, REST};
use crate::wire::Writer;

/// State of all parts.
///
/// **Invariant:** a pending part has not changed since the checkpoint began. A part that was pending and has
/// changed since is in `saved`, with its old contents.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Flags of each part, by its bucket.
    flags: Box<[u8]>,
    /// Parts that were encoded before they changed.
    saved: BTreeMap<u16, Vec<u8>>,
    /// Number of pages that the log holds of each part, and their bytes.
    stored: BTreeMap<u16, (u16, u64)>,
    stored_bytes: u64,
    /// Number of pages that the parts written with the present checkpoint had before.
    replaced: BTreeMap<u16, u16>,
    /// Bucket at which the search for pending parts continues.
    cursor: u16,
    /// Index of the present checkpoint.
    checkpoint: u64,
    scratch: Vec<u8>,
}

/// The part changed since the last checkpoint began.
const DIRTY: u8 = 1;
/// The part is to be written with the present checkpoint.
const PENDING: u8 = 2;
/// The part belongs to the last checkpoint that began.
const CURRENT: u8 = 4;

const COUNT: u16 = REST + 1;
const VERSION: u8 = 1;
/// Size of a page's header: version, three bytes of 0, page, number of pages, index of the checkpoint.
pub(crate) const PAGE_HEADER: usize = 16;
/// Bytes of a part in one page.
pub(crate) const PAGE_BYTES: usize = 1 << 20;

impl Parts {
    pub fn new() -> Self {
        Self {
            flags: vec![0; usize::from(COUNT)].into(),
            saved: BTreeMap::new(),
            stored: BTreeMap::new(),
            stored_bytes: 0,
            replaced: BTreeMap::new(),
            cursor: COUNT,
            checkpoint: 0,
            scratch: Vec::new(),
        }
    }

    /// Notes that a part is about to change. Returns true when it has to be [saved](Self::save) first.
    pub fn touch(&mut self, bucket: u16) -> bool {
        let flags = &mut self.flags[usize::from(bucket)];
        *flags |= DIRTY;
        *flags & PENDING != 0
    }

    pub fn save(&mut self, bucket: u16, bytes: Vec<u8>) {
        self.flags[usize::from(bucket)] &= !PENDING;
        self.saved.insert(bucket, bytes);
    }

    pub fn begin(&mut self, index: u64) {
        self.abandon_unfinished();
        self.replaced.clear();
        self.checkpoint = index;
        self.cursor = 0;
        for flags in &mut self.flags {
            *flags = if *flags & DIRTY != 0 { PENDING | CURRENT } else { 0 };
        }
        // `REST` is in every checkpoint, so that no checkpoint is empty.
        self.flags[usize::from(REST)] = PENDING | CURRENT;
    }

    /// Notes that the last checkpoint that began will never be complete: its parts are due again.
    pub fn abandon(&mut self) {
        for flags in &mut self.flags {
            *flags = if *flags & CURRENT != 0 { DIRTY } else { *flags & DIRTY };
        }
        // It is unknown here which of the two versions of a part is valid in the log, so the next checkpoint deletes
        // the pages of both.
        for (bucket, before) in std::mem::take(&mut self.replaced) {
            let (pages, bytes) = self.stored.get(&bucket).copied().unwrap_or_default();
            self.stored.insert(bucket, (pages.max(before), bytes));
        }
        self.saved.clear();
        self.cursor = COUNT;
    }

    fn abandon_unfinished(&mut self) {
        if self.cursor < COUNT {
            self.abandon();
        }
    }

    /// Marks the part for the next checkpoint although it has not changed.
    pub fn renew(&mut self, bucket: u16) {
        if let Some(flags) = self.flags.get_mut(usize::from(bucket)) {
            *flags |= DIRTY;
        }
    }

    /// Returns the next part to be written, and its bytes if they were saved.
    pub fn next(&mut self) -> Option<(u16, Option<Vec<u8>>)> {
        if let Some((bucket, bytes)) = self.saved.pop_first() {
            return Some((bucket, Some(bytes)));
        }
        while self.cursor < COUNT {
            let bucket = self.cursor;
            let flags = &mut self.flags[usize::from(bucket)];
            if *flags & PENDING != 0 {
                *flags &= !PENDING;
                return Some((bucket, None));
            }
            self.cursor += 1;
        }
        None
    }

    /// Writes a part in pages, and deletes surplus pages of its previous version. An empty part is deleted whole.
    /// Returns the bytes written.
    pub fn write(&mut self, bucket: u16, bytes: &[u8], out: &mut dyn FnMut(PartId, &[u8])) -> usize {
        let pages = bytes.len().div_ceil(PAGE_BYTES) as u16;
        let mut written = 0;
        for (page, chunk) in (0_u16..).zip(bytes.chunks(PAGE_BYTES)) {
            self.scratch.clear();
            self.scratch.u8(VERSION);
            self.scratch.raw(&[0; 3]);
            self.scratch.u16(page);
            self.scratch.u16(pages);
            self.scratch.u64(self.checkpoint);
            self.scratch.raw(chunk);
            written += self.scratch.len();
            out(PartId::new(bucket, page), &self.scratch);
        }
        self.scratch.shrink_to(PAGE_HEADER + PAGE_BYTES);
        let before = self.store(bucket, pages, written as u64);
        self.replaced.entry(bucket).or_insert(before);
        for page in pages..before {
            out(PartId::new(bucket, page), &[]);
        }
        written
    }

    /// Records the pages that the log holds of a part; returns the previous number of pages.
    pub fn store(&mut self, bucket: u16, pages: u16, bytes: u64) -> u16 {
        let before =
            if pages == 0 { self.stored.remove(&bucket) } else { self.stored.insert(bucket, (pages, bytes)) };
        self.stored_bytes = self.stored_bytes + bytes - before.map_or(0, |(_, bytes)| bytes);
        before.map_or(0, |(pages, _)| pages)
    }

    pub fn is_stored(&self, bucket: u16) -> bool {
        self.stored.contains_key(&bucket)
    }

    /// Bytes of all parts as they were last written.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(parts: &mut Parts, bucket: u16, bytes: &[u8]) -> Vec<(u32, usize)> {
        let mut out = Vec::new();
        parts.write(bucket, bytes, &mut |part, bytes| out.push((part.as_u32(), bytes.len())));
        out
    }

    #[test]
    fn a_part_that_shrinks_deletes_its_surplus_pages() {
        let mut parts = Parts::new();
        let long = vec![7; 2 * PAGE_BYTES + 1];
        let full = PAGE_HEADER + PAGE_BYTES;
        let expected = [(5, full), (0x1_0005, full), (0x2_0005, PAGE_HEADER + 1)];
        assert_eq!(written(&mut parts, 5, &long), expected);
        assert_eq!(parts.stored_bytes(), (2 * full + PAGE_HEADER + 1) as u64);
        assert_eq!(written(&mut parts, 5, &[1]), [(5, PAGE_HEADER + 1), (0x1_0005, 0), (0x2_0005, 0)]);
        assert_eq!(written(&mut parts, 5, &[]), [(5, 0)]);
        assert_eq!(written(&mut parts, 5, &[]), []);
        assert_eq!(parts.stored_bytes(), 0);
    }

    #[test]
    fn parts_are_written_once_until_they_change() {
        let mut parts = Parts::new();
        let all = |parts: &mut Parts| std::iter::from_fn(|| parts.next()).collect::<Vec<_>>();
        assert!(!parts.touch(3) && !parts.touch(9));
        parts.begin(1);
        assert!(parts.touch(9));
        parts.save(9, vec![1]);
        assert!(!parts.touch(9));
        assert_eq!(all(&mut parts), [(9, Some(vec![1])), (3, None), (REST, None)]);
        parts.begin(2);
        assert_eq!(all(&mut parts), [(9, None), (REST, None)]);
        parts.abandon();
        parts.renew(4);
        parts.begin(3);
        assert_eq!(all(&mut parts), [(4, None), (9, None), (REST, None)], "abandoned parts are due again");
    }

    #[test]
    fn pages_that_an_abandoned_checkpoint_deleted_are_deleted_again() {
        let mut parts = Parts::new();
        parts.begin(1);
        written(&mut parts, 5, &[7; PAGE_BYTES + 1]);
        parts.begin(2);
        assert_eq!(written(&mut parts, 5, &[]), [(5, 0), (0x1_0005, 0)]);
        parts.begin(3);
        assert_eq!(written(&mut parts, 5, &[]), [(5, 0), (0x1_0005, 0)]);
    }

    #[test]
    fn a_checkpoint_that_begins_before_the_last_is_complete_includes_its_parts() {
        let mut parts = Parts::new();
        parts.touch(3);
        parts.touch(4);
        parts.begin(1);
        assert_eq!(parts.next(), Some((3, None)));
        assert_eq!(parts.stored_bytes(), 0);
        parts.begin(2);
        let all: Vec<_> = std::iter::from_fn(|| parts.next()).map(|(bucket, _)| bucket).collect();
        assert_eq!(all, [3, 4, REST]);
    }
}
