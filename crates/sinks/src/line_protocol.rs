//! Records as lines of line protocol, which is written over HTTP to InfluxDB, QuestDB and others.

mod template;

use std::sync::Arc;

use rules::{Limits, RenderError, Value};
use ureq::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ureq::http::{Method, Uri};

use crate::action::ActionSettings;
use crate::connector::ConnectorSettings;
use crate::http_client::status::{self, Address};
use crate::http_client::{Answer, Client, Endpoint, Outgoing, percent_encode, shown};
use crate::record::{Record, Sink, Target, WriteError};
use crate::{Guard, SinkProblem};
use template::LineTemplate;

pub struct LineTarget(Arc<Plan>);

struct Plan {
    client: Client,
    uri: Uri,
    line: LineTemplate,
    limits: Limits,
}

struct LineSink(Arc<Plan>);

/// Creates the target of an action.
///
/// # Errors
/// The first setting that is wrong.
pub fn target(
    connector: &ConnectorSettings,
    action: &ActionSettings,
    guard: Guard,
) -> Result<Arc<dyn Target>, SinkProblem> {
    let limits = Limits::default();
    let (endpoint, uri) = address(connector, action)?;
    let line =
        LineTemplate::parse(&action.content, &limits).map_err(|why| SinkProblem::new("content", why))?;
    let client = Client::new(&endpoint, "Token", connector, action, guard)?;
    Ok(Arc::new(LineTarget(Arc::new(Plan { client, uri, line, limits }))))
}

/// Returns the URL that lines are written to: with the `path` of the action, or with that of the databases.
fn address(connector: &ConnectorSettings, action: &ActionSettings) -> Result<(Endpoint, Uri), SinkProblem> {
    let endpoint = Endpoint::check(connector)?;
    if endpoint.has_query() {
        return Err(SinkProblem::new(
            "url",
            "has a query: write the name of the database into database, or the whole query into path of the \
             action",
        ));
    }
    if !action.headers.trim().is_empty() {
        return Err(SinkProblem::new("headers", "line_protocol has no headers of its own: remove them"));
    }
    if action.path.is_empty() {
        let path = default_path(connector)?;
        let uri = endpoint.join(&path).map_err(|why| SinkProblem::new("url", why))?;
        return Ok((endpoint, uri));
    }
    if !action.path.starts_with('/') || action.path.contains("${") || action.path.contains('#') {
        return Err(SinkProblem::new(
            "path",
            "must begin with `/` and have neither placeholders nor `#`, such as /write?db=NAME&precision=ns",
        ));
    }
    let uri = endpoint.join(&action.path).map_err(|why| SinkProblem::new("path", why))?;
    Ok((endpoint, uri))
}

fn default_path(connector: &ConnectorSettings) -> Result<String, SinkProblem> {
    let mut path = String::new();
    match (connector.organization.as_str(), connector.database.as_str()) {
        ("", "") => path.push_str("/write?"),
        ("", database) => {
            path.push_str("/write?db=");
            percent_encode(database.as_bytes(), &mut path);
            path.push('&');
        }
        (_, "") => {
            return Err(SinkProblem::new("database", "is missing: write the name of the bucket of InfluxDB"));
        }
        (organization, bucket) => {
            path.push_str("/api/v2/write?org=");
            percent_encode(organization.as_bytes(), &mut path);
            path.push_str("&bucket=");
            percent_encode(bucket.as_bytes(), &mut path);
            path.push('&');
        }
    }
    path.push_str("precision=ms");
    Ok(path)
}

impl Target for LineTarget {
    /// The field is the line.
    fn render(&self, output: &Value) -> Result<Record, RenderError> {
        let line = self.0.line.render(output, &self.0.limits)?;
        Ok(Record { fields: vec![Some(line.into_boxed_slice())], id: 0 })
    }

    fn field_names(&self) -> Vec<String> {
        vec!["line".to_owned()]
    }

    fn open(&self) -> Box<dyn Sink> {
        Box::new(LineSink(self.0.clone()))
    }
}

impl LineSink {
    fn send(&self, body: &[u8]) -> Result<Answer, WriteError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        let method = &Method::POST;
        self.0.client.send(&Outgoing { method, uri: &self.0.uri, headers, body: Some(body) })
    }
}

impl Sink for LineSink {
    fn write(&mut self, records: &[Record]) -> Result<(), WriteError> {
        if records.is_empty() {
            return Ok(());
        }
        let mut body = Vec::with_capacity(records.iter().map(|record| record.bytes() + 1).sum());
        for line in records.iter().filter_map(|record| record.fields.first()?.as_deref()) {
            body.extend_from_slice(line);
            body.push(b'\n');
        }
        let answer = self.send(&body)?;
        let url = shown(&self.0.uri);
        if answer.status == PARTIAL {
            let why = format!("{url} has written only a part of the lines [{}]", answer.excerpt);
            return Err(WriteError::Refused(why));
        }
        status::check(&answer, Address::Constant, &url)
    }

    /// Writes no line, which checks the credentials and the database.
    fn test(&mut self) -> Result<String, WriteError> {
        let answer = self.send(b"")?;
        let url = shown(&self.0.uri);
        // Databases differ in whether they accept a write without lines.
        if !matches!(answer.status, 400 | 422) {
            status::check(&answer, Address::Constant, &url)?;
        }
        let version =
            answer.text(VERSION).map(|version| format!(" (InfluxDB {version})")).unwrap_or_default();
        Ok(format!("{url} answers to a write without lines with HTTP status {}{version}", answer.status))
    }
}

/// InfluxDB 3 answers with it when it has refused some lines.
const PARTIAL: u16 = 201;
const VERSION: HeaderName = HeaderName::from_static("x-influxdb-version");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_follows_from_the_settings() {
        for (url, organization, database, path, expected) in [
            ("http://h:8086", "", "", "", Ok("http://h:8086/write?precision=ms")),
            ("http://h:8086/", "", "my db", "", Ok("http://h:8086/write?db=my%20db&precision=ms")),
            (
                "https://h/influx",
                "a&b",
                "c/d",
                "",
                Ok("https://h/influx/api/v2/write?org=a%26b&bucket=c%2Fd&precision=ms"),
            ),
            ("http://h", "", "", "/api/v3/write_lp?db=d", Ok("http://h/api/v3/write_lp?db=d")),
            ("http://h", "o", "", "", Err("database")),
            ("http://h?db=x", "", "", "", Err("url")),
            ("", "", "", "", Err("url")),
            ("http://h", "", "", "write", Err("path")),
            ("http://h", "", "", "/${topic}", Err("path")),
        ] {
            let connector = ConnectorSettings {
                url: Some(url.to_owned()),
                organization: organization.to_owned(),
                database: database.to_owned(),
                ..ConnectorSettings::default()
            };
            let action = ActionSettings { path: path.to_owned(), ..ActionSettings::default() };
            let found = address(&connector, &action).map(|(_, uri)| uri.to_string());
            let found = found.as_deref().map_err(|problem| problem.setting);
            assert_eq!(found, expected, "{url} {path}");
        }
    }
}
