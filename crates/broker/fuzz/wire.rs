//! Changed forms of requests between nodes and of their frames, which `corpus/wire` has one of each. Bytes are decoded
//! or refused, and take memory in proportion to their length.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;

use broker::{check_frame_form, check_wire_form, decode_frame_form, decode_wire_form};
use random::Random;

/// Bytes that one byte of a form may become. A PUBREL of three bytes is as large in memory as any other delivery.
const BYTES_MAX: usize = 16;
/// Bytes of a form in memory, however short it is.
const BYTES_FIXED: usize = 1024;

/// Counts the bytes that this thread allocates.
pub struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

fn count(size: usize) {
    ALLOCATED.set(ALLOCATED.get() + size);
}

// SAFETY: everything is the system allocator's; only bytes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Checks bytes as a request and as an answer.
pub fn check(bytes: &[u8]) {
    let before = ALLOCATED.get();
    decode_wire_form(bytes);
    decode_frame_form(bytes);
    let allocated = ALLOCATED.get() - before;
    let max = BYTES_FIXED + BYTES_MAX * bytes.len();
    assert!(allocated <= max, "{allocated} bytes of memory for {} bytes", bytes.len());
    check_wire_form(bytes);
    check_frame_form(bytes);
}

/// Checks a form, and again with the largest number wherever a count may be.
pub fn check_counts(form: &[u8]) {
    check(form);
    for at in 0..form.len().saturating_sub(3) {
        let mut changed = form.to_vec();
        changed[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        check(&changed);
    }
}

/// All requests, answers and frames.
pub fn corpus() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/wire");
    let read = |name| std::fs::read_to_string(directory.join(name)).expect("a readable file");
    let texts = read("requests.txt") + &read("answers.txt") + &read("frames.txt");
    let bytes = |line: &str| -> Option<Vec<u8>> {
        let hex = line.split_once(": ")?.1;
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()).collect()
    };
    texts.lines().map(|line| bytes(line).expect("a name and its bytes")).collect()
}

/// Changes a form in some places, or joins it with another one.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..random.below(5) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(7) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = *random.pick(&[0, 1, 2, 3, 0x7f, 0x80, 0xff]),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..(at + 1 + random.below(8)).min(bytes.len()))),
            4 => {
                let copy = bytes[at..].to_vec();
                bytes.extend(copy);
            }
            5 => {
                let from = random.below(other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
            // A count or a length.
            _ => {
                let small = random.below(300) as u32;
                let count = *random.pick(&[u32::MAX, 1 << 31, 1 << 24, small]);
                bytes.splice(at..(at + 4).min(bytes.len()), count.to_le_bytes());
            }
        }
    }
}
