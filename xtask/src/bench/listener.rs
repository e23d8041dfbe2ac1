//! `cargo xtask listeners`: cost of connections by kind of listener: handshakes compared with a peer, messages, and
//! memory of idle connections.

mod certificates;
pub mod client;
pub mod process;

use super::broker::{Broker, Kind};
use super::child;
use super::measure::cell;
use anyhow::{Result, bail, ensure};
use certificates::Certificates;
use clap::ValueEnum;
use client::{Client, ListenerKind};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// Run only these parts (may be given several times)
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Measured seconds of each run of connects and messages
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Number of runs of each measurement
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Number of idle connections of each kind whose memory is measured
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(100..=18_000))]
    connections: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Connects,
    Messages,
    Memory,
}

/// Number of threads that connect, each one connection after the other.
const THREADS: u32 = 8;
const PAIRS: u32 = 50;
/// Number of messages that a publisher sends before it waits for their acknowledgements.
const WINDOW: usize = 20;
const PAYLOAD: usize = 256;
/// Number of connections before the first that counts, so that one-time costs are excluded.
const FIRST: u32 = 200;

/// Figures of one run.
#[derive(Clone, Copy, Default)]
struct Figures {
    per_s: f64,
    broker_us: f64,
    own_us: f64,
    resumed: f64,
    bytes: f64,
}

pub fn run(args: &Args) -> Result<()> {
    super::build(&[Kind::Meridian])?;
    child::catch_signals();
    let certificates = Certificates::make()?;
    let Args { seconds, rounds, connections, .. } = args;
    println!(
        "`cargo xtask listeners --seconds {seconds} --rounds {rounds} --connections {connections}`, median (lowest-highest) of {rounds} rounds in alternation."
    );
    for part in Part::value_variants() {
        if args.only.is_empty() || args.only.contains(part) {
            match part {
                Part::Connects => connects(args, &certificates)?,
                Part::Messages => messages(args, &certificates)?,
                Part::Memory => memory(args, &certificates)?,
            }
        }
    }
    Ok(())
}

/// Runs every cell once a round, in an order that changes from round to round, each on a new broker.
fn alternate<C: Copy>(
    args: &Args,
    cells: &[C],
    listener: impl Fn(C) -> (Kind, ListenerKind),
    measure: impl Fn(C, &Broker) -> Result<Figures>,
    certificates: &Certificates,
) -> Result<Vec<Vec<Figures>>> {
    let mut runs = vec![Vec::new(); cells.len()];
    for round in 0..args.rounds as usize {
        for at in 0..cells.len() {
            let at = (at + round) % cells.len();
            let (kind, listener) = listener(cells[at]);
            eprintln!("round {}/{}: {kind}, {}", round + 1, args.rounds, listener.name());
            let mut broker =
                Broker::start_configured(kind, |address| config(kind, listener, address, certificates))?;
            runs[at].push(measure(cells[at], &broker)?);
            ensure!(broker.alive(), "the broker ended by itself; its log ends with\n{}", broker.log_tail());
            if child::interrupted() {
                bail!("interrupted");
            }
        }
    }
    Ok(runs)
}

/// Configuration of a listener of this kind.
fn config(kind: Kind, listener: ListenerKind, address: SocketAddr, certificates: &Certificates) -> String {
    let path = |name: &str| certificates.path(name).display().to_string();
    let (certificate, key) = (path("server.pem"), path("server.key"));
    let mut text = String::new();
    if kind == Kind::Mosquitto {
        let _ = writeln!(text, "listener {} {}", address.port(), address.ip());
        if listener.is_tls() {
            let _ = writeln!(text, "certfile {certificate}\nkeyfile {key}");
        }
        return text;
    }
    let _ = writeln!(text, "[[listener]]\naddress = \"{address}\"");
    if listener.is_websocket() {
        text.push_str("transport = \"websocket\"\n");
    }
    if listener.is_tls() {
        let _ = writeln!(text, "tls_certificate = \"{certificate}\"\ntls_key = \"{key}\"");
    }
    if listener == ListenerKind::Mutual {
        let _ = writeln!(text, "tls_client_ca = \"{}\"", path("ca.pem"));
    }
    text
}

fn connects(args: &Args, certificates: &Certificates) -> Result<()> {
    let cells: Vec<(Kind, ListenerKind, bool)> =
        [(ListenerKind::Tls13, false), (ListenerKind::Tls13, true), (ListenerKind::Plain, false)]
            .into_iter()
            .flat_map(|(listener, resume)| {
                [Kind::Meridian, Kind::Mosquitto].map(|kind| (kind, listener, resume))
            })
            .collect();
    let measure = |(_, listener, resume): (Kind, ListenerKind, bool), broker: &Broker| {
        let configs =
            (0..THREADS).map(|_| listener.config(certificates, resume)).collect::<Result<Vec<_>>>()?;
        let (before, began) = (process::Cpu::now(broker.pid())?, Instant::now());
        let deadline = began + Duration::from_secs(args.seconds.into());
        let counts = std::thread::scope(|scope| {
            let connect = |(thread, config): (usize, Option<_>)| {
                scope.spawn(move || -> Result<(u64, u64)> {
                    let (mut count, mut resumed) = (0, 0);
                    while Instant::now() < deadline {
                        let name = format!("d{thread}-{count}");
                        let mut client = Client::connect(broker.address, listener, config.as_ref(), &name)?;
                        client.send(DISCONNECT)?;
                        count += 1;
                        resumed += u64::from(client.resumed);
                    }
                    Ok((count, resumed))
                })
            };
            let threads: Vec<_> = configs.into_iter().enumerate().map(connect).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("the client does not panic"))
                .collect::<Result<Vec<_>>>()
        })?;
        let (count, resumed) = counts.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        figures(before, broker, began, count, resumed)
    };
    let runs = alternate(args, &cells, |(kind, listener, _)| (kind, listener), measure, certificates)?;
    println!("\n{THREADS} threads connect, are answered, disconnect:\n");
    println!(
        "| broker | what | connects/s | broker CPU us | generator's CPU us | resumed |\n|---|---|---|---|---|---|"
    );
    for ((kind, listener, resume), runs) in cells.iter().zip(&runs) {
        let what = match (listener.is_tls(), resume) {
            (false, _) => "plain TCP, CONNECT",
            (true, false) => "full handshake of TLS 1.3, CONNECT",
            (true, true) => "session resumed where the broker offers it, CONNECT",
        };
        let [rate, us, own] = [
            cell(runs, 0, |run| Some(run.per_s)),
            cell(runs, 0, |run| Some(run.broker_us)),
            cell(runs, 0, |run| Some(run.own_us)),
        ];
        let resumed = runs.iter().map(|run| run.resumed).sum::<f64>() / runs.len() as f64 * 100.0;
        println!("| {kind} | {what} | {rate} | {us} | {own} | {resumed:.0} % |");
    }
    Ok(())
}

fn messages(args: &Args, certificates: &Certificates) -> Result<()> {
    let listeners =
        [ListenerKind::Plain, ListenerKind::Tls13, ListenerKind::WebSocket, ListenerKind::SecureWebSocket];
    let measure = |listener: ListenerKind, broker: &Broker| {
        let config = listener.config(certificates, false)?;
        let start = Barrier::new(PAIRS as usize + 1);
        let seconds = Duration::from_secs(args.seconds.into());
        let flow = |pair: u32| -> Result<u64> {
            let ready = Pair::connect(broker.address, listener, config.as_ref(), pair);
            start.wait();
            let (mut ready, began, mut count) = (ready?, Instant::now(), 0);
            while began.elapsed() < seconds {
                count += ready.round()?;
            }
            Ok(count)
        };
        std::thread::scope(|scope| {
            let flow = &flow;
            let threads: Vec<_> = (0..PAIRS).map(|pair| scope.spawn(move || flow(pair))).collect();
            start.wait();
            let (before, began) = (process::Cpu::now(broker.pid()), Instant::now());
            let counts = threads.into_iter().map(|thread| thread.join().expect("the client does not panic"));
            let count = counts.sum::<Result<u64>>()?;
            figures(before?, broker, began, count, 0)
        })
    };
    let runs = alternate(args, &listeners, |listener| (Kind::Meridian, listener), measure, certificates)?;
    println!("\n{PAIRS} pairs, QoS 1, {PAYLOAD} B, {WINDOW} messages at a time:\n");
    println!(
        "| listener | messages/s | broker CPU us/message | generator's CPU us/message \
         |\n|---|---|---|---|"
    );
    for (listener, runs) in listeners.iter().zip(&runs) {
        let [rate, us, own] = [
            cell(runs, 0, |run| Some(run.per_s)),
            cell(runs, 2, |run| Some(run.broker_us)),
            cell(runs, 2, |run| Some(run.own_us)),
        ];
        println!("| {} | {rate} | {us} | {own} |", listener.name());
    }
    Ok(())
}

/// A publisher and the subscriber of its topic.
struct Pair {
    publisher: Client,
    subscriber: Client,
    batch: Vec<u8>,
}

impl Pair {
    fn connect(
        address: SocketAddr,
        listener: ListenerKind,
        config: Option<&std::sync::Arc<rustls::ClientConfig>>,
        number: u32,
    ) -> Result<Pair> {
        let topic = format!("door/{number:03}");
        let mut subscriber = Client::connect(address, listener, config, &format!("s{number}"))?;
        let mut subscribe = vec![0x82, 5 + topic.len() as u8, 0, 1, 0, topic.len() as u8];
        subscribe.extend(topic.bytes());
        subscribe.push(1);
        subscriber.send(&subscribe)?;
        let suback = subscriber.packet()?;
        ensure!(suback == b"\x90\x03\0\x01\x01", "SUBACK is {suback:02x?}");
        let mut batch = Vec::new();
        for id in 1..=WINDOW as u8 {
            let length = 2 + topic.len() + 2 + PAYLOAD;
            batch.extend([0x32, 0x80 | (length % 128) as u8, (length / 128) as u8, 0, topic.len() as u8]);
            batch.extend(topic.bytes());
            batch.extend([0, id]);
            batch.extend([0x78; PAYLOAD]);
        }
        let publisher = Client::connect(address, listener, config, &format!("p{number}"))?;
        Ok(Pair { publisher, subscriber, batch })
    }

    /// Sends a window of messages, and waits for the acknowledgements of both ends.
    fn round(&mut self) -> Result<u64> {
        self.publisher.send(&self.batch)?;
        let mut acknowledged = Vec::new();
        for _ in 0..WINDOW {
            let publish = self.subscriber.packet()?;
            ensure!(
                publish[0] & 0xF6 == 0x32 && publish.len() > PAYLOAD,
                "not a PUBLISH: {:02x?}",
                &publish[..2]
            );
            let id = &publish[publish.len() - PAYLOAD - 2..][..2];
            acknowledged.extend([0x40, 2, id[0], id[1]]);
        }
        self.subscriber.send(&acknowledged)?;
        for _ in 0..WINDOW {
            let puback = self.publisher.packet()?;
            ensure!(puback[0] == 0x40, "not a PUBACK: {puback:02x?}");
        }
        Ok(WINDOW as u64)
    }
}

fn memory(args: &Args, certificates: &Certificates) -> Result<()> {
    let peer = [ListenerKind::Plain, ListenerKind::Tls13].map(|listener| (Kind::Mosquitto, listener));
    let cells: Vec<(Kind, ListenerKind)> =
        ListenerKind::ALL.map(|listener| (Kind::Meridian, listener)).into_iter().chain(peer).collect();
    let measure = |(_, listener): (Kind, ListenerKind), broker: &Broker| {
        let config = listener.config(certificates, false)?;
        let mut clients = Vec::new();
        let mut connect = |until: u32| -> Result<()> {
            while clients.len() < until as usize {
                let mut client = Client::connect(
                    broker.address,
                    listener,
                    config.as_ref(),
                    &format!("idle-{:06}", clients.len()),
                )?;
                client.send(b"\xC0\0")?;
                ensure!(client.packet()? == b"\xD0\0", "no PINGRESP");
                clients.push(client);
                ensure!(!child::interrupted(), "interrupted");
            }
            // The allocator returns temporary memory to the system.
            std::thread::sleep(Duration::from_millis(1500));
            Ok(())
        };
        connect(FIRST)?;
        let before = process::anonymous(broker.pid())?;
        connect(FIRST + args.connections)?;
        let after = process::anonymous(broker.pid())?;
        Ok(Figures {
            bytes: (after as f64 - before as f64) / f64::from(args.connections),
            ..Figures::default()
        })
    };
    let runs = alternate(args, &cells, |cell| cell, measure, certificates)?;
    println!(
        "\nIdle connections, {} of each kind after {FIRST} others, after a PINGREQ:\n",
        args.connections
    );
    println!("| broker | listener | anonymous bytes/connection |\n|---|---|---|");
    for ((kind, listener), runs) in cells.iter().zip(&runs) {
        println!("| {kind} | {} | {} |", listener.name(), cell(runs, 0, |run| Some(run.bytes)));
    }
    Ok(())
}

fn figures(
    before: process::Cpu,
    broker: &Broker,
    began: Instant,
    count: u64,
    resumed: u64,
) -> Result<Figures> {
    let elapsed = began.elapsed().as_secs_f64();
    let after = process::Cpu::now(broker.pid())?;
    ensure!(count > 0, "nothing was done");
    let count = count as f64;
    let each = |seconds: f64| seconds * 1e6 / count;
    Ok(Figures {
        per_s: count / elapsed,
        broker_us: each(after.broker_s - before.broker_s),
        own_us: each(after.own_s - before.own_s),
        resumed: resumed as f64 / count,
        bytes: 0.0,
    })
}

const DISCONNECT: &[u8] = b"\xE0\0";
