//! `meridian ctl trace`: live events of a client, a topic or an address.

use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use clap::{ArgGroup, Args};
use serde_json::{Value, json};

use super::Command;
use crate::args::duration;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::interrupt::Interrupt;
use crate::query::Query;
use crate::stream::{Next, Stream};
use crate::{escape, human};

/// Follow the events of a client, a topic or an address
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("of").required(true).args(["client", "topic", "address"])))]
#[command(after_help = "\
Examples:
  meridian ctl trace --client sensor-17
  meridian ctl trace --topic 'building/#' --payload 64 --kind publish-in
  meridian ctl trace --address 10.1.0.0/16 --for 10m --json > trace.ndjson

Ctrl-C ends it, and so do --for and --events. The node shows each packet at most once, and reports the number of lost
events when there are more than it or the reader can handle. With --json every event is a line:
{\"event\":\"trace\", ..}, {\"event\":\"lost\", \"count\":..}, {\"event\":\"end\", \"reason\":..}.")]
pub struct TraceArgs {
    /// Show packets of this client
    #[arg(long, value_name = "CLIENT")]
    client: Option<String>,
    /// Show messages to topics that match this filter
    #[arg(long, value_name = "FILTER")]
    topic: Option<String>,
    /// Show packets of clients at this address or in this network
    #[arg(long, value_name = "IP|CIDR")]
    address: Option<String>,
    /// Show this many bytes of each payload
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=4_096))]
    payload: u32,
    /// End after this time
    #[arg(long = "for", value_name = "DURATION", default_value = "60s", value_parser = trace_time)]
    time: Duration,
    /// End after this many events
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    events: u32,
    /// Show only these kinds: connect, publish-in, publish-out, subscribe, disconnect, dropped ..; may be repeated
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
}

fn trace_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let allowed = Duration::from_secs(1)..=Duration::from_secs(3_600);
    if allowed.contains(&time) { Ok(time) } else { Err("a trace takes 1s to 1h".to_owned()) }
}

impl Command for TraceArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let mut query = Query::new()
            .maybe("client_id", self.client)
            .maybe("topic", self.topic)
            .maybe("address", self.address)
            .with("payload", self.payload)
            .with("seconds", self.time.as_millis().div_ceil(1_000))
            .with("events", self.events);
        for kind in self.kinds {
            query = query.with("kind", kind.replace('-', "_"));
        }
        let mut stream = Stream::open(&console.client, "/api/v1/trace", &query, Interrupt::watch())?;
        if !console.json {
            console.note(&format!("tracing for {}; Ctrl-C ends it", human::duration(self.time)));
        }
        let mut seen = 0_u64;
        loop {
            match stream.next()? {
                Next::Event { name, data } => {
                    seen += u64::from(name == "trace");
                    show(console, &name, data)?;
                }
                Next::Quiet => console.flush()?,
                Next::End => break,
            }
        }
        console.flush()?;
        if !console.json {
            console.note(&format!("{} events", human::count(seen)));
        }
        Ok(())
    }
}

fn show(console: &mut Console, name: &str, data: Value) -> Result<(), Failure> {
    if console.json {
        return console.json_line(&tagged(name, data));
    }
    match name {
        "trace" => console.line(&line(&data)),
        "lost" => {
            console.flush()?;
            console.note(&format!("! {} events were lost", data.count_cell("count")));
            Ok(())
        }
        "end" => {
            console.flush()?;
            console.note(&format!("the node ended the trace: {}", data.cell("reason")));
            Ok(())
        }
        // A newer node may send other events.
        _ => Ok(()),
    }
}

/// Adds the event's name to its data, as the first field.
pub fn tagged(name: &str, data: Value) -> Value {
    let mut tagged = json!({"event": name});
    match data {
        Value::Object(fields) => tagged.as_object_mut().into_iter().for_each(|t| t.extend(fields.clone())),
        other => tagged["data"] = other,
    }
    tagged
}

fn line(event: &Value) -> String {
    let at = event.text("at");
    let time = at.get(11..).map_or(&at[..], |time| time.trim_end_matches('Z'));
    let who = match &event.text("client_id")[..] {
        "" => event.cell("address"),
        id => id.to_owned(),
    };
    let mut line = format!(
        "{time:<12.12}  {:<11}  {who}  {}",
        event.text("kind").replace('_', "-"),
        event.text("detail")
    );
    if let Ok(payload) = Base64::decode_vec(&event.text("payload"))
        && !payload.is_empty()
    {
        let more = event.whole("payload_bytes").is_some_and(|all| all > payload.len() as u64);
        line.push_str(&format!("  |{}{}", escape::bytes(&payload), if more { ".." } else { "" }));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let event = json!({"at": "2026-01-31T12:00:00.123456Z", "kind": "publish_in", "client_id": "c", "detail": "a/b QoS 1, 5 B", "payload": "aGVsbG8=", "payload_bytes": 9});
        assert_eq!(line(&event), "12:00:00.123  publish-in   c  a/b QoS 1, 5 B  |hello..");
    }

    #[test]
    fn an_event_of_any_shape_is_a_line() {
        for event in
            [json!(null), json!({"at": "é", "payload": "?"}), json!([1]), json!({"at": 3, "client_id": {}})]
        {
            assert!(!line(&event).contains('\n'));
        }
    }

    #[test]
    fn the_name_of_an_event_is_in_its_line() {
        assert_eq!(tagged("lost", json!({"count": 3})).to_string(), r#"{"event":"lost","count":3}"#);
    }
}
