//! Scenarios of claims and requests of workers on other nodes.

use shard::Shard;

use super::super::Waiter;
use super::*;
use crate::access::{
    Access, AllowAll, AuthReply, AuthResult, Credentials, Identity, Permission, RetryAuthorize,
};
use crate::batch::{SessionDelivery, WorkerCommand};
use crate::durability::Durability;
use crate::ids::ShardSet;
use crate::message::MessageView;
use crate::node::OwnerKey;
use crate::peers::LastIncarnation;
use crate::store::{Attach, Claimed, Follower, HostContext, Release, WillDisposition};
use mqtt::{PacketId, QoS};

const NOW: Time = Time(1_000);
/// Lanes of a worker of node 1 and one of node 2.
const FIRST: (WorkerId, Producer) = (WorkerId(10), producer(1));
const SECOND: (WorkerId, Producer) = (WorkerId(11), producer(2));

const fn producer(node: u64) -> Producer {
    Producer { owner: NodeIncarnation { node, incarnation: 7 }, lane: 3 }
}

fn host_of(state: Shard) -> ShardHost {
    guarded_by(Arc::new(AllowAll), state)
}

fn guarded_by(access: Arc<dyn Access>, state: Shard) -> ShardHost {
    let key = [7; 16];
    let index = routing::Index::new(key, routing::IndexLimits::default());
    let node_routes = Arc::new(crate::Routes::new(index, [7; 16], true));
    let (settings, load, counters) = Default::default();
    let context = HostContext { settings, node_routes, load, access, hash_key: key, counters };
    Follower::open(state, None, None, context).into_host()
}

/// A host in a cluster that keeps ephemeral sessions.
fn keeping(state: Shard) -> ShardHost {
    let host = host_of(state);
    host.load.keeps_ephemeral.store(true, std::sync::atomic::Ordering::Relaxed);
    host
}

fn ephemeral_claim(of: (WorkerId, Producer)) -> Request {
    let Request::Claim(claim) = claim(of) else { unreachable!("a Claim") };
    Request::Claim(Box::new(Claim { expiry: 0, clean_start: true, ..*claim }))
}

fn is_kept(completions: &[Completion]) -> bool {
    matches!(completions, [Completion::Claimed(claimed)] if claimed.is_kept())
}

fn is_revoked(completions: &[Completion], of: (WorkerId, Producer)) -> bool {
    matches!(completions, [Completion::Revoke { connection: revoked }] if *revoked == connection(of))
}

fn connection((worker, _): (WorkerId, Producer)) -> ConnectionId {
    ConnectionId { worker, slot: 5, generation: 1 }
}

fn claim(of: (WorkerId, Producer)) -> Request {
    Request::Claim(Box::new(Claim {
        client_id: "c".into(),
        connection: connection(of),
        user: OwnerKey::NOBODY,
        payers: Default::default(),
        clean_start: false,
        expiry: 60,
        window: 10,
        will: None,
        queue_limits: None,
        number: 0,
    }))
}

fn release(of: (WorkerId, Producer)) -> Request {
    Request::Release(Box::new(Release {
        client_id: "c".into(),
        connection: connection(of),
        expiry: None,
        will: WillDisposition::Discard,
        will_owner: None,
        dispatched: None,
        known_to: ShardSet::EMPTY,
        number: 0,
    }))
}

/// Completions after a request.
fn apply(host: &mut ShardHost, of: (WorkerId, Producer), number: u64, request: Request) -> Vec<Completion> {
    let mut out = ShardOutput::default();
    host.apply_of(NOW, of, Numbered { number, epoch: 0, request }, &mut out);
    completions(out)
}

fn completions(out: ShardOutput) -> Vec<Completion> {
    let commands = out.commands.into_iter();
    let of = |(_, command)| match command {
        WorkerCommand::Completion(completion) => Some(completion),
        _ => None,
    };
    commands.filter_map(of).collect()
}

fn report(host: &mut ShardHost, of: (WorkerId, Producer)) -> Vec<Completion> {
    let mut out = ShardOutput::default();
    host.worker_reported(NOW, of, &mut out);
    host.apply_at_once(NOW, &mut out);
    completions(out)
}

/// A host whose shard has a session of the first node's connection, which an earlier leader has served.
fn next_leader() -> (ShardHost, Claimed) {
    let mut host = host_of(Shard::new(0, [7; 16]));
    report(&mut host, FIRST);
    let completions = apply(&mut host, FIRST, 1, claim(FIRST));
    let [Completion::Claimed(claimed)] = &completions[..] else { panic!("{completions:?}") };
    let claimed = Claimed { resume: None, ..*claimed };
    (host_of(host.replica.into_state()), claimed)
}

fn attach(claimed: &Claimed) -> Request {
    Request::Attach(Box::new(Attach {
        client_id: "c".into(),
        session: claimed.session.expect("a durable session"),
        epoch: claimed.epoch,
        connection: connection(FIRST),
        user: OwnerKey::NOBODY,
        payers: Default::default(),
        window: 10,
        last: None,
        known_to: ShardSet::EMPTY,
    }))
}

#[test]
fn a_claim_waits_for_an_owner_that_the_new_leader_does_not_know() {
    let (mut host, claimed) = next_leader();
    report(&mut host, SECOND);
    assert!(apply(&mut host, SECOND, 1, claim(SECOND)).is_empty(), "the owner may be alive");
    assert!(apply(&mut host, FIRST, 0, attach(&claimed)).is_empty());
    let revoked = report(&mut host, FIRST);
    assert!(
        matches!(revoked[..], [Completion::Revoke { connection: of }] if of == connection(FIRST)),
        "[MQTT-3.1.4-3]: {revoked:?}"
    );
    let completions = apply(&mut host, FIRST, 2, release(FIRST));
    assert!(matches!(&completions[..], [Completion::Claimed(claimed)] if claimed.session_present));
    host.check_invariants();
}

/// The node of the connection publishes the Will then. The shard does not have it.
#[test]
fn a_claim_that_waits_is_refused_when_its_connection_ends() {
    let (mut host, claimed) = next_leader();
    report(&mut host, SECOND);
    apply(&mut host, FIRST, 0, attach(&claimed));
    assert!(is_revoked(&apply(&mut host, SECOND, 1, claim(SECOND)), FIRST));
    let refused = apply(&mut host, SECOND, 2, release(SECOND));
    assert!(
        matches!(refused[..], [Completion::ClaimRefused { connection: of, .. }] if of == connection(SECOND)),
        "{refused:?}"
    );
    assert!(apply(&mut host, FIRST, 2, release(FIRST)).is_empty(), "nobody claims it any more");
    host.check_invariants();
}

/// Otherwise an operator would read that the client is offline.
#[test]
fn a_session_may_have_an_owner_until_its_node_has_reported_or_ended() {
    let (mut host, claimed) = next_leader();
    assert!(host.may_have_unreported_owner("c") && !host.may_have_unreported_owner("other"));
    apply(&mut host, FIRST, 0, attach(&claimed));
    assert!(!host.may_have_unreported_owner("c"), "it is known");
    let (mut host, _) = next_leader();
    report(&mut host, SECOND);
    assert!(host.may_have_unreported_owner("c"));
    report(&mut host, FIRST);
    assert!(!host.may_have_unreported_owner("c"));
    let (mut host, _) = next_leader();
    set_members(&mut host, &[(1, 7, true), (2, 7, false)]);
    assert!(!host.may_have_unreported_owner("c"));
}

#[test]
fn a_claim_goes_on_when_the_owner_is_not_reported_or_its_node_has_ended() {
    let (mut host, _) = next_leader();
    report(&mut host, SECOND);
    assert!(apply(&mut host, SECOND, 1, claim(SECOND)).is_empty());
    let claimed = report(&mut host, FIRST);
    assert!(matches!(&claimed[..], [Completion::Claimed(claimed)] if claimed.session_present));

    let (mut host, _) = next_leader();
    report(&mut host, SECOND);
    assert!(apply(&mut host, SECOND, 1, claim(SECOND)).is_empty());
    let claimed = set_members(&mut host, &[(1, 7, true), (2, 7, false)]);
    assert!(matches!(&claimed[..], [Completion::Claimed(claimed)] if claimed.session_present));
    host.check_invariants();
}

/// [MQTT-3.1.4-3]. The host does not remember the owner, so it does not matter which leader has accepted its Claim.
#[test]
fn the_owner_of_an_ephemeral_session_is_closed_by_any_leader() {
    for is_next_leader in [false, true] {
        let mut host = keeping(Shard::new(0, [7; 16]));
        report(&mut host, FIRST);
        assert!(is_kept(&apply(&mut host, FIRST, 1, ephemeral_claim(FIRST))));
        assert_eq!(host.clients.len(), 0, "only the state remembers it");
        assert_eq!(host.locate("c").and_then(|located| located.owner), Some(connection(FIRST)));
        if is_next_leader {
            host = keeping(host.replica.into_state());
            report(&mut host, SECOND);
            assert!(
                apply(&mut host, SECOND, 1, ephemeral_claim(SECOND)).is_empty(),
                "the owner may be alive"
            );
            assert!(is_revoked(&report(&mut host, FIRST), FIRST));
        } else {
            report(&mut host, SECOND);
            assert!(is_revoked(&apply(&mut host, SECOND, 1, ephemeral_claim(SECOND)), FIRST));
        }
        host.check_invariants();
        assert!(is_kept(&apply(&mut host, FIRST, 2, release(FIRST))));
        assert!(apply(&mut host, FIRST, 2, release(FIRST)).is_empty(), "it comes again");
        assert_eq!(host.locate("c").and_then(|located| located.owner), Some(connection(SECOND)));
        apply(&mut host, SECOND, 2, release(SECOND));
        host.check_invariants();
        host.check_quiet();
        assert!(host.replica.state().ephemeral_of("c").is_none());
    }
}

/// The Will would be over although one of its receivers does not have it yet.
#[test]
fn an_answer_that_comes_again_from_the_next_incarnation_does_not_count() {
    let mut host = keeping(Shard::new(0, [7; 16]));
    let key = host.appends.insert(Waiter::Will { id: 1, receivers: Box::default() });
    host.appends[key].remaining = 4;
    let again = (WorkerId(12), Producer { owner: NodeIncarnation { node: 1, incarnation: 8 }, lane: 3 });
    for (of, number, remaining) in
        [(FIRST, 5, 3), (FIRST, 5, 3), (again, 5, 3), (again, 6, 2), (SECOND, 5, 1)]
    {
        let accepted = Request::Accepted { key, reason: ReasonCode::Success };
        assert!(apply(&mut host, of, number, accepted).is_empty());
        assert_eq!(host.appends[key].remaining, remaining, "{of:?} {number}");
    }
}

/// The worker forgets a Release that is committed, so another leader would never get it.
#[test]
fn a_release_that_waits_for_its_claim_is_not_committed_with_the_claim() {
    let mut host = keeping(Shard::new(0, [7; 16]));
    report(&mut host, FIRST);
    apply(&mut host, FIRST, 1, ephemeral_claim(FIRST));
    let client_id: Arc<str> = "c".into();
    host.recall_owner(&client_id);
    host.clients.get_or_insert(&client_id).claim_state().claiming = true;
    let mut out = ShardOutput::default();
    let request = Numbered { number: 2, epoch: 0, request: release(FIRST) };
    assert_eq!(host.apply_of(NOW, FIRST, request, &mut out), None);
    assert!(out.late.is_empty() && host.replica.state().ephemeral_of("c").is_some());
    host.clients.get_or_insert(&client_id).claim_state().claiming = false;
    host.release_if_gone(NOW, &client_id, &mut out);
    assert_eq!(out.late, [(FIRST.0, 2)]);
    host.apply_at_once(NOW, &mut out);
    assert!(host.replica.state().ephemeral_of("c").is_none());
    let request = Numbered { number: 3, epoch: 0, request: release(FIRST) };
    assert_eq!(host.apply_of(NOW, FIRST, request, &mut out), Some(host.last_proposal()));
    host.check_quiet();
}

/// The worker sends both Claims in one frame, before it has reported to the new leader.
#[test]
fn a_claim_that_comes_again_waits_for_nobody_and_holds_nobody_up() {
    let mut host = keeping(Shard::new(0, [7; 16]));
    report(&mut host, FIRST);
    apply(&mut host, FIRST, 1, ephemeral_claim(FIRST));
    let mut host = keeping(host.replica.into_state());
    assert!(is_kept(&apply(&mut host, FIRST, 1, ephemeral_claim(FIRST))), "the answer was lost");
    let other = ConnectionId { slot: 6, ..connection(FIRST) };
    let Request::Claim(claim) = ephemeral_claim(FIRST) else { unreachable!("a Claim") };
    let again = Request::Claim(Box::new(Claim { connection: other, ..*claim }));
    assert!(apply(&mut host, FIRST, 2, again).is_empty());
    assert!(is_revoked(&report(&mut host, FIRST), FIRST));
    let claimed = apply(&mut host, FIRST, 3, release(FIRST));
    assert!(matches!(&claimed[..], [Completion::Claimed(of)] if of.is_kept() && of.connection == other));
    host.check_invariants();
}

/// The connection of the first Claim has ended, and its worker does not know yet that its Release is committed.
#[test]
fn a_claim_that_comes_again_closes_no_later_connection() {
    let mut host = keeping(Shard::new(0, [7; 16]));
    report(&mut host, FIRST);
    report(&mut host, SECOND);
    apply(&mut host, FIRST, 1, ephemeral_claim(FIRST));
    apply(&mut host, FIRST, 2, release(FIRST));
    assert!(is_kept(&apply(&mut host, SECOND, 1, ephemeral_claim(SECOND))));
    let mut host = keeping(host.replica.into_state());
    report(&mut host, SECOND);
    let revoked = apply(&mut host, FIRST, 1, ephemeral_claim(FIRST));
    assert!(is_revoked(&revoked, FIRST), "the shard has had its Will: {revoked:?}");
    assert!(apply(&mut host, FIRST, 2, release(FIRST)).is_empty());
    assert_eq!(host.locate("c").and_then(|located| located.owner), Some(connection(SECOND)));
    host.check_invariants();
}

#[test]
fn an_ephemeral_claim_that_comes_again_does_not_close_its_own_connection() {
    let mut host = keeping(Shard::new(0, [7; 16]));
    report(&mut host, FIRST);
    assert!(is_kept(&apply(&mut host, FIRST, 1, ephemeral_claim(FIRST))));
    let mut host = keeping(host.replica.into_state());
    report(&mut host, FIRST);
    assert!(is_kept(&apply(&mut host, FIRST, 1, ephemeral_claim(FIRST))), "the answer was lost");
    // The connection was closed before the answer came.
    apply(&mut host, FIRST, 2, release(FIRST));
    assert!(host.replica.state().ephemeral_of("c").is_none());
    host.check_quiet();
}

#[test]
fn a_client_of_a_node_that_is_gone_is_claimed_by_another_one() {
    let mut host = keeping(Shard::new(0, [7; 16]));
    report(&mut host, FIRST);
    apply(&mut host, FIRST, 1, ephemeral_claim(FIRST));
    host.forget_worker(NOW, FIRST.0, &mut ShardOutput::default());
    report(&mut host, SECOND);
    assert!(apply(&mut host, SECOND, 1, ephemeral_claim(SECOND)).is_empty(), "it may come back");
    let claimed = set_members(&mut host, &[(1, 7, true), (2, 7, false)]);
    assert!(is_kept(&claimed), "{claimed:?}");
    host.check_invariants();
    // A durable session takes the place of the ephemeral one.
    let third = (WorkerId(12), Producer { lane: 4, ..SECOND.1 });
    report(&mut host, third);
    assert!(is_revoked(&apply(&mut host, third, 1, claim(third)), SECOND));
    let claimed = apply(&mut host, SECOND, 2, release(SECOND));
    assert!(matches!(&claimed[..], [Completion::Claimed(claimed)] if claimed.session.is_some()));
    host.check_invariants();
}

/// Proposes a claim that is not applied yet. Its worker is gone then.
fn lose_a_claim(host: &mut ShardHost, request: Request) {
    let Request::Claim(mut claim) = request else { unreachable!("a Claim") };
    claim.number = 1;
    let mut out = ShardOutput::default();
    host.claim(NOW, claim, &mut out);
    host.forget_worker(NOW, FIRST.0, &mut out);
    assert!(completions(out).is_empty());
}

/// Completions of a request while the commands in progress are not applied.
fn ask(host: &mut ShardHost, of: (WorkerId, Producer), request: Request) -> Vec<Completion> {
    let Request::Claim(mut claim) = request else { unreachable!("a Claim") };
    claim.number = 1;
    host.producers.known.insert(of.0, of.1);
    let mut out = ShardOutput::default();
    host.claim(NOW, claim, &mut out);
    completions(out)
}

fn commit(host: &mut ShardHost) -> Vec<Completion> {
    let mut out = ShardOutput::default();
    host.apply_at_once(NOW, &mut out);
    completions(out)
}

/// [MQTT-3.1.4-3]. The state does not name the connection of the first claim while the second one comes.
#[test]
fn a_claim_waits_for_one_in_progress_whose_worker_is_gone() {
    for request in [claim, ephemeral_claim] {
        let mut host = keeping(Shard::new(0, [7; 16]));
        report(&mut host, FIRST);
        report(&mut host, SECOND);
        lose_a_claim(&mut host, request(FIRST));
        assert!(ask(&mut host, SECOND, request(SECOND)).is_empty());
        host.check_invariants();
        assert!(commit(&mut host).is_empty(), "the first one is an owner that may report");
        host.check_invariants();
        let claimed = set_members(&mut host, &[(1, 7, true), (2, 7, false)]);
        let [Completion::Claimed(claimed)] = &claimed[..] else { panic!("{claimed:?}") };
        assert_eq!(claimed.connection, connection(SECOND));
        host.check_invariants();
    }
}

/// The command in progress answers the claim that comes again.
#[test]
fn a_claim_in_progress_that_comes_again_in_the_next_round_is_answered_once() {
    let again = (WorkerId(12), FIRST.1);
    for request in [claim, ephemeral_claim] {
        let mut host = keeping(Shard::new(0, [7; 16]));
        report(&mut host, FIRST);
        lose_a_claim(&mut host, request(FIRST));
        assert!(ask(&mut host, again, request(again)).is_empty());
        let claimed = commit(&mut host);
        let [Completion::Claimed(claimed)] = &claimed[..] else { panic!("{claimed:?}") };
        assert_eq!(claimed.connection, connection(again));
        report(&mut host, again);
        assert_eq!(host.locate("c").and_then(|located| located.owner), Some(connection(again)));
        host.check_invariants();
    }
}

#[test]
fn a_claim_in_progress_that_comes_again_is_closed_for_the_one_that_waits() {
    let again = (WorkerId(12), FIRST.1);
    for request in [claim, ephemeral_claim] {
        let mut host = keeping(Shard::new(0, [7; 16]));
        report(&mut host, FIRST);
        report(&mut host, SECOND);
        lose_a_claim(&mut host, request(FIRST));
        assert!(ask(&mut host, SECOND, request(SECOND)).is_empty());
        assert!(is_revoked(&ask(&mut host, again, request(again)), again));
        host.check_invariants();
        // Its worker closes it before the claim is applied.
        let Request::Release(release) = release(again) else { unreachable!("a Release") };
        host.release(NOW, *release, &mut ShardOutput::default());
        let completions = commit(&mut host);
        let claimed: Vec<_> = completions
            .iter()
            .filter_map(|completion| match completion {
                Completion::Claimed(claimed) => Some(claimed.connection),
                _ => None,
            })
            .collect();
        assert_eq!(claimed, [connection(again), connection(SECOND)]);
        host.check_invariants();
    }
}

/// A claim of another user waits for no adopted claim: it is refused at once.
#[test]
fn a_claim_in_progress_whose_worker_is_gone_belongs_to_its_user() {
    let mut host = keeping(Shard::new(0, [7; 16]));
    report(&mut host, FIRST);
    report(&mut host, SECOND);
    lose_a_claim(&mut host, of_user(ephemeral_claim(FIRST), "alice"));
    let refused = ask(&mut host, SECOND, of_user(ephemeral_claim(SECOND), "bob"));
    let reason = ReasonCode::ClientIdentifierNotValid;
    assert!(matches!(refused[..], [Completion::ClaimRefused { reason: of, .. }] if of == reason));
    host.check_invariants();
}

/// Finds that a client flaps at its second connection.
#[derive(Debug, Default)]
struct SecondFlaps(std::sync::atomic::AtomicU32);

impl Access for SecondFlaps {
    fn authenticate(&self, _: Credentials<'_>, _: &mut dyn FnMut() -> AuthReply) -> Option<AuthResult> {
        unreachable!("hosts authenticate nobody")
    }

    fn guards_topics(&self) -> bool {
        false
    }

    fn authorize(
        &self,
        _: Identity<'_>,
        _: crate::access::Action,
        _: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        unreachable!("hosts authorize nobody")
    }

    fn generation(&self) -> u64 {
        0
    }

    fn flaps_in_cluster(&self, client_id: &str) -> bool {
        assert_eq!(client_id, "c");
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0
    }
}

/// The leader of a shard counts the connections of a client to all nodes. The claim of another user counts for
/// nobody.
#[test]
fn a_client_that_flaps_between_nodes_is_refused() {
    let access = Arc::new(SecondFlaps::default());
    let mut host = guarded_by(access.clone(), Shard::new(0, [7; 16]));
    host.load.keeps_ephemeral.store(true, std::sync::atomic::Ordering::Relaxed);
    report(&mut host, FIRST);
    report(&mut host, SECOND);
    ask(&mut host, FIRST, of_user(ephemeral_claim(FIRST), "alice"));
    assert!(matches!(commit(&mut host)[..], [Completion::Claimed(_)]));
    let refused = ask(&mut host, SECOND, of_user(ephemeral_claim(SECOND), "bob"));
    assert!(matches!(refused[..], [Completion::ClaimRefused { .. }]));
    assert_eq!(access.0.load(std::sync::atomic::Ordering::Relaxed), 1);
    apply(&mut host, FIRST, 2, release(FIRST));
    let refused = ask(&mut host, SECOND, of_user(ephemeral_claim(SECOND), "alice"));
    assert!(
        matches!(refused[..], [Completion::ClaimRefused { reason: ReasonCode::Banned, .. }]),
        "{refused:?}"
    );
    host.check_invariants();
}

fn of_user(request: Request, user: &str) -> Request {
    let Request::Claim(mut claim) = request else { unreachable!("a Claim") };
    claim.user = OwnerKey::of(&[3; 16], "", Some(user));
    Request::Claim(claim)
}

/// The session of the claim that was applied has its Will, so that its worker must not publish it.
#[test]
fn a_claim_that_was_applied_is_revoked_and_not_refused() {
    let third = (WorkerId(12), producer(3));
    let (mut host, _) = next_leader();
    report(&mut host, SECOND);
    report(&mut host, third);
    assert!(apply(&mut host, FIRST, 1, claim(FIRST)).is_empty(), "it waits for its own report");
    assert!(is_revoked(&apply(&mut host, SECOND, 1, claim(SECOND)), FIRST), "the last one counts");
    let overtaken = apply(&mut host, third, 1, claim(third));
    assert!(
        matches!(overtaken[..], [Completion::ClaimRefused { connection: of, .. }] if of == connection(SECOND))
    );
    let claimed = report(&mut host, FIRST);
    assert!(
        matches!(&claimed[..], [Completion::Claimed(claimed)] if claimed.connection == connection(third))
    );
    assert!(is_revoked(&apply(&mut host, FIRST, 1, claim(FIRST)), FIRST), "another one serves the client");
    host.check_invariants();
}

/// Two rounds end one after the other while the claim is in progress.
#[test]
fn a_claim_in_progress_is_lost_twice() {
    let again = (WorkerId(12), FIRST.1);
    let mut host = keeping(Shard::new(0, [7; 16]));
    report(&mut host, FIRST);
    lose_a_claim(&mut host, ephemeral_claim(FIRST));
    assert!(ask(&mut host, again, ephemeral_claim(again)).is_empty());
    host.forget_worker(NOW, again.0, &mut ShardOutput::default());
    let third = (WorkerId(13), FIRST.1);
    assert!(ask(&mut host, third, ephemeral_claim(third)).is_empty());
    assert!(is_kept(&commit(&mut host)));
    host.check_invariants();
}

/// Completions after a roster with these nodes, their incarnations, and whether they are dead.
fn set_members(host: &mut ShardHost, members: &[(u64, u64, bool)]) -> Vec<Completion> {
    let members = members.iter().map(|(node, incarnation, is_dead)| {
        (*node, LastIncarnation { incarnation: *incarnation, is_dead: *is_dead })
    });
    let mut out = ShardOutput::default();
    host.set_members(NOW, Arc::new(members.collect()), &mut out);
    host.apply_at_once(NOW, &mut out);
    completions(out)
}

/// The node was removed before this host began, so that no roster that it gets names the node.
#[test]
fn a_claim_goes_on_when_the_owner_is_absent_in_a_roster_that_is_certainly_new() {
    let (mut host, _) = next_leader();
    set_members(&mut host, &[(2, 7, false)]);
    report(&mut host, SECOND);
    assert!(apply(&mut host, SECOND, 1, claim(SECOND)).is_empty(), "the owner may have joined after it");
    let mut out = ShardOutput::default();
    host.members_settled(NOW, &mut out);
    host.apply_at_once(NOW, &mut out);
    let claimed = completions(out);
    assert!(matches!(&claimed[..], [Completion::Claimed(claimed)] if claimed.session_present));
    host.check_invariants();
}

#[test]
fn an_owner_of_a_later_incarnation_than_the_roster_knows_has_not_ended() {
    let (mut host, _) = next_leader();
    set_members(&mut host, &[(1, 6, true), (2, 7, false)]);
    report(&mut host, SECOND);
    assert!(apply(&mut host, SECOND, 1, claim(SECOND)).is_empty());
    let mut out = ShardOutput::default();
    host.members_settled(NOW, &mut out);
    host.apply_at_once(NOW, &mut out);
    assert!(completions(out).is_empty() && host.ended_by(FIRST.1.owner).is_none());
    assert!(set_members(&mut host, &[(1, 7, false), (2, 7, false)]).is_empty());
    let claimed = set_members(&mut host, &[(1, 8, false), (2, 7, false)]);
    assert!(matches!(&claimed[..], [Completion::Claimed(_)]), "it has started again");
    assert_eq!(host.ended_by(FIRST.1.owner), Some(7), "it can own nothing any more");
    host.check_invariants();
}

/// A new host finds in the state which owners are over, without a claim.
#[test]
fn a_session_is_released_when_its_owner_is_over_by_the_roster_that_a_new_host_begins_with() {
    let (mut host, claimed) = next_leader();
    let uid = session_uid(claimed.session.expect("a durable session"));
    set_members(&mut host, &[(1, 8, false)]);
    host.tick(NOW, NOW, &mut ShardOutput::default());
    host.apply_at_once(NOW, &mut ShardOutput::default());
    assert!(host.replica.state().session(uid).is_some_and(|session| session.owner_node().is_none()));
}

#[test]
fn a_claim_of_a_worker_that_is_gone_is_not_accepted_later() {
    let (mut host, claimed) = next_leader();
    apply(&mut host, FIRST, 0, attach(&claimed));
    report(&mut host, FIRST);
    report(&mut host, SECOND);
    let revoked = apply(&mut host, SECOND, 1, claim(SECOND));
    assert!(matches!(revoked[..], [Completion::Revoke { .. }]), "{revoked:?}");
    host.forget_worker(NOW, SECOND.0, &mut ShardOutput::default());
    assert!(apply(&mut host, FIRST, 2, release(FIRST)).is_empty(), "nobody waits");
    // It has begun another round and sends the Claim again.
    let again = (WorkerId(12), SECOND.1);
    report(&mut host, again);
    let completions = apply(&mut host, again, 1, claim(again));
    assert!(matches!(&completions[..], [Completion::Claimed(claimed)] if claimed.session_present));
    host.check_invariants();
}

/// The shard of the group forgets the identity there when the message is queued.
/// Deliveries of large messages would not fit a frame together.
#[test]
fn large_messages_are_delivered_one_by_one() {
    let view = MessageView {
        topic: "t",
        properties: &[],
        payload: &[0; 600_000],
        qos: QoS::AtLeastOnce,
        retain: false,
        expires: Time::NEVER,
        received: NOW,
        publisher: None,
        publisher_key: 0,
        durability: Durability::LocalDisk,
        span: 0,
    };
    let deliveries = |payload: &[u8]| {
        let message = MessageView { payload, ..view }.to_message();
        let delivery = |id| SessionDelivery::Publish {
            packet_id: PacketId::new(id).expect("not 0"),
            qos: QoS::AtLeastOnce,
            dup: false,
            retain: false,
            message: message.clone(),
            subscription_ids: Default::default(),
        };
        let mut out = ShardOutput::default();
        (1..4).for_each(|id| out.deliver(connection(FIRST), delivery(id)));
        completions(out).len()
    };
    assert_eq!([deliveries(view.payload), deliveries(b"small")], [3, 1]);
}

/// The number of a request of the host's own memory says nothing to the state.
#[test]
fn an_answer_to_an_earlier_host_does_not_reach_another_append() {
    let mut appends = super::super::appends::Appends::new(&foldhash::quality::FixedState::default());
    appends.set_term(7);
    let key = appends.insert(super::super::Waiter::Unsynced(1));
    let mut next = super::super::appends::Appends::new(&foldhash::quality::FixedState::default());
    next.set_term(8);
    next.insert(super::super::Waiter::Unsynced(1));
    assert!(next.one_accepted(key, ReasonCode::Success).is_none() && next.get(key).is_none());
    assert!(appends.one_accepted(key, ReasonCode::Success).is_some());
}
