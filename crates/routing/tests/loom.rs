//! Tests of the protocol by which writers publish entries and reuse memory, with every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p routing --test loom --release`
#![cfg(loom)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;
use routing::epoch::{Domain, RetiredList};
use routing::slot::{Exact, Slot};
use routing::sync::{AtomicU32, Ordering};

/// An index of one entry and two slots for its value. Loom reports any unsynchronised access to a slot.
struct Tiny {
    domain: Domain,
    /// Number of the slot in use plus 1, or 0.
    reference: AtomicU32,
    places: [UnsafeCell<u32>; 2],
}

// SAFETY: the tests check this claim: slots are written only while no reader can look at them.
unsafe impl Sync for Tiny {}

impl Tiny {
    fn new() -> Arc<Tiny> {
        let places = [UnsafeCell::new(10), UnsafeCell::new(0)];
        Arc::new(Tiny { domain: Domain::new(), reference: AtomicU32::new(1), places })
    }

    /// Reads as a match does.
    fn read(&self) -> Option<u32> {
        match self.reference.load(Ordering::Acquire) {
            0 => None,
            // SAFETY: see `Sync`.
            number => Some(self.places[number as usize - 1].with(|place| unsafe { *place })),
        }
    }

    /// Writes `value` into a free slot and refers to it; the other slot is retired.
    fn replace(&self, retired: &mut RetiredList<u32>, free: &mut Vec<u32>, value: u32) -> bool {
        let Some(number) = free.pop() else { return false };
        // SAFETY: see `Sync`.
        self.places[number as usize - 1].with_mut(|place| unsafe { *place = value });
        let old = self.reference.load(Ordering::Relaxed);
        self.reference.store(number, Ordering::Release);
        self.domain.retire(retired, old);
        true
    }

    fn collect(&self, retired: &mut RetiredList<u32>, free: &mut Vec<u32>) {
        self.domain.advance(retired);
        self.domain.collect(retired, usize::MAX, |number| free.push(number));
    }
}

/// Writer that reuses each slot as early as possible.
fn write(tiny: &Tiny, values: &[u32]) {
    let (mut retired, mut free) = (RetiredList::new(), vec![2]);
    for value in values {
        tiny.replace(&mut retired, &mut free, *value);
        tiny.collect(&mut retired, &mut free);
    }
}

#[test]
fn a_reader_never_sees_a_slot_during_a_write() {
    loom::model(|| {
        let tiny = Tiny::new();
        let participant = tiny.domain.join();
        let reader = thread::spawn({
            let tiny = tiny.clone();
            move || {
                for _ in 0..2 {
                    let value = tiny.read().expect("there is always one");
                    assert!([10, 11, 12].contains(&value));
                    participant.quiescent(&tiny.domain);
                }
                tiny.domain.leave(&participant);
            }
        });
        write(&tiny, &[11, 12]);
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_that_parks_and_unparks_is_as_safe() {
    loom::model(|| {
        let tiny = Tiny::new();
        let participant = tiny.domain.join();
        participant.park();
        let reader = thread::spawn({
            let tiny = tiny.clone();
            move || {
                participant.unpark(&tiny.domain);
                let value = tiny.read().expect("there is always one");
                assert!([10, 11, 12].contains(&value));
                participant.park();
                participant.unpark(&tiny.domain);
                tiny.read();
                participant.park();
            }
        });
        write(&tiny, &[11, 12]);
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_that_joins_during_a_retirement_is_as_safe() {
    loom::model(|| {
        let tiny = Tiny::new();
        let reader = thread::spawn({
            let tiny = tiny.clone();
            move || {
                let participant = tiny.domain.join();
                tiny.read();
                tiny.domain.leave(&participant);
            }
        });
        write(&tiny, &[11, 12]);
        reader.join().unwrap();
    });
}

/// The freeing thread may be a reader at the end of its turn: it is quiescent in the epoch that it begins.
#[test]
fn a_reader_may_free_at_the_end_of_its_turn() {
    loom::model(|| {
        let tiny = Tiny::new();
        let (mine, theirs) = (tiny.domain.join(), tiny.domain.join());
        let other = thread::spawn({
            let tiny = tiny.clone();
            move || {
                tiny.read();
                theirs.quiescent(&tiny.domain);
                tiny.read();
                tiny.domain.leave(&theirs);
            }
        });
        let (mut retired, mut free) = (RetiredList::new(), vec![2]);
        for value in [11, 12] {
            tiny.read();
            tiny.replace(&mut retired, &mut free, value);
            mine.quiescent(&tiny.domain);
            tiny.domain.advance(&mut retired);
            mine.quiescent(&tiny.domain);
            tiny.domain.collect(&mut retired, usize::MAX, |number| free.push(number));
        }
        other.join().unwrap();
    });
}

/// An entry is empty or complete: a reader that sees its hash also sees its name and earlier destinations.
#[test]
fn an_entry_is_seen_completely_or_not_at_all() {
    loom::model(|| {
        let slot = Arc::new(Exact::empty());
        let reader = thread::spawn({
            let slot = slot.clone();
            move || {
                if slot.hash() == 7 {
                    assert_eq!(slot.name(), 3);
                    assert!([0, 5].contains(&slot.destinations.load(Ordering::Acquire)));
                }
            }
        });
        slot.publish(7, 3);
        slot.destinations.store(5, Ordering::Release);
        reader.join().unwrap();
    });
}

/// A replaced table keeps its contents: a reader in it finds all entries that did not change.
#[test]
fn a_reader_in_the_old_table_finds_stable_entries() {
    loom::model(|| {
        let tables = Arc::new([Exact::empty(), Exact::empty()]);
        let current = Arc::new(AtomicU32::new(0));
        tables[0].publish(7, 3);
        tables[0].destinations.store(5, Ordering::Release);
        let reader = thread::spawn({
            let (tables, current) = (tables.clone(), current.clone());
            move || {
                let slot = &tables[current.load(Ordering::Acquire) as usize];
                assert_eq!((slot.hash(), slot.name()), (7, 3));
                assert_eq!(slot.destinations.load(Ordering::Acquire), 5);
            }
        });
        tables[1].publish(tables[0].hash(), tables[0].name());
        tables[1].destinations.store(tables[0].destinations.load(Ordering::Relaxed), Ordering::Release);
        current.store(1, Ordering::Release);
        reader.join().unwrap();
    });
}
