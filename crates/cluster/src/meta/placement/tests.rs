use replog::Incarnation;

use super::planner::{Core, Standing, found};
use super::*;
use crate::config::{NodeInfo, Role};
use crate::meta::Member;

const A: NodeId = NodeId(0xa);
const B: NodeId = NodeId(0xb);

fn log(node: NodeId, number: u64) -> CoreLog {
    CoreLog { node, replica: ReplicaId(number) }
}

fn replica(node: NodeId, number: u64, since: u64) -> ShardReplica {
    log(node, number).replica_since(since)
}

fn placement() -> Placement {
    let first = ShardPlacement { epoch: 5, voters: vec![replica(A, 1, 5)], learner: None, leaving: None };
    let second = ShardPlacement {
        epoch: 6,
        learner: Some(replica(B, 2, 6)),
        leaving: Some(replica(A, 1, 5)),
        ..first.clone()
    };
    let replicas = Replicas::new(3).expect("a number of replicas");
    Placement { version: 6, replicas, owner_key: *b"0123456789abcdef", shards: vec![first, second] }
}

/// Returns a roster with cores that have these logs.
fn roster(cores: &[(NodeId, u64)]) -> Roster {
    let mut roster = Roster { founded: 1, index: 1, ..Roster::default() };
    for (id, log) in cores {
        let info = NodeInfo {
            name: id.to_string().into(),
            role: Role::Core,
            region: "".into(),
            address: "h:1".into(),
        };
        let member = Member {
            info,
            incarnation: Incarnation(1),
            state: State::Alive,
            leaves: false,
            replica: Some(ReplicaId(*log)),
        };
        roster.members.insert(*id, member);
    }
    roster
}

/// Returns the first placement of a shard on core A, founded at index 3.
fn founded(roster: &Roster) -> Option<Placement> {
    let core = Core { log: log(A, 1), region: "".into(), standing: Standing::Serves };
    let first = found(&[core], 2, Replicas::default(), [7; 16]).expect("a core");
    let mut placement = None;
    let command = PlacementCommand::Found(first.into());
    assert_eq!(Placement::apply(&mut placement, 3, command, roster), Answer::Done);
    placement
}

fn add_b(version: u64) -> PlacementCommand {
    let (add, remove) = (Some(log(B, 2)), None);
    PlacementCommand::Move(ShardMove { version, shard: ShardId(1), add, remove })
}

/// Checks the bytes of version 1. They must never change.
#[test]
fn a_placement_keeps_its_byte_format() {
    let golden = concat!(
        "01",
        "0600000000000000",
        "03",
        "30313233343536373839616263646566",
        "0200",
        "0500000000000000",
        "01",
        "0a0000000000000001000000000000000500000000000000",
        "000000000000000000000000000000000000000000000000",
        "000000000000000000000000000000000000000000000000",
        "0600000000000000",
        "01",
        "0a0000000000000001000000000000000500000000000000",
        "0b0000000000000002000000000000000600000000000000",
        "0a0000000000000001000000000000000500000000000000",
    );
    let bytes = placement().encode();
    let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, golden);
    assert_eq!(Placement::decode(&bytes), Some(placement()));
    for length in 0..bytes.len() {
        assert_eq!(Placement::decode(&bytes[..length]), None, "{length}");
    }
    for at in 0..bytes.len() {
        for value in 0..=255 {
            let mut bad = bytes.clone();
            bad[at] = value;
            if let Some(read) = Placement::decode(&bad) {
                assert_eq!(read.encode(), bad);
                assert!(read.shards().all(|(_, shard)| shard.is_valid()));
            }
        }
    }
    // Counts that are greater than what follows take no memory.
    assert_eq!(Placement::decode(&[&bytes[..26], &[0xff, 0x0f]].concat()), None);
}

#[test]
fn invalid_placements_are_refused() {
    let change = |change: &dyn Fn(&mut ShardPlacement)| {
        let mut bad = placement();
        change(&mut bad.shards[1]);
        Placement::decode(&bad.encode())
    };
    assert_eq!(change(&|_| ()), Some(placement()));
    assert_eq!(change(&|shard| shard.voters.clear()), None);
    assert_eq!(change(&|shard| shard.voters.push(replica(A, 3, 5))), None, "two replicas on one core");
    assert_eq!(
        change(&|shard| shard.voters = (1..9).map(|node| replica(NodeId(node), 1, 5)).collect()),
        None
    );
    assert_eq!(change(&|shard| shard.learner = Some(replica(A, 1, 6))), None, "it is a voter");
    assert_eq!(change(&|shard| shard.leaving = Some(replica(B, 2, 5))), None, "two replicas in one log");
    assert_eq!(
        change(&|shard| (shard.learner, shard.leaving) = (None, Some(replica(A, 1, 5)))),
        None,
        "no voter"
    );
    let none = Placement { shards: Vec::new(), ..placement() };
    assert_eq!(Placement::decode(&none.encode()), None);
}

#[test]
fn shards_are_placed_once_and_in_a_cluster_only() {
    let roster = roster(&[(A, 1)]);
    let first = founded(&roster);
    let placement = first.as_ref().expect("it was founded");
    assert_eq!((placement.version, placement.shards().len()), (3, 2));
    for (_, shard) in placement.shards() {
        assert_eq!((shard.epoch, shard.is_settled(), &*shard.voters), (3, true, &[replica(A, 1, 3)][..]));
    }
    let mut again = first.clone();
    let other = Placement { owner_key: [8; 16], ..placement.clone() };
    Placement::apply(&mut again, 4, PlacementCommand::Found(other.into()), &roster);
    assert_eq!(again, first);
    let mut none = None;
    let command = PlacementCommand::Found(placement.clone().into());
    assert_eq!(Placement::apply(&mut none, 4, command, &Roster::default()), Answer::Refused);
    assert_eq!(none, None);
    for command in [add_b(0), PlacementCommand::Done { shard: ShardId(0), epoch: 0 }] {
        assert_eq!(Placement::apply(&mut none, 4, command, &roster), Answer::Done);
        assert_eq!(none, None);
    }
}

#[test]
fn a_change_begins_once_on_the_version_that_it_was_decided_on_and_ends_once_with_its_epoch() {
    let roster = roster(&[(A, 1), (B, 2)]);
    let mut placement = founded(&roster);
    let mut apply = |index: u64, command: PlacementCommand| {
        assert_eq!(Placement::apply(&mut placement, index, command, &roster), Answer::Done);
        let placement = placement.as_ref().expect("it was founded");
        (placement.version, placement.shard(ShardId(1)).expect("a shard").clone())
    };
    let done = |epoch| PlacementCommand::Done { shard: ShardId(1), epoch };
    let (version, before) = apply(4, add_b(2));
    assert_eq!((version, before.is_settled()), (3, true), "it is of an older version");
    assert_eq!(apply(5, done(3)), (3, before.clone()), "there is no change");
    let (version, begun) = apply(6, add_b(3));
    assert_eq!((version, begun.epoch, begun.learner, begun.leaving), (6, 6, Some(replica(B, 2, 6)), None));
    assert_eq!((begun.voters.len(), begun.target()), (1, vec![replica(A, 1, 3), replica(B, 2, 6)]));
    assert_eq!(apply(7, add_b(3)), (6, begun.clone()), "it was repeated");
    assert_eq!(apply(8, done(3)), (6, begun), "it is of an earlier change");
    let (version, ended) = apply(9, done(6));
    assert_eq!((version, ended.epoch, ended.is_settled()), (9, 6, true));
    assert_eq!(ended.voters, [replica(A, 1, 3), replica(B, 2, 6)]);
    assert_eq!(apply(10, done(6)), (9, ended.clone()), "it was repeated");
    assert_eq!(apply(11, add_b(9)), (9, ended), "it is a voter already");
    assert_eq!(apply(12, PlacementCommand::Done { shard: ShardId(9), epoch: 6 }).0, 9);
}

#[test]
fn only_a_living_replica_of_the_roster_is_added() {
    let good = roster(&[(A, 1), (B, 2)]);
    let mut dead = good.clone();
    dead.members.get_mut(&B).expect("a member").state = State::Dead;
    let mut replicant = good.clone();
    replicant.members.get_mut(&B).expect("a member").info.role = Role::Replicant;
    let mut leaving = good.clone();
    leaving.members.get_mut(&B).expect("a member").leaves = true;
    let none = roster(&[(A, 1)]);
    for other in [roster(&[(A, 1), (B, 3)]), dead, replicant, leaving, none] {
        let mut placement = founded(&good);
        Placement::apply(&mut placement, 4, add_b(3), &other);
        assert_eq!(placement, founded(&good), "{other:?}");
    }
    let mut placement = founded(&good);
    Placement::apply(&mut placement, 4, add_b(3), &good);
    assert!(placement.is_some_and(|placement| placement.has_node(B)));
}

/// A learner that was given up leaves, because the group may have it as a voter.
#[test]
fn a_change_is_replaced_by_a_later_one() {
    let roster = roster(&[(A, 1), (B, 2)]);
    let mut placement = founded(&roster);
    Placement::apply(&mut placement, 4, add_b(3), &roster);
    let undo = ShardMove { version: 4, shard: ShardId(1), add: None, remove: Some(replica(B, 2, 4)) };
    Placement::apply(&mut placement, 5, PlacementCommand::Move(undo), &roster);
    let shard = |placement: &Option<Placement>| placement.as_ref()?.shard(ShardId(1)).cloned();
    let undone = shard(&placement).expect("a shard");
    assert_eq!((undone.epoch, undone.learner, undone.leaving), (5, None, Some(replica(B, 2, 4))));
    assert_eq!((undone.target(), undone.replicas().count()), (vec![replica(A, 1, 3)], 2));
    let before = placement.clone();
    Placement::apply(&mut placement, 6, PlacementCommand::Done { shard: ShardId(1), epoch: 4 }, &roster);
    assert_eq!(placement, before, "the report is about the first change");
    Placement::apply(&mut placement, 7, PlacementCommand::Done { shard: ShardId(1), epoch: 5 }, &roster);
    let ended = shard(&placement).expect("a shard");
    assert_eq!((ended.voters.len(), ended.replicas().count()), (1, 1));
}

/// Core B has a replica of a shard, loses it, and gets another one in the same log. The state of the first one is of no
/// use to the second one.
#[test]
fn a_replica_that_is_added_again_is_another_one() {
    let roster = roster(&[(A, 1), (B, 2)]);
    let mut placement = founded(&roster);
    let (shard, of_b) = (ShardId(1), log(B, 2));
    let mut apply = |index: u64, command: PlacementCommand| {
        Placement::apply(&mut placement, index, command, &roster);
        placement.clone().expect("it was founded")
    };
    let remove = ShardMove { version: 5, shard, add: None, remove: Some(replica(B, 2, 4)) };
    let begun = apply(4, add_b(3));
    assert_eq!(begun.stored(of_b, shard, 4), StoredReplica::Current(ReplicaRole::Learner));
    assert_eq!(begun.stored(of_b, shard, 5), StoredReplica::Unknown, "the core knew a later placement");
    let added = apply(5, PlacementCommand::Done { shard, epoch: 4 });
    assert_eq!(added.stored(of_b, shard, 4), StoredReplica::Current(ReplicaRole::Voter));
    let leaving = apply(6, PlacementCommand::Move(remove));
    assert_eq!(leaving.stored(of_b, shard, 4), StoredReplica::Current(ReplicaRole::Leaving));
    let removed = apply(7, PlacementCommand::Done { shard, epoch: 6 });
    assert_eq!(removed.stored(of_b, shard, 4), StoredReplica::Removed);
    let again = apply(8, add_b(7));
    assert_eq!(again.stored(of_b, shard, 4), StoredReplica::Removed);
    assert_eq!(again.stored(of_b, shard, 8), StoredReplica::Current(ReplicaRole::Learner));
    assert_eq!(again.stored(of_b, ShardId(0), 8), StoredReplica::Removed);
    assert_eq!(again.stored(log(B, 3), shard, 8), StoredReplica::Removed, "it is a copy of another log");
    let of_shard = again.shard(shard).expect("a shard");
    assert_eq!(of_shard.replicas().collect::<Vec<_>>(), [replica(A, 1, 3), replica(B, 2, 8)]);
    let own: Vec<_> = again.replicas_in(of_b).collect();
    assert_eq!(own, [(shard, replica(B, 2, 8), ReplicaRole::Learner)]);
    let own: Vec<_> = leaving.replicas_in(of_b).collect();
    assert_eq!(own, [(shard, replica(B, 2, 4), ReplicaRole::Leaving)]);
    assert_eq!(leaving.replicas_in(log(A, 1)).count(), 2);
    let late = apply(9, PlacementCommand::Move(ShardMove { version: 8, ..remove }));
    assert_eq!(late, again, "it is about the first one");
}

#[test]
fn a_core_that_has_founded_the_shards_alone_has_the_oldest_voters() {
    let voters =
        |voters: &[ShardReplica]| ShardPlacement { voters: voters.to_vec(), ..ShardPlacement::default() };
    let has_oldest = |shards: Vec<ShardPlacement>, node, number| {
        Placement { shards, ..placement() }.has_oldest_voters(log(node, number))
    };
    let alone = [replica(A, 1, 5), replica(B, 2, 7)];
    let shards = || vec![voters(&alone), voters(&alone[..1]), voters(&[replica(B, 2, 9)])];
    assert!(has_oldest(shards(), A, 1));
    assert!(!has_oldest(shards(), B, 2));
    assert!(!has_oldest(shards(), A, 3), "its log is another one");
    let together = || vec![voters(&[replica(A, 1, 5), replica(B, 2, 5)]), voters(&alone)];
    assert!(!has_oldest(together(), A, 1) && !has_oldest(together(), B, 2));
}
