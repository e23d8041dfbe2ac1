//! The loads. Every one is bounded in time or in number by its own arguments.

/// What a load is for, and with it the table that it stands in.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Purpose {
    /// CPU of the broker for each delivery, and deliveries each second.
    Throughput,
    /// End-to-end latency.
    Latency,
    /// CPU of the broker for each client that connects and subscribes.
    Connect,
    /// Memory of the broker for each connection.
    Memory,
}

pub struct Workload {
    pub name: &'static str,
    pub title: &'static str,
    pub purpose: Purpose,
    /// mqload's command and arguments, without the broker's address and process id.
    pub arguments: Vec<String>,
    /// Seconds after which something must be wrong.
    pub longest_s: u32,
}

/// Every load, measured for `seconds` or with so many `connections`.
///
/// At saturation the generator looks at its sockets only every 500 us: it then needs a fraction of the CPU that it
/// shares with the broker, and the window of 100 messages keeps the broker busy meanwhile.
pub fn all(seconds: u32, connections: u32) -> Vec<Workload> {
    use Purpose::*;
    let flow = |name, title, purpose, arguments: &str| Workload {
        name,
        title,
        purpose,
        arguments: split(&format!("pubsub {arguments} -l 256 --warmup 1 -d {seconds}")),
        longest_s: seconds + 90,
    };
    let clients = |name, title, purpose| Workload {
        name,
        title,
        purpose,
        arguments: split(&format!(
            "sub -c {connections} -R 0 -T bench/%i/# -q 1 -k 600 --bind 127.0.0.2,127.0.0.3 --setup-timeout 120"
        )),
        longest_s: 180,
    };
    vec![
        flow(
            "one-to-one-qos0",
            "100 pairs, QoS 0, 256 B, saturated",
            Throughput,
            "-p 100 -s 100 -q 0 --max-outstanding 20000 --coalesce-us 500",
        ),
        flow(
            "one-to-one-qos1",
            "100 pairs, QoS 1, 256 B, saturated",
            Throughput,
            "-p 100 -s 100 -q 1 --inflight 100 --coalesce-us 500",
        ),
        flow(
            "one-to-one-qos2",
            "100 pairs, QoS 2, 256 B, saturated",
            Throughput,
            "-p 100 -s 100 -q 2 --inflight 100 --coalesce-us 500",
        ),
        flow(
            "fan-out",
            "1 publisher, 1,000 subscribers, QoS 0, 256 B, saturated",
            Throughput,
            "-p 1 -s 1000 --topology fan-out -q 0 --max-outstanding 100000 --coalesce-us 500",
        ),
        flow(
            "fan-out-single",
            "1 publisher, 1,000 subscribers, QoS 0, 256 B, one message at a time",
            Throughput,
            "-p 1 -s 1000 --topology fan-out -q 0 --max-outstanding 1000",
        ),
        flow(
            "fan-in",
            "100 publishers, 1 subscriber, QoS 1, 256 B, saturated",
            Throughput,
            "-p 100 -s 1 --topology fan-in -q 1 --inflight 100 --coalesce-us 500",
        ),
        flow(
            "shared",
            "100 publishers, 100 members of one shared subscription, QoS 1, 256 B, saturated",
            Throughput,
            "-V 5 -p 100 -s 100 --topology shared -q 1 --inflight 100 --coalesce-us 500",
        ),
        flow("latency", "50 pairs, QoS 1, 256 B, 2,000 messages/s", Latency, "-p 50 -s 50 -q 1 -R 2000"),
        flow("latency-window-1", "1 pair, QoS 1, 256 B, window 1", Latency, "-p 1 -s 1 -q 1 --inflight 1"),
        clients("connect-subscribe", "connect and subscribe to one unique wildcard filter", Connect),
        clients("idle-memory", "idle connections with one unique wildcard subscription each", Memory),
    ]
}

fn split(arguments: &str) -> Vec<String> {
    arguments.split_whitespace().map(str::to_string).collect()
}

impl Workload {
    /// As a person would type it beside a broker on the usual port.
    pub fn command_line(&self) -> String {
        let quoted: Vec<String> = self
            .arguments
            .iter()
            .map(|a| if a.contains(['#', '%', '*', '$']) { format!("'{a}'") } else { a.clone() })
            .collect();
        format!("mqload {} -H 127.0.0.1:1883 --broker-pid $PID", quoted.join(" "))
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
}
