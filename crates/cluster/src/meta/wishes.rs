//! What this node wants to be agreed upon, until it is or its time is over. Commands may be proposed again: they say what is to be so.

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
    /// Somebody was asked who has not answered, and may still propose it.
    is_doubtful: bool,
}

/// Who is told what came of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nobody: the node sees for itself.
    Own,
    Operator(WishId),
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
/// Wishes of operators that wait, at most.
const WISHES_MAX: usize = 256;
/// Lives are some 1,000 apart, and counted in milliseconds of the world's clock: that leaves room for a thousand million wishes until the year 2248.
const NUMBER_BITS: u32 = 20;

impl Wishes {
    /// Of a life.
    pub fn new(incarnation: Incarnation) -> Self {
        Self { last: incarnation.0 << NUMBER_BITS, all: BTreeMap::new() }
    }

    /// False when too many wait.
    pub fn push(&mut self, deadline: Time, reply: Reply, command: Vec<u8>) -> bool {
        if reply != Reply::Own && self.all.len() >= WISHES_MAX {
            return false;
        }
        self.last += 1;
        let wish = Wish {
            reply,
            command,
            deadline,
            due: Time::default(),
            asked: None,
            hint: None,
            tries: 0,
            is_doubtful: false,
        };
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
            wish.is_doubtful |= wish.asked.take().is_some();
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
        wish.asked = None;
        wish.hint = is_known.then_some(leader);
        // At once, but for leaders that name each other.
        wish.due = if is_known && wish.tries < 3 { now } else { now.after(AGAIN) };
    }

    pub fn again(&mut self, now: Time, number: u64) {
        if let Some(wish) = self.all.get_mut(&number) {
            (wish.due, wish.hint) = (now.after(AGAIN), None);
        }
    }

    /// Whoever was asked is cut off.
    pub fn lost(&mut self, node: NodeId) {
        for wish in self.all.values_mut().filter(|wish| wish.asked == Some(node)) {
            (wish.hint, wish.due) = (None, Time::default());
        }
    }

    /// Who is told, and whether somebody may still propose it.
    pub fn done(&mut self, number: u64) -> Option<(Reply, bool)> {
        self.all.remove(&number).map(|wish| (wish.reply, wish.is_doubtful))
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
    const CORE: NodeId = NodeId(7);
    const LEADER: NodeId = NodeId(8);

    /// A wish of an operator that a core was asked for.
    fn asked() -> (Wishes, u64) {
        let mut wishes = Wishes::new(Incarnation(1));
        assert!(wishes.push(LATER, Reply::Operator(WishId(1)), vec![1]));
        let number = wishes.take_due(Time(0))[0].number;
        wishes.asked(number, CORE);
        (wishes, number)
    }

    #[test]
    fn what_nobody_has_answered_may_still_be_proposed() {
        let (mut wishes, number) = asked();
        assert_eq!(wishes.done(number), Some((Reply::Operator(WishId(1)), false)));
        for is_lost in [true, false] {
            let (mut wishes, number) = asked();
            if is_lost {
                wishes.lost(CORE);
            }
            assert_eq!(wishes.take_due(Time(2_000_000)).len(), 1);
            assert_eq!(wishes.done(number), Some((Reply::Operator(WishId(1)), true)));
        }
        let (mut wishes, number) = asked();
        wishes.not_leader(Time(1), CORE, number, LEADER);
        let due = wishes.take_due(Time(1));
        assert_eq!((due[0].number, due[0].hint), (number, Some(LEADER)));
        wishes.asked(number, LEADER);
        assert_eq!(wishes.done(number), Some((Reply::Operator(WishId(1)), false)));
    }
}
