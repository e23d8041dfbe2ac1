//! Commands of operators: nodes that leave, the leader, and shares of replicants.

use super::*;

#[test]
fn cores_that_leave_give_up_their_votes_and_the_last_stays() {
    for first in 0..3 {
        let mut scenario = meta_group();
        let (second, last) = ((first + 1) % 3, (first + 2) % 3);
        scenario.run_for(2 * SECOND);
        for (leaves, stays, left) in [(first, second, 2), (second, last, 1)] {
            scenario.orders(leaves, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
            scenario.run_for(20 * SECOND);
            assert_eq!(scenario.outcome(), Some(Ok(Answer::Done)), "n{leaves} of {left}, n{first} first");
            assert_eq!(scenario.roster(leaves), None);
            assert_eq!(
                scenario.roster(stays),
                Some((vec![State::Alive; left], 1)),
                "two cores tolerate no more failures than one"
            );
            // The others have a leader and do not wait for the node that left, and it does not join again.
            scenario.run_for(70 * SECOND);
            assert_eq!(
                scenario.roster(stays),
                Some((vec![State::Alive; left], 1)),
                "two cores tolerate no more failures than one"
            );
            let meta = scenario.meta(stays).expect("the node runs");
            assert!(meta.leader().is_some(), "n{leaves} of {left}, n{first} first");
        }
        scenario.orders(last, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
        scenario.run_for(SECOND);
        let outcome = scenario.outcome().expect("at once");
        assert!(outcome.is_err_and(|why| why.contains("last core")));
    }
}

/// Covers both nodes of a pair: one of them dials the other.
#[test]
fn a_node_that_has_left_and_ended_is_not_reported() {
    for leaves in 0..3 {
        let mut scenario = meta_group();
        scenario.run_for(2 * SECOND);
        scenario.orders(leaves, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
        let others = [(leaves + 1) % 3, (leaves + 2) % 3];
        scenario.until("it has left", |scenario| {
            others.iter().all(|other| !scenario.known(*other).members.contains_key(&id(leaves)))
        });
        scenario.cluster.members[leaves].is_switched_off = true;
        scenario.cluster.kill(leaves, false);
        for _ in 0..40 {
            scenario.run_for(SECOND);
            for other in others {
                // An impostor may use the name of a running node.
                let reason = scenario.not_joined(other);
                let of_it: Vec<_> =
                    reason.iter().filter(|it| it.starts_with(&format!("n{leaves}:"))).collect();
                assert!(of_it.is_empty(), "n{other} reports n{leaves}, which has left: {of_it:?}");
            }
        }
    }
}

/// One of two cores has a vote, and passes it to the other when it leaves. After that it does not know the leader. The
/// leader lets it leave only when it has confirmed that it knows about the core that left before.
#[test]
fn a_core_without_a_vote_still_reports_its_position() {
    let mut scenario = meta_group_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    scenario.run_for(10 * SECOND);
    let leader = scenario.leader();
    let [first, stays] = [1, 2].map(|other| (leader + other) % 3);
    for leaves in [first, leader] {
        scenario.orders(leaves, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
        scenario.until("it has left", |scenario| !scenario.known(stays).members.contains_key(&id(leaves)));
    }
    scenario
        .until("the last leads", |scenario| scenario.meta(stays).and_then(Meta::leader) == Some(id(stays)));
    scenario.until("it acknowledges", |scenario| {
        scenario.may_acknowledge(stays) && scenario.may_acknowledge(REPLICANT)
    });
}

#[test]
fn a_leave_without_a_majority_fails_with_an_error() {
    let mut scenario = meta_group();
    for node in [0, 1] {
        scenario.part(2, node);
    }
    scenario.orders(2, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
    scenario.run_for(61 * SECOND);
    let outcome = scenario.outcome().expect("its time is over");
    assert!(outcome.is_err_and(|why| why.contains("no majority")));
    assert_eq!(scenario.roster(0).map(|(states, _)| states.len()), Some(3), "no other node knows of it");
}

#[test]
fn an_operator_transfers_the_leadership_to_any_core() {
    let mut scenario = meta_group();
    for (asked, wanted) in [(0, 1), (2, 1), (2, 0), (1, 2), (1, 2)] {
        let node = NodeId::of_name(&format!("n{wanted}"));
        scenario
            .orders(asked, RouterCommand::Proposal(ProposalId(FIRST_OTHER_PROPOSAL), Command::Lead(node)));
        scenario.run_for(5 * SECOND);
        assert_eq!(scenario.outcome(), Some(Ok(Answer::Done)), "n{wanted}, asked of n{asked}");
        assert_eq!(scenario.leaders(0..3), [Some(node); 3]);
    }
    scenario.assert_whole();
}

#[test]
fn a_restarted_core_gets_its_share_of_replicants_on_request() {
    let mut scenario = meta_group_of(3, |plan| plan.nodes[2].role = Role::Replicant);
    // The only replicant is attached to the core with the smallest number.
    let first = usize::from(NodeId::of_name("n1") < NodeId::of_name("n0"));
    scenario.cluster.fault(&Fault::Kill { node: first });
    scenario.run_for(40 * SECOND);
    assert_eq!(scenario.attached(2), 1 - first, "a restarted core gets no replicants by itself");
    scenario.orders(1 - first, RouterCommand::Balance);
    scenario.run_for(SECOND);
    assert_eq!(scenario.attached(2), first);
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.assert_serves();
}

/// Each replicant is first attached to the first core that it meets, which may be the same for all.
#[test]
fn replicants_that_start_together_are_spread_over_the_cores() {
    let replicants = 3..9;
    let mut scenario = meta_group_of(9, |plan| {
        plan.nodes[3..9].iter_mut().for_each(|node| node.role = Role::Replicant);
    });
    scenario.run_for(20 * SECOND);
    let mut counts = std::collections::BTreeMap::new();
    for node in replicants {
        let process = scenario.cluster.members[node].process.as_ref().expect("runs");
        let view = process.router.view(process.time(&scenario.cluster.cx));
        *counts.entry(view.attached.map(|name| name.to_string())).or_insert(0) += 1;
    }
    let even = ["n0", "n1", "n2"].map(|core| (Some(core.to_owned()), 2));
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), even);
}
