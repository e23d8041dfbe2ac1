use std::sync::mpsc::sync_channel;

use broker::{Ticket, WorkerId};
use configstore::LocalStore;
use definitions::Authorship;
use mqtt::PacketId;
use serde_json::json;

use super::*;
use crate::settings::Own;

const WITHIN: Duration = Duration::from_secs(5);

fn suback(slot: u32) -> WaitingSuback {
    let connection = ConnectionId { worker: WorkerId(0), slot, generation: 0 };
    WaitingSuback { connection, ticket: Ticket::of(PacketId::new(1).expect("not 0")) }
}

fn registry() -> Arc<Registry> {
    let own = Own { node: "north".into(), ..Own::default() };
    let registry = Registry::open(Arc::new(LocalStore::in_memory()), Vec::new(), own);
    Arc::new(registry.expect("a registry"))
}

/// Adds a link, or replaces it.
fn put(registry: &Registry, is_enabled: bool) {
    let path = std::env::temp_dir().join(format!("meridian-link-waits-{}", std::process::id()));
    std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").expect("a file");
    let settings = json!({"address": "h:1883", "topics": "#", "secret_file": path, "enabled": is_enabled});
    let settings = settings.as_object().expect("an object");
    registry.put("south", settings, &Authorship { author: "ops".into(), now_ms: 7 }).expect("valid");
}

fn puller(registry: &Registry) -> Puller {
    Puller::new(registry.definitions()["south"].clone(), Ok("north".to_owned()))
}

#[test]
fn subacks_wait_while_it_is_not_known_what_links_take() {
    let (shared, registry) = (Arc::new(Shared::new(sync_channel(1).0)), registry());
    let waits = Waits { shared: shared.clone(), registry: registry.clone() };
    let begin = |slot| waits.begin(suback(slot), vec!["a".into()], WITHIN);
    assert_eq!(begin(1), Begun::Waits, "the thread has not looked yet");
    shared.take_nothing.store(registry.changes(), Ordering::Release);
    assert_eq!(begin(2), Begun::Nothing, "there is no link");
    put(&registry, true);
    assert_eq!(begin(3), Begun::Waits, "the thread has not seen the new link");
    sync::lock(&shared.inbox).is_closed = true;
    assert_eq!(begin(4), Begun::Busy, "the thread has ended");
    let begun = sync::lock(&shared.inbox).take().begun;
    assert_eq!(begun.iter().map(|begin| begin.suback.connection.slot).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn subacks_for_a_busy_thread_are_bounded_and_end_in_time() {
    let (mut inbox, now) = (Inbox::default(), Instant::now());
    let long: Box<str> = "x".repeat(60_000).into();
    let begin = |slot: u32, at: Instant| Begin {
        suback: suback(slot),
        filters: vec![long.clone()],
        at,
        within: WITHIN,
    };
    let count = (0..).find(|slot| !inbox.begin(begin(*slot, now))).expect("there is a bound");
    assert!((500..600).contains(&count), "{count}");
    assert!(inbox.take_overdue(now).is_empty());
    assert_eq!(inbox.take_overdue(now + WITHIN).len(), count as usize);
    assert!(inbox.begin(begin(0, now)) && inbox.begin(begin(1, now + WITHIN)));
    assert_eq!(inbox.take_overdue(now + WITHIN), [suback(0)]);
    inbox.take();
    assert_eq!((inbox.begun_bytes, inbox.begun.len()), (0, 0));
}

#[test]
fn only_the_node_that_has_the_session_of_a_link_answers_for_it() {
    let registry = registry();
    put(&registry, true);
    let mut link = puller(&registry);
    assert_eq!(answer_at_once(false, None), Some(false), "this node may not know the link yet");
    assert_eq!(answer_at_once(false, Some(&link)), Some(false));
    assert_eq!(answer_at_once(true, Some(&link)), None);
    assert_eq!(answer_at_once(true, None), Some(true));
    link.failure = Some("no threads".into());
    assert_eq!(answer_at_once(true, Some(&link)), Some(true));
    put(&registry, false);
    let off = puller(&registry);
    assert_eq!(answer_at_once(true, Some(&off)), Some(true));
    assert_eq!(answer_at_once(false, Some(&off)), Some(false));
}
