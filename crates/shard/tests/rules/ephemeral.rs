//! Sessions that end with their connection, on nodes of a cluster.

use crate::support::*;
use shard::{
    Answer, Claim, Command, EPHEMERAL_EPOCH, Effect, NodeIncarnation, RequestNumber, SessionUid, WillFate,
};

const FIRST: NodeIncarnation = NodeIncarnation { node: 1, incarnation: 5 };
const SECOND: NodeIncarnation = NodeIncarnation { node: 2, incarnation: 6 };

fn ephemeral(client_id: &str, owner: NodeIncarnation, connection: u64) -> Claim<'_> {
    let will = will("w", 60);
    Claim { owner: Some(owner), connection, expiry_s: 0, keeps_ephemeral: true, will, ..claim(client_id) }
}

/// Claims an ephemeral session; returns its id and the effects.
fn begin(host: &mut Host, claim: Claim<'_>) -> (SessionUid, Vec<Effect>) {
    let client_id = claim.client_id.to_owned();
    let (answer, effects) = host.submit(&Command::Claim(claim));
    assert_eq!(answer, Answer::Claimed { session: None, epoch: 0, present: false });
    (host.shard.ephemeral_of(&client_id).expect("it has begun").uid(), effects)
}

fn release(session: SessionUid, will: WillFate) -> Command<'static> {
    Command::Release { session, epoch: EPHEMERAL_EPOCH, expiry_s: None, will }
}

/// [MQTT-3.1.3-9]: the end of a session does not wait for the Will Delay Interval.
#[test]
fn a_session_ends_with_its_connection_and_its_will_is_due() {
    for (fate, expected) in [(WillFate::Arm, &["will 1"][..]), (WillFate::Discard, &[])] {
        let mut host = Host::default();
        let (session, _) = begin(&mut host, ephemeral("c", FIRST, 9));
        let view = host.shard.ephemeral_of("c").expect("it has begun");
        assert_eq!((view.owner_node(), view.connection(), view.has_will()), (Some(FIRST), 9, true));
        assert!(host.shard.session_of("c").is_none());
        let (answer, effects) = host.submit(&release(session, fate));
        assert_eq!(answer, Answer::Done);
        assert_eq!(describe(&effects), expected);
        assert!(host.shard.ephemeral_of("c").is_none());
        assert_eq!(host.answer(&release(session, fate)), Answer::Gone, "it comes again");
    }
}

#[test]
fn a_release_ends_no_session_of_another_claim() {
    let mut host = Host::default();
    let (first, _) = begin(&mut host, ephemeral("c", FIRST, 1));
    let (second, effects) = begin(&mut host, ephemeral("c", SECOND, 1));
    assert_eq!(describe(&effects), ["will 1"], "the first owner has lost its connection");
    assert_eq!(host.answer(&release(first, WillFate::Arm)), Answer::Gone);
    assert_eq!(host.shard.ephemeral_of("c").and_then(|view| view.owner_node()), Some(SECOND));
    assert_eq!(host.answer(&release(second, WillFate::Arm)), Answer::Done);
}

#[test]
fn a_client_has_an_ephemeral_session_or_a_durable_one() {
    let mut host = Host::default();
    begin(&mut host, ephemeral("c", FIRST, 1));
    let durable = Claim { owner: Some(SECOND), ..claim("c") };
    let owner = host.claim_as(&durable);
    assert!(host.shard.ephemeral_of("c").is_none());
    // With an interval of 0 and no Clean Start, the durable session is resumed, and ends with its Release.
    let resumes = Claim { clean_start: false, ..ephemeral("c", FIRST, 2) };
    let (session, epoch) = host.claim_as(&resumes);
    assert_eq!((session, epoch), (owner.0, owner.1 + 1));
    assert!(host.shard.ephemeral_of("c").is_none());
    let clean = Claim { clean_start: true, ..ephemeral("c", FIRST, 3) };
    begin(&mut host, clean);
    assert!(host.shard.session_of("c").is_none());
}

#[test]
fn a_claim_that_comes_again_gets_its_first_answer_while_its_session_lasts() {
    let mut host = Host::default();
    let claim = Command::Claim(ephemeral("c", FIRST, 1));
    let number = RequestNumber::Claim { number: 3 };
    let claimed = Answer::Claimed { session: None, epoch: 0, present: false };
    assert_eq!(host.request(&claim, number), claimed);
    assert_eq!(host.again(&claim, number), claimed);
    let session = host.shard.ephemeral_of("c").expect("it has begun").uid();
    host.answer(&release(session, WillFate::Arm));
    assert_eq!(host.again(&claim, number), Answer::Stale, "it began and has ended");
    host.answer(&Command::NodeEnded(FIRST));
    assert_eq!(host.answer(&claim), Answer::Stale);
}

/// Very many clients that are gone at once delay no other command for long.
#[test]
fn the_sessions_of_a_node_that_is_gone_end_in_portions() {
    let mut host = Host::default();
    for (client, owner) in [("a", FIRST), ("b", SECOND), ("c", FIRST), ("d", FIRST)] {
        begin(&mut host, ephemeral(client, owner, 1));
    }
    let durable = host.claim_as(&Claim { owner: Some(FIRST), ..claim("e") });
    host.answer(&Command::NodeEnded(FIRST));
    assert!(
        host.shard.sweeping() && host.shard.ephemeral_of("a").is_some_and(|it| it.owner_node().is_none())
    );
    assert_eq!(host.shard.ephemerals().map(|view| view.client_id().to_owned()).collect::<Vec<_>>(), ["b"]);
    // A claim does not wait for the sweep.
    let (_, effects) = begin(&mut host, ephemeral("c", SECOND, 2));
    assert_eq!(describe(&effects), ["will 1"]);
    let sweep = |host: &mut Host| host.submit(&Command::Sweep { count: 1 });
    let mut wills = Vec::new();
    for more in [true, true, true, true, false] {
        let (answer, effects) = sweep(&mut host);
        wills.extend(describe(&effects));
        assert_eq!(answer, Answer::Progress { more });
        let parts = host.whole_checkpoint();
        assert_eq!(restore(&parts, host.shard.applied()).digest(), host.shard.digest());
    }
    assert_eq!(wills, ["will 2", "will 3"]);
    assert!(host.shard.session(durable.0).is_some_and(|session| session.owner().is_none()));
    let left: Vec<_> = host.shard.ephemerals().map(|view| view.client_id().to_owned()).collect();
    assert_eq!((left.len(), host.shard.counts().ephemeral), (2, 2), "{left:?}");
}

/// Earlier versions keep nothing of such a Claim, so replicas of both kinds would differ.
#[test]
fn nothing_is_kept_of_a_claim_that_does_not_ask_for_it() {
    let mut host = Host::default();
    let claim = Claim { keeps_ephemeral: false, ..ephemeral("c", FIRST, 1) };
    host.answer(&Command::Claim(claim));
    assert!(host.shard.ephemeral_of("c").is_none());
}
