//! Records: their order, damaged ones, and moved messages.

use crate::support::*;
use shard::{
    Acknowledgement, Answer, ApplyError, BatchBuilder, Command, Cursor, Effect, Limits, MessageKey,
    QueueFull, Rewrite, Shard,
};

#[test]
fn records_are_applied_once_and_in_order() {
    let mut host = Host::default();
    host.claim("c");
    let (digest, batch) = (host.shard.digest(), host.log[0].clone());
    for index in [0, 1, 3, u64::MAX] {
        let mut effects = Vec::new();
        let refused = host.shard.apply(index, &batch, &mut effects);
        assert_eq!(refused, Err(ApplyError::OutOfOrder { expected: 2, index }));
        assert!(effects.is_empty());
    }
    assert_eq!((host.shard.digest(), host.shard.applied()), (digest, 1));
}

#[test]
fn a_damaged_batch_changes_nothing() {
    let mut builder = BatchBuilder::new(5);
    builder.push(&Command::Claim(claim("c")));
    builder.push(&publish("a"));
    let good = builder.finish();
    let refuse = |batch: &[u8]| {
        let mut shard = Shard::new(3, KEY);
        let digest = shard.digest();
        let mut effects = Vec::new();
        let refused = shard.apply(1, batch, &mut effects);
        assert!(matches!(refused, Err(ApplyError::Malformed { index: 1, .. })), "{refused:?}");
        assert_eq!((shard.digest(), shard.applied(), effects.len()), (digest, 0, 0));
    };
    for end in 0..good.len() {
        refuse(&good[..end]);
    }
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        bad
    };
    refuse(&with(0, 2)); // A newer batch.
    refuse(&with(16, 0)); // No kind of command.
    refuse(&with(17, 2)); // A newer command.
    refuse(&with(4, 3)); // Another command than there are.
    refuse(&with(4, 1)); // One command less.
    refuse(&[&good[..], &[0; 8]].concat());
    let mut fine = Shard::new(3, KEY);
    assert_eq!(fine.apply(1, &good, &mut Vec::new()), Ok(()));
}

#[test]
fn live_bytes_are_those_of_messages_that_are_still_needed() {
    let mut host = Host::default();
    let owners = ["a", "b"].map(|client_id| host.claim(client_id));
    let size = view("t").encoded_len().next_multiple_of(8) as u64;
    for owner in owners {
        host.subscribe(owner, "t", 1);
    }
    host.publish("t");
    assert_eq!(host.shard.live_bytes(), size, "one message, two queues");
    host.ack(owners[0], 1, shard::Acknowledgement::PubAck);
    assert_eq!(host.shard.live_bytes(), size);
    host.effects(&Command::End { session: owners[1].0 });
    assert_eq!(host.shard.live_bytes(), 0);
}

/// The record of a message that few entries still need is freed: the message is written into another record.
#[test]
fn a_message_moves_for_all_entries_that_need_it() {
    let mut host = Host::default();
    let owners = ["a", "b", "c"].map(|client_id| host.claim(client_id));
    for owner in owners {
        host.subscribe(owner, "t", 1);
    }
    host.publish("t");
    host.publish("t");
    let index = host.log.len() as u64 - 1;
    host.ack(owners[1], 1, shard::Acknowledgement::PubAck);
    let mut cursor = Some(Cursor::default());
    let mut needed = Vec::new();
    while let Some(from) = cursor {
        let found = host.shard.needed_messages(|other| other == index, from, 1);
        needed.extend(found.messages);
        cursor = found.cursor;
    }
    let from = needed[0].0;
    assert_eq!(needed, [(from, view("t").encoded_len().next_multiple_of(8) as u64); 2]);
    let before = host.shard.live_bytes();
    // The second one is finished in the meantime, and the third is another message.
    let moving = vec![(owners[0].0, 0), (owners[1].0, 0), (owners[1].0, 1), (owners[2].0, 0)];
    let rewrite = Rewrite { from, message: view("t"), entries: moving, orphans: vec![] };
    assert_eq!(host.answer(&Command::Rewrite(rewrite)), Answer::Rewritten { moved: 2 });
    assert_eq!(host.shard.live_bytes(), before);
    let key = host.shard.session(owners[0].0).and_then(|session| session.entry(0)).map(|entry| entry.key);
    assert_eq!(key.map(MessageKey::index), Some(host.log.len() as u64));
    assert_eq!(host.queue(owners[0].0), ["t", "t"]);
    assert!(host.shard.needed_messages(|other| other == index, Cursor::default(), 99).messages.is_empty());
    for owner in owners {
        host.effects(&Command::End { session: owner.0 });
    }
    assert_eq!(host.shard.live_bytes(), 0);
}

#[test]
fn a_checkpoint_holds_the_state_at_its_index_while_later_batches_are_applied() {
    let limits = Limits { queue_full: QueueFull::DropNewest, ..Limits::default() };
    let mut host = Host::with(limits);
    let owners: Vec<_> = (0..50).map(|number| host.claim(&format!("client-{number}"))).collect();
    host.subscribe(owners[7], "t", 1);
    let digest = host.shard.digest();
    let index = host.shard.begin_checkpoint();
    let mut parts = Vec::new();
    for owner in &owners {
        let done = host.shard.write_parts(1, &mut |part, bytes| parts.push((part, bytes.to_vec())));
        assert!(!done, "more than two parts are needed");
        host.release(*owner);
        host.publish("t");
    }
    while !host.shard.write_parts(1, &mut |part, bytes| parts.push((part, bytes.to_vec()))) {}
    let mut restored = restore(&parts, index);
    restored.check_invariants();
    assert_eq!(restored.digest(), digest);
    let mut effects: Vec<Effect> = Vec::new();
    for (index, batch) in (1..).zip(&host.log).skip(index as usize) {
        restored.apply(index, batch, &mut effects).expect("the next");
    }
    assert_eq!(restored.digest(), host.shard.digest());
    assert_eq!(restored.limits(), &limits);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Queued { .. })));
}

/// A client resumed an unfinished delivery, finished it, and has another one after the checkpoint.
#[test]
fn an_empty_queue_has_no_history_after_a_checkpoint() {
    let mut host = Host::default();
    let first = host.claim("c");
    host.subscribe(first, "t", 1);
    host.publish("t");
    let owner = host.claim("c");
    host.ack(owner, 1, Acknowledgement::PubAck);
    let parts = host.checkpoint();
    let index = host.shard.applied();
    let mut restored = restore(&parts, index);
    host.publish("t");
    restored.apply(index + 1, &host.log[index as usize], &mut Vec::new()).expect("the next");
    assert_eq!(restored.digest(), host.shard.digest());
}

#[test]
fn only_changed_parts_are_written_again() {
    let mut host = Host::default();
    let owner = host.claim("c");
    host.claim("d");
    assert_eq!(host.checkpoint().len(), 3);
    assert_eq!(host.checkpoint().len(), 1, "the rest is in each");
    host.subscribe(owner, "t", 1);
    assert_eq!(host.checkpoint().len(), 2);
    let (part, bytes) = {
        host.effects(&Command::End { session: owner.0 });
        host.checkpoint().remove(0)
    };
    assert_eq!((part.bucket(), bytes.len()), (shard::client_bucket("c"), 0), "an empty part is deleted");
}
