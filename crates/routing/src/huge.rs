//! Large pages. A leaf of unsafe code.

use std::alloc::Layout;

/// Size of a large page on x86_64 and, by default, on aarch64.
const HUGE_PAGE: usize = 1 << 21;

/// The layout with the alignment that large pages need, if it is for several of them.
pub fn layout(layout: Layout) -> Layout {
    match layout.size() >= 2 * HUGE_PAGE {
        true => layout.align_to(HUGE_PAGE).expect("the size is far from the largest"),
        false => layout,
    }
}

/// Tells the kernel that `memory` is better mapped in large pages, if it is large.
///
/// Measured in docs/adr/0001-routing-index.md.
pub fn advise(memory: *mut u8, layout: Layout) {
    #[cfg(all(target_os = "linux", not(miri)))]
    if layout.size() >= 4 * HUGE_PAGE {
        // SAFETY: the memory is the caller's; the advice changes nothing that a program can observe.
        let result = unsafe { libc::madvise(memory.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        // A kernel without large pages says no, and all goes on with small ones.
        let _refused = result != 0;
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (memory, layout);
}
