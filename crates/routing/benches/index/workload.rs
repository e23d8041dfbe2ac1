//! Filters, and topics that match them.

use std::fmt::Write;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Filters `bench/1234567/#`: one match for each topic.
    Unique,
    /// Filters of three to six levels of an invented plant, one in three with a `+`; one to ten matches.
    Mixed,
}

impl Kind {
    pub fn parse(name: &str) -> Kind {
        match name {
            "unique" => Kind::Unique,
            "mixed" => Kind::Mixed,
            _ => panic!("no workload {name}"),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Unique => "unique",
            Kind::Mixed => "mixed",
        }
    }
}

pub struct Workload {
    kind: Kind,
    filters: usize,
}

/// Number of sites of an organisation. Organisations are as many as the filters need.
const SITES: usize = 10;
const DEVICES: usize = 600;

impl Workload {
    pub fn new(kind: Kind, filters: usize) -> Workload {
        Workload { kind, filters }
    }

    /// Calls `f` once with every filter.
    pub fn for_each(&self, mut f: impl FnMut(&str)) {
        let mut text = String::new();
        let (mut count, filters) = (0, self.filters);
        let mut emit = |arguments: std::fmt::Arguments<'_>| {
            if count < filters {
                text.clear();
                text.write_fmt(arguments).expect("formatting into a string succeeds");
                f(&text);
                count += 1;
            }
            count < filters
        };
        if self.kind == Kind::Unique {
            (0..filters).for_each(|i| {
                emit(format_args!("bench/{:07}/#", scatter(i, filters)));
            });
            return;
        }
        emit(format_args!("+/+/+/alarm/#"));
        emit(format_args!("+/site1/#"));
        for o in 0.. {
            for d in 0..DEVICES {
                emit(format_args!("org{o}/+/device{d}/temp/#"));
            }
            for s in 0..SITES {
                emit(format_args!("org{o}/site{s}/#"));
                emit(format_args!("org{o}/site{s}/+/+/value"));
                emit(format_args!("org{o}/site{s}/+/alarm/#"));
                for d in 0..DEVICES {
                    emit(format_args!("org{o}/site{s}/device{d}/#"));
                    if d % 3 == 0 {
                        emit(format_args!("org{o}/site{s}/device{d}/cmd/set"));
                    }
                    if d % 4 == 0 {
                        emit(format_args!("org{o}/site{s}/device{d}/+/value"));
                    }
                    if d % 10 == 0 && !emit(format_args!("org{o}/site{s}/device{d}/+/status/#")) {
                        return;
                    }
                }
            }
        }
    }

    /// Returns this many topics in random order. Most of them match several filters.
    pub fn topics(&self, count: usize) -> Vec<String> {
        // Filters of one organisation: devices at all sites, and one filter per device, site and organisation.
        let of_one = DEVICES
            + SITES * (3 + DEVICES + DEVICES.div_ceil(3) + DEVICES.div_ceil(4) + DEVICES.div_ceil(10));
        let organisations = (self.filters / of_one).max(1);
        let mut random = random::Random::new(0);
        let mut next = |bound: usize| random.below(bound);
        (0..count)
            .map(|_| match self.kind {
                Kind::Unique => format!("bench/{:07}/x", next(self.filters)),
                Kind::Mixed => {
                    let (o, s, d) = (next(organisations), next(SITES), next(DEVICES));
                    let ends =
                        ["temp/value", "temp/value/raw", "cmd/set", "alarm/high", "info/status", "state"];
                    format!("org{o}/site{s}/device{d}/{}", ends[next(ends.len())])
                }
            })
            .collect()
    }
}

/// Returns every number below `bound` once, in scattered order.
fn scatter(i: usize, bound: usize) -> usize {
    // A prime that does not divide the bounds in use.
    (i * 7_368_787) % bound
}
