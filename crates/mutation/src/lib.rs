//! Mutations: faults that are built into a crate on purpose. The simulator must notice each of them
//! (`cargo xtask sim --mutations`).

#![forbid(unsafe_code)]

/// Declares the mutations of a crate: the enum `Mutation`, and the functions `mutate`, `reached` and `mutated`.
///
/// They work in a build with the feature `trial` of that crate. In any other build `mutated` is always false, and costs
/// nothing.
#[macro_export]
macro_rules! mutations {
    ($visibility:vis fn mutated; $($(#[$text:meta])* $name:ident,)+) => {
        /// One fault that can be built in.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Mutation {
            $($(#[$text])* $name,)+
        }

        impl Mutation {
            /// All mutations.
            pub const ALL: [Self; [$(Mutation::$name),+].len()] = [$(Self::$name),+];
        }

        /// Number of the active mutation, counted from 1; 0 is none.
        #[cfg(feature = "trial")]
        static CURRENT: ::std::sync::atomic::AtomicU8 = ::std::sync::atomic::AtomicU8::new(0);

        /// Number of times that the code of each mutation was reached.
        #[cfg(feature = "trial")]
        static REACHED: [::std::sync::atomic::AtomicU64; Mutation::ALL.len()] =
            [const { ::std::sync::atomic::AtomicU64::new(0) }; _];

        /// Activates a mutation, or none, for the whole process.
        #[cfg(feature = "trial")]
        pub fn mutate(mutation: Option<Mutation>) {
            let number = mutation.map_or(0, |mutation| mutation as u8 + 1);
            CURRENT.store(number, ::std::sync::atomic::Ordering::SeqCst);
        }

        /// Returns how often the process has reached the code of this mutation.
        #[cfg(feature = "trial")]
        pub fn reached(mutation: Mutation) -> u64 {
            REACHED[mutation as usize].load(::std::sync::atomic::Ordering::Relaxed)
        }

        /// Returns whether this mutation is active.
        #[cfg(feature = "trial")]
        $visibility fn mutated(mutation: Mutation) -> bool {
            REACHED[mutation as usize].fetch_add(1, ::std::sync::atomic::Ordering::Relaxed);
            CURRENT.load(::std::sync::atomic::Ordering::Relaxed) == mutation as u8 + 1
        }

        /// Returns false: a product build has no mutations.
        #[cfg(not(feature = "trial"))]
        #[inline(always)]
        $visibility const fn mutated(_: Mutation) -> bool {
            false
        }
    };
}
