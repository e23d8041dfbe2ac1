//! Feeds random bytes as a record and as a part: they are refused, or they are accepted and the state is sound.

use std::sync::LazyLock;

use mqtt::{PacketId, QoS};
use shard::{
    Answer, BatchBuilder, Claim, Command, Effect, Enqueue, Filter, MessageView, NEVER, NodeIncarnation,
    PartId, RequestNumber, Shard, Will,
};

/// An index and the parts of its checkpoint.
type Checkpoint = (u64, Vec<(PartId, Vec<u8>)>);

static LIVELY: LazyLock<Checkpoint> = LazyLock::new(write_lively);

/// Checks an input. Its first two bytes are the number of a part; the rest is tried as both.
pub fn check(input: &[u8]) {
    let Some((number, bytes)) = input.split_first_chunk::<2>() else { return };
    check_batch(bytes);
    check_part(PartId::from_u32(u32::from(u16::from_le_bytes(*number))), bytes);
}

pub fn check_batch(bytes: &[u8]) {
    let mut shard = lively();
    let digest = shard.digest();
    let mut effects = Vec::new();
    let index = shard.applied() + 1;
    if shard.apply(index, bytes, &mut effects).is_err() {
        assert_eq!((shard.digest(), effects.len(), shard.applied()), (digest, 0, index - 1));
        return;
    }
    shard.check_invariants();
    // Later commands do no harm either.
    let mut builder = BatchBuilder::new(NEVER);
    for command in [Command::Tick, Command::Sweep { count: u32::MAX }, Command::Tick] {
        builder.push(&command);
    }
    shard.apply(index + 1, &builder.finish(), &mut effects).expect("the next batch");
    shard.check_invariants();
}

pub fn check_part(part: PartId, bytes: &[u8]) {
    // The `REST` part is also tried without sessions, because few fit another one than their own.
    let with_others: &[bool] = if is_rest(part) { &[true, false] } else { &[true] };
    for with_others in with_others {
        check_part_with(part, bytes, *with_others);
    }
}

fn is_rest(part: PartId) -> bool {
    part.bucket() == shard::REST
}

fn check_part_with(part: PartId, bytes: &[u8], with_others: bool) {
    let mut shard = Shard::new(3, [0; 16]);
    if shard.restore_part(part, bytes).is_err() {
        return;
    }
    // Without the `REST` part no session is accepted; with other sessions few would be.
    let others = LIVELY.1.iter().filter(|(other, _)| with_others && is_rest(*other) != is_rest(part));
    for (other, bytes) in others {
        shard.restore_part(*other, bytes).expect("a part");
    }
    if shard.restored(LIVELY.0).is_ok() {
        let mut builder = BatchBuilder::new(NEVER);
        let claim = Claim {
            client_id: "a",
            user: 0,
            owner: None,
            connection: 0,
            clean_start: true,
            expiry_s: 9,
            window: 1,
            will: None,
            keeps_ephemeral: false,
            queue_limits: None,
        };
        for command in [
            Command::Sweep { count: u32::MAX },
            Command::Tick,
            publish("t", true),
            Command::Claim(claim.clone()),
        ] {
            builder.push(&command);
        }
        let claim = Command::Claim(Claim { owner: Some(OWNER), ..claim });
        for number in [3, 4, 3] {
            builder.push_numbered(&claim, RequestNumber::Claim { number });
            let number = RequestNumber::Lane { owner: OWNER, lane: 2, number };
            builder.push_numbered(&publish("t", true), number);
        }
        shard.apply(LIVELY.0 + 1, &builder.finish(), &mut Vec::new()).expect("the next batch");
        shard.digest();
    }
}

/// Owner of the sessions of a node, here and in the fixtures.
const OWNER: NodeIncarnation = NodeIncarnation { node: 7, incarnation: 17 };

fn publish(topic: &str, wait: bool) -> Command<'_> {
    let message = MessageView {
        topic,
        properties: &[],
        payload: b"payload",
        qos: QoS::ExactlyOnce,
        retain: true,
        expires: NEVER,
        received: 0,
        publisher_key: 0,
    };
    Command::Publish { message, wait, identity: None }
}

/// Creates a shard with an instance of everything.
fn lively() -> Shard {
    let mut shard = Shard::new(3, [0; 16]);
    for (part, bytes) in &LIVELY.1 {
        shard.restore_part(*part, bytes).expect("a part");
    }
    shard.restored(LIVELY.0).expect("a checkpoint");
    shard
}

fn write_lively() -> Checkpoint {
    let mut shard = Shard::new(3, [0; 16]);
    let mut request = |command: &Command<'_>, number: Option<RequestNumber>| {
        let mut builder = BatchBuilder::new(1_000);
        match number {
            Some(number) => builder.push_numbered(command, number),
            None => builder.push(command),
        };
        let mut effects = Vec::new();
        let index = shard.applied() + 1;
        shard.apply(index, &builder.finish(), &mut effects).expect("the next batch");
        effects.into_iter().find_map(|effect| match effect {
            Effect::Answer { answer: Answer::Claimed { session, .. }, .. } => session,
            _ => None,
        })
    };
    let mut apply = |command: &Command<'_>| request(command, None);
    let Command::Publish { message, .. } = publish("w", true) else { return Default::default() };
    for client_id in ["a", "b", "c"] {
        let will = Some(Will { message, delay_s: 5 });
        let claim = Claim {
            client_id,
            user: 0,
            owner: None,
            connection: 1,
            clean_start: false,
            expiry_s: 9,
            window: 2,
            will,
            keeps_ephemeral: false,
            queue_limits: None,
        };
        let Some(session) = apply(&Command::Claim(claim)) else { continue };
        let filters = vec![Filter { text: "t/#", options: 2, id: 1 }];
        apply(&Command::Subscribe { session, epoch: 1, filters });
        let packet_id = PacketId::new(1).expect("not 0");
        apply(&Command::Receive { session, epoch: 1, packet_id });
        let (qos, ids, group) = (QoS::AtLeastOnce, vec![1, 2], Some("$share/g/t"));
        apply(&Command::Enqueue(Enqueue {
            session,
            message,
            qos,
            retain: false,
            ids,
            identity: None,
            group,
        }));
    }
    for _ in 0..4 {
        apply(&publish("t/1", true));
    }
    apply(&Command::Retain { message });
    apply(&Command::Started { incarnation: 1, elapsed_ms: 1 });
    let claim = Claim {
        client_id: "of a node",
        user: 0,
        owner: Some(OWNER),
        connection: 1,
        clean_start: false,
        expiry_s: 9,
        window: 2,
        will: None,
        keeps_ephemeral: false,
        queue_limits: None,
    };
    let ephemeral = Claim { client_id: "brief", expiry_s: 0, keeps_ephemeral: true, ..claim.clone() };
    request(&Command::Claim(ephemeral), Some(RequestNumber::Claim { number: 6 }));
    let claimed = request(&Command::Claim(claim), Some(RequestNumber::Claim { number: 5 }));
    let packet_id = PacketId::new(1).expect("not 0");
    if let Some(session) = claimed {
        let receive = Command::Receive { session, epoch: 1, packet_id };
        request(&receive, Some(RequestNumber::Connection { epoch: 1, number: 4 }));
    }
    let number = RequestNumber::Lane { owner: OWNER, lane: 1, number: 6 };
    request(&publish("t/1", true), Some(number));
    let mut parts = Vec::new();
    let index = shard.begin_checkpoint();
    while !shard.write_parts(usize::MAX, &mut |part, bytes| parts.push((part, bytes.to_vec()))) {}
    (index, parts)
}
