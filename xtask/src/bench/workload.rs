//! The loads. The arguments of each bound its time or its number.

/// Purpose of a load, which determines its tables.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Purpose {
    /// Broker CPU for each delivery, and deliveries per second.
    Throughput,
    /// End-to-end latency.
    Latency,
    /// Broker CPU for each client that connects and subscribes.
    Connect,
    /// Broker memory for each connection.
    Memory,
    /// Many clients, few messages: latency, and the total cost of a client.
    WithIdleClients,
    /// More messages than the subscriber handles: losses, drops, and the memory.
    Overload,
}

#[derive(Clone, Debug)]
pub struct Workload {
    pub name: String,
    pub title: String,
    pub purpose: Purpose,
    /// Command and arguments of mqload, without the broker's address and process id.
    pub arguments: Vec<String>,
    /// Arguments of an mqload whose clients are connected meanwhile and idle.
    pub idle_clients: Option<Vec<String>>,
    /// Name of a load; the rate is half of its deliveries per second.
    pub half_of: Option<&'static str>,
    /// Usual seconds, and the seconds after which it has failed.
    pub usual_s: u32,
    pub longest_s: u32,
    /// True for a load of the default comparison.
    pub quick: bool,
}

/// Default size of the payload in bytes.
const PAYLOAD: u32 = 256;
/// Maximum number of bytes in flight of all pairs at QoS 0, and in windows at QoS 1 and 2.
const UNDER_WAY_MAX: u32 = 64 << 20;
const PAIRS: u32 = 100;

/// Loads for the comparison with mosquitto alone: every load of the budgets, at 256 bytes.
const BASIC: [&str; 11] = [
    "one-to-one-qos0",
    "one-to-one-qos1",
    "one-to-one-qos2",
    "fan-out",
    "fan-out-single",
    "fan-in",
    "shared",
    "latency",
    "latency-window-1",
    "connect-subscribe",
    "idle-memory",
];

/// The loads of `cargo xtask bench`, in the order of the page.
pub fn basic(seconds: u32, connections: u32) -> Vec<Workload> {
    let all = all(seconds, connections);
    BASIC.iter().filter_map(|name| all.iter().find(|load| load.name == *name)).cloned().collect()
}

/// Every load, measured for `seconds` or with so many `connections`.
///
/// At saturation the generator polls its sockets only every 500 us. It then needs a fraction of the CPU that it
/// shares with the broker, and the window of 100 messages keeps the broker busy meanwhile.
pub fn all(seconds: u32, connections: u32) -> Vec<Workload> {
    use Purpose::*;
    let of = |name: &str, title: &str, purpose, arguments: String| Workload {
        name: name.to_owned(),
        title: title.to_owned(),
        purpose,
        arguments: split(&arguments),
        idle_clients: None,
        half_of: None,
        usual_s: seconds + 2,
        longest_s: seconds + 90,
        quick: false,
    };
    let flow = |name: &str, title: &str, purpose, size: u32, arguments: &str| {
        of(name, title, purpose, format!("pubsub {arguments} -l {size} --warmup 1 -d {seconds}"))
    };
    let saturated = |name: &str, title: &str, arguments: &str| {
        let title = format!("{title}, 256 B, saturated");
        flow(name, &title, Throughput, PAYLOAD, &format!("{arguments} --coalesce-us 500"))
    };
    let mut loads = vec![];
    for size in [PAYLOAD, 16, 4096, 65536] {
        for qos in 0..3 {
            let (suffix, said) = match size {
                PAYLOAD => (String::new(), "256 B".to_owned()),
                0..1024 => (format!("-{size}B"), format!("{size} B")),
                _ => (format!("-{}KiB", size / 1024), format!("{} KiB", size / 1024)),
            };
            let arguments =
                format!("-p {PAIRS} -s {PAIRS} {} --coalesce-us 500", under_way(qos, PAIRS, size));
            let title = format!("100 pairs, QoS {qos}, {said}, saturated");
            loads.push(flow(&format!("one-to-one-qos{qos}{suffix}"), &title, Throughput, size, &arguments));
        }
    }
    for qos in 0..3 {
        let name = format!("single-publisher-qos{qos}");
        let arguments = format!("-p 1 -s 1 {}", under_way(qos, 1, PAYLOAD));
        loads.push(saturated(&name, &format!("1 publisher flat out, 1 subscriber, QoS {qos}"), &arguments));
    }
    let fan_out = "-p 1 -s 1000 --topology fan-out";
    loads.push(saturated(
        "fan-out",
        "1 publisher, 1,000 subscribers, QoS 0",
        &format!("{fan_out} -q 0 --max-outstanding 100000"),
    ));
    loads.push(saturated(
        "fan-out-qos1",
        "1 publisher, 1,000 subscribers, QoS 1",
        &format!("{fan_out} -q 1 --inflight 100 --drain 20"),
    ));
    loads.push(saturated(
        "fan-out-qos2",
        "1 publisher, 1,000 subscribers, QoS 2",
        &format!("{fan_out} -q 2 --inflight 100 --drain 20"),
    ));
    loads.push(flow(
        "fan-out-single",
        "1 publisher, 1,000 subscribers, QoS 0, 256 B, one message at a time",
        Throughput,
        PAYLOAD,
        &format!("{fan_out} -q 0 --max-outstanding 1000"),
    ));
    for (suffix, qos) in [("", 1), ("-qos0", 0), ("-qos2", 2)] {
        let arguments = format!("-p 100 -s 1 --topology fan-in {}", under_way(qos, PAIRS, PAYLOAD));
        loads.push(saturated(
            &format!("fan-in{suffix}"),
            &format!("100 publishers, 1 subscriber, QoS {qos}"),
            &arguments,
        ));
        let arguments = format!("-p 100 -s 100 --topology shared {}", under_way(qos, PAIRS, PAYLOAD));
        loads.push(saturated(
            &format!("shared{suffix}"),
            &format!("100 publishers, 100 members of one shared subscription, QoS {qos}"),
            &arguments,
        ));
    }
    loads.push(Workload {
        idle_clients: Some(split("sub -c 1000 -R 0 -T wild/+/c%i/%n/+/# --per-conn 100 -q 1 -k 600 --hold 3600")),
        usual_s: seconds + 6,
        ..saturated(
            "wildcards",
            "100 pairs among 100,000 wildcard filters of 1,000 others, QoS 1",
            "-p 100 -s 100 -q 1 --inflight 100 --drain 20 --pub-topic wild/%i/p/q/r --sub-topic wild/%i/+/q/#",
        )
    });
    let latency = |name: &str, rate: u32| {
        let title =
            format!("50 pairs, QoS 1, 256 B, {} messages/s", super::table::number(f64::from(rate), 0));
        flow(name, &title, Latency, PAYLOAD, &format!("-p 50 -s 50 -q 1 -R {rate}"))
    };
    loads.push(latency("latency-1000", 1_000));
    loads.push(latency("latency", 2_000));
    loads.push(latency("latency-10000", 10_000));
    loads.push(Workload {
        half_of: Some("one-to-one-qos1"),
        ..flow(
            "latency-half",
            "100 pairs, QoS 1, 256 B, half of what this broker did saturated",
            Latency,
            PAYLOAD,
            "-p 100 -s 100 -q 1 --inflight 1000",
        )
    });
    loads.push(flow(
        "latency-window-1",
        "1 pair, QoS 1, 256 B, window 1",
        Latency,
        PAYLOAD,
        "-p 1 -s 1 -q 1 --inflight 1",
    ));
    let sources = "-k 600 --bind 127.0.0.2,127.0.0.3 --setup-timeout 120";
    let clients = |name: &str, title: &str, purpose| Workload {
        usual_s: 2 + connections / 5_000,
        longest_s: 180,
        ..of(name, title, purpose, format!("sub -c {connections} -R 0 -T bench/%i/# -q 1 {sources}"))
    };
    loads.push(clients("connect-subscribe", "connect and subscribe to one unique wildcard filter", Connect));
    loads.push(clients("idle-memory", "idle connections with one unique wildcard subscription each", Memory));
    let pairs = (connections / 3).max(1);
    let rate = (pairs / 9).max(1);
    loads.push(Workload {
        usual_s: seconds + 3 + pairs / 2_500,
        longest_s: seconds + 180,
        ..flow(
            "many-pairs",
            &format!(
                "{pairs} subscribers, then {pairs} publishers, then {rate} messages/s: one in 9 s from each, QoS 1, 256 B"
            ),
            WithIdleClients,
            PAYLOAD,
            &format!(
                "-p {pairs} -s {pairs} -q 1 -R {rate} --pub-topic bench/%i/test --sub-topic bench/%i/# --connect-rate 0 {sources}"
            ),
        )
    });
    loads.push(Workload {
        usual_s: seconds + 6,
        longest_s: seconds + 180,
        ..flow(
            "overload",
            "100 publishers outrun 1 subscriber, QoS 1, 256 B",
            Overload,
            PAYLOAD,
            "-p 100 -s 1 --topology fan-in -q 1 --inflight 100 --coalesce-us 10000 --rcvbuf 65536 --drain 60",
        )
    });
    for load in &mut loads {
        load.quick = QUICK.contains(&&load.name[..]);
    }
    loads
}

/// Loads of the quick comparison: five brokers, two rounds of a second each, take less than 15 minutes.
const QUICK: [&str; 19] = [
    "one-to-one-qos0",
    "one-to-one-qos1",
    "one-to-one-qos2",
    "one-to-one-qos1-16B",
    "one-to-one-qos1-4KiB",
    "one-to-one-qos1-64KiB",
    "single-publisher-qos1",
    "fan-out",
    "fan-out-single",
    "fan-in",
    "shared",
    "wildcards",
    "latency",
    "latency-half",
    "latency-window-1",
    "connect-subscribe",
    "idle-memory",
    "many-pairs",
    "overload",
];

/// QoS, and the limit of messages in flight: enough to keep the broker busy, and not so much that they are only
/// stored.
fn under_way(qos: u32, publishers: u32, size: u32) -> String {
    let bytes_max = UNDER_WAY_MAX / size;
    match qos {
        0 => format!("-q 0 --max-outstanding {}", 20_000.min(bytes_max)),
        // A slow broker has time to deliver acknowledged messages before they count as lost.
        _ => format!("-q {qos} --inflight {} --drain 20", 100.min(bytes_max / publishers)),
    }
}

pub fn split(arguments: &str) -> Vec<String> {
    arguments.split_whitespace().map(str::to_string).collect()
}

impl Workload {
    /// A load that is in no table by itself.
    pub fn unnamed(name: &str, purpose: Purpose, arguments: &str, idle_clients: Option<&str>) -> Workload {
        Workload {
            name: name.to_owned(),
            title: name.to_owned(),
            purpose,
            arguments: split(arguments),
            idle_clients: idle_clients.map(split),
            half_of: None,
            usual_s: 0,
            longest_s: 300,
            quick: false,
        }
    }

    /// The command as typed for a broker on the usual port.
    pub fn command_line(&self) -> String {
        let quoted = |arguments: &[String]| {
            let quote =
                |a: &String| if a.contains(['#', '%', '*', '$']) { format!("'{a}'") } else { a.clone() };
            arguments.iter().map(quote).collect::<Vec<_>>().join(" ")
        };
        let idle_clients = self
            .idle_clients
            .as_ref()
            .map(|c| format!("mqload {} -H 127.0.0.1:1883 & ", quoted(c)))
            .unwrap_or_default();
        let rate = if self.half_of.is_some() { " -R $HALF" } else { "" };
        format!("{idle_clients}mqload {}{rate} -H 127.0.0.1:1883 --broker-pid $PID", quoted(&self.arguments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_commands_are_bounded() {
        let all = all(5, 100);
        for w in &all {
            assert_eq!(all.iter().filter(|o| o.name == w.name).count(), 1, "{}", w.name);
            let line = w.command_line();
            assert!(line.contains(" -d 5") || line.contains(" -c 100"), "{line}");
        }
    }

    #[test]
    fn every_referenced_name_exists() {
        let all = all(1, 100);
        let exists = |name: &str| all.iter().any(|load| load.name == name);
        for name in BASIC.iter().chain(&QUICK).copied().chain(all.iter().filter_map(|load| load.half_of)) {
            assert!(exists(name), "{name}");
        }
        assert_eq!(basic(1, 100).len(), BASIC.len());
    }

    #[test]
    fn large_payloads_do_not_accumulate() {
        assert_eq!(under_way(0, 100, 256), "-q 0 --max-outstanding 20000");
        assert_eq!(under_way(0, 100, 65536), "-q 0 --max-outstanding 1024");
        assert_eq!(under_way(1, 100, 4096), "-q 1 --inflight 100 --drain 20");
        assert_eq!(under_way(2, 100, 65536), "-q 2 --inflight 10 --drain 20");
    }

    #[test]
    fn the_quick_comparison_of_five_brokers_takes_less_than_15_minutes() {
        let seconds: u32 = all(1, 15_000).iter().filter(|load| load.quick).map(|load| load.usual_s).sum();
        assert!(seconds * 5 * 2 < 15 * 60, "{} s", seconds * 5 * 2);
    }
}
