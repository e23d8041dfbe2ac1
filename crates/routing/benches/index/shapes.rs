//! An alternative: a hash table for each shape of filter. A match looks once into each table that can have a match.

use std::collections::{BTreeMap, HashMap};
use std::sync::RwLock;

use mqtt::TopicName;

use crate::contender::{Contender, Subscriber};

/// Positions of the `+`, number of levels, and whether there is a `#` at the end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    plus: u128,
    levels: usize,
    rest: bool,
}

#[derive(Default)]
pub struct ShapeIndex(RwLock<BTreeMap<Shape, HashMap<Box<str>, Destinations>>>);

enum Destinations {
    One(Subscriber),
    Many(Vec<Subscriber>),
}

/// Splits a filter into its shape and the rest of its text.
fn split(filter: &str) -> (Shape, String) {
    let rest = filter == "#" || filter.ends_with("/#");
    let stem = if rest { filter.trim_end_matches('#').trim_end_matches('/') } else { filter };
    let (mut plus, mut names, mut levels) = (0, String::new(), 0);
    for (i, level) in stem.split('/').enumerate() {
        levels = i + 1;
        match level {
            "+" => plus |= 1 << i,
            name => names = names + name + "/",
        }
    }
    (Shape { plus, levels, rest }, names)
}

impl Contender for ShapeIndex {
    type Reader<'a> = String;

    fn new() -> Self {
        ShapeIndex::default()
    }

    fn insert(&self, filter: &str, subscriber: Subscriber) {
        let (shape, names) = split(filter);
        let mut shapes = self.0.write().expect("nobody panicked");
        let table = shapes.entry(shape).or_default();
        match table.get_mut(names.as_str()) {
            None => {
                table.insert(names.into(), Destinations::One(subscriber));
            }
            Some(Destinations::Many(many)) => many.push(subscriber),
            Some(one) => {
                let Destinations::One(first) = *one else { unreachable!("the other case is above") };
                *one = Destinations::Many(vec![first, subscriber]);
            }
        }
    }

    fn remove(&self, filter: &str, _: Subscriber) {
        let (shape, names) = split(filter);
        if let Some(table) = self.0.write().expect("nobody panicked").get_mut(&shape) {
            table.remove(names.as_str());
        }
    }

    fn reader(&self) -> String {
        String::new()
    }

    fn matches(&self, names: &mut String, topic: TopicName<'_>, out: &mut Vec<Subscriber>) {
        let shapes = self.0.read().expect("nobody panicked");
        let levels = topic.as_str().split('/').count();
        for (shape, table) in shapes.iter() {
            if shape.levels > levels || !shape.rest && shape.levels != levels {
                continue;
            }
            names.clear();
            for (i, level) in topic.as_str().split('/').take(shape.levels).enumerate() {
                if shape.plus >> i & 1 == 0 {
                    names.push_str(level);
                    names.push('/');
                }
            }
            match table.get(names.as_str()) {
                Some(Destinations::One(one)) => out.push(*one),
                Some(Destinations::Many(many)) => out.extend_from_slice(many),
                None => {}
            }
        }
    }

    fn turn(_: &mut String) {}

    fn memory(&self) -> usize {
        0
    }
}
