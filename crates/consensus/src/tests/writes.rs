//! Commands that a leader writes without an event for each.

use super::owner::{Owner, config, vote_of_other};
use super::*;

#[test]
fn written_commands_are_applied_in_the_order_of_the_calls() {
    let mut owner = Owner::leads_another(config());
    for first in (0..3_000).step_by(1_000) {
        (first..first + 1_000).for_each(|number| assert!(owner.writes(number)));
        owner.works(20);
        assert_eq!(owner.replica.writes_waiting(), 0);
    }
    assert_eq!((owner.numbers(), owner.machine.count), ((0..3_000).collect(), 3_000));
    assert!(owner.effects.is_sorted() && owner.replica.poll_event().is_none());
    // The memory of a command is that of the entry in the cache.
    let command = Arc::new(vec![7; 1_000]);
    assert!(owner.replica.write(command.clone()));
    owner.turns(10);
    let Some(crate::Job::Apply { commands, .. }) = owner.jobs.front() else { panic!("a job to apply") };
    assert!(Arc::ptr_eq(&commands[0].command, &command));
    owner.works(1);
}

/// A command waits until the owner has applied it.
#[test]
fn no_more_commands_are_taken_than_may_wait() {
    let mut owner = Owner::leads_alone(Config { waiting_max: 5, ..config() });
    let taken = (0..9).map(|number| owner.writes(number)).filter(|taken| *taken).count();
    assert_eq!((taken, owner.replica.writes_waiting()), (5, 5));
    owner.turns(20);
    assert!(!owner.writes(9), "nothing is applied");
    owner.works(2);
    assert_eq!((owner.machine.count, owner.replica.writes_waiting()), (5, 0));
    assert!(owner.writes(9));
    owner.works(5);
    assert_eq!(owner.machine.count, 6);
}

#[test]
fn only_a_leader_takes_commands() {
    let mut owner = Owner::on(config());
    assert!(!owner.writes(1));
    owner.replica.initialize(BTreeMap::from([(OWN, member(OWN))]));
    owner.works(50);
    assert!(!owner.writes(1), "the owner does not know that the replica leads");
    assert!(matches!(owner.replica.poll_leadership(), Some(Leadership::Leads(_))));
    assert!(owner.writes(1));
    owner.works(5);
    assert_eq!(owner.machine.count, 1);
}

/// A leader that no majority answers appends nothing for a while. Then it goes on with the commands that it took.
#[test]
fn commands_wait_for_a_lease_that_has_expired() {
    let mut owner = Owner::leads_another(config());
    assert!(owner.writes(0));
    owner.works(10);
    owner.is_answered = false;
    owner.turns(500);
    let last = owner.status().last;
    for number in 1..600 {
        assert!(owner.writes(number));
        if number % 50 == 0 {
            owner.turns(3);
        }
    }
    assert_eq!((owner.status().last, owner.replica.writes_waiting()), (last, 599), "it appends nothing");
    owner.is_answered = true;
    owner.works(100);
    assert_eq!((owner.numbers(), owner.replica.writes_waiting()), ((0..600).collect(), 0));
    assert_eq!((owner.status().role, owner.machine.count), (Role::Leader, 600));
}

/// A transfer of the leadership delays commands. They are lost when the other replica leads.
#[test]
fn commands_are_lost_when_leadership_ends() {
    let mut owner = Owner::leads_another(config());
    (0..3).for_each(|number| assert!(owner.writes(number)));
    owner.works(10);
    let last = owner.status().last.expect("the commands");
    // The other replica has none of these.
    owner.is_answered = false;
    (3..6).for_each(|number| assert!(owner.writes(number)));
    owner.turns(5);
    assert_eq!(owner.status().last, Some(last + 3));
    owner.replica.transfer(OTHER);
    owner.turns(2);
    (6..9).for_each(|number| assert!(owner.writes(number)));
    owner.turns(20);
    assert_eq!((owner.status().last, owner.replica.writes_waiting()), (Some(last + 3), 6));
    let term = owner.status().term;
    let (vote, previous) = (vote_of_other(term + 1), Some(wire::log_id(term, last)));
    let entries = vec![Entry::new(wire::log_id(term + 1, last + 1), Payload::Blank)];
    owner.receives(Body::Append(Append { vote, previous, committed: previous, entries }));
    owner.works(50);
    assert_eq!(owner.replica.poll_leadership(), Some(Leadership::Follows));
    assert_eq!((owner.status().last, owner.replica.writes_waiting()), (Some(last + 1), 0));
    assert_eq!((owner.machine.count, owner.status().failure.clone()), (3, None));
    assert!(!owner.writes(9));
}

/// A leader whose transfer fails does not wait for the other replica without an end: that may be gone for good.
#[test]
fn a_transfer_that_fails_ends_in_an_election() {
    let mut owner = Owner::leads_another(config());
    assert!(owner.writes(0));
    owner.works(10);
    let term = owner.status().term;
    let request = owner.replica.transfer(OTHER);
    owner.works(300);
    assert_eq!(owner.replica.poll_leadership(), Some(Leadership::Follows));
    let outcome = std::iter::from_fn(|| owner.replica.poll_event()).find(|event| event.request == request);
    assert!(matches!(outcome.map(|event| event.outcome), Some(Err(crate::Undecided::Refused(_)))));
    owner.works(1_000);
    let Some(Leadership::Leads(next)) = owner.replica.poll_leadership() else {
        panic!("it does not lead again")
    };
    assert!(next > term + 1, "it has voted for the other one in the next term");
    assert!(owner.writes(1));
    owner.works(20);
    assert_eq!(owner.numbers(), [0, 1]);
}

/// Commands of one period of leadership do not appear in the next one, although the replica leads again.
#[test]
fn commands_of_a_period_that_has_ended_are_not_appended_later() {
    let mut owner = Owner::leads_another(config());
    assert!(owner.writes(0));
    owner.works(10);
    let (last, term) = (owner.status().last.expect("a command"), owner.status().term);
    owner.is_answered = false;
    owner.turns(500);
    (1..4).for_each(|number| assert!(owner.writes(number)));
    owner.turns(5);
    let (vote, previous) = (vote_of_other(term + 1), Some(wire::log_id(term, last)));
    owner.receives(Body::Append(Append { vote, previous, committed: previous, entries: Vec::new() }));
    owner.turns(5);
    assert_eq!(owner.replica.poll_leadership(), Some(Leadership::Follows));
    owner.is_answered = true;
    for _ in 0..1_000 {
        owner.works(1);
        if let Some(Leadership::Leads(next)) = owner.replica.poll_leadership() {
            assert!(next > term + 1);
            assert!(owner.writes(4));
            owner.works(20);
            assert_eq!((owner.numbers(), owner.machine.count), (vec![0, 4], 2));
            return;
        }
    }
    panic!("it does not lead again");
}

/// Messages of the other replica are lost at random.
#[test]
fn the_commands_of_a_period_have_no_gap() {
    for seed in 0..20 {
        let mut random = random::Random::new(seed);
        let mut owner = Owner::leads_another(Config { waiting_max: 300, ..config() });
        let mut next = 0;
        for _ in 0..400 {
            for _ in 0..random.below(40) {
                next += u32::from(owner.writes(next));
            }
            if random.percent(3) {
                owner.is_answered = !owner.is_answered;
            }
            if random.percent(2) {
                (0..2_000).step_by(10).for_each(|_| owner.turns(1));
            }
            owner.works(1);
        }
        owner.is_answered = true;
        owner.works(200);
        let status = owner.status();
        assert_eq!((status.role, owner.replica.writes_waiting()), (Role::Leader, 0), "seed {seed}");
        assert!(owner.numbers() == (0..next).collect::<Vec<_>>() && next > 300, "seed {seed}: {next}");
    }
}
