//! The slowest deliveries. They show which subscribers keep messages waiting.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::Time;

/// The slowest recent delivery to one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowDelivery {
    pub client_id: Arc<str>,
    /// Time from the later of the message's arrival at the node and the client's connection to the acknowledgement.
    /// While there is no acknowledgement, the time so far.
    pub latency: Duration,
    /// First 256 bytes of the topic.
    pub topic: Box<str>,
    pub at: Time,
    pub acknowledged: bool,
}

/// The slowest deliveries of one worker, at most one for each client.
#[derive(Debug, Default)]
pub(crate) struct SlowTable {
    entries: Vec<SlowDelivery>,
}

/// Time after which an entry expires.
const KEPT: Duration = Duration::from_secs(300);

impl SlowTable {
    /// Records a delivery, unless `max` others are slower.
    pub fn record(
        &mut self,
        client_id: &Arc<str>,
        topic: &str,
        latency: Duration,
        acknowledged: bool,
        now: Time,
        max: usize,
    ) {
        let entry = SlowDelivery {
            client_id: client_id.clone(),
            latency,
            topic: topic.into(),
            at: now,
            acknowledged,
        };
        if let Some(known) = self.entries.iter_mut().find(|known| known.client_id == *client_id) {
            if known.latency <= latency || known.at.after(KEPT) <= now || !known.acknowledged {
                *known = entry;
            }
            return;
        }
        if self.entries.len() < max {
            return self.entries.push(entry);
        }
        let rank =
            |entry: &SlowDelivery| if entry.at.after(KEPT) <= now { Duration::ZERO } else { entry.latency };
        if let Some(least) = self.entries.iter_mut().min_by_key(|entry| rank(entry))
            && rank(least) < latency
        {
            *least = entry;
        }
    }

    pub fn list(&mut self, now: Time) -> Vec<SlowDelivery> {
        self.entries.retain(|entry| entry.at.after(KEPT) > now);
        self.entries.clone()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(table: &mut SlowTable, client: &str, ms: u64, now: u64) {
        table.record(&client.into(), "t", Duration::from_millis(ms), true, Time(now), 3);
    }

    fn clients(table: &mut SlowTable, now: u64) -> Vec<(String, u128)> {
        let mut list: Vec<_> = table
            .list(Time(now))
            .iter()
            .map(|entry| (entry.client_id.to_string(), entry.latency.as_millis()))
            .collect();
        list.sort();
        list
    }

    #[test]
    fn the_table_keeps_the_slowest_delivery_of_each_client_for_five_minutes() {
        let mut table = SlowTable::default();
        for (client, ms) in [("a", 10), ("b", 20), ("c", 30), ("a", 5), ("d", 9), ("e", 25)] {
            record(&mut table, client, ms, 0);
        }
        assert_eq!(clients(&mut table, 1), [("b".into(), 20), ("c".into(), 30), ("e".into(), 25)]);
        record(&mut table, "f", 1, 300_000);
        assert_eq!(clients(&mut table, 300_000), [("f".into(), 1)]);
    }
}
