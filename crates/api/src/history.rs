//! The node's main figures over the last hour: a sample every five seconds, in memory.
//!
//! [`History`] holds the samples, [`Sampler`] takes them, and a [`HistoryView`] is what the API answers: for one node,
//! or the sum over the nodes of a cluster.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use broker::Figure;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::alarm_events::ActiveAlarms;
use crate::alarms;
use crate::process::ProcessFigures;
use crate::state::State;
use crate::timestamp::Timestamp;

/// Seconds from one sample to the next.
pub const STEP_S: u64 = 5;
/// Number of samples that are kept: those of an hour.
pub const SAMPLES_MAX: usize = 720;
/// Maximum number of reasons for dropped messages in a sample.
const REASONS_MAX: usize = 12;

/// The ring is allocated once and never grows; docs/operations.md states its size.
const _: () = assert!(SAMPLES_MAX * size_of::<Sample>() == 90 * 1024);

/// Function that combines the figures of two nodes.
type Join = fn(f64, f64) -> f64;

const SUM: Join = |one, other| one + other;
const LARGEST: Join = f64::max;

macro_rules! figures {
    ($($(#[doc = $doc:literal])+ $name:ident: $join:ident,)+) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        struct Figures {
            $($name: f32,)+
        }

        /// Lists of figures, oldest first, with a value for each step; null where there is no sample. Rates are per
        /// second, over one step.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
        pub struct Series {
            $($(#[doc = $doc])+ pub $name: Vec<Option<f64>>,)+
            /// `dropped_per_s` by reason, without reasons that have dropped nothing.
            pub dropped_per_s_by_reason: BTreeMap<String, Vec<Option<f64>>>,
        }

        impl Series {
            fn push(&mut self, sample: Option<&Figures>) {
                $(self.$name.push(sample.map(|sample| rounded(sample.$name)));)+
            }

            /// Adds the series of another node.
            fn join(&mut self, other: &Self, at: Offset) {
                $(join_lists(&mut self.$name, &other.$name, at, $join);)+
            }

            fn of_length(steps: usize) -> Self {
                Self { $($name: vec![None; steps],)+ dropped_per_s_by_reason: BTreeMap::new() }
            }
        }
    };
}

figures! {
    /// Connected clients.
    connections: SUM,
    /// Durable sessions.
    sessions: SUM,
    /// Messages received from clients.
    messages_received_per_s: SUM,
    /// Messages sent to clients.
    messages_sent_per_s: SUM,
    /// Bytes of all packets received from clients.
    bytes_received_per_s: SUM,
    /// Bytes of all packets sent to clients.
    bytes_sent_per_s: SUM,
    /// Packets received from clients.
    packets_received_per_s: SUM,
    /// Packets sent to clients.
    packets_sent_per_s: SUM,
    /// Dropped messages.
    dropped_per_s: SUM,
    /// Messages that wait for clients.
    queued_messages: SUM,
    /// Bytes of messages that wait for clients, including those in flight to durable sessions.
    queued_bytes: SUM,
    /// Part of `queued_bytes` for clients that are not connected.
    offline_bytes: SUM,
    /// Resident memory of the process.
    resident_bytes: SUM,
    /// CPUs that the process kept busy.
    cpus_busy: SUM,
    /// Number of reactors.
    reactors: SUM,
    /// Number of busy reactors: the sum of the share of time that each did not wait.
    reactors_busy: SUM,
    /// Share of time that the busiest reactor did not wait, 0 to 1.
    reactor_busiest: LARGEST,
}

/// Figures of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    /// Number of whole steps from 1970 to its end.
    step: u64,
    figures: Figures,
    /// Dropped messages per second, in the order of [`Ring::reasons`].
    dropped: [f32; REASONS_MAX],
}

/// Samples of the last hour.
#[derive(Debug, Default)]
pub struct History(Mutex<Ring>);

#[derive(Debug)]
struct Ring {
    /// Samples, oldest first; their steps increase.
    samples: VecDeque<Sample>,
    reasons: Vec<&'static str>,
}

impl Default for Ring {
    fn default() -> Self {
        Self { samples: VecDeque::with_capacity(SAMPLES_MAX), reasons: Vec::new() }
    }
}

impl Ring {
    fn push(&mut self, sample: Sample) {
        let behind = self.samples.back().map_or(0, |last| (last.step + 1).saturating_sub(sample.step));
        // The clock was set back: samples keep their distances, and none is in the future.
        self.samples.iter_mut().for_each(|earlier| earlier.step = earlier.step.saturating_sub(behind));
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// Returns the last `steps` steps, up to that of the last sample.
    fn view(&self, node: &str, steps: usize) -> HistoryView {
        let mut view = HistoryView::empty(node);
        let Some(last) = self.samples.back().map(|last| last.step) else { return view };
        let from = last.saturating_sub(steps as u64 - 1);
        let mut samples = self.samples.iter().filter(|sample| sample.step >= from).peekable();
        let first = samples.peek().map_or(last, |sample| sample.step);
        view.until = Some(time_of(last));
        let mut dropped: Vec<Vec<Option<f64>>> = vec![Vec::new(); self.reasons.len()];
        for step in first..=last {
            let sample = samples.next_if(|sample| sample.step == step);
            view.summed.push(u32::from(sample.is_some()));
            view.series.push(sample.map(|sample| &sample.figures));
            for (values, index) in dropped.iter_mut().zip(0..) {
                values.push(sample.and_then(|sample| sample.dropped.get(index)).copied().map(rounded));
            }
        }
        view.series.dropped_per_s_by_reason = self
            .reasons
            .iter()
            .map(|reason| (*reason).to_owned())
            .zip(dropped)
            .filter(|(_, values)| values.iter().flatten().any(|value| *value > 0.0))
            .collect();
        view
    }
}

impl History {
    fn push(&self, sample: Sample, reasons: Vec<&'static str>) {
        let mut ring = sync::lock(&self.0);
        ring.reasons = reasons;
        ring.push(sample);
    }

    /// Returns the last `steps` steps of this node, whose name is `node`.
    pub fn view(&self, node: &str, steps: usize) -> HistoryView {
        sync::lock(&self.0).view(node, steps.clamp(1, SAMPLES_MAX))
    }
}

/// Rounds to three decimals, which is more than the precision of a sample of a few seconds.
fn rounded(value: f32) -> f64 {
    (f64::from(value) * 1000.0).round() / 1000.0
}

fn time_of(step: u64) -> Timestamp {
    Timestamp::of_ms(step.saturating_mul(STEP_S * 1000))
}

/// First step that two lists share: its index in each.
#[derive(Clone, Copy)]
struct Offset {
    list: usize,
    other: usize,
}

fn join_lists(list: &mut [Option<f64>], other: &[Option<f64>], at: Offset, join: Join) {
    for (value, other) in list.iter_mut().skip(at.list).zip(other.iter().skip(at.other)) {
        *value = match (*value, *other) {
            (Some(one), Some(other)) => Some(join(one, other)),
            (one, other) => one.or(other),
        };
    }
}

/// Main figures of the last hour, of one node or the sum of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = History))]
pub struct HistoryView {
    /// Seconds from one step to the next.
    pub step_s: u64,
    /// End of the last step; null while there is no sample.
    pub until: Option<Timestamp>,
    /// Nodes that answered, by name.
    pub nodes: Vec<String>,
    /// Nodes of the cluster that did not answer. Their figures are in no sum, not even in those of earlier steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "document", schema(required = false))]
    pub missing: Vec<String>,
    /// Number of nodes that have a sample of the step, oldest first. A node that started later has none.
    pub summed: Vec<u32>,
    pub series: Series,
}

/// Maximum difference between the last steps of two nodes, in steps. Beyond it their clocks differ, and their last
/// samples are taken to be of the same time.
const STEPS_APART_MAX: u64 = 2;

impl HistoryView {
    fn empty(node: &str) -> Self {
        let nodes = vec![node.to_owned()];
        Self {
            step_s: STEP_S,
            until: None,
            nodes,
            missing: Vec::new(),
            summed: Vec::new(),
            series: Series::default(),
        }
    }

    /// Adds up the histories of nodes. The clock of the first node dates the sum. The sum ends with the last step for
    /// which every node has a sample. Nodes that are too late are left out.
    pub fn sum(each: Vec<Self>, missing: Vec<String>) -> Self {
        let mut nodes: Vec<String> = each.iter().flat_map(|view| view.nodes.clone()).collect();
        nodes.sort();
        let mut sum = Self { nodes, missing, ..Self::empty("") };
        let mut aligned: Vec<(u64, Self)> = Vec::new();
        for view in each {
            let (Some(last), true) = (view.last(), view.is_whole()) else { continue };
            let own = aligned.first().map_or(last, |(own, _)| *own);
            aligned.push((if last.abs_diff(own) > STEPS_APART_MAX { own } else { last }, view));
        }
        let Some(last) = aligned.iter().map(|(last, _)| *last).min() else { return sum };
        let first_of = |(last, view): &(u64, Self)| (last + 1).saturating_sub(view.summed.len() as u64);
        let first = aligned.iter().map(first_of).min().unwrap_or(last);
        let steps = usize::try_from((last + 1).saturating_sub(first)).unwrap_or(0).min(SAMPLES_MAX);
        let first = last + 1 - steps as u64;
        sum.until = Some(time_of(last));
        sum.summed = vec![0; steps];
        sum.series = Series::of_length(steps);
        for one in &aligned {
            let begins = first_of(one);
            let steps_of = |later: u64, earlier: u64| {
                usize::try_from(later.saturating_sub(earlier)).unwrap_or(usize::MAX)
            };
            let at = Offset { list: steps_of(begins, first), other: steps_of(first, begins) };
            let view = &one.1;
            for (count, other) in sum.summed.iter_mut().skip(at.list).zip(view.summed.iter().skip(at.other)) {
                *count = count.saturating_add(*other);
            }
            sum.series.join(&view.series, at);
            for (reason, values) in &view.series.dropped_per_s_by_reason {
                let list = sum.series.dropped_per_s_by_reason.entry(reason.clone());
                join_lists(list.or_insert_with(|| vec![None; steps]), values, at, SUM);
            }
        }
        sum
    }

    /// Returns the number of the last step.
    fn last(&self) -> Option<u64> {
        let since = self.until?.0.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(since.as_secs() / STEP_S)
    }

    /// Returns whether the view has steps of the expected length, and at most [`SAMPLES_MAX`].
    fn is_whole(&self) -> bool {
        self.step_s == STEP_S && (1..=SAMPLES_MAX).contains(&self.summed.len())
    }
}

/// Messages that the broker dropped since the start, by reason.
pub fn dropped_by_reason(each: impl IntoIterator<Item = Figure>) -> BTreeMap<&'static str, u64> {
    let mut by_reason = BTreeMap::new();
    for figure in each.into_iter().filter(|figure| figure.family == "messages_dropped") {
        if let Some((_, reason)) = figure.label {
            *by_reason.entry(reason).or_default() += figure.value;
        }
    }
    by_reason
}

/// Counters at one moment.
struct Totals {
    at: Instant,
    messages_received: u64,
    messages_sent: u64,
    bytes_received: u64,
    bytes_sent: u64,
    packets_received: u64,
    packets_sent: u64,
    /// Dropped messages by reason, including reasons that have dropped nothing.
    dropped: BTreeMap<&'static str, u64>,
    /// Busy time by reactor.
    busy: Vec<Duration>,
    cpu_s: f64,
}

impl Totals {
    /// Reads the counters and the present figures.
    fn read(state: &State) -> (Self, Figures) {
        let now = state.admin.figures();
        let (counters, store, packets) = now.counters();
        let process = ProcessFigures::without_fds();
        let totals = Self {
            at: Instant::now(),
            messages_received: counters.received_qos0 + counters.received_qos1 + counters.received_qos2,
            messages_sent: counters.sent_qos0 + counters.sent_qos1 + counters.sent_qos2,
            bytes_received: counters.bytes_received,
            bytes_sent: counters.bytes_sent,
            packets_received: packets.each().map(|(_, received, _)| received).sum(),
            packets_sent: packets.each().map(|(_, _, sent)| sent).sum(),
            dropped: dropped_by_reason(counters.each().chain(store.each())),
            busy: now.workers.iter().map(|worker| worker.reactor.busy).collect(),
            cpu_s: process.cpu_s.unwrap_or_default(),
        };
        let figures = Figures {
            connections: now.total(|worker| worker.connections) as f32,
            sessions: now.total(|worker| worker.sessions) as f32,
            queued_messages: now.total(|worker| worker.waiting_messages) as f32,
            queued_bytes: now.total(|worker| worker.queued_bytes) as f32,
            offline_bytes: now.total(|worker| worker.offline_bytes) as f32,
            resident_bytes: process.resident_bytes.unwrap_or_default() as f32,
            reactors: now.workers.len() as f32,
            ..Figures::default()
        };
        (totals, figures)
    }

    /// Writes the rates since `before` into `figures`. Returns the rate of each reason.
    fn rates(&self, before: &Self, figures: &mut Figures) -> [f32; REASONS_MAX] {
        let seconds = (self.at - before.at).as_secs_f32();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f32 / seconds;
        figures.messages_received_per_s = rate(self.messages_received, before.messages_received);
        figures.messages_sent_per_s = rate(self.messages_sent, before.messages_sent);
        figures.bytes_received_per_s = rate(self.bytes_received, before.bytes_received);
        figures.bytes_sent_per_s = rate(self.bytes_sent, before.bytes_sent);
        figures.packets_received_per_s = rate(self.packets_received, before.packets_received);
        figures.packets_sent_per_s = rate(self.packets_sent, before.packets_sent);
        figures.cpus_busy = (self.cpu_s - before.cpu_s).max(0.0) as f32 / seconds;
        let busy = self.busy.iter().zip(&before.busy).map(|(now, before)| now.saturating_sub(*before));
        // Reactors publish their figures about once a second, so a step may contain slightly more than its own time.
        for share in busy.map(|busy| (busy.as_secs_f32() / seconds).min(1.0)) {
            figures.reactors_busy += share;
            figures.reactor_busiest = figures.reactor_busiest.max(share);
        }
        let mut dropped = [0.0; REASONS_MAX];
        for (index, (reason, now)) in self.dropped.iter().enumerate() {
            let rate = rate(*now, before.dropped.get(reason).copied().unwrap_or_default());
            figures.dropped_per_s += rate;
            if let Some(of_reason) = dropped.get_mut(index) {
                *of_reason = rate;
            }
        }
        dropped
    }
}

/// Takes a sample in each step.
pub struct Sampler {
    state: State,
    before: Totals,
    /// Step of the last sample.
    last: u64,
    alarms: ActiveAlarms,
}

impl Sampler {
    pub fn begin(state: State) -> Self {
        let before = Totals::read(&state).0;
        Self { state, before, last: 0, alarms: ActiveAlarms::default() }
    }

    /// Runs until the node stops.
    pub async fn run(mut self) {
        loop {
            let ms = since_1970().as_millis() as u64;
            tokio::time::sleep(Duration::from_millis(STEP_S * 1000 - ms % (STEP_S * 1000))).await;
            self.take(since_1970().as_secs() / STEP_S);
        }
    }

    fn take(&mut self, step: u64) {
        // Right after the start, the time is too short for a rate. A clock that is slowed down ends the sleep slightly
        // early.
        if step == self.last || self.before.at.elapsed() < Duration::from_secs(STEP_S) / 2 {
            return;
        }
        let (now, mut figures) = Totals::read(&self.state);
        let dropped = now.rates(&self.before, &mut figures);
        let reasons = now.dropped.keys().copied().collect();
        self.state.history.push(Sample { step, figures, dropped }, reasons);
        (self.before, self.last) = (now, step);
        alarms::flows::look(&self.state);
        self.alarms.look(&self.state);
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(step: u64, connections: f32) -> Sample {
        let figures = Figures { connections, reactor_busiest: connections / 100.0, ..Figures::default() };
        Sample { step, figures, dropped: [0.0; REASONS_MAX] }
    }

    fn ring(steps: impl IntoIterator<Item = u64>) -> Ring {
        let mut ring = Ring::default();
        steps.into_iter().for_each(|step| ring.push(sample(step, (step % 10) as f32)));
        ring
    }

    fn view(node: &str, steps: impl IntoIterator<Item = u64>) -> HistoryView {
        ring(steps).view(node, SAMPLES_MAX)
    }

    fn connections(view: &HistoryView) -> Vec<i64> {
        // -1: no sample.
        view.series.connections.iter().map(|value| value.map_or(-1, |value| value as i64)).collect()
    }

    #[test]
    fn an_hour_is_kept_in_memory_that_does_not_grow() {
        let ring = ring(1..=5000);
        assert_eq!((ring.samples.len(), ring.samples.capacity()), (SAMPLES_MAX, SAMPLES_MAX));
        let view = ring.view("a", SAMPLES_MAX);
        assert_eq!(view.summed, vec![1; 720]);
        assert_eq!(view.until, Some(time_of(5000)));
        assert_eq!(ring.view("a", 3).series.connections, [Some(8.0), Some(9.0), Some(0.0)]);
    }

    #[test]
    fn a_step_without_a_sample_is_null_and_a_long_pause_keeps_samples_within_the_hour() {
        let some = view("a", [10, 11, 14]);
        assert_eq!(connections(&some), [0, 1, -1, -1, 4]);
        assert_eq!(some.summed, [1, 1, 0, 0, 1]);
        assert_eq!(connections(&view("a", [1, 2, 5002])), [2]);
    }

    #[test]
    fn a_clock_that_is_set_back_moves_the_samples() {
        let view = view("a", [100, 101, 102, 53, 54]);
        assert_eq!((connections(&view), view.until), (vec![0, 1, 2, 3, 4], Some(time_of(54))));
    }

    #[test]
    fn reasons_without_drops_are_not_shown() {
        let mut ring = Ring { reasons: vec!["expired", "overload"], ..Ring::default() };
        ring.push(sample(1, 0.0));
        ring.push(Sample { dropped: [0.25; REASONS_MAX], ..sample(2, 0.0) });
        ring.samples[0].dropped[1] = 0.0;
        ring.samples[1].dropped[0] = 0.0;
        let by_reason = ring.view("a", 2).series.dropped_per_s_by_reason;
        assert_eq!(by_reason, BTreeMap::from([("overload".to_owned(), vec![Some(0.0), Some(0.25)])]));
    }

    /// A reason without an index would be missing in the history.
    #[test]
    fn every_reason_has_an_index() {
        let (counters, store) = (broker::Counters::default(), broker::StoreCounters::default());
        let reasons = dropped_by_reason(counters.each().chain(store.each()));
        assert!((5..=REASONS_MAX).contains(&reasons.len()), "{reasons:?}");
    }

    #[test]
    fn nodes_are_summed_up_by_step_and_each_step_counts_its_nodes() {
        let sum = HistoryView::sum(vec![view("b", 10..15), view("a", 12..15)], vec!["c".to_owned()]);
        assert_eq!(
            (&sum.nodes[..], &sum.missing[..]),
            (&["a".to_owned(), "b".to_owned()][..], &["c".to_owned()][..])
        );
        assert_eq!(sum.summed, [1, 1, 2, 2, 2]);
        assert_eq!(connections(&sum), [0, 1, 4, 6, 8]);
        assert_eq!(sum.series.reactor_busiest.last(), Some(&Some(0.04)), "the largest, not the sum");
    }

    #[test]
    fn the_last_step_is_one_that_all_nodes_have() {
        // One is a step ahead of the others, and one is so far behind that its clock must be wrong.
        let sum =
            HistoryView::sum(vec![view("a", 10..15), view("b", 10..16), view("c", [1, 2, 3])], Vec::new());
        assert_eq!((sum.until, connections(&sum)), (Some(time_of(14)), vec![0, 2, 5, 8, 11]));
        let sum = HistoryView::sum(vec![view("a", 10..16), view("b", 10..15)], Vec::new());
        assert_eq!((sum.until, connections(&sum)), (Some(time_of(14)), vec![0, 2, 4, 6, 8]));
    }

    #[test]
    fn a_node_that_has_no_sample_yet_changes_no_sum() {
        let sum = HistoryView::sum(vec![HistoryView::empty("a"), view("b", 10..13)], Vec::new());
        assert_eq!((sum.nodes.len(), connections(&sum)), (2, vec![0, 1, 2]));
        let none = HistoryView::sum(vec![HistoryView::empty("a")], Vec::new());
        assert_eq!((none.until, none.summed.len()), (None, 0));
    }

    /// A view from another node may have any length.
    #[test]
    fn an_inconsistent_view_is_left_out() {
        let [mut short, mut long, mut slow] = ["b", "c", "d"].map(|node| view(node, 100..105));
        short.series.connections.clear();
        long.summed = vec![1; SAMPLES_MAX + 1];
        slow.step_s = 60;
        let sum = HistoryView::sum(vec![view("a", 100..105), short, long, slow], Vec::new());
        assert_eq!((connections(&sum), sum.summed), (vec![0, 1, 2, 3, 4], vec![2; 5]));
    }
}
