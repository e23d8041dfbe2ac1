//! Measures HTTP targets: requests and records per second against a server on this machine.
//!
//! `cargo run --release -p sinks --example http_rate`

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rules::Value;
use sinks::{ActionSettings, Body, ConnectorKind, ConnectorSettings, Guard, Record};

fn main() {
    let address = serve();
    let line = "weather,site=${clientid} temp=${payload.temp},n=${n}i ${timestamp}";
    println!("records of about 100 bytes of JSON or 60 bytes of line protocol, 3 s each");
    for (name, kind, body, content, connections, batch) in [
        ("each, 1 connection", ConnectorKind::Http, Body::Each, "${.}", 1, 500),
        ("each, 2 connections", ConnectorKind::Http, Body::Each, "${.}", 2, 500),
        ("json_array, batches of 10", ConnectorKind::Http, Body::JsonArray, "${.}", 1, 10),
        ("json_array, batches of 500", ConnectorKind::Http, Body::JsonArray, "${.}", 1, 500),
        ("lines, batches of 500", ConnectorKind::Http, Body::Lines, "${.}", 1, 500),
        ("line protocol, batches of 500", ConnectorKind::LineProtocol, Body::Each, line, 1, 500),
    ] {
        let url = Some(format!("http://{address}"));
        let connector = ConnectorSettings { kind, url, ..ConnectorSettings::default() };
        let action =
            ActionSettings { body, content: content.to_owned(), connections, ..ActionSettings::default() };
        measure(name, &connector, &action, batch);
    }
}

/// Renders and writes batches for a while, with a thread for each connection.
fn measure(name: &str, connector: &ConnectorSettings, action: &ActionSettings, batch: u32) {
    let guard = Guard { allow_loopback: true, allow_private: true };
    let target = sinks::target(connector, action, guard).expect("good settings");
    let records = AtomicU64::new(0);
    let requests = REQUESTS.load(Ordering::Relaxed);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..action.connections {
            scope.spawn(|| {
                let mut sink = target.open();
                while began.elapsed() < TIME {
                    let made: Vec<Record> = (0..batch)
                        .map(|index| {
                            let record = target.render(&output(index)).expect("an output");
                            Record { id: u128::from(index) + 1, ..record }
                        })
                        .collect();
                    sink.write(&made).expect("a server that answers");
                    records.fetch_add(u64::from(batch), Ordering::Relaxed);
                }
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let requests = REQUESTS.load(Ordering::Relaxed) - requests;
    let records = records.load(Ordering::Relaxed);
    println!(
        "{name:<32} {:>8.0} requests/s {:>9.0} records/s",
        requests as f64 / seconds,
        records as f64 / seconds
    );
}

fn output(index: u32) -> Value {
    Value::object([
        ("clientid", Value::from("station-0017")),
        ("timestamp", Value::Int(1_700_000_000_000 + i64::from(index))),
        ("n", Value::Int(i64::from(index))),
        ("payload", Value::object([("temp", Value::Float(21.5)), ("unit", "C".into())])),
    ])
}

/// Starts a server that answers all requests with status 204.
fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

fn answer(mut stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut body = Vec::new();
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok()?;
            }
        }
        body.resize(length, 0);
        reader.read_exact(&mut body).ok()?;
        REQUESTS.fetch_add(1, Ordering::Relaxed);
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok()?;
    }
}

static REQUESTS: AtomicU64 = AtomicU64::new(0);
const TIME: Duration = Duration::from_secs(3);
