//! Prefetch of memory into the processor's cache. A leaf of unsafe code.
//!
//! A match in a large index is a handful of cache misses: requested together they overlap. The figures are in
//! docs/adr/0001-routing-index.md.

/// Starts loading the cache line at `address`, which need not be valid.
#[inline(always)]
pub fn read<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86_64, and a prefetch of a bad address does nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _no_such_instruction = address;
}
