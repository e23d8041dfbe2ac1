//! Index of rules: finds the rules that may apply.
//!
//! Rules are indexed by the user or client that they name literally, or by none, and then by the first two levels of
//! their topics. A question searches at most nine lists, each in the order of the rules.

use std::collections::HashMap;

use access::{Action, Identity};

use super::access_rule::AccessRule;

#[derive(Debug, Default)]
pub(super) struct Index {
    users: HashMap<Box<str>, Group>,
    clients: HashMap<Box<str>, Group>,
    others: Group,
}

/// Numbers of rules, each list ascending.
#[derive(Debug, Default)]
struct Group {
    all: List,
    /// Rules by the first level, whose second level is not literal or missing.
    one: HashMap<Box<str>, List>,
    /// Rules by the first two levels.
    two: HashMap<Box<str>, List>,
    /// Rules by the first level: all of `one` and `two` that begin with it.
    below: HashMap<Box<str>, List>,
    /// Rules whose first level is not literal.
    any: List,
}

type List = Vec<u32>;

impl Index {
    pub fn of(rules: &[AccessRule]) -> Self {
        let mut index = Self::default();
        for (number, rule) in (0..).zip(rules) {
            if let Some(users) = rule.users() {
                users.for_each(|user| index.users.entry(user.into()).or_default().add(number, rule));
            } else if let Some(clients) = rule.clients() {
                clients.for_each(|client| index.clients.entry(client.into()).or_default().add(number, rule));
            } else {
                index.others.add(number, rule);
            }
        }
        index
    }

    /// Returns the first result of `decides`, in the order of the rules. It is called for all rules that may apply
    /// until then.
    pub fn first<T>(
        &self,
        who: Identity<'_>,
        action: Action,
        topic: &str,
        decides: impl Fn(u32) -> Option<T>,
    ) -> Option<(u32, T)> {
        let mut first = None;
        let groups = [
            who.username.and_then(|name| self.users.get(name)),
            self.clients.get(who.client_id),
            Some(&self.others),
        ];
        for group in groups.into_iter().flatten() {
            group.lists(action, topic, |list| {
                for &number in list {
                    if first.as_ref().is_some_and(|(found, _)| *found <= number) {
                        break;
                    }
                    if let Some(decision) = decides(number) {
                        first = Some((number, decision));
                        break;
                    }
                }
            });
        }
        first
    }
}

impl Group {
    fn add(&mut self, number: u32, rule: &AccessRule) {
        push(&mut self.all, number);
        if rule.may_deny_all() {
            push(&mut self.any, number);
            return;
        }
        for topic in &rule.topics {
            let Some(one) = topic.filter.literal_level(0) else {
                push(&mut self.any, number);
                continue;
            };
            push(self.below.entry(one.into()).or_default(), number);
            match topic.filter.literal_level(1) {
                None => push(self.one.entry(one.into()).or_default(), number),
                Some(two) => push(self.two.entry(format!("{one}/{two}").into()).or_default(), number),
            }
        }
    }

    fn lists<'a>(&'a self, action: Action, topic: &str, mut visit: impl FnMut(&'a [u32])) {
        let mut ends = topic.match_indices('/').map(|(at, _)| at);
        let first_end = ends.next();
        let first = &topic[..first_end.unwrap_or(topic.len())];
        let second = first_end.map(|at| {
            let end = ends.next().unwrap_or(topic.len());
            (&topic[at + 1..end], &topic[..end])
        });
        // Topic Names have no wildcards.
        let wildcard = |level: &str| matches!(action, Action::Subscribe { .. }) && matches!(level, "+" | "#");
        if wildcard(first) {
            return visit(&self.all);
        }
        visit(&self.any);
        let mut add_list = |map: &'a HashMap<Box<str>, List>, key: &str| {
            if let Some(list) = map.get(key) {
                visit(list);
            }
        };
        match second {
            Some((level, _)) if wildcard(level) => add_list(&self.below, first),
            Some((_, both)) => {
                add_list(&self.one, first);
                add_list(&self.two, both);
            }
            None => add_list(&self.one, first),
        }
    }
}

/// Adds a rule. A rule with several topics is added once.
fn push(list: &mut List, number: u32) {
    if list.last() != Some(&number) {
        list.push(number);
    }
}
