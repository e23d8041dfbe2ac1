//! Apache Kafka: a producer over a protocol implementation of our own, which blocks its thread.
//!
//! [`KafkaTarget`] renders records. [`Producer`] is their sink: it knows the leaders of partitions (`cluster`), has a
//! connection to each (`connection`), and sends batches (`batch`) in requests (`messages`). There are only those
//! requests that a producer needs.

mod batch;
mod cluster;
mod code;
mod connection;
mod messages;
mod producer;
mod scram;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use rules::{Limits, RenderError, Template, Value};
use rustls::ClientConfig;
use settings::HostPort;
use tls::OptionStyle;

use crate::{ActionSettings, ConnectorSettings, Guard, Record, Sasl, Sink, SinkProblem, Target};
use cluster::Cluster;
use connection::{Access, Endpoint, Login};
use producer::Producer;

/// Maximum length of the name of a topic.
const TOPIC_MAX: usize = 249;
/// Maximum number of headers of a record.
const HEADERS_MAX: usize = 100;

/// A topic, or several ones, that an action writes to.
pub struct KafkaTarget {
    topic: Template,
    key: Option<Template>,
    content: Template,
    header_names: Box<[Box<str>]>,
    header_values: Box<[Template]>,
    connection: ConnectionSettings,
}

/// Settings of all sinks.
struct ConnectionSettings {
    bootstrap: Vec<HostPort>,
    tls: Option<Arc<ClientConfig>>,
    login: Option<(Sasl, String, std::path::PathBuf)>,
    response_max: usize,
    timeout: Duration,
    guard: Guard,
}

impl KafkaTarget {
    /// Creates the target of an action. It connects to nothing.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn new(
        connector: &ConnectorSettings,
        action: &ActionSettings,
        guard: Guard,
    ) -> Result<Self, SinkProblem> {
        let bootstrap = connector.address.as_ref().map_or(&[][..], |addresses| &addresses.0).to_vec();
        if bootstrap.is_empty() {
            return Err(SinkProblem::new("address", "it is missing; write HOST:PORT of a node of Kafka"));
        }
        let (header_names, header_values): (Vec<_>, Vec<_>) = headers(&action.headers)?.into_iter().unzip();
        Ok(Self {
            topic: topic(&action.topic)?,
            key: (!action.key.is_empty()).then(|| template("key", &action.key)).transpose()?,
            content: template("content", &action.content)?,
            header_names: header_names.into(),
            header_values: header_values.into(),
            connection: ConnectionSettings {
                bootstrap,
                tls: client_config(connector)?,
                login: login(connector)?,
                response_max: usize::try_from(connector.response_max.bytes()).unwrap_or(usize::MAX),
                timeout: connector.timeout,
                guard,
            },
        })
    }
}

fn template(setting: &'static str, text: &str) -> Result<Template, SinkProblem> {
    Template::parse(text, &Limits::default()).map_err(|error| SinkProblem::new(setting, error))
}

fn topic(text: &str) -> Result<Template, SinkProblem> {
    if text.is_empty() {
        return Err(SinkProblem::new(
            "topic",
            "it is missing; write the name of a topic of Kafka, or a template",
        ));
    }
    let parsed = template("topic", text)?;
    if parsed.is_constant() {
        check_topic(text).map_err(|why| SinkProblem::new("topic", why))?;
    }
    Ok(parsed)
}

/// Checks the name of a topic by the rules of Kafka.
///
/// # Errors
/// A sentence.
fn check_topic(name: &str) -> Result<(), String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if !name.is_empty()
        && name.len() <= TOPIC_MAX
        && !matches!(name, "." | "..")
        && name.chars().all(is_valid)
    {
        return Ok(());
    }
    let shown: String = name.chars().take(100).collect();
    Err(format!(
        "`{}` is no topic of Kafka; use at most {TOPIC_MAX} of A-Z, a-z, 0-9, `_`, `-` and `.`, such as \
         replace(topic, '/', '.') in the rule",
        shown.escape_debug()
    ))
}

/// Reads lines of the form `NAME: TEMPLATE`.
fn headers(text: &str) -> Result<Vec<(Box<str>, Template)>, SinkProblem> {
    let mut headers = vec![];
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let wrong = || SinkProblem::new("headers", format!("`{line}` is no header; write NAME: TEMPLATE"));
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let name = name.trim();
        if name.is_empty() || name.contains("${") {
            return Err(wrong());
        }
        headers.push((name.into(), template("headers", value.trim())?));
    }
    if headers.len() > HEADERS_MAX {
        let why = format!("there are {} headers, and the maximum is {HEADERS_MAX}", headers.len());
        return Err(SinkProblem::new("headers", why));
    }
    Ok(headers)
}

fn client_config(connector: &ConnectorSettings) -> Result<Option<Arc<ClientConfig>>, SinkProblem> {
    let has_files =
        [&connector.tls_ca, &connector.tls_certificate, &connector.tls_key].into_iter().any(Option::is_some);
    match connector.tls {
        false if has_files => {
            Err(SinkProblem::new("tls", "there are files of TLS and it is off; set tls = true"))
        }
        false => Ok(None),
        true => tls_config(connector).map(Some),
    }
}

fn tls_config(connector: &ConnectorSettings) -> Result<Arc<ClientConfig>, SinkProblem> {
    match (&connector.tls_certificate, &connector.tls_key) {
        (Some(_), None) => Err(SinkProblem::new("tls_key", "it is missing; it belongs to tls_certificate")),
        (None, Some(_)) => Err(SinkProblem::new("tls_certificate", "it is missing; it belongs to tls_key")),
        (Some(_), Some(_)) | (None, None) => connector.client_tls(OptionStyle::Connector),
    }
}

fn login(connector: &ConnectorSettings) -> Result<Option<(Sasl, String, std::path::PathBuf)>, SinkProblem> {
    match (&connector.username, &connector.password_file) {
        (None, None) => Ok(None),
        (Some(username), Some(file)) => Ok(Some((connector.sasl, username.clone(), file.clone()))),
        (Some(_), None) => {
            Err(SinkProblem::new("password_file", "it is missing; `username` needs a password"))
        }
        (None, Some(_)) => {
            Err(SinkProblem::new("username", "it is missing; `password_file` belongs to a user"))
        }
    }
}

impl Target for KafkaTarget {
    fn render(&self, output: &Value) -> Result<Record, RenderError> {
        let limits = Limits::default();
        let rendered = |template: &Template| Ok(Some(template.render(output, &limits)?.into_boxed_slice()));
        let key = self.key.as_ref().map(rendered).transpose()?.flatten();
        let mut fields =
            vec![rendered(&self.topic)?, key.filter(|key| !key.is_empty()), rendered(&self.content)?];
        for value in &self.header_values {
            fields.push(rendered(value)?);
        }
        Ok(Record { fields, id: 0 })
    }

    fn field_names(&self) -> Vec<String> {
        let headers = self.header_names.iter().map(|name| format!("header {name}"));
        ["topic", "key", "content"].map(str::to_owned).into_iter().chain(headers).collect()
    }

    fn open(&self) -> Box<dyn Sink> {
        let settings = &self.connection;
        let endpoint =
            |address: &HostPort| Endpoint { host: address.host().to_owned(), port: address.port() };
        let login = settings.login.as_ref().map(|(mechanism, username, password_file)| Login {
            mechanism: *mechanism,
            username: username.clone(),
            password_file: password_file.clone(),
        });
        let access = Access {
            guard: settings.guard,
            tls: settings.tls.clone(),
            login,
            response_max: settings.response_max,
        };
        let cluster = Cluster::new(access, settings.bootstrap.iter().map(endpoint).collect());
        let constant_topic = self.topic.is_constant().then(|| self.topic.to_string());
        Box::new(Producer::new(cluster, self.header_names.clone(), constant_topic, settings.timeout))
    }
}

/// Fields of a record of this target.
struct Fields<'a> {
    topic: &'a [u8],
    key: Option<&'a [u8]>,
    content: &'a [u8],
    headers: &'a [Option<Box<[u8]>>],
}

impl<'a> Fields<'a> {
    fn of(record: &'a Record) -> Self {
        let field = |at: usize| record.fields.get(at).and_then(|field| field.as_deref());
        Self {
            topic: field(0).unwrap_or_default(),
            key: field(1),
            content: field(2).unwrap_or_default(),
            headers: record.fields.get(3..).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests;
