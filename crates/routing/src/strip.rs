//! A header and an array in one allocation, held by pointer: readers follow it and writers replace it.
//!
//! This module contains unsafe code and uses no other module. A `Strip` is a plain pointer: its holder must ensure that
//! it is not freed while in use. Neither header nor entries are dropped, only their memory is freed.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// `H`, then `capacity` entries of `T`, which start out uninitialised.
pub struct Strip<H, T> {
    head: NonNull<Head<H>>,
    entries: PhantomData<*mut T>,
}

#[repr(C)]
struct Head<H> {
    header: H,
    capacity: u32,
}

impl<H, T> Clone for Strip<H, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H, T> Copy for Strip<H, T> {}

/// Memory that is no longer part of the index.
pub struct Memory {
    pointer: *mut u8,
    layout: Layout,
}

// SAFETY: it is plain memory that only the holder of this value frees, and it is not tied to a thread.
unsafe impl Send for Memory {}

impl Memory {
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// No thread accesses it from now on.
    pub unsafe fn free(self) {
        // SAFETY: pointer and layout are those of `Strip::allocate`, and `self` is consumed.
        unsafe { dealloc(self.pointer, self.layout) }
    }
}

impl<H, T> Strip<H, T> {
    fn layout(capacity: usize) -> (Layout, usize) {
        let array = Layout::array::<T>(capacity).expect("a strip is far smaller than the address space");
        Layout::new::<Head<H>>().extend(array).expect("a strip is far smaller than the address space")
    }

    /// Returns the bytes of a strip of this capacity.
    pub fn bytes(capacity: usize) -> usize {
        Self::layout(capacity).0.size()
    }

    /// Allocates a strip; the caller has to free it.
    pub fn allocate(header: H, capacity: usize) -> Self {
        let (layout, _) = Self::layout(capacity);
        // SAFETY: the layout holds a head, so its size is not 0.
        let pointer = unsafe { alloc(layout) };
        if pointer.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: just allocated.
        unsafe { Self::place(pointer, header, capacity) }
    }

    /// Creates a strip in memory that the caller owns.
    ///
    /// # Safety
    /// `pointer` is aligned for the header and the entries, and `bytes(capacity)` from there are the caller's.
    pub unsafe fn place(pointer: *mut u8, header: H, capacity: usize) -> Self {
        debug_assert!(pointer.addr().is_multiple_of(Self::layout(capacity).0.align()));
        let head = NonNull::new(pointer.cast::<Head<H>>()).expect("memory has an address");
        let capacity = u32::try_from(capacity).expect("strips are short");
        // SAFETY: aligned and large enough for a head, as promised by the caller.
        unsafe { head.write(Head { header, capacity }) };
        Strip { head, entries: PhantomData }
    }

    /// Returns the number of entries that fit into `bytes`.
    pub const fn fit(bytes: usize) -> usize {
        (bytes - size_of::<Head<H>>().next_multiple_of(align_of::<T>())) / size_of::<T>()
    }

    /// Returns the address, by which a strip is stored in an atomic.
    pub fn as_ptr(self) -> *mut u8 {
        self.head.as_ptr().cast()
    }

    /// Creates a strip from its address.
    ///
    /// # Safety
    /// `pointer` came from `as_ptr` of a strip of the same types.
    #[inline(always)]
    pub unsafe fn from_ptr(pointer: *mut u8) -> Self {
        // SAFETY: `as_ptr` never returns null.
        Strip { head: unsafe { NonNull::new_unchecked(pointer.cast()) }, entries: PhantomData }
    }

    /// Returns the header.
    ///
    /// # Safety
    /// The strip is not freed during `'a`.
    #[inline(always)]
    pub unsafe fn header<'a>(self) -> &'a H {
        // SAFETY: written by `allocate`, and not freed, as promised by the caller.
        unsafe { &self.head.as_ref().header }
    }

    /// Returns the capacity.
    ///
    /// # Safety
    /// The strip is not freed.
    pub unsafe fn capacity(self) -> usize {
        // SAFETY: as for `header`; the capacity never changes.
        unsafe { self.head.as_ref().capacity as usize }
    }

    /// Returns the address of the first entry.
    #[inline(always)]
    pub fn entries(self) -> *mut T {
        const { assert!(align_of::<T>() <= 1024) };
        let offset = size_of::<Head<H>>().next_multiple_of(align_of::<T>());
        // SAFETY: `Layout::extend` puts the array at the head's size rounded up to the entries' alignment, within
        // the allocation.
        unsafe { self.head.as_ptr().cast::<u8>().add(offset).cast() }
    }

    /// Returns the first `count` entries.
    ///
    /// # Safety
    /// The strip is not freed during `'a`. Its first `count` entries are initialised and do not change except by
    /// interior mutability.
    #[inline(always)]
    pub unsafe fn slice<'a>(self, count: usize) -> &'a [T] {
        // SAFETY: in bounds and initialised, as promised by the caller.
        unsafe { std::slice::from_raw_parts(self.entries(), count) }
    }

    /// Returns the allocation as memory to free.
    ///
    /// # Safety
    /// The strip has not been freed, and nothing else frees it.
    pub unsafe fn into_memory(self) -> Memory {
        // SAFETY: not freed yet.
        let capacity = unsafe { self.capacity() };
        Memory { pointer: self.as_ptr(), layout: Self::layout(capacity).0 }
    }
}
