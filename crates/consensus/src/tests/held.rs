//! Entries that a majority of the replicas has in memory before its disks have them.

use super::owner::{Owner, config, vote_of_other};
use super::*;

fn reports_held() -> Config {
    Config { reports_held: true, ..config() }
}

fn vote_of_own(term: u64) -> Vote {
    Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(term, OWN), committed: true }
}

/// Report of the other replica that it has all entries of this leader in memory.
fn report_of_all(owner: &Owner) -> Body {
    let (term, last) = (owner.status().term, owner.status().last.expect("entries"));
    Body::Held { vote: vote_of_own(term), last: wire::log_id(term, last) }
}

/// The others may report although the leader itself does not.
#[test]
fn a_leader_counts_the_commands_that_a_majority_has_in_memory() {
    for config in [reports_held(), config()] {
        let mut owner = Owner::leads_another(config);
        assert!(owner.writes(0));
        owner.works(10);
        assert_eq!((owner.replica.held_writes(), owner.machine.count), (1, 1));
        owner.is_answered = false;
        (1..4).for_each(|number| assert!(owner.writes(number)));
        owner.turns(5);
        let (term, last) = (owner.status().term, owner.status().last.expect("the commands"));
        let vote = vote_of_own(term);
        // Reports to another leader, and of an entry that this one does not have.
        owner.receives(Body::Held { vote: vote_of_other(term), last: wire::log_id(term, last) });
        owner.receives(Body::Held { vote, last: wire::log_id(term + 1, last) });
        owner.receives(Body::Held { vote, last: wire::log_id(term, last + 1) });
        // Reports of a replica that is no member, and of another node for this one.
        let report = |from| Message { group: GROUP, to: OWN, from, call: 0, body: report_of_all(&owner) };
        let (stranger, other) = (report(ReplicaId(7)), report(OTHER));
        owner.replica.receive(node(ReplicaId(7)), &wire::encode(b"", &stranger));
        owner.replica.receive(node(ReplicaId(7)), &wire::encode(b"", &other));
        owner.turns(1);
        assert_eq!(owner.replica.held_writes(), 1);
        owner.receives(Body::Held { vote, last: wire::log_id(term, last - 1) });
        assert_eq!((owner.replica.held_writes(), owner.machine.count), (3, 1), "two more, none committed");
        owner.is_answered = true;
        owner.works(100);
        assert_eq!((owner.replica.held_writes(), owner.machine.count), (4, 4));
    }
}

/// A process that ends loses what it had in memory.
#[test]
fn a_report_counts_no_more_when_the_link_to_its_node_is_lost() {
    let mut owner = Owner::leads_another(reports_held());
    owner.is_answered = false;
    assert!(owner.writes(0));
    owner.turns(5);
    owner.receives(report_of_all(&owner));
    owner.replica.lost(node(OTHER));
    owner.turns(5);
    assert_eq!(owner.replica.held_writes(), 0);
    owner.receives(report_of_all(&owner));
    assert_eq!(owner.replica.held_writes(), 1, "it has the entry again");
}

#[test]
fn a_leader_that_is_replaced_has_no_such_commands() {
    let mut owner = Owner::leads_another(reports_held());
    assert!(owner.writes(0));
    owner.works(10);
    let (last, term) = (owner.status().last.expect("a command"), owner.status().term);
    let (vote, previous) = (vote_of_other(term + 1), Some(wire::log_id(term, last)));
    owner.receives(Body::Append(Append { vote, previous, committed: previous, entries: Vec::new() }));
    owner.turns(5);
    assert_eq!(owner.replica.held_writes(), 0);
}

#[test]
fn a_follower_reports_entries_before_its_disk_has_them() {
    for reports_held in [true, false] {
        let mut lone = Lone::on(Config { reports_held, ..config() });
        let vote = vote_of_other(1);
        let first = Entry::new(wire::log_id(1, 0), Payload::Membership(membership()));
        let append = |previous, entries| Body::Append(Append { vote, previous, committed: None, entries });
        lone.receives(append(None, vec![first]));
        lone.passes();
        lone.answers();
        let second = Entry::new(wire::log_id(1, 1), Payload::Normal(Command(Arc::new(vec![1]))));
        lone.receives(append(Some(wire::log_id(1, 0)), vec![second]));
        (0..5).for_each(|_| lone.turns_without_the_disk());
        let report = reports_held.then(|| Body::Held { vote, last: wire::log_id(1, 1) });
        assert_eq!(lone.answers(), Vec::from_iter(report), "the entry is not on the disk");
        (0..5).for_each(|_| lone.turns_once());
        assert_eq!(lone.answers(), [Body::Appended(wire::Appended::All)]);
    }
}
