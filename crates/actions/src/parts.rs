//! The parts of an action that follow from its settings alone: what can be checked without files and other entries.

use mqtt::TopicName;
use rules::{Limits, Rule, Template, Value};
use sinks::{ActionSettings, SinkProblem};

use crate::tenant::Namespace;

/// Parts of an action without its target.
pub struct Parts {
    pub namespace: Namespace,
    pub rule: Rule,
    /// `None` for an action with a connector.
    pub publish: Option<PublishTemplates>,
    pub dead_letter: Option<Template>,
    pub limits: Limits,
}

/// Templates of a message to publish.
#[derive(Debug)]
pub struct PublishTemplates {
    pub topic: Template,
    pub content: Template,
    pub qos: Template,
    pub retain: Template,
    pub user_properties: Vec<(Box<str>, Template)>,
}

impl Parts {
    /// Parses and checks settings.
    ///
    /// # Errors
    /// The first setting that is wrong, and what to write instead.
    pub fn new(settings: &ActionSettings) -> Result<Self, SinkProblem> {
        let limits = Limits::default();
        if settings.rule.trim().is_empty() {
            let why = "the action has no rule; write one such as SELECT * FROM \"sensors/#\"";
            return Err(SinkProblem::new("rule", why));
        }
        let namespace = Namespace::new(&settings.tenant).map_err(|why| SinkProblem::new("tenant", why))?;
        let rule = Rule::parse(&settings.rule, &limits).map_err(|error| SinkProblem::new("rule", error))?;
        namespace.check(&rule).map_err(|why| SinkProblem::new("rule", why))?;
        // The target parses those of its kind. One that nothing uses is a mistake, too.
        for (setting, text) in
            [("path", &settings.path), ("statement", &settings.statement), ("key", &settings.key)]
        {
            template(setting, text, &limits)?;
        }
        let publish = PublishTemplates {
            topic: template("topic", &settings.topic, &limits)?,
            content: template("content", &settings.content, &limits)?,
            qos: template("publish_qos", &settings.publish_qos, &limits)?,
            retain: template("publish_retain", &settings.publish_retain, &limits)?,
            user_properties: headers(&settings.headers, &limits)?,
        };
        let dead_letter = dead_letter(&settings.dead_letter, &limits)?;
        if settings.retry_min > settings.retry_max {
            return Err(SinkProblem::new("retry_min", "it is longer than retry_max; make it shorter"));
        }
        let is_publishing = settings.connector.is_empty();
        if is_publishing {
            check_publish(settings, &limits)?;
        }
        Ok(Self { namespace, rule, publish: is_publishing.then_some(publish), dead_letter, limits })
    }
}

/// Checks the settings of an action that publishes at this broker, as far as they are constant.
fn check_publish(action: &ActionSettings, limits: &Limits) -> Result<(), SinkProblem> {
    if action.topic.is_empty() {
        let why = "the action publishes at this broker and has no topic; write one such as alarms/${clientid}, or set \
                   connector";
        return Err(SinkProblem::new("topic", why));
    }
    constant("topic", &action.topic, limits, |text| {
        TopicName::parse(text).map(drop).map_err(|e| e.to_string())
    })?;
    constant("publish_qos", &action.publish_qos, limits, |text| match text {
        "0" | "1" | "2" => Ok(()),
        other => Err(format!("\"{other}\" is not a QoS; write 0, 1, 2, or a template such as ${{qos}}")),
    })?;
    constant("publish_retain", &action.publish_retain, limits, |text| match text {
        "true" | "false" => Ok(()),
        other => Err(format!(
            "\"{other}\" is neither true nor false; write one of them, or a template such as ${{flags.retain}}"
        )),
    })
}

/// Checks the text of a template that has no placeholders.
fn constant(
    setting: &'static str,
    text: &str,
    limits: &Limits,
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<(), SinkProblem> {
    let template = template(setting, text, limits)?;
    if !template.is_constant() {
        return Ok(());
    }
    let rendered = template.render(&Value::Null, limits).map_err(|error| SinkProblem::new(setting, error))?;
    check(&String::from_utf8_lossy(&rendered)).map_err(|why| SinkProblem::new(setting, why))
}

fn template(setting: &'static str, text: &str, limits: &Limits) -> Result<Template, SinkProblem> {
    Template::parse(text, limits).map_err(|error| SinkProblem::new(setting, error))
}

/// Reads a line `NAME: TEMPLATE` for each header or User Property.
fn headers(text: &str, limits: &Limits) -> Result<Vec<(Box<str>, Template)>, SinkProblem> {
    let mut headers = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let Some((name, value)) = line.split_once(':').filter(|(name, _)| !name.trim().is_empty()) else {
            let why =
                format!("\"{}\" is not a header; write NAME: TEMPLATE in each line", line.escape_debug());
            return Err(SinkProblem::new("headers", why));
        };
        let error = |error| SinkProblem::new("headers", format!("{}: {error}", name.trim()));
        headers.push((name.trim().into(), Template::parse(value.trim(), limits).map_err(error)?));
    }
    Ok(headers)
}

/// Parses the dead letter topic, and checks it by rendering it with samples of its three values.
fn dead_letter(text: &str, limits: &Limits) -> Result<Option<Template>, SinkProblem> {
    if text.is_empty() {
        return Ok(None);
    }
    let values = ["action", "topic", "reason"].map(|name| (name, Value::Text("sample".into())));
    let template = template("dead_letter", text, limits)?;
    let rendered = template.render(&Value::object(values), limits);
    let rendered = rendered.map_err(|_| {
        SinkProblem::new(
            "dead_letter",
            "it has other values than ${action}, ${topic} and ${reason}; use these only",
        )
    })?;
    let topic = String::from_utf8_lossy(&rendered);
    TopicName::parse(&topic).map_err(|error| SinkProblem::new("dead_letter", error))?;
    Ok(Some(template))
}
