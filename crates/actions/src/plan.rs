//! An action as its settings describe it, parsed.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mqtt::{PropertiesBuf, Property, QoS, TopicName};
use rules::{Limits, RenderError, Rule, Template, Value};
use sinks::{ActionSettings, ConnectorSettings, Guard, Record, SinkProblem, Target};

use crate::parts::{Parts, PublishTemplates};
use crate::tenant::Namespace;

/// A parsed action. It is shared by the threads of the action.
pub struct Plan {
    pub settings: ActionSettings,
    /// Topics and events that the rule sees, and topics that it publishes on.
    pub namespace: Namespace,
    pub rule: Rule,
    pub output: Output,
    pub dead_letter: Option<Template>,
    pub limits: Limits,
}

/// Use of the outputs of a rule.
pub enum Output {
    /// A message is published at this broker.
    Publish(PublishTemplates),
    /// A record is written to another system.
    Write(Arc<dyn Target>),
}

/// A message to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToPublish {
    pub topic: Box<str>,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    pub user_properties: Vec<(Box<str>, Box<str>)>,
}

/// Reason why an output was not made into a message or record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputError {
    Render(RenderError),
    /// A rendered value is not what its setting needs.
    Wrong {
        setting: &'static str,
        why: String,
    },
}

impl OutputError {
    /// Short name for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Render(error) => error.reason(),
            Self::Wrong { .. } => "wrong_value",
        }
    }
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Render(error) => write!(f, "{error}"),
            Self::Wrong { setting, why } => write!(f, "{setting}: {why}"),
        }
    }
}

impl From<RenderError> for OutputError {
    fn from(error: RenderError) -> Self {
        Self::Render(error)
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("name", &self.settings.name).finish_non_exhaustive()
    }
}

/// An output that can leave.
#[derive(Debug)]
pub enum Made {
    Message(ToPublish),
    Record(Record),
}

impl Plan {
    /// Parses an action. `connector` is the one that the settings name.
    ///
    /// # Errors
    /// The first setting that is wrong, and what to write instead.
    pub fn new(
        settings: &ActionSettings,
        connector: Option<&ConnectorSettings>,
        guard: Guard,
    ) -> Result<Self, SinkProblem> {
        let Parts { namespace, rule, publish, dead_letter, limits } = Parts::new(settings)?;
        let output = match (publish, connector) {
            (Some(templates), _) => Output::Publish(templates),
            (None, Some(connector)) => Output::Write(sinks::target(connector, settings, guard)?),
            (None, None) => {
                let why = format!("there is no connector \"{}\"", settings.connector);
                return Err(SinkProblem::new("connector", why));
            }
        };
        Ok(Self { settings: settings.clone(), namespace, rule, output, dead_letter, limits })
    }

    /// Makes a message or a record of an output.
    ///
    /// # Errors
    /// The output has no value that is needed, or the value has no form that the receiver accepts.
    pub fn make(&self, output: &Value) -> Result<Made, OutputError> {
        match &self.output {
            Output::Publish(templates) => {
                templates.render(output, &self.limits, &self.namespace).map(Made::Message)
            }
            Output::Write(target) => Ok(Made::Record(target.render(output)?)),
        }
    }

    /// Topic for a message that the action gives up.
    ///
    /// # Errors
    /// The rendered text is not a Topic Name.
    pub fn dead_letter_topic(&self, topic: &str, reason: &str) -> Option<Result<Box<str>, OutputError>> {
        let template = self.dead_letter.as_ref()?;
        let name = &*self.settings.name;
        let facts = Value::object([("action", name), ("topic", topic), ("reason", reason)].map(pair));
        let rendered = template.render(&facts, &self.limits).map_err(OutputError::from);
        Some(rendered.and_then(|text| topic_name("dead_letter", text, &self.namespace)))
    }
}

fn pair<'a>((name, value): (&'a str, &str)) -> (&'a str, Value) {
    (name, Value::from(value))
}

/// Evaluates rules and renders templates. A panic there is an error of the message: it would come again with the
/// message after a restart of the node.
///
/// # Errors
/// The text for people, after a panic.
pub fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, &'static str> {
    let text = "an error within the rule engine or a template; please report it with the rule, the templates and the \
                message";
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| text)
}

impl PublishTemplates {
    fn render(
        &self,
        output: &Value,
        limits: &Limits,
        namespace: &Namespace,
    ) -> Result<ToPublish, OutputError> {
        let topic = topic_name("topic", self.topic.render(output, limits)?, namespace)?;
        let payload = self.content.render(output, limits)?;
        let qos = match &*self.qos.render(output, limits)? {
            b"0" => QoS::AtMostOnce,
            b"1" => QoS::AtLeastOnce,
            b"2" => QoS::ExactlyOnce,
            other => return Err(wrong("publish_qos", other, "no QoS; it must be 0, 1 or 2")),
        };
        let retain = match &*self.retain.render(output, limits)? {
            b"true" => true,
            b"false" => false,
            other => return Err(wrong("publish_retain", other, "neither true nor false")),
        };
        let mut user_properties = Vec::with_capacity(self.user_properties.len());
        for (name, template) in &self.user_properties {
            let value = template.render(output, limits)?;
            let text = std::str::from_utf8(&value).ok().filter(|text| fits(name, text));
            let text = text.ok_or_else(|| wrong("headers", &value, "no value of a User Property"))?;
            user_properties.push((name.clone(), text.into()));
        }
        Ok(ToPublish { topic, payload, qos, retain, user_properties })
    }
}

/// Returns whether a User Property can have these texts.
fn fits(name: &str, value: &str) -> bool {
    PropertiesBuf::default().push(Property::UserProperty(name, value))
}

/// Returns a rendered topic as the broker knows it.
fn topic_name(
    setting: &'static str,
    rendered: Vec<u8>,
    namespace: &Namespace,
) -> Result<Box<str>, OutputError> {
    let text = String::from_utf8(rendered);
    let text = text.map_err(|error| wrong(setting, error.as_bytes(), "not UTF-8"))?;
    match TopicName::parse(&text) {
        // Topics of the broker itself are not for actions.
        Ok(_) if text.starts_with('$') => {
            Err(wrong(setting, text.as_bytes(), "a topic of the broker itself"))
        }
        Ok(_) => {
            let topic = namespace.mounted(&text);
            match TopicName::parse(&topic) {
                Ok(_) => Ok(topic.into()),
                Err(error) => Err(not_a_topic(setting, &topic, &error)),
            }
        }
        Err(error) => Err(not_a_topic(setting, &text, &error)),
    }
}

fn not_a_topic(setting: &'static str, topic: &str, error: &dyn fmt::Display) -> OutputError {
    OutputError::Wrong { setting, why: format!("`{}`: {error}", shown(topic.as_bytes())) }
}

fn wrong(setting: &'static str, value: &[u8], what: &str) -> OutputError {
    OutputError::Wrong { setting, why: format!("`{}` is {what}", shown(value)) }
}

/// The beginning of a value, for messages to people.
fn shown(value: &[u8]) -> String {
    String::from_utf8_lossy(value).chars().take(100).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARD: Guard = Guard { allow_loopback: true, allow_private: true };

    fn settings(change: impl FnOnce(&mut ActionSettings)) -> ActionSettings {
        let mut settings = ActionSettings {
            name: "hot".into(),
            rule: "SELECT payload.t AS t, topic FROM \"a/#\"".into(),
            topic: "out/${topic}".into(),
            ..ActionSettings::default()
        };
        change(&mut settings);
        settings
    }

    fn render(settings: &ActionSettings, output: &Value) -> Result<ToPublish, String> {
        let plan = Plan::new(settings, None, GUARD).expect("valid settings");
        match plan.make(output) {
            Ok(Made::Message(message)) => Ok(message),
            Ok(Made::Record(_)) => panic!("no connector"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn an_output_becomes_a_message() {
        let settings = settings(|settings| {
            settings.publish_qos = "${q}".into();
            settings.publish_retain = "${flags.retain}".into();
            settings.headers = "unit: C\n  from :${topic}".into();
            settings.content = "t=${t}".into();
        });
        let flags = Value::object([("retain", Value::Bool(true))]);
        let output = Value::object([
            ("t", Value::Int(81)),
            ("topic", Value::from("a/b")),
            ("q", Value::Int(2)),
            ("flags", flags),
        ]);
        let message = render(&settings, &output).expect("a message");
        assert_eq!((&*message.topic, &*message.payload), ("out/a/b", &b"t=81"[..]));
        assert_eq!((message.qos, message.retain), (QoS::ExactlyOnce, true));
        let expected: [(Box<str>, Box<str>); 2] =
            [("unit".into(), "C".into()), ("from".into(), "a/b".into())];
        assert_eq!(message.user_properties, expected);
    }

    #[test]
    fn values_that_do_not_fit_are_errors_of_the_output() {
        let output = |name: &'static str, value: &str| {
            Value::object([("topic", Value::from("a")), (name, Value::from(value))])
        };
        for (change, output, why) in [
            ("topic", output("x", "+"), "`+`"),
            ("topic", output("x", ""), "``"),
            ("topic", output("x", "$SYS/x"), "a topic of the broker itself"),
            ("topic", output("y", ""), "no `x`"),
            ("publish_qos", output("x", "3"), "`3` is no QoS"),
            ("publish_retain", output("x", "yes"), "neither true nor false"),
            ("headers", output("x", "a\0"), "no value of a User Property"),
        ] {
            let settings = settings(|settings| match change {
                "topic" => settings.topic = "${x}".into(),
                "publish_qos" => settings.publish_qos = "${x}".into(),
                "publish_retain" => settings.publish_retain = "${x}".into(),
                _ => settings.headers = "h: ${x}".into(),
            });
            let error = render(&settings, &output).expect_err(change);
            assert!(error.contains(why), "{change}: {error}");
        }
    }

    #[test]
    fn wrong_settings_are_named() {
        type Change = fn(&mut ActionSettings);
        let cases: [(Change, &str); 7] = [
            (|it| it.rule = " ".into(), "rule"),
            (|it| it.rule = "SELECT".into(), "rule"),
            (|it| it.topic = "".into(), "topic"),
            (|it| it.topic = "${".into(), "topic"),
            (|it| it.headers = "no colon".into(), "headers"),
            (|it| it.connector = "db".into(), "connector"),
            (|it| it.dead_letter = "${".into(), "dead_letter"),
        ];
        for (change, setting) in cases {
            let problem = Plan::new(&settings(change), None, GUARD).expect_err(setting);
            assert_eq!(problem.setting, setting, "{problem}");
        }
    }

    #[test]
    fn the_topic_of_a_dead_letter_names_the_cause() {
        let settings = settings(|settings| settings.dead_letter = "dead/${action}/${reason}/${topic}".into());
        let plan = Plan::new(&settings, None, GUARD).expect("valid");
        let topic = plan.dead_letter_topic("a/b", "refused").expect("is set").expect("valid");
        assert_eq!(&*topic, "dead/hot/refused/a/b");
    }

    #[test]
    fn a_tenant_publishes_below_its_mountpoint_whatever_the_rule_makes() {
        let settings = settings(|settings| {
            settings.tenant = "acme".into();
            settings.topic = "${x}".into();
            settings.dead_letter = "dead/${topic}".into();
        });
        let output = |value: &str| Value::object([("x", Value::from(value))]);
        for (made, topic) in
            [("../b/x", "acme/../b/x"), ("/b", "acme//b"), ("acme/x", "acme/acme/x"), ("b/$x", "acme/b/$x")]
        {
            assert_eq!(render(&settings, &output(made)).map(|it| it.topic), Ok(topic.into()));
        }
        for refused in ["$events/client/connected", "$SYS/x", "$action/b/x", "+", "", &"x".repeat(65_531)] {
            assert!(render(&settings, &output(refused)).is_err(), "{refused:.20}");
        }
        let plan = Plan::new(&settings, None, GUARD).expect("valid");
        let topic = plan.dead_letter_topic("../b", "refused").expect("is set").expect("valid");
        assert_eq!(&*topic, "acme/dead/../b");
        let wrong = ActionSettings { tenant: "a/#".into(), ..settings };
        assert_eq!(Plan::new(&wrong, None, GUARD).expect_err("no tenant").setting, "tenant");
    }
}
