//! Meaning of the acknowledgement of a message.

use mqtt::{TopicFilter, TopicName};
use settings::{Invalid, Raw, Value, choices, section};

use crate::settings::Settings;

choices! {
    /// Guarantee of an acknowledgement.
    pub enum Durability {
        /// The message is on the disk: it survives a crash of the process and a power failure. In a cluster with
        /// replicas it is on the disks of a majority.
        LocalDisk = "local-disk",
        /// Acknowledgements do not wait for the disk: a crash loses what has not reached it. In a cluster with
        /// replicas, a majority has the message in memory.
        Memory = "memory",
    }
}

section! {
    /// Guarantee of the acknowledgement of a message, by its topic. The first rule whose filter matches applies.
    /// Without a match, `durability` of the listener applies.
    [durability]
    pub struct DurabilityRule {
        /// Topic Filter of the rule. Topics of tenants include their mountpoint.
        pub filter: Filter = "#", at start;
        /// Durability of the messages whose topic matches the filter.
        pub class: Durability = "local-disk", at start;
    }
}

/// A Topic Filter of the configuration, checked when it is read.
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
    /// Durability of a message that arrived through a listener with this class.
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
    fn the_first_rule_that_matches_applies_and_then_the_listener() {
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
    fn a_text_that_is_no_filter_is_refused() {
        for bad in ["", "a#", "a/#/b", "$share/g/a"] {
            assert!(filter(bad).is_err(), "{bad:?}");
        }
    }
}
