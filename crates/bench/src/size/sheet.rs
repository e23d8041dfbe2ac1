//! The computation of a deployment's resources.

use super::Options;
use super::measured::{
    CONNECT, CONNECTION, CONNECTION_TLS, FAN_OUT, HANDSHAKE, KERNEL, MESSAGE_ALONE, MESSAGE_BUSY, Measured,
};
use serde_json::{Value, json};
use std::fmt;

/// Resources of a deployment: totals, unless a name says otherwise.
pub struct Sheet {
    options: Options,
    broker_bytes: f64,
    kernel_bytes: f64,
    /// Number of cores: with busy connections, and with messages that arrive alone.
    cores: (f64, f64),
    bits_in: f64,
    bits_out: f64,
    nodes: u64,
    needed: u64,
    /// CPU seconds until all clients have reconnected.
    return_cpu_s: f64,
    used: Vec<&'static Measured>,
}

/// Shares of a machine's CPU and memory that a plan may use: the rest is for bursts, queues and the loss of a node.
const CPU_SHARE: f64 = 0.5;
const MEMORY_SHARE: f64 = 0.5;
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
        let mut return_us = CONNECT.value;
        if o.tls {
            used.extend([&CONNECTION_TLS, &HANDSHAKE]);
            each += CONNECTION_TLS.value;
            return_us += HANDSHAKE.value;
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
        let by_cpu = cores.1 / (o.node_cores as f64 * CPU_SHARE);
        let by_memory = (broker_bytes + kernel_bytes) / (o.node_memory as f64 * GIB * MEMORY_SHARE);
        let needed = by_cpu.max(by_memory).ceil().max(1.0) as u64;
        let nodes = match (o.nodes, needed) {
            (0, 1) => 1,
            (0, needed) => needed + 1,
            (nodes, _) => nodes,
        };
        Sheet {
            broker_bytes,
            kernel_bytes,
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
        self.nodes >= self.needed
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
        row("CPU, busy", self.cores.0, &|cores| format!("{cores:.2} cores"))?;
        row("CPU, at most", self.cores.1, &|cores| format!("{cores:.2} cores"))?;
        row("traffic in", self.bits_in, &mbit)?;
        row("traffic out", self.bits_out, &mbit)?;
        row("descriptors", o.clients as f64, &|count| format!("{:.0}", count.ceil()))?;
        writeln!(
            f,
            "\nnodes       {} of {} cores and {} GiB ({} by the figures above, at most half of each machine used{})",
            self.nodes,
            o.node_cores,
            o.node_memory,
            self.needed,
            if self.nodes > self.needed { ", the others to spare" } else { "" }
        )?;
        writeln!(f, "restart     {:.1} s of all their CPU until every client is back", self.return_s())?;
        if !self.fits() {
            writeln!(
                f,
                "PROBLEM     {} nodes are too few: --nodes {} or larger machines",
                self.nodes, self.needed
            )?;
        }
        if self.nodes > 1 {
            writeln!(
                f,
                "note        clients are taken to be divided evenly, and messages to stay on their node"
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
        assert_eq!((s.nodes, s.needed, s.fits()), (1, 1, true));
        assert_eq!(s.broker_bytes, 7_150_000.0);
        assert!((s.cores.0 - 0.00046).abs() < 1e-12 && (s.cores.1 - 0.031).abs() < 1e-12);
        let text = s.to_string();
        assert!(text.contains("each of 1") && text.contains("mqload") && !text.contains("PROBLEM"), "{text}");
    }

    #[test]
    fn nodes_follow_the_scarce_resource() {
        let memory = sheet("--clients 100000000 --rate 0 --node-cores 64");
        assert_eq!(memory.needed, 58, "491.5 GB over 8.6 GB each");
        assert_eq!(memory.nodes, 59, "and one to spare");
        let cpu = sheet("--clients 1 --rate 1000000 --node-cores 8");
        assert_eq!(cpu.needed, 8, "31 cores over 4 each");
        let few = sheet("--clients 1 --rate 1000000 --nodes 2");
        assert!(!few.fits() && few.to_string().contains("--nodes 8"));
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
