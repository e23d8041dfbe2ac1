//! The tree of all sections of a program.

use crate::section::{Description, Section};

/// All sections of a program. The order of sections is the order of the reference page.
pub trait Tree: Default {
    /// The sections that exist once.
    fn sections(&mut self) -> Vec<&mut dyn Section>;

    /// The sections that can be repeated, written `[[name]]`.
    fn lists(&mut self) -> Vec<&mut dyn List>;
}

/// A section that can be repeated. It is a `Vec` of it.
pub trait List {
    fn description(&self) -> &'static Description;
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn clear(&mut self);
    /// Appends an entry with every setting at its default.
    fn push_default(&mut self);
    fn entry(&mut self, index: usize) -> Option<&mut dyn Section>;
}

impl<S: Section + Default> List for Vec<S> {
    fn description(&self) -> &'static Description {
        S::default().description()
    }

    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn clear(&mut self) {
        Vec::clear(self);
    }

    fn push_default(&mut self) {
        self.push(S::default());
    }

    fn entry(&mut self, index: usize) -> Option<&mut dyn Section> {
        self.get_mut(index).map(|section| section as &mut dyn Section)
    }
}
