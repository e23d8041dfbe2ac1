//! Attacks by one client. Each ends by itself at [`Victim::until`], and reports what the broker allowed.

use super::Victim;
use super::wire;
use anyhow::{Result, ensure};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// An attack on shared resources.
pub struct Attack {
    pub name: &'static str,
    /// Further arguments of the broker.
    pub arguments: &'static [&'static str],
    pub run: fn(&Victim) -> Result<String>,
}

pub const ATTACKS: [Attack; 12] = [
    Attack { name: "nothing", arguments: &[], run: nothing },
    Attack { name: "shapes", arguments: &[], run: shapes },
    Attack { name: "groups", arguments: &[], run: groups },
    Attack { name: "hoard", arguments: &["--set", "limits.memory_queued_max=256MiB"], run: hoard },
    Attack { name: "silent-subscriber", arguments: &[], run: silent },
    Attack { name: "trickle", arguments: &[], run: trickle },
    Attack { name: "long-filters", arguments: &[], run: long_filters },
    Attack { name: "many-filters", arguments: &[], run: many_filters },
    Attack { name: "many-stored-filters", arguments: &[], run: many_stored_filters },
    Attack { name: "wills", arguments: &[], run: wills },
    Attack { name: "half-connects", arguments: &[], run: half_connects },
    Attack { name: "http-connections", arguments: &[], run: http_connections },
];

pub fn names() -> Vec<&'static str> {
    ATTACKS.iter().map(|attack| attack.name).collect()
}

/// Waits without an attack, for comparison.
fn nothing(victim: &Victim) -> Result<String> {
    stay(victim, Duration::from_secs(3));
    Ok("-".into())
}

/// Subscribes with 1,100 arrangements of wildcards: each is looked up by every message of the node.
fn shapes(victim: &Victim) -> Result<String> {
    let mut stream = wire::connected(victim.mqtt, "hostile-shapes", 0, 100)?;
    let shape = |number: u32| {
        let levels = (0..11).map(|bit| if number >> bit & 1 == 1 { "+" } else { "a" });
        levels.collect::<Vec<_>>().join("/")
    };
    let filters: Vec<String> = (1..=1100).map(shape).collect();
    for (at, some) in filters.chunks(100).enumerate() {
        stream.write_all(&wire::subscribe(at as u16 + 1, some.iter().map(String::as_str)))?;
    }
    stay(victim, Duration::from_secs(3));
    Ok("1,100 shapes of wildcards".into())
}

/// Subscribes with many shared groups of a few clients to a topic that they publish to.
fn groups(victim: &Victim) -> Result<String> {
    let mut members = Vec::new();
    for member in 0..20 {
        let mut stream = wire::connected(victim.mqtt, &format!("hostile-groups-{member}"), 0, 65_535)?;
        let filters: Vec<String> = (0..1000).map(|number| format!("$share/g{member}-{number}/h")).collect();
        for (at, some) in filters.chunks(500).enumerate() {
            stream.write_all(&wire::subscribe(at as u16 + 1, some.iter().map(String::as_str)))?;
            wire::drain(&mut stream, 65_536, Duration::from_millis(100));
        }
        members.push(stream);
    }
    let messages: Vec<u8> = (1..=300).flat_map(|id| wire::publish("h", id, b"hello!")).collect();
    let sent = members[0].write_all(&messages).is_ok();
    while victim.goes_on() {
        let read = members.iter_mut().map(|member| wire::drain(member, 1 << 20, Duration::from_millis(20)));
        if read.max().flatten().is_none_or(|read| read == 0) {
            break;
        }
    }
    Ok(format!("20,000 groups, 300 messages {}", if sent { "sent" } else { "not taken" }))
}

/// Opens connections that acknowledge nothing while messages queue up, until the node has no memory for messages of
/// others.
fn hoard(victim: &Victim) -> Result<String> {
    let mut hoarders = Vec::new();
    for number in 0..82 {
        let mut stream = wire::connected(victim.mqtt, &format!("hostile-hoard-{number}"), 0, 1)?;
        stream.write_all(&wire::subscribe(1, ["hoard"].into_iter()))?;
        hoarders.push(stream);
    }
    let mut publisher = wire::connected(victim.mqtt, "hostile-hoard", 0, 65_535)?;
    let payload = vec![b'x'; 14 << 10];
    let mut sent = 0_u32;
    while victim.goes_on() {
        let message = wire::publish("hoard", (sent % 60_000) as u16 + 1, &payload);
        if publisher.write_all(&message).is_err() {
            break;
        }
        sent += 1;
        if sent.is_multiple_of(16) && wire::drain(&mut publisher, 65_536, Duration::from_millis(1)).is_none()
        {
            break;
        }
    }
    stay(victim, Duration::from_secs(60));
    Ok(format!("82 connections that acknowledge nothing, {sent} messages of 14 KiB"))
}

/// Subscribes to everything, acknowledges nothing, and reconnects when it is disconnected.
fn silent(victim: &Victim) -> Result<String> {
    let load = Load::start(victim);
    let mut times = 0_u32;
    while victim.goes_on() {
        let Ok(mut stream) = wire::connected(victim.mqtt, "hostile-silent", 0, 10) else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        times += 1;
        stream.write_all(&wire::subscribe(1, ["load/#"].into_iter()))?;
        while victim.goes_on() && wire::drain(&mut stream, 65_536, Duration::from_millis(50)).is_some() {}
    }
    Ok(format!("connected {times} times; {}", load.end()))
}

/// Subscribes to everything, and reads and acknowledges about a kilobyte a second.
fn trickle(victim: &Victim) -> Result<String> {
    let load = Load::start(victim);
    let mut times = 0_u32;
    while victim.goes_on() {
        let Ok(mut stream) = wire::connected(victim.mqtt, "hostile-trickle", 0, 10) else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        times += 1;
        stream.write_all(&wire::subscribe(1, ["load/#"].into_iter()))?;
        // Its queue is full when it begins to acknowledge.
        stay(victim, Duration::from_secs(1));
        let mut id = 0_u16;
        while victim.goes_on() {
            if wire::drain(&mut stream, 100, Duration::from_millis(1)).is_none() {
                break;
            }
            id = id % 10 + 1;
            let acknowledgement = [&[0x40, 2][..], &id.to_be_bytes()].concat();
            if stream.write_all(&acknowledgement).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(format!("connected {times} times; {}", load.end()))
}

/// Subscribes to filters of 60 KB each.
fn long_filters(victim: &Victim) -> Result<String> {
    let mut streams = Vec::new();
    let mut sent = 0_u32;
    'all: for client in 0..4 {
        let mut stream = wire::connected(victim.mqtt, &format!("hostile-long-{client}"), 0, 100)?;
        for number in 0..1000 {
            let filter = format!("{client}/{number}/{}", "x".repeat(60_000));
            if !victim.goes_on() {
                break 'all;
            }
            if stream.write_all(&wire::subscribe(number + 1, [filter.as_str()].into_iter())).is_err() {
                break;
            }
            sent += 1;
            wire::drain(&mut stream, 4096, Duration::from_millis(1));
        }
        streams.push(stream);
    }
    stay(victim, Duration::from_secs(1));
    Ok(format!("{sent} filters of 60 KB sent"))
}

/// Subscribes to as many filters as a client may have with one packet, and unsubscribes, again and again.
fn many_filters(victim: &Victim) -> Result<String> {
    subscribe_to_many(victim, 0)
}

/// An attack like [`many_filters`] with a durable session.
fn many_stored_filters(victim: &Victim) -> Result<String> {
    subscribe_to_many(victim, 3600)
}

fn subscribe_to_many(victim: &Victim, expiry: u32) -> Result<String> {
    let mut stream = wire::connected(victim.mqtt, "hostile-filters", expiry, 100)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let filters: Vec<String> = (0..100_000).map(|number| format!("{number:07}")).collect();
    let filters = || filters.iter().map(String::as_str);
    let (subscribe, unsubscribe) = (wire::subscribe(1, filters()), wire::unsubscribe(2, filters()));
    let (began, mut times) = (Instant::now(), 0);
    while victim.goes_on() && began.elapsed() < Duration::from_secs(5) {
        for (packet, answer) in [(&subscribe, 0x90), (&unsubscribe, 0xb0)] {
            stream.write_all(packet)?;
            let first = wire::read_packet(&mut stream)?;
            ensure!(first == answer, "{first:#04x} is the answer to {:#04x}", packet[0]);
        }
        times += 1;
    }
    Ok(format!("{times} times 100,000 filters at once"))
}

/// Makes sessions with Wills of nearly a megabyte.
fn wills(victim: &Victim) -> Result<String> {
    let payload = vec![b'w'; 60_000];
    let (mut accepted, mut streams) = (0_u32, Vec::new());
    for number in 0..1000 {
        if !victim.goes_on() {
            break;
        }
        let mut body = b"\0\x04MQTT\x05\x0e\0\0\x05\x11".to_vec();
        body.extend(3600_u32.to_be_bytes());
        wire::text(&format!("hostile-will-{number}"), &mut body);
        body.push(0);
        wire::text("will", &mut body);
        body.extend((payload.len() as u16).to_be_bytes());
        body.extend(&payload);
        let Ok(mut stream) = wire::dial(victim.mqtt) else { continue };
        if stream.write_all(&wire::packet(0x10, &body, 0)).is_ok() {
            let mut head = [0; 4];
            let is_read = std::io::Read::read_exact(&mut stream, &mut head).is_ok();
            accepted += u32::from(is_read && head[0] == 0x20 && head[3] == 0);
        }
        streams.push(stream);
    }
    Ok(format!("{accepted} Wills of 60 KB accepted"))
}

/// Sends CONNECTs of a megabyte without the last byte.
fn half_connects(victim: &Victim) -> Result<String> {
    let body = vec![0; 1 << 20];
    let mut streams: Vec<TcpStream> = Vec::new();
    for _ in 0..500 {
        if !victim.goes_on() {
            break;
        }
        let Ok(mut stream) = wire::dial(victim.mqtt) else { continue };
        let mut begin = b"\0\x04MQTT\x05\x02\0\0\0".to_vec();
        begin.extend(&body[..(1 << 20) - 4096]);
        // A connection that is closed meanwhile has been refused.
        let _ = stream.write_all(&wire::packet(0x10, &begin, 2048));
        streams.push(stream);
    }
    let held = streams.len();
    stay(victim, Duration::from_secs(1));
    Ok(format!("{held} CONNECTs of 1 MiB begun"))
}

/// Opens connections to the HTTP port and sends nothing.
fn http_connections(victim: &Victim) -> Result<String> {
    let mut streams = Vec::new();
    while victim.goes_on() && streams.len() < 600 {
        let Ok(stream) = wire::dial(victim.http) else { break };
        streams.push(stream);
    }
    let held = streams.len();
    stay(victim, Duration::from_secs(8));
    Ok(format!("{held} silent connections"))
}

fn stay(victim: &Victim, longest: Duration) {
    let end = Instant::now() + longest;
    while victim.goes_on() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An ordinary publisher of QoS 1, whose messages the attacker receives. Counts the acknowledgements per second.
struct Load(std::thread::JoinHandle<Vec<u32>>);

/// Number of messages that it sends before it waits for acknowledgements.
const WINDOW: u32 = 32;

impl Load {
    fn start(victim: &Victim) -> Self {
        let (address, until) = (victim.mqtt, victim.until);
        Self(std::thread::spawn(move || {
            let began = Instant::now();
            let mut seconds = Vec::new();
            let Ok(mut client) = crate::cluster::client::Client::connect(address, "load") else {
                return seconds;
            };
            while Instant::now() < until {
                if client.publish_many("load/x", WINDOW, 512).is_err() {
                    break;
                }
                let at = began.elapsed().as_secs() as usize;
                seconds.resize(seconds.len().max(at + 1), 0);
                seconds[at] += WINDOW;
            }
            seconds
        }))
    }

    fn end(self) -> String {
        let seconds = self.0.join().expect("the publisher does not panic");
        let whole = &seconds[..seconds.len().saturating_sub(1)];
        let (most, least) = (whole.iter().max().unwrap_or(&0), whole.iter().min().unwrap_or(&0));
        format!("a publisher of its topic: {least} to {most} messages in a second")
    }
}
