//! Subscriptions of a relay that change during a run.

use std::collections::BTreeSet;

use bridge::{Existing, Input, Relay, Side, State};

use super::World;
use super::broker::Broker;
use super::report::Report;

/// Filters that the owner of a relay wants.
#[derive(Debug)]
pub struct WantedFilters {
    wanted: BTreeSet<String>,
    number: u64,
    /// The present relay does not know them yet.
    is_owed: bool,
}

impl Default for WantedFilters {
    fn default() -> Self {
        Self { wanted: BTreeSet::from([ALWAYS.to_owned()]), number: 0, is_owed: true }
    }
}

/// Filter that is wanted all the time.
const ALWAYS: &str = "always/#";

/// Filters that are wanted sometimes. The broker refuses some of them.
const NAMES: [&str; 9] =
    ["in/#", "in/+", "in/a", "in/mine", "x/+/both", "#", "forbidden/a", "forbidden/#", "$share/g/in/b"];

impl WantedFilters {
    /// Filters that the broker must have.
    fn expected(&self, broker: &Broker) -> BTreeSet<String> {
        let is_granted = |filter: &&String| !filter.contains("forbidden") && broker.exports(filter);
        self.wanted.iter().filter(is_granted).cloned().collect()
    }

    fn all(&mut self) -> Input<'static> {
        self.number += 1;
        self.is_owed = false;
        let filters = self.wanted.iter().map(|filter| Box::from(filter.as_str())).collect();
        Input::WantOnly { number: self.number, filters }
    }
}

impl World {
    /// Changes the wanted filters.
    pub fn change_interest(&mut self, report: &mut Report) {
        let Some(wanted_filters) = &mut self.wanted_filters else { return };
        let some = |random: &mut random::Random| -> Vec<Box<str>> {
            let name = |random: &mut random::Random| match random.percent(50) {
                true => (*random.pick(&NAMES)).to_owned(),
                false => format!("many/{}/{}", random.below(40), "x".repeat(random.below(40))),
            };
            let count = if random.percent(10) { 30 } else { random.below(4) };
            (0..count).map(|_| name(random).into()).collect()
        };
        let (add, mut remove) = (some(&mut self.random), some(&mut self.random));
        if self.random.percent(5) {
            remove = wanted_filters.wanted.iter().map(|filter| Box::from(filter.as_str())).collect();
            remove.retain(|filter| **filter != *ALWAYS);
        }
        for filter in &remove {
            wanted_filters.wanted.remove(&**filter);
        }
        wanted_filters.wanted.extend(add.iter().map(|filter| String::from(&**filter)));
        let input = if wanted_filters.is_owed || self.random.percent(20) {
            report.add("all filters given");
            wanted_filters.all()
        } else {
            report.add("filters changed");
            wanted_filters.number += 1;
            Input::Want { number: wanted_filters.number, add, remove }
        };
        self.handle(input);
    }

    /// Gives a new relay the filters, at once or later.
    pub fn repeat_interest(&mut self, report: &mut Report) {
        let Some(wanted_filters) = &mut self.wanted_filters else { return };
        wanted_filters.is_owed = true;
        if self.random.percent(50) {
            report.add("a new process knows the filters at once");
            let input = wanted_filters.all();
            self.handle(input);
        }
    }

    /// Replaces a relay that has stopped by another one of the same process, sometimes.
    pub fn continue_interest(&mut self, report: &mut Report) {
        if self.wanted_filters.is_some() && self.recovering.is_none() && self.random.percent(50) {
            report.add("filters continue in a new relay");
            self.incarnations += 1;
            let address = self.relay.last_address().map(str::to_owned);
            let existing = Existing { address, ..Existing::default() };
            let relay = Relay::new(self.settings.clone(), "own", existing, self.incarnations);
            self.relay = relay.expect("valid settings").with_interest_of(&self.relay);
        }
    }

    /// Gives a relay the filters that it does not know yet.
    pub fn complete_interest(&mut self) {
        if let Some(wanted_filters) =
            self.wanted_filters.as_mut().filter(|wanted_filters| wanted_filters.is_owed)
        {
            let input = wanted_filters.all();
            self.handle(input);
        }
    }

    /// Checks that the remote broker has all filters whenever the relay says so.
    pub fn check_settled(&self) {
        let Some(wanted_filters) =
            self.wanted_filters.as_ref().filter(|wanted_filters| !wanted_filters.is_owed)
        else {
            return;
        };
        let is_whole = |side| self.pipes.of(side).as_ref().is_some_and(|pipe| pipe.is_open && !pipe.is_cut);
        if let State::Connected { .. } = self.relay.state()
            && is_whole(Side::Remote)
            && self.brokers.remote.is_open()
            && self.relay.settled_number() == wanted_filters.number
            && self.relay.is_settled()
        {
            let remote = &self.brokers.remote;
            let (expected, there) = (wanted_filters.expected(remote), remote.filters());
            assert!(there.is_superset(&expected), "settled with {there:?} instead of {expected:?}");
            assert_eq!(self.relay.subscribed(), expected.len());
            assert_eq!(self.relay.wanted(), wanted_filters.wanted.len());
        }
    }

    /// Checks the subscriptions at the end of a run.
    pub fn check_subscriptions(&mut self, report: &mut Report) {
        if self.wanted_filters.is_some() && self.relay.may_have_stale() {
            report.add("stale filters at the end of a run");
            self.cut(Side::Remote, report);
            self.calm(report);
        }
        if let Some(wanted_filters) = &self.wanted_filters {
            assert!(!self.relay.may_have_stale());
            let remote = &self.brokers.remote;
            assert_eq!(remote.filters(), wanted_filters.expected(remote), "subscriptions");
            assert_eq!(self.relay.settled_number(), wanted_filters.number);
            self.check_settled();
        }
    }
}
