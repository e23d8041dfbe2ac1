//! `meridian ctl publish`: publishes from the node itself, without an MQTT client.

use std::io::{self, BufRead, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use clap::{ArgGroup, Args};
use serde_json::{Map, Value, json};
use ureq::http::Method;

use super::Command;
use crate::args::duration;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::query::Query;

/// Publish a message; wait until all its receivers have it
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what").required(true).args(["message", "file", "lines", "null"])))]
#[command(after_help = "\
Examples:
  meridian ctl publish -t greetings/you -m 'good morning' -q 1
  meridian ctl publish -t firmware/image -f image.bin --retain
  meridian ctl publish -t config/17 --null --retain        deletes the retained message
  seq 1000 | meridian ctl publish -t numbers --lines

`meridian pub` publishes as an MQTT client, with its rights; this command with those of the API key.")]
pub struct PublishArgs {
    /// Topic
    #[arg(short, long)]
    topic: String,
    /// Message
    #[arg(short, long, allow_hyphen_values = true)]
    message: Option<String>,
    /// Read the message from a file; - is standard input
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// Publish each line of standard input as a message
    #[arg(short, long)]
    lines: bool,
    /// Publish an empty message
    #[arg(short, long)]
    null: bool,
    /// QoS
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// Retain the message
    #[arg(short, long)]
    retain: bool,
    /// Expire the message after this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    expires: Option<Duration>,
    /// Content type of the payload, such as application/json
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Response topic
    #[arg(long, value_name = "TOPIC")]
    response_topic: Option<String>,
    /// Correlation data of the answer
    #[arg(long, value_name = "TEXT")]
    correlation_data: Option<String>,
    /// Mark the payload as UTF-8 text
    #[arg(long)]
    text: bool,
    /// User property; may be repeated
    #[arg(long = "property", value_name = "NAME=VALUE", value_parser = pair)]
    properties: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Maximum size of a message; the node's own limit is lower.
const PAYLOAD_MAX: u64 = 256 << 20;
/// Maximum number of messages in one request.
const BATCH_MAX: usize = 1_000;
/// Number of bytes of lines above which a request is sent.
const BATCH_BYTES: usize = 512 << 10;

impl Command for PublishArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        if self.lines {
            let stdin = io::stdin().lock();
            return self.publish_lines(console, io::BufReader::with_capacity(64 << 10, stdin));
        }
        let message = self.body(self.payload()?);
        let answer = console.client.send(Method::POST, "/api/v1/publish", &Query::new(), Some(&message))?;
        let reason = answer.cell("reason");
        if answer.whole("reason_code").is_some_and(|code| code >= 0x80) {
            if console.json {
                console.document(&answer)?;
            }
            return Err(Failure::Failed(format!("not published: {reason}")));
        }
        console.done(&answer, &format!("{}: {reason}", self.topic))
    }
}

impl PublishArgs {
    fn payload(&self) -> Result<Vec<u8>, Failure> {
        let Some(path) = &self.file else {
            return Ok(self.message.clone().unwrap_or_default().into_bytes());
        };
        let trouble = |error: io::Error| Failure::Local(format!("{}: {error}", path.display()));
        let mut payload = Vec::new();
        let from: Box<dyn io::Read> = match path.as_os_str() == "-" {
            true => Box::new(io::stdin()),
            false => Box::new(std::fs::File::open(path).map_err(trouble)?),
        };
        from.take(PAYLOAD_MAX + 1).read_to_end(&mut payload).map_err(trouble)?;
        if payload.len() as u64 > PAYLOAD_MAX {
            return Err(Failure::Local(format!(
                "{}: larger than 256 MiB, the maximum of an MQTT packet",
                path.display()
            )));
        }
        Ok(payload)
    }

    fn body(&self, payload: Vec<u8>) -> Value {
        let mut properties = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                properties.insert(name.to_owned(), value);
            }
        };
        put("message_expiry_s", self.expires.map(|expires| json!(expires.as_secs_f64().ceil() as u64)));
        put("content_type", self.content_type.as_ref().map(|text| json!(text)));
        put("response_topic", self.response_topic.as_ref().map(|text| json!(text)));
        put(
            "correlation_data_base64",
            self.correlation_data.as_ref().map(|text| json!(Base64::encode_string(text.as_bytes()))),
        );
        put("payload_is_text", self.text.then_some(json!(true)));
        put("user_properties", (!self.properties.is_empty()).then(|| json!(self.properties)));
        let mut message = json!({"topic": self.topic, "qos": self.qos, "retain": self.retain});
        match String::from_utf8(payload) {
            Ok(text) => message["payload"] = text.into(),
            Err(error) => message["payload_base64"] = Base64::encode_string(error.as_bytes()).into(),
        }
        if !properties.is_empty() {
            message["properties"] = properties.into();
        }
        message
    }

    /// Sends the collected messages before it waits for more, so that a slow source is not delayed.
    fn publish_lines(&self, console: &mut Console, mut from: impl Lines) -> Result<(), Failure> {
        let trouble = |error: io::Error| Failure::Local(format!("standard input: {error}"));
        let (mut batch, mut bytes, mut outcome) = (Vec::new(), 0, Outcome::default());
        loop {
            let full = batch.len() >= BATCH_MAX || bytes >= BATCH_BYTES;
            if !batch.is_empty() && (full || !from.has_line()) {
                self.send(console, &batch, &mut outcome)?;
                batch.clear();
                bytes = 0;
            }
            let mut line = Vec::new();
            let n = from.by_ref().take(PAYLOAD_MAX).read_until(b'\n', &mut line).map_err(trouble)?;
            if n == 0 {
                break;
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            bytes += line.len();
            batch.push(self.body(line));
        }
        if !batch.is_empty() {
            self.send(console, &batch, &mut outcome)?;
        }
        outcome.tell(console)
    }

    /// Sends a batch. A body that the node refuses as too large is split in halves: the limit is a setting of the node.
    fn send(&self, console: &mut Console, batch: &[Value], outcome: &mut Outcome) -> Result<(), Failure> {
        let body = json!({"messages": batch});
        match console.client.send(Method::POST, "/api/v1/publish/batch", &Query::new(), Some(&body)) {
            Err(Failure::Refused(problem)) if problem.status == 413 && batch.len() > 1 => {
                let (first, second) = batch.split_at(batch.len() / 2);
                self.send(console, first, outcome)?;
                self.send(console, second, outcome)
            }
            answer => outcome.add(console, &answer?),
        }
    }
}

/// Lines with a check whether the next one has arrived.
trait Lines: BufRead {
    fn has_line(&self) -> bool;
}

impl<R: io::Read> Lines for io::BufReader<R> {
    fn has_line(&self) -> bool {
        self.buffer().contains(&b'\n')
    }
}

/// Result of many messages.
#[derive(Debug, Default)]
struct Outcome {
    published: u64,
    nobody: u64,
    refused: u64,
    /// Reason of the first refusal.
    why: String,
}

impl Outcome {
    fn add(&mut self, console: &mut Console, answer: &Value) -> Result<(), Failure> {
        for result in answer.list("results") {
            if console.json {
                console.json_line(result)?;
            }
            let problem = result.field("problem");
            match result.whole("reason_code") {
                Some(16) => (self.published, self.nobody) = (self.published + 1, self.nobody + 1),
                Some(code) if code < 0x80 => self.published += 1,
                _ => {
                    self.refused += 1;
                    if self.why.is_empty() {
                        self.why =
                            if problem.is_null() { result.cell("reason") } else { problem.cell("detail") };
                    }
                }
            }
        }
        console.flush()
    }

    fn tell(self, console: &mut Console) -> Result<(), Failure> {
        if !console.json {
            let nobody = if self.nobody > 0 {
                format!(", {} without a subscriber", self.nobody)
            } else {
                String::new()
            };
            console.line(&format!("{} published{nobody}", self.published))?;
        }
        match self.refused {
            0 => Ok(()),
            n => Err(Failure::Failed(format!("{n} messages were refused, the first one: {}", self.why))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PublishArgs,
    }

    fn body(arguments: &[&str]) -> Value {
        let args = Line::parse_from(["x"].iter().chain(arguments)).args;
        args.body(args.payload().unwrap())
    }

    #[test]
    fn text_stays_text_and_properties_appear_only_when_given() {
        assert_eq!(
            body(&["-t", "a", "-m", "-1", "-q", "1"]),
            json!({"topic": "a", "qos": 1, "retain": false, "payload": "-1"})
        );
        let all = body(&["-t", "a", "-n", "-r", "--expires", "1500ms", "--property", "k=v=w", "--text"]);
        let properties =
            json!({"message_expiry_s": 2, "payload_is_text": true, "user_properties": [["k", "v=w"]]});
        assert_eq!(all["properties"], properties);
        assert_eq!(all["payload"], "");
    }

    #[test]
    fn a_file_that_is_no_text_goes_as_base64() {
        let path = std::env::temp_dir().join(format!("ctl-publish-{}", std::process::id()));
        std::fs::write(&path, b"\xff\x00").unwrap();
        let message = body(&["-t", "a", "-f", path.to_str().unwrap()]);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(message["payload_base64"], "/wA=");
    }

    /// The mock accepts two messages at once.
    #[test]
    fn lines_are_sent_in_several_requests() {
        use crate::client::Client;
        use crate::mock::{Mock, Reply};
        let mock = Mock::serve(|request| match request.json()["messages"].as_array().unwrap().len() {
            n @ ..=2 => Reply::json(&json!({"results": vec![json!({"reason_code": 0}); n]})),
            _ => Reply::problem(413, "too-large", "less at once"),
        });
        let client =
            Client::new(crate::url::Url::parse(&mock.url).unwrap(), None, Duration::from_secs(5), None);
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let args = Line::parse_from(["x", "-t", "a", "--lines"]).args;
        let lines = io::BufReader::new(&b"1\n2\n3\n4\n5"[..]);
        args.publish_lines(&mut Console::to(client, false, false, &mut out, &mut notes), lines).unwrap();
        assert_eq!(out, b"5 published\n");
        let sent: Vec<Value> =
            mock.requests().iter().flat_map(|r| r.json().list("messages").to_vec()).collect();
        let last: Vec<String> = sent.iter().rev().take(1).map(|message| message.text("payload")).collect();
        assert_eq!(last, ["5"]);
    }

    #[test]
    fn exactly_one_source_of_the_message_is_required() {
        for arguments in [&["x", "-t", "a"][..], &["x", "-t", "a", "-m", "1", "-n"], &["x", "-m", "1"]] {
            assert!(Line::try_parse_from(arguments).is_err(), "{arguments:?}");
        }
    }
}
