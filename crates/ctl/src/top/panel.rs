//! Contents of the panels, as rows of text: the view draws them, `--once` prints them. Texts of the node are escaped
//! here.

use std::cmp::Ordering;
use std::time::SystemTime;

use super::snapshot::{Snapshot, Talker};
use super::state::State;
use super::theme::Level;
use crate::table::{Column, left, right};
use crate::{escape, human, wall_clock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    Traffic,
    Reactors,
    Publishers,
    Topics,
    Subscribers,
    Slow,
    Drops,
    Queues,
}

/// A table whose rows have a level of emphasis.
#[derive(Debug, Default)]
pub struct Content {
    pub columns: Vec<Column>,
    pub rows: Vec<(Level, Vec<String>)>,
    /// Text when there is no row.
    pub empty: String,
}

impl Panel {
    pub const ALL: [Self; 8] = [
        Self::Traffic,
        Self::Reactors,
        Self::Publishers,
        Self::Topics,
        Self::Subscribers,
        Self::Slow,
        Self::Drops,
        Self::Queues,
    ];

    pub fn index(self) -> usize {
        self as usize
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Traffic => "Traffic",
            Self::Reactors => "Reactors",
            Self::Publishers => "Busiest publishers",
            Self::Topics => "Busiest topics",
            Self::Subscribers => "Busiest subscribers",
            Self::Slow => "Slow subscribers",
            Self::Drops => "Drops",
            Self::Queues => "Queues",
        }
    }

    /// Orders that a panel can have, the default first.
    pub fn orders(self) -> &'static [&'static str] {
        match self {
            Self::Traffic | Self::Queues => &[],
            Self::Reactors => &["number", "busy", "clients", "mailbox"],
            Self::Publishers | Self::Topics | Self::Subscribers => &["messages", "bytes", "name"],
            Self::Slow => &["latency", "newest", "name"],
            Self::Drops => &["count", "rate", "name"],
        }
    }

    pub fn content(self, state: &State) -> Content {
        let (now, order) = (&state.snapshot, state.order(self));
        match self {
            Self::Traffic => traffic(state),
            Self::Reactors => reactors(state, order),
            Self::Publishers => talkers("CLIENT", &now.publishers, order, now),
            Self::Topics => talkers("TOPIC", &now.topics, order, now),
            Self::Subscribers => talkers("CLIENT", &now.subscribers, order, now),
            Self::Slow => slow(now, order),
            Self::Drops => drops(state, order),
            Self::Queues => queues(now),
        }
    }
}

/// Compares in descending order; values that cannot be compared are equal.
fn descending(a: f64, b: f64) -> Ordering {
    b.partial_cmp(&a).unwrap_or(Ordering::Equal)
}

/// Formats a rate, or dots while there is only one snapshot.
fn rate(rate: Option<f64>, unit: fn(f64) -> String) -> String {
    rate.map_or_else(|| "..".to_owned(), unit)
}

fn bytes_per_s(rate: f64) -> String {
    human::bytes(rate.max(0.0) as u64)
}

fn traffic(state: &State) -> Content {
    let rates = state.rates.as_ref();
    let now = &state.snapshot;
    let row = |what: &str, rate: String, total: String| (Level::Plain, vec![what.to_owned(), rate, total]);
    let dropped = if rates.is_some_and(|rates| rates.dropped > 0.0) { Level::Warn } else { Level::Plain };
    Content {
        columns: vec![left("WHAT"), right("PER SECOND"), right("SINCE THE START")],
        rows: vec![
            row("in", rate(rates.map(|r| r.messages_in), human::short), human::count(now.received.messages)),
            row("out", rate(rates.map(|r| r.messages_out), human::short), human::count(now.sent.messages)),
            row("bytes in", rate(rates.map(|r| r.bytes_in), bytes_per_s), human::bytes(now.received.bytes)),
            row("bytes out", rate(rates.map(|r| r.bytes_out), bytes_per_s), human::bytes(now.sent.bytes)),
            (
                dropped,
                vec![
                    "dropped".to_owned(),
                    rate(rates.map(|r| r.dropped), human::short),
                    human::count(now.dropped),
                ],
            ),
        ],
        empty: String::new(),
    }
}

/// Returns a bar of `width` characters.
pub fn bar(share: f64, width: usize) -> String {
    let full = ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

fn micros(us: f64) -> String {
    match us {
        _ if !us.is_finite() || us < 0.0 => "-".to_owned(),
        _ if us < 1_000.0 => format!("{us:.0}us"),
        _ if us < 1e6 => format!("{:.1}ms", us / 1e3),
        _ => format!("{:.1}s", (us / 1e6).min(9_999.0)),
    }
}

fn reactors(state: &State, order: usize) -> Content {
    let busy = |i: usize| state.rates.as_ref().and_then(|rates| rates.busy.get(i).copied());
    let mut workers: Vec<_> =
        state.snapshot.workers.iter().enumerate().map(|(i, worker)| (busy(i), worker)).collect();
    match order {
        1 => workers.sort_by(|a, b| descending(a.0.unwrap_or(0.0), b.0.unwrap_or(0.0))),
        2 => workers.sort_by_key(|(_, worker)| std::cmp::Reverse(worker.connections)),
        3 => workers.sort_by_key(|(_, worker)| std::cmp::Reverse(worker.mailbox_bytes)),
        _ => {}
    }
    let rows = workers.into_iter().map(|(busy, worker)| {
        let level = match busy {
            Some(busy) if busy >= 0.95 => Level::Bad,
            Some(busy) if busy >= 0.75 => Level::Warn,
            _ => Level::Plain,
        };
        let cells = vec![
            escape::text(&worker.name).into_owned(),
            busy.map_or_else(String::new, |busy| bar(busy, 6)),
            rate(busy, human::percent),
            human::short(worker.connections as f64),
            micros(worker.turn_us_p99),
            human::bytes(worker.mailbox_bytes),
        ];
        (level, cells)
    });
    Content {
        columns: vec![left("#"), left("LOAD"), right(""), right("CLIENTS"), right("P99"), right("MAIL")],
        rows: rows.collect(),
        empty: "the node lists no reactor".to_owned(),
    }
}

fn talkers(name: &'static str, talkers: &[Talker], order: usize, now: &Snapshot) -> Content {
    let mut talkers: Vec<&Talker> = talkers.iter().collect();
    match order {
        1 => talkers.sort_by(|a, b| descending(a.bytes_per_s, b.bytes_per_s)),
        2 => talkers.sort_by(|a, b| a.name.cmp(&b.name)),
        _ => talkers.sort_by(|a, b| descending(a.messages_per_s, b.messages_per_s)),
    }
    let rows = talkers.into_iter().map(|talker| {
        let (messages, bytes) = (human::short(talker.messages_per_s), bytes_per_s(talker.bytes_per_s));
        (Level::Plain, vec![escape::text(&talker.name).into_owned(), messages, bytes])
    });
    let empty =
        if now.window_s > 0.0 { format!("none in the last {} s", now.window_s) } else { "none".to_owned() };
    Content { columns: vec![left(name), right("MSG/S"), right("BYTES/S")], rows: rows.collect(), empty }
}

fn slow(now: &Snapshot, order: usize) -> Content {
    let mut slow: Vec<_> = now.slow.iter().collect();
    match order {
        1 => slow.sort_by(|a, b| b.at.cmp(&a.at)),
        2 => slow.sort_by(|a, b| a.client_id.cmp(&b.client_id)),
        _ => slow.sort_by(|a, b| descending(a.latency_ms, b.latency_ms)),
    }
    // Ages use the node's clock, which may differ from ours.
    let at = now.at.unwrap_or(SystemTime::UNIX_EPOCH);
    let rows = slow.into_iter().map(|slow| {
        let age = wall_clock::age(&slow.at, at).map_or_else(|| "-".to_owned(), human::duration);
        let cells = vec![
            escape::text(&slow.client_id).into_owned(),
            human::seconds(slow.latency_ms / 1e3),
            age,
            escape::text(&slow.topic).into_owned(),
        ];
        (Level::Plain, cells)
    });
    Content {
        columns: vec![left("CLIENT"), right("LATENCY"), right("AGO"), left("TOPIC")],
        rows: rows.collect(),
        empty: format!("none above {}", human::seconds(now.threshold_ms / 1e3)),
    }
}

fn drops(state: &State, order: usize) -> Content {
    let rates = state.rates.as_ref();
    let mut drops: Vec<_> = state
        .snapshot
        .drops
        .iter()
        .enumerate()
        .map(|(i, (reason, count))| (reason, *count, rates.and_then(|rates| rates.drops.get(i).copied())))
        .filter(|(_, count, _)| *count > 0)
        .collect();
    match order {
        1 => drops.sort_by(|a, b| descending(a.2.unwrap_or(0.0), b.2.unwrap_or(0.0))),
        2 => drops.sort_by_key(|(reason, ..)| *reason),
        _ => drops.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count)),
    }
    let rows = drops.into_iter().map(|(reason, count, per_s)| {
        let level = if per_s.is_some_and(|rate| rate > 0.0) { Level::Warn } else { Level::Plain };
        (level, vec![escape::text(reason).into_owned(), rate(per_s, human::short), human::count(count)])
    });
    Content {
        columns: vec![left("REASON"), right("PER SECOND"), right("ALL")],
        rows: rows.collect(),
        empty: "nothing was dropped".to_owned(),
    }
}

fn queues(now: &Snapshot) -> Content {
    let row = |what: &str, value: String| (Level::Plain, vec![what.to_owned(), value]);
    let by_reactors: u64 = now.workers.iter().fold(0, |sum, worker| sum.saturating_add(worker.queued_bytes));
    Content {
        columns: vec![left("WHAT"), right("NOW")],
        rows: vec![
            row("queued messages", human::count(now.queued.messages)),
            row("queued bytes", human::bytes(now.queued.bytes)),
            row("of these for absent clients", human::bytes(now.queued.offline_bytes)),
            row("oldest", human::seconds(now.queued.oldest_age_s)),
            row("held by reactors", human::bytes(by_reactors)),
            row("retained messages", human::count(now.retained.0)),
            row("retained bytes", human::bytes(now.retained.1)),
        ],
        empty: String::new(),
    }
}
