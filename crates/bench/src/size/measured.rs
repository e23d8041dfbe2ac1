//! Measurements, each with its command and date. `docs/benchmarks.md` and `docs/tuning.md` describe the machine.

/// A measurement that a sheet is computed from.
pub struct Measured {
    pub what: &'static str,
    pub value: f64,
    pub unit: &'static str,
    pub command: &'static str,
    /// Year, month, day.
    pub date: &'static str,
}

pub const CONNECTION: Measured = Measured {
    what: "broker memory of an idle connection with one subscription, 15,000 of them",
    value: 715.0,
    unit: "bytes",
    command: "cargo xtask bench --seconds 5 --rounds 3",
    date: "2026-11-21",
};

pub const CONNECTION_TLS: Measured = Measured {
    what: "what TLS 1.3 adds to it",
    value: 3441.0,
    unit: "bytes",
    command: "cargo run -p edge --example layers -- 1000",
    date: "2026-11-21",
};

pub const KERNEL: Measured = Measured {
    what: "kernel memory of one end of a connection, growth of Slab: over 9,000",
    value: 4200.0,
    unit: "bytes",
    command: "grep Slab: /proc/meminfo, before and after meridian bench conn -c 9000",
    date: "2026-11-21",
};

/// CPU of small messages that arrive one by one, each with its own system calls: the cost of many clients that rarely
/// send.
pub const MESSAGE_ALONE: Measured = Measured {
    what: "CPU of a QoS 1 message that comes alone, in and out",
    value: 31.0,
    unit: "us",
    command: "mqload pubsub -p 50 -s 50 -q 1 -R 2000 -l 256",
    date: "2026-11-21",
};

/// CPU of messages on a busy broker, by QoS: many messages share a system call.
pub const MESSAGE_BUSY: [Measured; 3] = [
    Measured {
        what: "CPU of a QoS 0 delivery when 100 pairs send as fast as they can",
        value: 0.43,
        unit: "us",
        command: "mqload pubsub -p 100 -s 100 -q 0 --max-outstanding 20000 -l 256",
        date: "2026-11-21",
    },
    Measured {
        what: "CPU of a QoS 1 delivery when 100 pairs send as fast as they can",
        value: 0.46,
        unit: "us",
        command: "mqload pubsub -p 100 -s 100 -q 1 --inflight 100 -l 256",
        date: "2026-11-21",
    },
    Measured {
        what: "CPU of a QoS 2 delivery when 100 pairs send as fast as they can",
        value: 0.64,
        unit: "us",
        command: "mqload pubsub -p 100 -s 100 -q 2 --inflight 100 -l 256",
        date: "2026-11-21",
    },
];

pub const FAN_OUT: Measured = Measured {
    what: "CPU of a further delivery of a message that comes alone, QoS 0, 1,000 subscribers",
    value: 4.5,
    unit: "us",
    command: "mqload pubsub -p 1 -s 1000 --topology fan-out -q 0 --max-outstanding 1000 -l 256",
    date: "2026-11-21",
};

pub const CONNECT: Measured = Measured {
    what: "CPU of a client that connects and subscribes",
    value: 31.3,
    unit: "us",
    command: "mqload sub -c 15000 -R 0 -T 'bench/%i/#' -q 1",
    date: "2026-11-21",
};

/// Memory of a node for a subscription of a client on another node.
pub const ROUTE: Measured = Measured {
    what: "memory of each node of a cluster for a filter of a client on another node, which nobody else has",
    value: 283.0,
    unit: "bytes",
    command: "cargo xtask cluster-bench --only routes",
    date: "2026-11-24",
};

pub const OWNER: Measured = Measured {
    what: "memory of each replica for the owner of a Client Identifier without a durable session",
    value: 84.0,
    unit: "bytes",
    command: "cargo run --release -p shard --example memory",
    date: "2026-11-27",
};

/// Replaces [`CONNECT`] in a cluster.
pub const CONNECT_CLUSTER: Measured = Measured {
    what: "CPU of all nodes of a cluster of 3 cores and 2 replicants for a client that connects and subscribes",
    value: 122.5,
    unit: "us",
    command: "cargo xtask cluster-bench --only subscribe",
    date: "2026-11-24",
};

pub const HANDSHAKE: Measured = Measured {
    what: "CPU of a full handshake of TLS 1.3 with CONNECT",
    value: 210.0,
    unit: "us",
    command: "cargo xtask door --seconds 3 --rounds 3 --connections 2000",
    date: "2026-11-21",
};
