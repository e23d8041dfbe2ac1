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

/// Two clusters that retain a message of the same topic each, and get the other one later, end with the same message.
#[test]
fn the_later_message_of_linked_clusters_is_retained_wherever_it_comes_from() {
    let never = shard::NEVER;
    let message = |payload: &'static [u8], received| MessageView {
        payload,
        received,
        expires: never,
        retain: true,
        ..view("t")
    };
    for times in [(5, 9), (9, 5), (7, 7)] {
        let (here, there) = (message(b"here", times.0), message(b"there", times.1));
        let ends = [(here, there), (there, here)].map(|(own, other)| {
            let mut host = Host::default();
            host.answer(&Command::Retain { message: own });
            host.answer(&Command::RetainIfLater { message: other });
            let stored = host.shard.retained("t").expect("is there");
            MessageView::decode(stored).expect("valid").payload.to_vec()
        });
        assert_eq!(ends[0], ends[1], "{times:?}");
        let expected = if times.0 > times.1 { Some(&b"here"[..]) } else { Some(&b"there"[..]) };
        assert!(times.0 == times.1 || Some(&*ends[0]) == expected, "{times:?}");
    }
    // An earlier deletion removes nothing, a later one does, and anything follows nothing.
    let mut host = Host::default();
    host.answer(&Command::RetainIfLater { message: message(b"one", 5) });
    assert_eq!(host.answer(&Command::RetainIfLater { message: message(b"", 4) }), Answer::Done);
    let removed = host.answer(&Command::RetainIfLater { message: message(b"", 6) });
    assert_eq!(removed, Answer::Retained { replaced: true });
    host.answer(&Command::RetainIfLater { message: message(b"old", 1) });
    assert!(host.shard.retained("t").is_some());
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
