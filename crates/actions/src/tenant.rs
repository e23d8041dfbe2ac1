//! The namespace of a tenant: its topics begin with its mountpoint, which its rules do not see.

use std::borrow::Cow;

use broker::internal::{ACTION, tenant_events};
use rules::{Event, Rule, Source};

/// Namespace of an action. That of an action without a tenant is the whole broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Ends with `/`; empty without a tenant.
    mountpoint: Box<str>,
}

impl Namespace {
    /// Creates the namespace of a tenant; the name is empty without one.
    ///
    /// # Errors
    /// No tenant can have this name.
    pub fn new(tenant: &str) -> Result<Self, String> {
        if tenant.is_empty() {
            return Ok(Self::default());
        }
        let is_text = |c: char| !matches!(c, '+' | '#') && !c.is_control();
        let is_name = tenant.len() <= TENANT_MAX
            && !tenant.starts_with('$')
            && tenant.chars().all(is_text)
            && tenant.split('/').all(|level| !level.is_empty());
        if !is_name {
            return Err(format!(
                "\"{}\" is not a tenant; write 1 to {TENANT_MAX} bytes without +, # and control characters, without $ at \
                 the beginning, and without / at the beginning and the end",
                tenant.escape_debug()
            ));
        }
        Ok(Self { mountpoint: format!("{tenant}/").into() })
    }

    /// Mountpoint of the tenant; empty without one.
    pub fn mountpoint(&self) -> &str {
        &self.mountpoint
    }

    pub fn is_of_tenant(&self) -> bool {
        !self.mountpoint.is_empty()
    }

    /// Returns why a rule of this namespace cannot have its sources.
    ///
    /// # Errors
    /// A source is not about the tenant.
    pub fn check(&self, rule: &Rule) -> Result<(), String> {
        if self.is_of_tenant() && rule.events().any(|event| event == Event::Alarm) {
            let name = Event::Alarm.name();
            return Err(format!("{name} is about nodes, which a tenant does not see; leave it out"));
        }
        for filter in rule.filters() {
            mqtt::TopicFilter::parse(&self.mounted(filter)).map_err(|error| {
                format!("the filter `{filter}` with the mountpoint of the tenant: {error}")
            })?;
        }
        Ok(())
    }

    /// Topic or Topic Filter of the tenant as the broker knows it.
    pub fn mounted<'a>(&self, topic: &'a str) -> Cow<'a, str> {
        if self.is_of_tenant() {
            Cow::Owned(format!("{}{topic}", self.mountpoint))
        } else {
            Cow::Borrowed(topic)
        }
    }

    /// Filters with which the session of an action subscribes to a source.
    pub fn filters(&self, source: &Source) -> Vec<String> {
        match source {
            Source::Filter(filter) => vec![self.mounted(filter).into_owned()],
            Source::Event(event) if self.is_of_tenant() => {
                // The broker looks at the first one to learn that some tenant wants this event.
                vec![tenant_events(event.name(), ""), tenant_events(event.name(), &self.mountpoint)]
            }
            Source::Event(event) => vec![event.name().to_owned()],
        }
    }

    /// Topic of a message or event as the broker knows it, so that [`Self::seen`] gives it back.
    pub fn of_broker<'a>(&self, topic: &'a str) -> Cow<'a, str> {
        match Event::of_name(topic) {
            Some(event) if self.is_of_tenant() => Cow::Owned(tenant_events(event.name(), &self.mountpoint)),
            Some(_) => Cow::Borrowed(topic),
            None => self.mounted(topic),
        }
    }

    /// Topic of a message as the rule sees it; `None` when the message is not of this namespace.
    pub fn seen<'a>(&self, topic: &'a str) -> Option<&'a str> {
        if !self.is_of_tenant() {
            return Some(topic);
        }
        match topic.strip_prefix(&*self.mountpoint) {
            // No client of the tenant can publish an event.
            Some(own) => Some(own).filter(|own| !own.is_empty() && !own.starts_with(EVENTS)),
            None => {
                let event = topic.strip_prefix(ACTION)?.strip_suffix(&*self.mountpoint)?;
                Event::of_name(event.strip_suffix('/')?)
                    .filter(|event| *event != Event::Alarm)
                    .map(Event::name)
            }
        }
    }
}

/// Beginning of the topics of events.
const EVENTS: &str = "$events/";
/// Maximum length of the name of a tenant in bytes, as for users.
const TENANT_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use rules::Limits;

    use super::*;

    fn acme() -> Namespace {
        Namespace::new("acme").expect("a tenant")
    }

    #[test]
    fn topics_of_others_are_not_of_the_tenant() {
        for (topic, seen) in [
            ("acme/a", Some("a")),
            ("acme//", Some("/")),
            ("acme/$x", Some("$x")),
            ("acme/../b/x", Some("../b/x")),
            ("acme", None),
            ("acme/", None),
            ("acmex/a", None),
            ("b/a", None),
            ("a", None),
            ("$SYS/a", None),
            ("$events/client/connected", None),
            ("acme/$events/client/connected", None),
            ("$action/$events/client/connected/acme/", Some("$events/client/connected")),
            ("$action/$events/client/connected/b/", None),
            ("$action/$events/client/connected/b/acme/", None),
            ("$action/$events/client/connected/", None),
            ("$action/$events/sys/alarm/acme/", None),
            ("$action/$events/client/x/acme/", None),
        ] {
            assert_eq!(acme().seen(topic), seen, "{topic}");
        }
        assert_eq!(Namespace::default().seen("$events/sys/alarm"), Some("$events/sys/alarm"));
    }

    #[test]
    fn a_topic_that_was_passed_on_is_seen_as_before() {
        for namespace in [acme(), Namespace::default(), Namespace::new("a/b").expect("a tenant")] {
            for topic in ["x", "$x/y", "$events/client/connected", "$events/message/dropped", "/"] {
                assert_eq!(namespace.seen(&namespace.of_broker(topic)), Some(topic), "{namespace:?}");
            }
        }
    }

    #[test]
    fn a_source_is_subscribed_below_the_mountpoint() {
        let rule =
            Rule::parse("SELECT * FROM \"#\", \"$x/+\", \"$events/client/connected\"", &Limits::default());
        let rule = rule.expect("a rule");
        let filters: Vec<_> = rule.sources().iter().flat_map(|source| acme().filters(source)).collect();
        let event = "$action/$events/client/connected/";
        assert_eq!(filters, ["acme/#", "acme/$x/+", event, &format!("{event}acme/")]);
        assert_eq!(acme().check(&rule), Ok(()));
        let alarm = Rule::parse("SELECT * FROM \"$events/sys/alarm\"", &Limits::default()).expect("a rule");
        assert!(acme().check(&alarm).is_err_and(|why| why.contains("nodes")));
        assert_eq!(Namespace::default().check(&alarm), Ok(()));
    }

    #[test]
    fn some_texts_are_no_tenants() {
        for name in ["/", "a/", "/a", "a//b", "a/+", "#", "$SYS", "a\0", &"x".repeat(257)] {
            assert!(Namespace::new(name).is_err(), "{name}");
        }
        assert_eq!(Namespace::new("").map(|it| it.is_of_tenant()), Ok(false));
    }
}
