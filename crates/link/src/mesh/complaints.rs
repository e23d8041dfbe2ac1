use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Time;

/// What was said of whom, so that it is not said too often.
#[derive(Debug)]
pub struct Complaints {
    pause: Duration,
    said: BTreeMap<Box<str>, Said>,
}

#[derive(Debug)]
struct Said {
    at: Time,
    reason: Box<str>,
    unsaid: u64,
}

/// Whom a complaint is about.
#[derive(Clone, Copy, Debug)]
pub enum Whom<'a> {
    /// A node that this one is to be joined to, by its name. Another reason is news.
    Peer(&'a str),
    /// An address that is sought. Behind its name there may be several, of which each has a reason of its own, in turn.
    Sought(&'a str),
    /// Somebody at an address, who may give any number of reasons.
    Stranger(&'a str),
}

/// Strangers beyond so many share one place: there may be any number of them.
const KNOWN_MAX: usize = 64;
const OTHERS: &str = "";

impl Complaints {
    pub fn new(pause: Duration) -> Self {
        Self { pause, said: BTreeMap::new() }
    }

    /// Whether `reason` is to be said of `who` now, and if so how often it was not since the last time.
    pub fn complain(&mut self, now: Time, whom: Whom<'_>, reason: &str) -> Option<u64> {
        let of_reason;
        let (who, is_peer) = match whom {
            Whom::Peer(name) => (name, true),
            Whom::Sought(address) => {
                of_reason = format!("{address} {reason}");
                (&*of_reason, false)
            }
            // Its port is another every time.
            Whom::Stranger(address) => (address.rsplit_once(':').map_or(address, |(host, _)| host), false),
        };
        if !self.said.contains_key(who) && self.said.len() >= KNOWN_MAX {
            let pause = self.pause;
            self.said.retain(|_, said| said.at.after(pause) > now);
        }
        let is_full = !self.said.contains_key(who) && self.said.len() >= KNOWN_MAX;
        let who = if is_full { OTHERS } else { who };
        let Some(said) = self.said.get_mut(who) else {
            self.said.insert(who.into(), Said { at: now, reason: reason.into(), unsaid: 0 });
            return Some(0);
        };
        let is_news = is_peer && !is_full && *said.reason != *reason;
        if !is_news && said.at.after(self.pause) > now {
            said.unsaid += 1;
            return None;
        }
        let unsaid = std::mem::take(&mut said.unsaid);
        *said = Said { at: now, reason: reason.into(), unsaid: 0 };
        Some(unsaid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_in_a_while_and_counted_in_between() {
        let mut complaints = Complaints::new(Duration::from_micros(10));
        assert_eq!(complaints.complain(Time(0), Whom::Peer("a"), "wrong"), Some(0));
        assert_eq!(complaints.complain(Time(1), Whom::Peer("a"), "wrong"), None);
        assert_eq!(complaints.complain(Time(2), Whom::Peer("a"), "wrong"), None);
        assert_eq!(complaints.complain(Time(2), Whom::Peer("b"), "wrong"), Some(0));
        assert_eq!(complaints.complain(Time(3), Whom::Peer("a"), "worse"), Some(2));
        assert_eq!(complaints.complain(Time(9), Whom::Peer("a"), "worse"), None);
        assert_eq!(complaints.complain(Time(13), Whom::Peer("a"), "worse"), Some(1));
        assert_eq!(complaints.complain(Time(0), Whom::Stranger("::1:80"), "wrong"), Some(0));
        assert_eq!(
            complaints.complain(Time(1), Whom::Stranger("::1:81"), "worse"),
            None,
            "it may make up reasons"
        );
    }

    #[test]
    fn the_nodes_behind_one_name_take_turns_and_each_is_heard_of_once_in_a_while() {
        let mut complaints = Complaints::new(Duration::from_micros(10));
        let mut said = |at, reason| complaints.complain(Time(at), Whom::Sought("nodes:1"), reason);
        let found: Vec<_> =
            (0..20).map(|at| said(at, if at % 2 == 0 { "refused" } else { "silent" })).collect();
        assert_eq!(found.iter().flatten().collect::<Vec<_>>(), [&0, &0, &4, &4]);
    }

    #[test]
    fn a_crowd_of_strangers_takes_bounded_memory_and_few_lines() {
        let mut complaints = Complaints::new(Duration::from_secs(1));
        let said = (0..10_000_u64).filter(|stranger| {
            complaints.complain(Time(*stranger), Whom::Stranger(&format!("{stranger}:1")), "no").is_some()
        });
        assert_eq!(said.count(), KNOWN_MAX + 1);
        assert_eq!(complaints.said.len(), KNOWN_MAX + 1);
    }
}
