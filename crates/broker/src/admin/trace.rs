//! Live traces of the events of one client, of some topics, or of one network.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

use mqtt::{QoS, TopicFilter, TopicName};

use super::client::is_within;
use crate::ids::{Time, WorkerId};

/// Maximum number of traces at one time.
const TRACES_MAX: usize = 8;
/// Maximum number of events a second for one trace on one worker.
const EVENTS_PER_SECOND: u32 = 2000;

/// Subject of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceSubject {
    /// Events of one Client Identifier.
    Client(String),
    /// PUBLISH packets in both directions on topics that match the filter.
    Topic(String),
    /// Events of addresses in a network, given by its address and prefix length in bits.
    Network(IpAddr, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceKind {
    Connect,
    ConnAck,
    Publish(Direction),
    /// Any other packet.
    Packet(Direction),
    Subscribe,
    Unsubscribe,
    /// The client or the node ended the connection.
    Disconnect,
    /// A message that a client does not get.
    Dropped,
}

#[derive(Clone, Debug)]
pub struct TraceEvent {
    pub at: Time,
    pub kind: TraceKind,
    pub client_id: Arc<str>,
    pub address: Option<SocketAddr>,
    pub worker: WorkerId,
    pub topic: Option<Box<str>>,
    pub qos: Option<QoS>,
    pub retain: bool,
    pub packet_id: Option<u16>,
    pub payload_bytes: Option<usize>,
    /// First bytes of the payload, at most as many as the trace asked for.
    pub payload: Vec<u8>,
    pub reason_code: Option<u8>,
    /// Description in one line, for people.
    pub detail: String,
}

/// Handle of a trace. Dropping it ends the trace.
pub struct Trace {
    id: u64,
    lost: Arc<AtomicU64>,
    end: Box<dyn Fn(u64) + Send + Sync>,
}

impl Trace {
    pub(super) fn new((id, lost): (u64, Arc<AtomicU64>), end: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { id, lost, end: Box::new(end) }
    }

    /// Returns the number of events that were discarded so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        (self.end)(self.id);
    }
}

type Sink = Box<dyn Fn(TraceEvent) -> bool + Send + Sync>;

/// All running traces.
#[derive(Default)]
pub(crate) struct Traces {
    running: Mutex<(u64, Arc<[Arc<Running>]>)>,
    count: AtomicUsize,
    /// Number of events that ended traces lost.
    lost: AtomicU64,
}

/// A running trace, shared by the workers.
pub(crate) struct Running {
    id: u64,
    subject: TraceSubject,
    payload_max: usize,
    sink: Sink,
    lost: Arc<AtomicU64>,
}

impl Traces {
    pub fn begin(
        &self,
        subject: TraceSubject,
        payload_max: usize,
        sink: Sink,
    ) -> Option<(u64, Arc<AtomicU64>)> {
        let mut running = sync::lock(&self.running);
        if running.1.len() >= TRACES_MAX {
            return None;
        }
        running.0 += 1;
        let (id, lost) = (running.0, Arc::<AtomicU64>::default());
        let new = Arc::new(Running { id, subject, payload_max, sink, lost: lost.clone() });
        running.1 = running.1.iter().cloned().chain([new]).collect();
        self.count.store(running.1.len(), Relaxed);
        Some((id, lost))
    }

    pub fn end(&self, id: u64) {
        let mut running = sync::lock(&self.running);
        let ended: u64 =
            running.1.iter().filter(|trace| trace.id == id).map(|trace| trace.lost.load(Relaxed)).sum();
        self.lost.fetch_add(ended, Relaxed);
        running.1 = running.1.iter().filter(|trace| trace.id != id).cloned().collect();
        self.count.store(running.1.len(), Relaxed);
    }

    pub fn current(&self) -> Arc<[Arc<Running>]> {
        sync::lock(&self.running).1.clone()
    }

    pub fn running(&self) -> usize {
        self.count.load(Relaxed)
    }

    pub fn lost(&self) -> u64 {
        let running: u64 = self.current().iter().map(|trace| trace.lost.load(Relaxed)).sum();
        self.lost.load(Relaxed) + running
    }
}

/// One worker's view of the traces. **Invariant:** a worker has one only while there are traces.
pub(crate) struct Tracing {
    traces: Vec<(Arc<Running>, Budget)>,
}

#[derive(Clone, Copy, Default)]
struct Budget {
    second: u64,
    spent: u32,
}

/// Client, address and topic that an event is about.
#[derive(Clone, Copy)]
pub(crate) struct EventContext<'a> {
    pub client_id: &'a Arc<str>,
    pub address: Option<SocketAddr>,
    /// Topic, if the event is about a PUBLISH or a delivery.
    pub topic: Option<&'a str>,
}

impl Tracing {
    pub fn of(list: &[Arc<Running>]) -> Option<Box<Self>> {
        let traces: Vec<_> = list.iter().map(|trace| (trace.clone(), Budget::default())).collect();
        (!traces.is_empty()).then(|| Box::new(Self { traces }))
    }

    /// Passes an event to all traces that it concerns. `event` gets the number of payload bytes to include.
    pub fn note(&mut self, now: Time, about: EventContext<'_>, event: impl Fn(usize) -> TraceEvent) {
        for (trace, budget) in &mut self.traces {
            if !trace.concerns(about) {
                continue;
            }
            let second = now.0 / 1000;
            if budget.second != second {
                *budget = Budget { second, spent: 0 };
            }
            budget.spent += 1;
            if budget.spent > EVENTS_PER_SECOND || !(trace.sink)(event(trace.payload_max)) {
                trace.lost.fetch_add(1, Relaxed);
            }
        }
    }
}

impl Running {
    fn concerns(&self, about: EventContext<'_>) -> bool {
        match &self.subject {
            TraceSubject::Client(client_id) => **about.client_id == **client_id,
            TraceSubject::Topic(filter) => about.topic.is_some_and(|topic| {
                let (filter, topic) = (TopicFilter::parse(filter), TopicName::parse(topic));
                matches!((filter, topic), (Ok(filter), Ok(topic)) if filter.matches(topic))
            }),
            TraceSubject::Network(network, bits) => {
                about.address.is_some_and(|address| is_within(address.ip(), *network, *bits))
            }
        }
    }
}
