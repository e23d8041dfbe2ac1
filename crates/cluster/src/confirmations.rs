use broker::peers::PeerTicket;
use mqtt::ReasonCode;

use crate::wire::Confirmed;

/// Messages of one peer that are stored here, until the peer is notified.
#[derive(Debug, Default)]
pub struct Confirmations {
    done: Vec<(u8, u32, u8)>,
}

impl Confirmations {
    pub fn push(&mut self, ticket: PeerTicket, reason: ReasonCode) {
        self.done.push((ticket.lane, ticket.number, reason.as_u8()));
    }

    pub fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    pub fn clear(&mut self) {
        self.done.clear();
    }

    /// Takes all of them, with consecutive numbers merged into one range.
    pub fn ranges(&mut self) -> Vec<Confirmed> {
        self.done.sort_unstable();
        let mut ranges: Vec<Confirmed> = Vec::new();
        for (lane, number, reason) in &self.done {
            match ranges.last_mut() {
                Some(last)
                    if (last.lane, last.reason) == (*lane, *reason)
                        && last.first.wrapping_add(last.count) == *number =>
                {
                    last.count += 1;
                }
                _ => ranges.push(Confirmed { lane: *lane, reason: *reason, first: *number, count: 1 }),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use broker::peers::NodeIndex;

    use super::*;

    #[test]
    fn consecutive_messages_are_confirmed_as_one() {
        let mut confirmations = Confirmations::default();
        let from = NodeIndex(0);
        for (lane, number, reason) in [
            (4, 7, ReasonCode::Success),
            (3, 9, ReasonCode::Success),
            (3, 8, ReasonCode::Success),
            (3, 10, ReasonCode::QuotaExceeded),
            (3, 11, ReasonCode::Success),
        ] {
            confirmations.push(PeerTicket { from, link_epoch: 0, lane, number }, reason);
        }
        let sent: Vec<_> = confirmations
            .ranges()
            .iter()
            .map(|range| (range.lane, range.first, range.count, range.reason))
            .collect();
        assert_eq!(sent, [(3, 8, 2, 0), (3, 10, 1, 0x97), (3, 11, 1, 0), (4, 7, 1, 0)]);
    }
}
