//! What this node wants to be agreed upon, or one for which it speaks, until it is or its time is over. Commands may be proposed again: they say what is to be so.

use std::collections::BTreeMap;
use std::time::Duration;

use link::{NodeId, Time};
use replog::Incarnation;

use super::WishId;

#[derive(Debug)]
pub struct Wishes {
    /// Of no other life of the node: what it has asked for may be answered in a later one.
    last: u64,
    all: BTreeMap<u64, Wish>,
}

#[derive(Debug)]
struct Wish {
    reply: Reply,
    command: Vec<u8>,
    deadline: Time,
    /// When it is proposed next.
    due: Time,
    /// The node that was asked, or that leads, as another has said.
    asked: Option<NodeId>,
    hint: Option<NodeId>,
    tries: u32,
}

/// Who is told what came of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nobody: the node sees for itself.
    Own,
    Operator(WishId),
    /// A node that does not reach the core that leads, and its number for it.
    Other(NodeId, u64),
}

/// A wish that is to be proposed now.
#[derive(Debug)]
pub struct Due {
    pub number: u64,
    pub command: Vec<u8>,
    pub hint: Option<NodeId>,
    pub tries: u32,
}

/// From a refusal, or a question that nobody has answered, to the next attempt.
const AGAIN: Duration = Duration::from_millis(200);
const UNANSWERED: Duration = Duration::from_secs(2);
/// Wishes of operators and other nodes that wait, at most.
const WISHES_MAX: usize = 256;
/// Lives are some 1,000 apart, and counted in milliseconds of the world's clock: that leaves room for a thousand million wishes until the year 2248.
const NUMBER_BITS: u32 = 20;

impl Wishes {
    /// Of a life.
    pub fn new(incarnation: Incarnation) -> Self {
        Self { last: incarnation.0 << NUMBER_BITS, all: BTreeMap::new() }
    }

    /// False when too many wait. What another node asks for again is the same wish.
    pub fn push(&mut self, deadline: Time, reply: Reply, command: Vec<u8>) -> bool {
        if matches!(reply, Reply::Other(..))
            && let Some(wish) = self.all.values_mut().find(|wish| wish.reply == reply)
        {
            wish.deadline = deadline;
            return true;
        }
        if reply != Reply::Own && self.all.len() >= WISHES_MAX {
            return false;
        }
        self.last += 1;
        let wish = Wish { reply, command, deadline, due: Time::default(), asked: None, hint: None, tries: 0 };
        self.all.insert(self.last, wish);
        true
    }

    pub fn has_own(&self) -> bool {
        self.all.values().any(|wish| wish.reply == Reply::Own)
    }

    pub fn forget_own(&mut self) {
        self.all.retain(|_, wish| wish.reply != Reply::Own);
    }

    /// Those that are to be proposed; each is asked for again later.
    pub fn take_due(&mut self, now: Time) -> Vec<Due> {
        let due = self.all.iter_mut().filter(|(_, wish)| wish.due <= now);
        due.map(|(number, wish)| {
            wish.due = now.after(UNANSWERED);
            wish.tries += 1;
            Due { number: *number, command: wish.command.clone(), hint: wish.hint, tries: wish.tries }
        })
        .collect()
    }

    pub fn asked(&mut self, number: u64, node: NodeId) {
        if let Some(wish) = self.all.get_mut(&number) {
            wish.asked = Some(node);
        }
    }

    /// Whoever was asked does not lead.
    pub fn not_leader(&mut self, now: Time, from: NodeId, number: u64, leader: NodeId) {
        let Some(wish) = self.all.get_mut(&number).filter(|wish| wish.asked == Some(from)) else { return };
        let is_known = leader != NodeId(0) && leader != from;
        wish.hint = is_known.then_some(leader);
        // At once, but for leaders that name each other.
        wish.due = if is_known && wish.tries < 3 { now } else { now.after(AGAIN) };
    }

    pub fn again(&mut self, now: Time, number: u64) {
        if let Some(wish) = self.all.get_mut(&number) {
            (wish.due, wish.hint) = (now.after(AGAIN), None);
        }
    }

    /// Whoever was asked is cut off, or whoever asked.
    pub fn lost(&mut self, node: NodeId) {
        self.all.retain(|_, wish| !matches!(wish.reply, Reply::Other(from, _) if from == node));
        for wish in self.all.values_mut().filter(|wish| wish.asked == Some(node)) {
            (wish.asked, wish.hint, wish.due) = (None, None, Time::default());
        }
    }

    pub fn done(&mut self, number: u64) -> Option<Reply> {
        self.all.remove(&number).map(|wish| wish.reply)
    }

    /// Those whose time is over: the operators who wait.
    pub fn take_overdue(&mut self, now: Time) -> Vec<WishId> {
        let mut overdue = Vec::new();
        self.all.retain(|_, wish| {
            let is_overdue = wish.deadline <= now;
            if let (true, Reply::Operator(id)) = (is_overdue, wish.reply) {
                overdue.push(id);
            }
            !is_overdue
        });
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Time = Time(5_000_000);

    fn wishes() -> Wishes {
        Wishes::new(Incarnation(1))
    }

    #[test]
    fn what_another_node_asks_for_again_is_one_wish_that_ends_with_its_link() {
        let mut wishes = wishes();
        let (from, other) = (NodeId(7), NodeId(8));
        for _ in 0..2 {
            assert!(wishes.push(LATER, Reply::Other(from, 3), vec![1]));
        }
        assert!(wishes.push(LATER, Reply::Other(from, 4), vec![2]));
        assert!(wishes.push(LATER, Reply::Other(other, 3), vec![3]));
        let due = wishes.take_due(Time(0));
        assert_eq!(due.iter().map(|due| &*due.command).collect::<Vec<_>>(), [&[1][..], &[2], &[3]]);
        assert_eq!(wishes.done(due[0].number), Some(Reply::Other(from, 3)));
        wishes.lost(from);
        assert_eq!(wishes.done(due[1].number), None);
        assert_eq!(wishes.take_overdue(LATER), []);
        assert_eq!(wishes.done(due[2].number), None, "nobody waits for what another node wanted");
    }

    #[test]
    fn wishes_of_others_are_as_many_as_there_is_room_for() {
        let mut wishes = wishes();
        for number in 0..WISHES_MAX as u64 {
            assert!(wishes.push(LATER, Reply::Other(NodeId(7), number), Vec::new()));
        }
        assert!(!wishes.push(LATER, Reply::Other(NodeId(7), u64::MAX), Vec::new()));
        assert!(!wishes.push(LATER, Reply::Operator(WishId(1)), Vec::new()));
        assert!(wishes.push(LATER, Reply::Own, Vec::new()));
    }
}
