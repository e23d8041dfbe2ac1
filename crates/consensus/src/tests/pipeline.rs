//! Requests that leave before earlier ones are answered.

use std::time::Duration;

use super::owner::{Owner, config};
use super::*;
use crate::wire::Appended;

/// Length of a turn, and time from a request to its answer.
const TURN: u64 = 10_000;
const ROUND_TRIP: u64 = 200_000;

/// Messages to the other replica and their answers, on a long way.
#[derive(Default)]
struct LongWay {
    on_their_way: std::collections::VecDeque<(u64, u32, Body)>,
    most: usize,
}

impl LongWay {
    /// Makes a turn. The other replica answers what was sent a round trip ago, as `answer` says.
    fn turn(&mut self, owner: &mut Owner, mut answer: impl FnMut(&Append) -> Option<Appended>) {
        owner.works(1);
        self.on_their_way
            .extend(sent(&mut owner.replica).into_iter().map(|(call, body)| (owner.now, call, body)));
        self.most = self.most.max(self.on_their_way.iter().filter(|(.., body)| has_entries(body)).count());
        while self.on_their_way.front().is_some_and(|(at, ..)| owner.now - at >= ROUND_TRIP) {
            let Some((_, call, Body::Append(append))) = self.on_their_way.pop_front() else { continue };
            if let Some(appended) = answer(&append) {
                receive(&mut owner.replica, call, Body::Appended(appended));
            }
        }
    }
}

fn has_entries(body: &Body) -> bool {
    matches!(body, Body::Append(append) if !append.entries.is_empty())
}

fn far() -> Owner {
    let mut owner = Owner::leads_another(Config { sends_ahead: true, ..config() });
    owner.is_answered = false;
    owner
}

/// A command is committed one round trip after it was written, whatever is on its way.
#[test]
fn a_command_does_not_wait_for_the_answers_to_earlier_ones() {
    let (mut owner, mut way) = (far(), LongWay::default());
    let mut written = Vec::new();
    for number in 0..200 {
        assert!(owner.writes(number));
        written.push(owner.now);
        way.turn(&mut owner, |_| Some(Appended::All));
        let applied = owner.machine.count as usize;
        if let Some(at) = written.get(applied) {
            let waited = owner.now - at;
            assert!(waited <= ROUND_TRIP + 5 * TURN, "command {applied} waits for {waited} us");
        }
    }
    assert!(way.most >= 15, "{} requests were on their way at once", way.most);
    assert!(owner.machine.count >= 170);
}

/// Commands that are written while an answer is near share a request.
#[test]
fn requests_do_not_follow_each_other_at_once() {
    let (mut owner, mut way) = (far(), LongWay::default());
    assert!(owner.writes(0));
    owner.turns(1);
    let first: Vec<_> = sent(&mut owner.replica).into_iter().filter(|(_, body)| has_entries(body)).collect();
    assert_eq!(first.len(), 1);
    // Less than the pause later.
    (1..9).for_each(|number| assert!(owner.writes(number)));
    for _ in 0..4 {
        owner.now += 1_000;
        owner.replica.turn(Time(owner.now));
    }
    assert!(!sent(&mut owner.replica).iter().any(|(_, body)| has_entries(body)));
    for (call, _) in first {
        receive(&mut owner.replica, call, Body::Appended(Appended::All));
    }
    owner.replica.turn(Time(owner.now));
    let second: Vec<_> = sent(&mut owner.replica).into_iter().filter(|(_, body)| has_entries(body)).collect();
    assert!(matches!(&second[..], [(_, Body::Append(append))] if append.entries.len() == 8), "{second:?}");
    way.on_their_way.extend(second.into_iter().map(|(call, body)| (owner.now, call, body)));
    (0..30).for_each(|_| way.turn(&mut owner, |_| Some(Appended::All)));
    assert_eq!(owner.machine.count, 9);
}

#[test]
fn few_large_requests_are_on_their_way() {
    let (mut owner, mut way) = (far(), LongWay::default());
    let large = |owner: &mut Owner| owner.replica.write(Arc::new(vec![1; 200 << 10]));
    for _ in 0..10 {
        assert!(large(&mut owner));
        way.turn(&mut owner, |_| Some(Appended::All));
    }
    assert_eq!(way.most, 2);
    (0..200).for_each(|_| way.turn(&mut owner, |_| Some(Appended::All)));
    assert_eq!(owner.machine.count, 10);
}

/// A replica that joins gets what the log has at [`Config::copy_rate`], and later entries at once.
#[test]
fn entries_are_copied_at_a_bounded_rate() {
    const SIZE: usize = 100 << 10;
    let copy_rate = std::num::NonZeroU64::new(1 << 20).expect("not 0");
    let mut owner = Owner::leads_alone(Config { copy_rate, sends_ahead: true, ..config() });
    let large = |owner: &mut Owner| owner.replica.write(Arc::new(vec![1; SIZE]));
    for _ in 0..20 {
        assert!(large(&mut owner));
        owner.works(1);
    }
    owner.is_answered = false;
    owner.replica.change_members(Change::AddLearner(OTHER, member(OTHER)), Duration::from_secs(5));
    // Time at which each large entry was sent.
    let (began, mut sent_at) = (owner.now, Vec::new());
    // Last entry of the other replica.
    let mut has = None;
    for turn in 0..400 {
        if turn == 100 {
            // The copy is under way.
            assert!(sent_at.len() < 20);
            assert!(large(&mut owner));
        }
        owner.works(1);
        for (call, body) in sent(&mut owner.replica) {
            let Body::Append(append) = body else { continue };
            let is_next = append.previous.map(|it| it.index) <= has;
            if is_next {
                let count = append.entries.iter().filter(|entry| crate::pipeline::size(entry) > SIZE).count();
                sent_at.extend(std::iter::repeat_n(owner.now - began, count));
                has = has.max(append.entries.last().map(|entry| entry.log_id.index));
            }
            let appended = if is_next { Appended::All } else { Appended::Conflict };
            receive(&mut owner.replica, call, Body::Appended(appended));
        }
    }
    assert_eq!(sent_at.len(), 21);
    // What waits leaves before what is new, and one request may have several entries.
    let (bytes, time) = (sent_at.len() * SIZE, sent_at[20]);
    assert!((1_700_000..2_500_000).contains(&time), "{bytes} bytes in {time} us");
    let before = owner.now;
    assert!(large(&mut owner));
    owner.works(2);
    let is_sent = sent(&mut owner.replica).iter().any(|(_, body)| has_entries(body));
    assert!(is_sent, "a new entry waits for {} us", owner.now - before);
}

/// Answers are lost, or say that a replica lacks the entry before, because an earlier request was lost: nothing is
/// missed, and the replica is not taken for one that has lost its log.
#[test]
fn requests_behind_a_lost_one_are_sent_again() {
    for seed in 0..30 {
        let mut random = random::Random::new(seed);
        let (mut owner, mut way) = (far(), LongWay::default());
        // Last entry of the other replica.
        let mut has = owner.status().last;
        let mut next = 0;
        let mut conflicts = 0;
        for turn in 0..1_500 {
            if turn < 1_000 && random.percent(30) {
                next += u32::from(owner.writes(next));
            }
            let loses = turn < 1_000 && random.percent(5);
            way.turn(&mut owner, |append| {
                if loses {
                    return None;
                }
                if append.previous.map(|it| it.index) > has {
                    conflicts += 1;
                    return Some(Appended::Conflict);
                }
                has = has.max(append.entries.last().map(|entry| entry.log_id.index));
                Some(Appended::All)
            });
        }
        assert_eq!(owner.replica.poll_regressed(), None, "seed {seed}");
        assert_eq!(
            (owner.machine.count, owner.status().role),
            (u64::from(next), Role::Leader),
            "seed {seed}"
        );
        assert!(conflicts > 0 && next > 100, "seed {seed}: {conflicts} conflicts, {next} commands");
    }
}

/// A leader sends a command before its own disk has it.
#[test]
fn a_command_leaves_before_it_is_durable_here() {
    for sends_ahead in [true, false] {
        let mut owner = Owner::leads_another(Config { sends_ahead, ..config() });
        owner.works(100);
        owner.is_answered = false;
        assert!(owner.writes(1));
        owner.replica.turn(Time(owner.now));
        let sent: Vec<_> = sent(&mut owner.replica).into_iter().map(|(_, body)| has_entries(&body)).collect();
        assert_eq!(sent, [true], "{sends_ahead}");
    }
}
