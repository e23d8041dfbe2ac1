//! Tests of actions and connectors before they are saved.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bridge::{Client, Event as ClientEvent, Time};
use broker::internal::ACTION;
use mqtt::{Packet, QoS, RetainHandling, SubscriptionOptions};
use random::Random;
use rules::{Context, Event, Field, Limits, Message, Rule, Sample, Template, Value};
use sinks::{ActionSettings, ConnectorKind, ConnectorSettings, Guard, SinkProblem};

use crate::consumer::brief_connect;
use crate::engine::Engine;
use crate::incoming::{Incoming, Input};
use crate::plan::{Made, Output, Plan, guarded};

/// Maximum time until a live message comes.
pub const LIVE_MAX: Duration = Duration::from_secs(10);

/// Message to test an action with.
#[derive(Clone, Debug)]
pub enum TrialMessage {
    /// A JSON object with the fields of a message or event.
    Sample(Event, String),
    /// The next message that the rule selects.
    Live,
}

/// Result of a test.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    /// The message that was used, as a JSON object.
    pub message: Option<String>,
    /// Outputs as JSON.
    pub outputs: Vec<String>,
    /// Names and values of what would be written or published.
    pub records: Vec<Vec<(String, Option<Vec<u8>>)>>,
    pub error: Option<(Stage, String)>,
}

/// Part of an action that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Rule,
    Evaluation,
    Template,
}

impl Engine {
    /// Evaluates an action for one message, and writes nothing. It blocks for [`LIVE_MAX`] at most.
    ///
    /// # Errors
    /// A setting is wrong.
    pub fn test_action(
        &self,
        settings: &ActionSettings,
        connector: Option<&ConnectorSettings>,
        message: TrialMessage,
    ) -> Result<Tried, SinkProblem> {
        let limits = Limits::default();
        if let Err(error) = Rule::parse(&settings.rule, &limits) {
            return Ok(Tried { error: Some((Stage::Rule, error.to_string())), ..Tried::default() });
        }
        let plan = Plan::new(settings, connector, self.registry().guard())?;
        let failed = |why: String| Tried { error: Some((Stage::Evaluation, why)), ..Tried::default() };
        Ok(match message {
            TrialMessage::Sample(event, json) => match Sample::parse(event, &json, &limits) {
                Ok(sample) => Tried { message: Some(json), ..try_input(&plan, &Input::Event(sample)) },
                Err(error) => failed(error.to_string()),
            },
            TrialMessage::Live => match self.next_message(&plan) {
                Ok(None) => Tried::default(),
                Ok(Some(message)) => {
                    let tried = match Input::of(&message, &limits, &plan.namespace) {
                        Ok(input) => try_input(&plan, &input),
                        Err(why) => failed(why),
                    };
                    Tried { message: Some(shown(&message)), ..tried }
                }
                Err(why) => failed(why),
            },
        })
    }

    /// Waits for the next message that a source of the rule selects; `None` when none comes in time.
    fn next_message(&self, Plan { rule, namespace, .. }: &Plan) -> Result<Option<Incoming>, String> {
        let mounted = rule.filters().map(|filter| Box::from(&*namespace.mounted(filter)));
        let _selected = self.select(mounted.collect::<BTreeSet<_>>());
        let filters = rule.sources().iter().flat_map(|source| namespace.filters(source));
        let options = SubscriptionOptions {
            qos: QoS::AtMostOnce,
            retain_as_published: true,
            retain_handling: RetainHandling::DoNotSend,
            ..SubscriptionOptions::default()
        };
        let filters: Vec<_> = filters.map(|filter| (filter, options)).collect();
        let failed = |error: std::io::Error| format!("no connection to the broker: {error}");
        let mut stream = self.door().open().map_err(failed)?;
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| error.to_string())?;
        let began = Instant::now();
        let now = || Time(began.elapsed().as_micros() as u64);
        // No action has a name that begins with a full stop.
        let options = brief_connect(format!("{ACTION}.test-{:016x}", u64::from_le_bytes(seed)));
        let mut client = Client::new(now(), &options).map_err(|reason| reason.to_string())?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let bytes = client.unsent().bytes().to_vec();
            stream.write_all(&bytes).map_err(failed)?;
            client.unsent_mut().consume(bytes.len());
            let Some(left) = LIVE_MAX.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) else {
                return Ok(None);
            };
            stream.set_read_timeout(Some(left)).map_err(failed)?;
            match stream.read(&mut buffer) {
                Ok(0) => return Err("the broker closed the connection of the test".to_owned()),
                Ok(count) => client.receive(now(), &buffer[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            }
            let mut is_connected = false;
            while let Some((event, _)) = client.poll(now()).map_err(|reason| reason.to_string())? {
                match event {
                    ClientEvent::Connected => is_connected = true,
                    ClientEvent::Packet(Packet::Publish(publish)) => {
                        let Some(topic) = namespace.seen(publish.topic) else { continue };
                        let message = Incoming::of(&publish, publish.topic, wall_ms());
                        return Ok(Some(message.within(namespace, topic)));
                    }
                    ClientEvent::Subscribed(answers) => {
                        if let Some((filter, reason)) = answers.iter().find(|(_, reason)| reason.is_error()) {
                            return Err(format!(
                                "the broker refused the subscription to `{filter}`: {reason}"
                            ));
                        }
                    }
                    _ => {}
                }
            }
            if is_connected {
                client.subscribe(now(), &filters);
            }
        }
    }
}

/// Settings of an action to test a connector with that no action uses yet.
pub fn trial_action(connector: &ConnectorSettings) -> ActionSettings {
    let mut action = ActionSettings { name: "test".to_owned(), ..ActionSettings::default() };
    match connector.kind {
        ConnectorKind::PostgreSql => "SELECT 1".clone_into(&mut action.statement),
        ConnectorKind::Kafka => "test".clone_into(&mut action.topic),
        ConnectorKind::LineProtocol => "test value=1".clone_into(&mut action.content),
        ConnectorKind::Http | ConnectorKind::File => {}
    }
    action
}

/// Connects to the system of a connector, and writes nothing. `action` are the settings of an action that uses it.
///
/// # Errors
/// A setting is wrong. The second error is that of the other system.
pub fn test_connector(
    connector: &ConnectorSettings,
    action: &ActionSettings,
    guard: Guard,
) -> Result<Result<String, String>, SinkProblem> {
    let target = sinks::target(connector, action, guard)?;
    Ok(target.open().test().map_err(|error| error.to_string()))
}

fn try_input(plan: &Plan, input: &Input<'_>) -> Tried {
    let internal =
        |text: &str| Tried { error: Some((Stage::Evaluation, text.to_owned())), ..Tried::default() };
    guarded(|| try_rule(plan, input)).unwrap_or_else(internal)
}

fn try_rule(plan: &Plan, input: &Input<'_>) -> Tried {
    let context = Context { now: Duration::from_millis(wall_ms()), random: random() };
    let mut tried = Tried::default();
    let outputs = match plan.rule.evaluate(input.as_message(), &context, &plan.limits) {
        Ok(outputs) => outputs,
        Err(error) => {
            tried.error = Some((Stage::Evaluation, error.to_string()));
            return tried;
        }
    };
    for output in &outputs {
        tried.outputs.push(json(output));
        match plan.make(output) {
            Ok(made) => tried.records.push(fields(plan, made)),
            Err(error) => {
                tried.error.get_or_insert((Stage::Template, error.to_string()));
            }
        }
    }
    tried
}

fn fields(plan: &Plan, made: Made) -> Vec<(String, Option<Vec<u8>>)> {
    match made {
        Made::Message(message) => {
            let mut fields = vec![
                ("topic".to_owned(), Some(message.topic.as_bytes().to_vec())),
                ("content".to_owned(), Some(message.payload)),
                ("publish_qos".to_owned(), Some((message.qos as u8).to_string().into_bytes())),
                ("publish_retain".to_owned(), Some(message.retain.to_string().into_bytes())),
            ];
            let users = message.user_properties.into_iter();
            fields.extend(
                users.map(|(name, value)| (format!("header {name}"), Some(value.as_bytes().to_vec()))),
            );
            fields
        }
        Made::Record(record) => {
            let names = match &plan.output {
                Output::Write(target) => target.field_names(),
                Output::Publish(_) => Vec::new(),
            };
            let name = |at: usize| names.get(at).cloned().unwrap_or_else(|| format!("field {}", at + 1));
            let fields = record.fields.into_iter().enumerate();
            fields.map(|(at, field)| (name(at), field.map(<[u8]>::into_vec))).collect()
        }
    }
}

/// A value as JSON. Bytes that are not UTF-8 have none.
fn json(value: &Value) -> String {
    let limits = Limits::default();
    let whole = Template::parse("${.}", &limits);
    let text = whole.ok().and_then(|template| template.render(value, &limits).ok());
    text.and_then(|text| String::from_utf8(text).ok()).unwrap_or_else(|| "null".to_owned())
}

/// A message as a JSON object with its fields.
fn shown(message: &Incoming) -> String {
    let fields = Event::Publish.fields().map(|field| {
        let value = match field {
            Field::Payload => Value::from(&*String::from_utf8_lossy(message.payload())),
            Field::Event => Value::from(Event::Publish.value()),
            other => message.field(other),
        };
        (Arc::<str>::from(field.name()), value)
    });
    json(&Value::object(fields.filter(|(_, value)| !value.is_null())))
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A number for `uuid_v4` of a test.
fn random() -> u128 {
    let mut seed = [0; 8];
    // A test without randomness is a test still.
    let _ = getrandom::fill(&mut seed);
    let mut random = Random::new(u64::from_le_bytes(seed));
    u128::from(random.draw()) << 64 | u128::from(random.draw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_shows_outputs_and_messages() {
        let settings = ActionSettings {
            name: "t".into(),
            rule: "SELECT payload.v AS v FROM \"a\" WHERE payload.v > 1".into(),
            topic: "out".into(),
            content: "v=${v}".into(),
            ..ActionSettings::default()
        };
        let plan = Plan::new(&settings, None, Guard { allow_loopback: true, allow_private: true });
        let plan = plan.expect("valid settings");
        let tried = |json: &str| {
            let sample = Sample::parse(Event::Publish, json, &plan.limits).expect("valid sample");
            try_input(&plan, &Input::Event(sample))
        };
        let hot = tried(r#"{"topic":"a","payload":{"v":2}}"#);
        assert_eq!(hot.outputs, [r#"{"v":2}"#]);
        assert_eq!(hot.records[0][1], ("content".to_owned(), Some(b"v=2".to_vec())));
        assert!(tried(r#"{"topic":"a","payload":{"v":1}}"#).outputs.is_empty());
        let failed = tried(r#"{"topic":"a","payload":"x"}"#);
        assert_eq!(failed.error.expect("fails").0, Stage::Evaluation);
    }
}
