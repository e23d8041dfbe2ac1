//! Retained messages.

use crate::support::*;
use shard::{Answer, Command, MessageView};

fn retain<'a>(topic: &'a str, payload: &'a [u8], expires: u64) -> Command<'a> {
    Command::Retain { message: MessageView { payload, expires, retain: true, ..view(topic) } }
}

/// [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7]
#[test]
fn a_topic_keeps_its_last_message_until_an_empty_one_comes() {
    let mut host = Host::default();
    let never = shard::NEVER;
    let (answer, effects) = host.submit(&retain("t", b"one", never));
    assert_eq!(
        (answer, describe(&effects)),
        (Answer::Retained { replaced: false }, vec!["retained 1".to_owned()])
    );
    assert_eq!(host.answer(&retain("t", b"other", never)), Answer::Retained { replaced: true });
    let stored = host.shard.retained("t").expect("is there");
    assert_eq!(MessageView::decode(stored).map(|message| message.payload), Ok(&b"other"[..]));
    assert_eq!(host.shard.retained_page("+", None, 9).messages.len(), 1);
    assert_eq!(describe(&host.effects(&retain("t", b"", never))), ["retained 0"]);
    assert_eq!(host.answer(&retain("t", b"", never)), Answer::Retained { replaced: false });
}

#[test]
fn retained_messages_expire_in_portions() {
    let mut host = Host::default();
    for number in 0..300 {
        host.answer(&retain(&format!("t/{number}"), b"1", 1_000 + number));
    }
    assert_eq!(host.shard.next_deadline(), 1_000);
    host.now = 1_299;
    assert_eq!(host.answer(&Command::Tick), Answer::Progress { more: true });
    assert!(
        host.shard.retained_page("#", None, 9).messages.is_empty(),
        "an expired message is never returned"
    );
    assert_eq!(host.answer(&Command::Tick), Answer::Progress { more: false });
    assert_eq!((host.shard.retained_counts(), host.shard.counts().retained_expired), ((0, 0), 300));
}
