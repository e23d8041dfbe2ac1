//! The computation of a deployment's resources.

use super::Options;
use super::measured::{
    CONNECT, CONNECT_CLUSTER, CONNECTION, CONNECTION_TLS, FAN_OUT, HANDSHAKE, KERNEL, MESSAGE_ALONE,
    MESSAGE_BUSY, Measured, OWNER, ROUTE,
};
use serde_json::{Value, json};
use std::fmt;

/// Resources of a deployment: totals, unless a name says otherwise.
pub struct Sheet {
    options: Options,
    broker_bytes: f64,
    kernel_bytes: f64,
    /// Subscriptions of clients on other nodes, and owners of Client Identifiers.
    routes_bytes: f64,
    owners_bytes: f64,
    /// Number of cores: with busy connections, and with messages that arrive alone.
    cores: (f64, f64),
    bits_in: f64,
    bits_out: f64,
    nodes: u64,
    /// `None` if no number of nodes is enough.
    needed: Option<u64>,
    /// CPU seconds until all clients have reconnected.
    return_cpu_s: f64,
    used: Vec<&'static Measured>,
}

/// Share of a machine's CPU that a plan may use: the rest is for bursts and the loss of a node.
const CPU_SHARE: f64 = 0.5;
/// Maximum number of nodes that are tried. Each knows the subscriptions of all, so more of them may not help.
const NODES_MAX: u64 = 10_000;
/// Overhead of Ethernet, IPv4 and TCP with timestamps per packet, and maximum payload of a packet.
const WIRE: f64 = 14.0 + 4.0 + 20.0 + 32.0;
const SEGMENT: f64 = 1448.0;
/// Overhead of TLS 1.3 per record.
const RECORD: f64 = 22.0;
const GIB: f64 = 1_073_741_824.0;

impl Sheet {
    pub fn new(options: &Options) -> Sheet {
        let o = options.clone();
        let (clients, rate) = (o.clients as f64, o.rate as f64);
        let mut used =
            vec![&CONNECTION, &KERNEL, &MESSAGE_ALONE, &MESSAGE_BUSY[usize::from(o.qos)], &CONNECT];
        let mut each = CONNECTION.value;
        if o.tls {
            used.extend([&CONNECTION_TLS, &HANDSHAKE]);
            each += CONNECTION_TLS.value;
        }
        let (busy, alone) = (&MESSAGE_BUSY[usize::from(o.qos)], MESSAGE_ALONE.value);
        // The cost of a lone message was measured at QoS 1; other QoS are scaled by the ratio measured when busy.
        let first = alone * busy.value / MESSAGE_BUSY[1].value;
        let further = o.fan_out.saturating_sub(1) as f64;
        if further > 0.0 {
            used.push(&FAN_OUT);
        }
        let alone_us = first + further * FAN_OUT.value;
        let busy_us = busy.value * o.fan_out.max(1) as f64;
        let cores = (rate * busy_us / 1e6, rate * alone_us / 1e6);
        let (out, back) = traffic(&o);
        let bits_in = rate * (out + o.fan_out as f64 * back) * 8.0;
        let bits_out = rate * (back + o.fan_out as f64 * out) * 8.0;
        let broker_bytes = clients * each;
        let kernel_bytes = clients * KERNEL.value;
        let cluster_bytes = |nodes: u64| {
            let routes = clients * (nodes - 1) as f64 * ROUTE.value;
            let owners = if nodes > 1 { clients * nodes.min(o.replicas) as f64 * OWNER.value } else { 0.0 };
            (routes, owners)
        };
        let share = o.node_memory as f64 * GIB * o.memory_share as f64 / 100.0;
        let suffices = |nodes: &u64| {
            let (routes, owners) = cluster_bytes(*nodes);
            (broker_bytes + kernel_bytes + routes + owners) / *nodes as f64 <= share
        };
        // More nodes always help against a lack of CPU.
        let by_cpu = (cores.1 / (o.node_cores as f64 * CPU_SHARE)).ceil().max(1.0) as u64;
        let needed = (by_cpu..=by_cpu.max(NODES_MAX)).find(suffices);
        let nodes = match (o.nodes, needed) {
            (0, Some(1)) => 1,
            (0, Some(needed)) => needed + 1,
            (0, None) => by_cpu.max(NODES_MAX),
            (nodes, _) => nodes,
        };
        let (routes_bytes, owners_bytes) = cluster_bytes(nodes);
        let mut return_us = CONNECT.value;
        if nodes > 1 {
            used.retain(|known| known.what != CONNECT.what);
            used.extend([&ROUTE, &OWNER, &CONNECT_CLUSTER]);
            return_us = CONNECT_CLUSTER.value;
        }
        if o.tls {
            return_us += HANDSHAKE.value;
        }
        Sheet {
            broker_bytes,
            kernel_bytes,
            routes_bytes,
            owners_bytes,
            cores,
            bits_in,
            bits_out,
            nodes,
            needed,
            return_cpu_s: clients * return_us / 1e6,
            used,
            options: o,
        }
    }

    /// Returns whether the nodes are enough.
    pub fn fits(&self) -> bool {
        self.needed.is_some_and(|needed| self.nodes >= needed)
    }

    fn per_node(&self, all: f64) -> f64 {
        all / self.nodes as f64
    }

    /// Seconds until all clients have reconnected after a restart, with the CPU of all nodes.
    fn return_s(&self) -> f64 {
        self.return_cpu_s / (self.nodes * self.options.node_cores) as f64
    }
}

/// Bytes on the wire of a PUBLISH in one direction, and of its acknowledgements in both directions together.
fn traffic(o: &Options) -> (f64, f64) {
    let record = if o.tls { RECORD } else { 0.0 };
    let on_wire = |bytes: f64| bytes + record + ((bytes + record) / SEGMENT).ceil() * WIRE;
    let id = if o.qos > 0 { 2.0 } else { 0.0 };
    let publish = on_wire(1.0 + 3.0 + 2.0 + o.topic as f64 + id + 1.0 + o.payload as f64);
    let acknowledgement = on_wire(4.0);
    match o.qos {
        0 => (publish, 0.0),
        1 => (publish, acknowledgement),
        // PUBREL has the direction of the PUBLISH, PUBREC and PUBCOMP the other.
        _ => (publish + acknowledgement, 2.0 * acknowledgement),
    }
}

impl fmt::Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let o = &self.options;
        let gib = |bytes: f64| format!("{:.2} GiB", bytes / GIB);
        let mbit = |bits: f64| format!("{:.1} Mbit/s", bits / 1e6);
        writeln!(
            f,
            "asked for   {} clients{}, {} messages/s of {} bytes at QoS {}, each to {} subscribers",
            o.clients,
            if o.tls { " by TLS" } else { "" },
            o.rate,
            o.payload,
            o.qos,
            o.fan_out
        )?;
        writeln!(f, "\n{:<12}{:>18}{:>18}", "", "together", format!("each of {}", self.nodes))?;
        let mut row = |name: &str, all: f64, show: &dyn Fn(f64) -> String| {
            writeln!(f, "{name:<12}{:>18}{:>18}", show(all), show(self.per_node(all)))
        };
        row("broker", self.broker_bytes, &gib)?;
        row("kernel", self.kernel_bytes, &gib)?;
        if self.nodes > 1 {
            row("routes", self.routes_bytes, &gib)?;
            row("owners", self.owners_bytes, &gib)?;
        }
        row("CPU, busy", self.cores.0, &|cores| format!("{cores:.2} cores"))?;
        row("CPU, at most", self.cores.1, &|cores| format!("{cores:.2} cores"))?;
        row("traffic in", self.bits_in, &mbit)?;
        row("traffic out", self.bits_out, &mbit)?;
        row("descriptors", o.clients as f64, &|count| format!("{:.0}", count.ceil()))?;
        let needed =
            self.needed.map_or("no number is enough".to_owned(), |needed| format!("{needed} needed"));
        writeln!(
            f,
            "\nnodes       {} of {} cores and {} GiB ({needed}; at most {} % of the memory and half of the CPU of each are used{})",
            self.nodes,
            o.node_cores,
            o.node_memory,
            o.memory_share,
            if self.needed.is_some_and(|needed| self.nodes > needed) {
                ", the others are to spare"
            } else {
                ""
            }
        )?;
        writeln!(f, "restart     {:.1} s of all their CPU until every client is back", self.return_s())?;
        if !self.fits() {
            match self.needed {
                Some(needed) => {
                    let few = self.nodes;
                    writeln!(f, "PROBLEM     {few} nodes are too few: --nodes {needed} or larger machines")?;
                }
                None => writeln!(
                    f,
                    "PROBLEM     each node knows the subscriptions of all clients: larger machines, or a greater --memory-share"
                )?,
            }
        }
        if self.nodes > 1 {
            writeln!(
                f,
                "note        clients are taken to be divided evenly, each with one subscription that nobody else has, and messages to stay \
                 on their node"
            )?;
        }
        writeln!(
            f,
            "note        CPU is for payloads of 256 bytes; \"busy\" is when many messages share a system call, \"at most\" when each comes \
             alone; queues, retained messages and disks come on top (docs/tuning.md)\n\nmeasured"
        )?;
        for measured in &self.used {
            let Measured { what, value, unit, command, date } = measured;
            writeln!(f, "  {value} {unit}: {what} ({date}, `{command}`)")?;
        }
        Ok(())
    }
}

impl From<&Sheet> for Value {
    fn from(s: &Sheet) -> Value {
        let measured = s.used.iter().map(|m| {
            json!({ "what": m.what, "value": m.value, "unit": m.unit, "command": m.command, "date": m.date })
        });
        json!({
            "clients": s.options.clients, "rate": s.options.rate, "payload": s.options.payload, "qos": s.options.qos,
            "fan_out": s.options.fan_out, "tls": s.options.tls,
            "broker_bytes": s.broker_bytes, "kernel_bytes": s.kernel_bytes,
            "routes_bytes": s.routes_bytes, "owners_bytes": s.owners_bytes,
            "cores_busy": s.cores.0, "cores_at_most": s.cores.1,
            "bits_in_per_s": s.bits_in, "bits_out_per_s": s.bits_out,
            "nodes": s.nodes, "nodes_needed": s.needed, "fits": s.fits(), "restart_s": s.return_s(),
            "measured": measured.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::Options;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn sheet(line: &str) -> Sheet {
        let words = std::iter::once("size").chain(line.split_whitespace());
        Sheet::new(&Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).options)
    }

    #[test]
    fn a_small_deployment_is_one_node() {
        let s = sheet("--clients 10000 --rate 1000");
        assert_eq!((s.nodes, s.needed, s.fits()), (1, Some(1), true));
        assert_eq!((s.routes_bytes, s.owners_bytes), (0.0, 0.0));
        assert_eq!(s.broker_bytes, 7_150_000.0);
        assert!((s.cores.0 - 0.00046).abs() < 1e-12 && (s.cores.1 - 0.031).abs() < 1e-12);
        let text = s.to_string();
        assert!(text.contains("each of 1") && text.contains("mqload") && !text.contains("PROBLEM"), "{text}");
    }

    #[test]
    fn nodes_follow_the_scarce_resource() {
        let memory = sheet("--clients 10000000 --node-cores 64");
        // 49.15 GB for the connections, 2.52 GB for the owners, and 2.83 GB of routes on each node but its own share.
        assert_eq!((memory.needed, memory.nodes), (Some(9), 10), "8.6 GB each, and one to spare");
        let many = sheet("--clients 100000000");
        assert_eq!((many.needed, many.fits()), (None, false), "28 GB of routes on each node");
        assert!(many.to_string().contains("--memory-share"));
        let cpu = sheet("--clients 1 --rate 1000000 --node-cores 8");
        assert_eq!(sheet("--clients 1 --rate 1000000000 --node-cores 4").needed, Some(15_500));
        assert_eq!(cpu.needed, Some(8), "31 cores over 4 each");
        let few = sheet("--clients 1 --rate 1000000 --nodes 2");
        assert!(!few.fits() && few.to_string().contains("--nodes 8"));
    }

    /// Experiment E2: 100 million clients on six nodes of 128 GiB.
    #[test]
    fn a_hundred_million_clients_fit_six_large_nodes() {
        let s = sheet("--clients 100000000 --nodes 6 --node-memory 128 --memory-share 85");
        assert!(s.fits(), "{s}");
        assert!(!sheet("--clients 100000000 --nodes 5 --node-memory 128 --memory-share 85").fits());
        assert_eq!(s.options.clients, sheet("--clients 100M").options.clients);
        for wrong in ["0", "M", "1.5M", "1001M", "-1"] {
            assert!(Line::try_parse_from(["size", "--clients", wrong]).is_err(), "{wrong}");
        }
        let alone = sheet("--clients 1k --replicas 0 --nodes 2");
        assert_eq!((alone.routes_bytes, alone.owners_bytes), (283_000.0, 0.0));
    }

    /// Sizes of a message of QoS 1: 1 + 3 + 2 + 32 + 2 + 1 + 256 bytes in a packet; its acknowledgement is a packet
    /// of 4.
    #[test]
    fn traffic_includes_the_overhead_of_a_payload() {
        let s = sheet("--clients 1 --rate 1");
        assert_eq!(s.bits_in, (297.0 + WIRE + 4.0 + WIRE) * 8.0);
        assert_eq!(s.bits_in, s.bits_out, "one subscriber: input equals output");
        let nobody = sheet("--clients 1 --rate 1 --fan-out 0 -q 0");
        assert_eq!((nobody.bits_in, nobody.bits_out), ((295.0 + WIRE) * 8.0, 0.0));
    }

    #[test]
    fn tls_costs_memory_and_time_to_reconnect() {
        let (plain, tls) = (sheet("--clients 1000 --rate 1"), sheet("--clients 1000 --rate 1 --tls"));
        assert_eq!(tls.broker_bytes - plain.broker_bytes, 3_441_000.0);
        assert!((tls.return_s() - plain.return_s() * 241.3 / 31.3).abs() < 1e-9);
        let json = Value::from(&tls);
        assert!(json["measured"].as_array().unwrap().iter().all(|m| m["date"].as_str().unwrap().len() == 10));
    }
}
