//! Spans of messages, from a client to a collector. The collector of these tests reads OTLP over HTTP.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PUBLISHER: &str = "b7ad6b7169203331";
const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// Longest time that these tests wait for what has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// A field of a protobuf message.
#[derive(Clone, Copy, Debug)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn bytes(self) -> &'a [u8] {
        let Self::Bytes(bytes) = self else { panic!("{self:?}") };
        bytes
    }

    fn text(self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }

    fn hex(self) -> String {
        self.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}

/// The fields of a protobuf message, by their numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let len = match tag & 7 {
            0 => {
                all.push((tag >> 3, Field::Number(varint(&mut bytes))));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (field, rest) = bytes.split_at(len);
        bytes = rest;
        all.push((tag >> 3, Field::Bytes(field)));
    }
    all
}

fn each<'a>(bytes: &'a [u8], number: u64) -> impl Iterator<Item = Field<'a>> {
    fields(bytes).into_iter().filter(move |(it, _)| *it == number).map(|(_, field)| field)
}

fn attributes(bytes: &[u8], number: u64) -> BTreeMap<String, String> {
    let attribute = |field: Field<'_>| {
        let key = each(field.bytes(), 1).next().unwrap().text();
        let value = each(field.bytes(), 2).next().unwrap().bytes();
        let value = match fields(value)[0] {
            (1, text) => text.text(),
            (2 | 3, Field::Number(number)) => number.to_string(),
            other => panic!("{key}: {other:?}"),
        };
        (key, value)
    };
    each(bytes, number).map(attribute).collect()
}

/// A span as the collector got it.
#[derive(Clone, Debug)]
struct Span {
    name: String,
    trace_id: String,
    id: String,
    parent: String,
    state: String,
    start: u64,
    end: u64,
    attributes: BTreeMap<String, String>,
    instance: String,
}

/// Reads an ExportTraceServiceRequest.
fn spans(request: &[u8]) -> Vec<Span> {
    let mut all = Vec::new();
    for resource_spans in each(request, 1) {
        let resource = each(resource_spans.bytes(), 1).next().unwrap();
        let instance = attributes(resource.bytes(), 1)["service.instance.id"].clone();
        let scopes: Vec<_> = each(resource_spans.bytes(), 2).collect();
        for span in scopes.into_iter().flat_map(|scope| each(scope.bytes(), 2).collect::<Vec<_>>()) {
            let span = span.bytes();
            let field = |number| each(span, number).next();
            let time = |number| u64::from_le_bytes(field(number).unwrap().bytes().try_into().unwrap());
            all.push(Span {
                name: field(5).unwrap().text(),
                trace_id: field(1).unwrap().hex(),
                id: field(2).unwrap().hex(),
                parent: field(4).map(Field::hex).unwrap_or_default(),
                state: field(3).map(Field::text).unwrap_or_default(),
                start: time(7),
                end: time(8),
                attributes: attributes(span, 9),
                instance: instance.clone(),
            });
        }
    }
    all
}

/// A collector. It ends when the channel of its spans does.
fn collector() -> (String, mpsc::Receiver<Span>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (path, body) = request(&mut stream);
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            // The node may be killed at any time.
            let _ = stream.get_mut().write_all(answer.as_bytes());
            if path == "/v1/traces" && spans(&body).into_iter().any(|span| send.send(span).is_err()) {
                return;
            }
        }
    });
    (address, receive)
}

/// Path and body of an HTTP request.
fn request(stream: &mut BufReader<TcpStream>) -> (String, Vec<u8>) {
    let (mut path, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        match line.trim_end().split_once(' ') {
            None => break,
            Some(("POST", rest)) => path = rest.split(' ').next().unwrap().to_owned(),
            Some((name, value)) if name.eq_ignore_ascii_case("content-length:") => {
                length = value.parse().unwrap();
            }
            Some(_) => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    (path, body)
}

/// A running node that sends spans to a collector.
struct Node {
    process: Child,
    log: BufReader<ChildStderr>,
    port: String,
    http: String,
}

impl Node {
    fn start(collector: &str, otel: &[&str]) -> Self {
        let endpoint = format!("otel.endpoint={collector}");
        let arguments = [
            "start",
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--workers",
            "2",
            "--set",
            &endpoint,
        ];
        let settings = ["otel.messages=true", "storage.durability=memory", "node.name=node-7"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
        let settings = settings.iter().chain(otel).flat_map(|setting| ["--set", *setting]);
        command.args(arguments).args(settings);
        let mut process = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut node = Self { process, log, port: String::new(), http: String::new() };
        let address =
            |line: String| line.rsplit("address=").next().unwrap().trim().trim_matches('"').to_owned();
        node.port = address(node.wait_for("listening name=")).rsplit(':').next().unwrap().to_owned();
        node.http = address(node.wait_for("HTTP address="));
        node.wait_for("the node serves");
        node
    }

    /// Reads the log up to a line with this text, and returns it.
    fn wait_for(&mut self, text: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "no `{text}` in the log:\n{seen}");
            if line.contains(text) {
                return line;
            }
            seen.push_str(&line);
        }
    }

    fn client(&self, arguments: &[&str]) -> Output {
        let output = run(&[&[arguments[0], "-p", &self.port], &arguments[1..]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// Value of a metric, given with its labels.
    fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().unwrap()
    }

    fn wait_for_metric(&self, name: &str, min: u64) {
        let until = Instant::now() + PATIENCE;
        while self.metric(name) < min {
            assert!(Instant::now() < until, "{name} stays below {min}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn stop(mut self) {
        let status = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status().unwrap();
        assert!(status.success());
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Needed for a test that failed before it stopped the node; otherwise both have no effect.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Arguments that publish a message with this trace context.
fn traced<'a>(qos: &'a str, parent: &'a str) -> Vec<&'a str> {
    let property = ["-D", "publish", "user-property"];
    let message = ["pub", "-V", "5", "-i", "meter-7", "-t", "plant/7", "-m", "21.5", "-q", qos];
    let state = [&property[..], &["tracestate", "congo=t61rcWkgMzE"]].concat();
    [&message[..], &property, &["traceparent", parent], &state].concat()
}

#[test]
fn the_spans_of_a_message_reach_the_collector() {
    let (address, collected) = collector();
    let node = Node::start(&address, &[]);
    let session = ["sub", "-V", "5", "-i", "dash", "-c", "-q", "1", "-t", "plant/#"];
    node.client(&[&session[..], &["-E"]].concat());
    node.client(&["pub", "-t", "plant/7", "-m", "without a trace", "-q", "1"]);
    node.client(&traced("1", &SAMPLED.replace("-01", "-00")));
    node.client(&traced("1", SAMPLED));
    let output = node.client(&[&session[..], &["-C", "3", "-W", "60", "-F", "%p %P"]].concat());
    let printed = String::from_utf8(output.stdout).unwrap();
    let last = format!("21.5 traceparent:{SAMPLED} tracestate:congo=t61rcWkgMzE");
    assert_eq!(printed.lines().last(), Some(last.as_str()), "the properties arrive unaltered");

    let mut found = BTreeMap::new();
    while found.len() < 4 {
        let span = collected.recv_timeout(PATIENCE).expect("four spans");
        if span.trace_id == TRACE {
            assert_eq!((span.state.as_str(), span.instance.as_str()), ("congo=t61rcWkgMzE", "node-7"));
            assert!(span.start <= span.end);
            let earlier = found.insert(span.name.clone(), span);
            assert!(earlier.is_none(), "{earlier:?}");
        }
    }
    let names: Vec<_> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["acknowledge", "deliver", "publish", "route"]);
    let publish = &found["publish"];
    assert_eq!(publish.parent, PUBLISHER);
    for child in ["acknowledge", "deliver", "route"] {
        assert_eq!(found[child].parent, publish.id, "{child}");
    }
    for (name, key, value) in [
        ("publish", "messaging.system", "mqtt"),
        ("publish", "messaging.destination.name", "plant/7"),
        ("publish", "messaging.operation.type", "receive"),
        ("publish", "messaging.client.id", "meter-7"),
        ("publish", "messaging.message.body.size", "4"),
        ("publish", "meridian.qos", "1"),
        ("route", "meridian.receivers.shards", "1"),
        ("deliver", "messaging.client.id", "dash"),
        ("deliver", "messaging.operation.type", "send"),
        ("acknowledge", "messaging.operation.type", "settle"),
        ("acknowledge", "meridian.reason_code", "0"),
    ] {
        assert_eq!(found[name].attributes.get(key).map(String::as_str), Some(value), "{name}: {key}");
    }
    node.wait_for_metric("meridian_spans_exported_total", 4);
    assert_eq!(node.metric("meridian_spans_dropped_total{reason=\"collector\"}"), 0);

    // The last spans are sent at a stop.
    node.client(&traced("1", SAMPLED));
    node.stop();
    while collected.recv_timeout(PATIENCE).expect("one more span").trace_id != TRACE {}
}

#[test]
fn a_lost_collector_costs_the_spans_only() {
    // It accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let node = Node::start(&address, &["otel.timeout=100ms"]);
    node.client(&traced("1", SAMPLED));
    node.wait_for_metric("meridian_spans_dropped_total{reason=\"collector\"}", 1);
    assert_eq!(node.metric("meridian_spans_exported_total"), 0);
    node.client(&traced("2", SAMPLED));
    node.stop();
}

#[test]
fn spans_without_a_collector_are_refused_at_the_start() {
    let output = run(&["start", "--set", "otel.messages=true", "--set", "storage.durability=memory"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("otel.endpoint"), "{text}");
}
