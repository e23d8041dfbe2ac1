//! Records as HTTP requests.

mod headers;
mod path;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use rules::{Limits, RenderError, Template, TemplatePart, Value};
use sha2::{Digest as _, Sha256};
use ureq::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ureq::http::{Method, Uri};

use crate::action::{self, ActionSettings, Body};
use crate::connector::ConnectorSettings;
use crate::http_client::status::{self, Address};
use crate::http_client::{Client, Endpoint, Outgoing, first_line, shown};
use crate::record::{Record, Sink, Target, WriteError};
use crate::{Guard, SinkProblem};
use headers::Headers;
use path::Path;

pub struct HttpTarget(Arc<Plan>);

/// Parts of the requests of an action.
struct Plan {
    client: Client,
    method: Method,
    body: Body,
    path: Path,
    headers: Headers,
    /// `None` for methods without a body.
    content: Option<Template>,
    /// Number of line feeds in the text of `content`.
    line_feeds: usize,
    /// HMAC with the key of `signature_file`.
    signature: Option<Hmac<Sha256>>,
    limits: Limits,
    timeout: Duration,
}

struct HttpSink {
    plan: Arc<Plan>,
    /// Records of failed calls that the server has. They are not sent again.
    confirmed: HashSet<u128>,
}

/// Settings in their final form, without the files that they name.
struct Checked {
    endpoint: Endpoint,
    method: Method,
    path: Path,
    headers: Headers,
    content: Option<Template>,
}

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
    let Checked { endpoint, method, path, headers, content } = check(connector, action, &limits)?;
    let client = Client::new(&endpoint, "Bearer", connector, action, guard)?;
    let signature = connector.signature_file.as_deref().map(|path| {
        let key = first_line(path).map_err(|why| SinkProblem::new("signature_file", why))?;
        Hmac::new_from_slice(key.as_bytes()).map_err(|error| SinkProblem::new("signature_file", error))
    });
    let line_feeds = content.as_ref().map_or(0, constant_line_feeds);
    let body = action.body;
    Ok(Arc::new(HttpTarget(Arc::new(Plan {
        client,
        method,
        body,
        path,
        headers,
        content,
        line_feeds,
        signature: signature.transpose()?,
        limits,
        timeout: connector.timeout,
    }))))
}

fn check(
    connector: &ConnectorSettings,
    action: &ActionSettings,
    limits: &Limits,
) -> Result<Checked, SinkProblem> {
    let endpoint = Endpoint::check(connector)?;
    let path = Path::parse(&action.path, &endpoint, limits)?;
    let mut headers = Headers::parse(&action.headers, limits)?;
    let has_credentials = connector.token_file.is_some() || connector.password_file.is_some();
    for (name, is_ours, settings) in [
        (header::AUTHORIZATION, has_credentials, "username, password_file and token_file"),
        (SIGNATURE, connector.signature_file.is_some(), "signature_file"),
    ] {
        if is_ours && headers.contains(&name) {
            let why =
                format!("`{name}` is set by {settings} of the connector: remove the line or these settings");
            return Err(SinkProblem::new("headers", why));
        }
    }
    let (method, has_body) = match action.method {
        action::Method::Post => (Method::POST, true),
        action::Method::Put => (Method::PUT, true),
        action::Method::Patch => (Method::PATCH, true),
        action::Method::Get => (Method::GET, false),
        action::Method::Delete => (Method::DELETE, false),
    };
    if action.body != Body::Each {
        check_batches(has_body, &path, &headers)?;
    }
    if has_body && !headers.contains(&header::CONTENT_TYPE) {
        let kind = if action.body == Body::Lines { "application/x-ndjson" } else { "application/json" };
        headers.constant.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    let parse =
        || Template::parse(&action.content, limits).map_err(|error| SinkProblem::new("content", error));
    let content = has_body.then(parse).transpose()?;
    Ok(Checked { endpoint, method, path, headers, content })
}

/// Checks settings of requests with several records.
fn check_batches(has_body: bool, path: &Path, headers: &Headers) -> Result<(), SinkProblem> {
    if !has_body {
        return Err(SinkProblem::new("body", "must be `each`, because the method has no body"));
    }
    let why = "a placeholder needs body = \"each\", because a request with several records has one path and \
               one set of headers";
    match (path, headers.of_record.first()) {
        (Path::OfRecord(_), _) => Err(SinkProblem::new("path", why)),
        (_, Some((name, _))) => Err(SinkProblem::new("headers", format!("`{name}`: {why}"))),
        _ => Ok(()),
    }
}

fn constant_line_feeds(template: &Template) -> usize {
    let texts = template.parts().filter_map(|part| match part {
        TemplatePart::Text(text) => Some(text),
        TemplatePart::Placeholder { .. } => None,
    });
    texts.map(|text| line_feeds(text.as_bytes())).sum()
}

fn line_feeds(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

impl Target for HttpTarget {
    /// The fields are the content, the path if it has placeholders, and the values of headers with
    /// placeholders.
    fn render(&self, output: &Value) -> Result<Record, RenderError> {
        let plan = &self.0;
        let content =
            plan.content.as_ref().map(|template| template.render(output, &plan.limits)).transpose()?;
        if let Some(content) = &content {
            plan.check_content(content)?;
        }
        let path = match &plan.path {
            Path::Constant(_) => None,
            Path::OfRecord(template) => {
                let path = template.render(output, &plan.limits)?;
                // What makes no URL is the fault of this output.
                template.uri(&path).map_err(|why| unfit("path", &why))?;
                Some(path.into_bytes())
            }
        };
        let mut fields: Vec<Option<Box<[u8]>>> = Vec::with_capacity(2 + plan.headers.of_record.len());
        fields.push(content.map(Vec::into_boxed_slice));
        fields.push(path.map(Vec::into_boxed_slice));
        for (name, template) in &plan.headers.of_record {
            let value = headers::render(name, template, output, &plan.limits)?;
            fields.push(Some(value.as_bytes().into()));
        }
        Ok(Record { fields, id: 0 })
    }

    fn field_names(&self) -> Vec<String> {
        let headers = self.0.headers.of_record.iter().map(|(name, _)| format!("header {name}"));
        ["content".to_owned(), "path".to_owned()].into_iter().chain(headers).collect()
    }

    fn open(&self) -> Box<dyn Sink> {
        Box::new(HttpSink { plan: self.0.clone(), confirmed: HashSet::new() })
    }
}

fn unfit(what: &str, why: &str) -> RenderError {
    RenderError::Unfit { what: what.into(), why: why.into() }
}

impl Plan {
    fn check_content(&self, content: &[u8]) -> Result<(), RenderError> {
        match self.body {
            Body::Each => Ok(()),
            Body::JsonArray => {
                serde_json::from_slice::<serde::de::IgnoredAny>(content).map(|_| ()).map_err(|error| {
                    unfit("the content", &format!("is not JSON ({error}), as body = \"json_array\" needs"))
                })
            }
            Body::Lines if line_feeds(content) > self.line_feeds => Err(unfit(
                "the content",
                "has a value with a line feed, and body = \"lines\" ends a record at it; use json_encode or \
                 replace in the rule",
            )),
            Body::Lines => Ok(()),
        }
    }

    /// Sends the request of one record.
    fn send_each(&self, record: &Record) -> Result<(), WriteError> {
        let mut fields = record.fields.iter().map(Option::as_deref);
        let content = fields.next().flatten();
        let path = fields.next().flatten();
        let mut headers = self.headers.constant.clone();
        for ((name, _), value) in self.headers.of_record.iter().zip(fields) {
            let value = HeaderValue::from_bytes(value.unwrap_or_default())
                .map_err(|_| WriteError::Refused(format!("the header `{name}` is not valid in HTTP")))?;
            headers.insert(name, value);
        }
        let body = self.content.as_ref().map(|_| content.unwrap_or_default());
        match &self.path {
            Path::Constant(uri) => self.send(uri, headers, body, &[record], Address::Constant),
            Path::OfRecord(template) => {
                let path = String::from_utf8_lossy(path.unwrap_or_default());
                let uri = template.uri(&path).map_err(|why| WriteError::Refused(format!("path {why}")))?;
                self.send(&uri, headers, body, &[record], Address::OfRecord)
            }
        }
    }

    /// Sends one request with all records.
    fn send_batch(&self, records: &[Record]) -> Result<(), WriteError> {
        let Path::Constant(uri) = &self.path else {
            return Err(WriteError::Refused("a request with several records has one path".to_owned()));
        };
        let contents = records.iter().map(|record| record.fields.first().and_then(Option::as_deref));
        let contents = contents.map(Option::unwrap_or_default);
        let mut body = Vec::with_capacity(records.iter().map(|record| record.bytes() + 1).sum::<usize>() + 2);
        if self.body == Body::JsonArray {
            body.push(b'[');
            for (index, content) in contents.enumerate() {
                if index > 0 {
                    body.push(b',');
                }
                body.extend_from_slice(content);
            }
            body.push(b']');
        } else {
            for content in contents {
                body.extend_from_slice(content);
                body.push(b'\n');
            }
        }
        let records: Vec<&Record> = records.iter().collect();
        self.send(uri, self.headers.constant.clone(), Some(&body), &records, Address::Constant)
    }

    fn send(
        &self,
        uri: &Uri,
        mut headers: HeaderMap,
        body: Option<&[u8]>,
        records: &[&Record],
        address: Address,
    ) -> Result<(), WriteError> {
        let mut insert = |name: HeaderName, text: String| {
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.insert(name, value);
            }
        };
        if !self.headers.contains(&IDEMPOTENCY_KEY) {
            insert(IDEMPOTENCY_KEY, idempotency_key(records));
        }
        if let Some(keyed) = &self.signature {
            let mut keyed = keyed.clone();
            keyed.update(body.unwrap_or_default());
            insert(SIGNATURE, format!("sha256={}", hexadecimal(&keyed.finalize().into_bytes())));
        }
        let answer = self.client.send(&Outgoing { method: &self.method, uri, headers, body })?;
        status::check(&answer, address, &shown(uri))
    }
}

/// The same for the same records in the same order.
fn idempotency_key(records: &[&Record]) -> String {
    if let [record] = records {
        return format!("{:032x}", record.id);
    }
    let mut hash = Sha256::new();
    for record in records {
        hash.update(record.id.to_be_bytes());
    }
    hexadecimal(&hash.finalize()[..16])
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Sink for HttpSink {
    /// A call with `Body::Each` begins no request after the time limit, so it takes twice the limit at most. Records
    /// that are confirmed by then are not sent again.
    fn write(&mut self, records: &[Record]) -> Result<(), WriteError> {
        if records.is_empty() {
            return Ok(());
        }
        if self.plan.body != Body::Each {
            return self.plan.send_batch(records);
        }
        let began = Instant::now();
        for (index, record) in records.iter().enumerate() {
            if self.confirmed.contains(&record.id) {
                continue;
            }
            if index > 0 && began.elapsed() >= self.plan.timeout {
                self.remember(&records[..index]);
                let why = format!("it is slow: {index} of {} records are written; continuing", records.len());
                return Err(WriteError::Unavailable(why));
            }
            if let Err(error) = self.plan.send_each(record) {
                self.remember(&records[..index]);
                return Err(error);
            }
        }
        for record in records {
            self.confirmed.remove(&record.id);
        }
        Ok(())
    }

    fn test(&mut self) -> Result<String, WriteError> {
        let plan = &self.plan;
        let url = match &plan.path {
            Path::Constant(uri) => uri.clone(),
            Path::OfRecord(template) => template.uri("").map_err(WriteError::Unavailable)?,
        };
        // They may contain what the server asks for before anything else.
        let mut headers = plan.headers.constant.clone();
        headers.remove(header::CONTENT_TYPE);
        let request = Outgoing { method: &Method::OPTIONS, uri: &url, headers, body: None };
        let answer = plan.client.send(&request)?;
        Ok(status::describe(&answer, &shown(&url), plan.client.has_credentials()))
    }
}

impl HttpSink {
    fn remember(&mut self, confirmed: &[Record]) {
        if self.confirmed.len() + confirmed.len() > CONFIRMED_MAX {
            self.confirmed.clear();
        }
        self.confirmed.extend(confirmed.iter().map(|record| record.id).filter(|id| *id != 0));
    }
}

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const SIGNATURE: HeaderName = HeaderName::from_static("x-signature");
/// Maximum number of confirmed records to remember: those of a few batches.
const CONFIRMED_MAX: usize = 1 << 17;
