//! What an acknowledgement of a message means.

use mqtt::{TopicFilter, TopicName};
use settings::{Invalid, Raw, Value, choices, section};

use crate::settings::Settings;

choices! {
    /// What an acknowledgement means.
    pub enum Durability {
        /// What was acknowledged is on the disk: it survives the process, and a power cut.
        LocalDisk = "local-disk",
        /// Acknowledgements do not wait for the disk: a crash loses what has not reached it.
        Memory = "memory",
    }
}

section! {
    /// What the acknowledgement of a message means, by its topic. The first rule whose filter matches counts; without one, `durability` of the
    /// listener does.
    [durability]
    pub struct DurabilityRule {
        /// Topics, as a Topic Filter; those of tenants with their mountpoint.
        pub filter: Filter = "#", at start;
        /// `memory`: the message is acknowledged when it has its place in a queue, without waiting for the disk.
        pub class: Durability = "local-disk", at start;
    }
}

/// A Topic Filter of the configuration. Checked when read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(Box<str>);

impl Filter {
    fn matches(&self, name: TopicName<'_>) -> bool {
        TopicFilter::parse(&self.0).is_ok_and(|filter| filter.matches(name))
    }
}

impl Value for Filter {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let text = String::from_raw(raw)?;
        if text.starts_with("$share/") || TopicFilter::parse(&text).is_err() {
            return Err(raw.expected("a Topic Filter, such as telemetry/#"));
        }
        Ok(Self(text.into()))
    }

    fn to_toml(&self) -> Option<String> {
        String::from(self.0.clone()).to_toml()
    }
}

impl Settings {
    /// Of a message that came in by a listener with this class.
    pub(crate) fn durability_of(&self, name: TopicName<'_>, listener: Durability) -> Durability {
        let rule = self.durability.iter().find(|rule| rule.filter.matches(name));
        rule.map_or(listener, |rule| rule.class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> Result<Filter, Invalid> {
        Filter::from_raw(&Raw::String(text.to_owned()))
    }

    #[test]
    fn the_first_rule_that_matches_counts_and_then_the_listener() {
        let rule = |text, class| DurabilityRule { filter: filter(text).expect("a filter"), class };
        let durability = vec![rule("t/alarm", Durability::LocalDisk), rule("t/#", Durability::Memory)];
        let settings = Settings { durability, ..Settings::default() };
        let of =
            |topic, listener| settings.durability_of(TopicName::parse(topic).expect("a topic"), listener);
        for (topic, listener, class) in [
            ("t/alarm", Durability::Memory, Durability::LocalDisk),
            ("t/1", Durability::LocalDisk, Durability::Memory),
            ("u", Durability::LocalDisk, Durability::LocalDisk),
            ("u", Durability::Memory, Durability::Memory),
        ] {
            assert_eq!(of(topic, listener), class, "{topic}");
        }
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for bad in ["", "a#", "a/#/b", "$share/g/a"] {
            assert!(filter(bad).is_err(), "{bad:?}");
        }
    }
}
