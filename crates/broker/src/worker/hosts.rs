//! The shards that a worker hosts, and what all of them together need: only those are asked to which something may have happened.

use crate::ids::{ShardId, Time};
use crate::store::{Held, SHARDS, ShardHost, ShardOutput};

pub(super) struct Hosts {
    hosts: Vec<(ShardId, ShardHost)>,
    /// What each said when it was asked last.
    needs: Vec<Needs>,
    /// Of those that may say something else now, a bit each.
    touched: u16,
    all: Needs,
}

const _: () = assert!(SHARDS as u32 <= u16::BITS, "a bit for each");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Needs {
    /// [`ShardHost::next_deadline`].
    deadline: Time,
    /// [`ShardHost::batch_due`].
    batch: Time,
    /// [`ShardHost::is_urgent`].
    is_urgent: bool,
    held: Held,
}

impl Needs {
    const NONE: Self = Self {
        deadline: Time::NEVER,
        batch: Time::NEVER,
        is_urgent: false,
        held: Held { for_connected: 0, for_absent: 0 },
    };

    fn of(host: &ShardHost) -> Self {
        Self {
            deadline: host.next_deadline(),
            batch: host.batch_due(),
            is_urgent: host.is_urgent(),
            held: host.held(),
        }
    }

    fn and(self, other: &Self) -> Self {
        Self {
            deadline: self.deadline.min(other.deadline),
            batch: self.batch.min(other.batch),
            is_urgent: self.is_urgent || other.is_urgent,
            held: Held {
                for_connected: self.held.for_connected + other.held.for_connected,
                for_absent: self.held.for_absent + other.held.for_absent,
            },
        }
    }
}

impl FromIterator<(ShardId, ShardHost)> for Hosts {
    fn from_iter<T: IntoIterator<Item = (ShardId, ShardHost)>>(iter: T) -> Self {
        let hosts: Vec<_> = iter.into_iter().collect();
        Self { needs: vec![Needs::NONE; hosts.len()], touched: u16::MAX, all: Needs::NONE, hosts }
    }
}

impl Hosts {
    pub fn get(&self, id: ShardId) -> Option<&ShardHost> {
        self.hosts.iter().find(|(shard, _)| *shard == id).map(|(_, host)| host)
    }

    pub fn get_mut(&mut self, id: ShardId) -> Option<&mut ShardHost> {
        let at = self.hosts.iter().position(|(shard, _)| *shard == id)?;
        Some(self.touch(at))
    }

    pub fn iter(&self) -> impl Iterator<Item = &ShardHost> {
        self.hosts.iter().map(|(_, host)| host)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut ShardHost> {
        self.touched = u16::MAX;
        self.hosts.iter_mut().map(|(_, host)| host)
    }

    fn touch(&mut self, at: usize) -> &mut ShardHost {
        self.touched |= 1 << at;
        &mut self.hosts[at].1
    }

    fn ask_touched(&mut self) {
        if self.touched == 0 {
            return;
        }
        for (at, ((_, host), needs)) in self.hosts.iter().zip(&mut self.needs).enumerate() {
            if self.touched & 1 << at != 0 {
                *needs = Needs::of(host);
            }
        }
        self.touched = 0;
        self.all = self.needs.iter().fold(Needs::NONE, Needs::and);
    }

    /// When [`Self::tick`] has something to do, [`Time::NEVER`] without anything.
    pub fn next_deadline(&mut self) -> Time {
        self.ask_touched();
        self.all.deadline
    }

    /// Ticks the first host that is due, of those from place `from` on; returns the place behind it.
    pub fn tick(&mut self, from: usize, now: Time, out: &mut ShardOutput) -> Option<usize> {
        if self.next_deadline() > now {
            return None;
        }
        let at = from + self.needs[from..].iter().position(|needs| needs.deadline <= now)?;
        self.touch(at).tick(now, out);
        Some(at + 1)
    }

    /// The end of a turn, with a log: batches go there for which somebody waits, and with one whose time has come, or with `all`, every one, for
    /// one sync.
    pub fn end_turn(&mut self, now: Time, all: bool) {
        self.ask_touched();
        let all = all || self.all.batch <= now;
        if !all && !self.all.is_urgent {
            return;
        }
        for at in 0..self.hosts.len() {
            if all || self.needs[at].is_urgent {
                self.touch(at).close_batch();
            }
        }
    }

    /// Bytes of messages that are held by all of them.
    pub fn held(&mut self) -> Held {
        self.ask_touched();
        self.all.held
    }

    /// # Panics
    /// When a host needs something else than it said, or something is wrong with one.
    pub fn check_invariants(&self) {
        for (at, ((_, host), needs)) in self.hosts.iter().zip(&self.needs).enumerate() {
            host.check_invariants();
            let is_known = self.touched & 1 << at == 0;
            assert!(!is_known || *needs == Needs::of(host), "{needs:?} is not {:?}", Needs::of(host));
        }
    }
}
