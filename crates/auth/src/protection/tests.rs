use std::time::{Duration, SystemTime};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn credentials<'a>(peer: &str, username: Option<&'a str>) -> Credentials<'a> {
    Credentials { client_id: "c", username, peer: Some(peer.parse().unwrap()), ..Credentials::default() }
}

#[test]
fn an_address_backs_off_for_one_user_name_and_later_for_all() {
    let protection = Protection::new(Settings { failures_address_max: 30, ..Settings::default() });
    let now = Instant::now();
    for n in 0..10 {
        assert!(!protection.backs_off(&credentials("192.0.2.1", Some("alice")), now), "{n}");
        protection.failed(&credentials("192.0.2.1", Some("alice")), now);
    }
    assert!(protection.backs_off(&credentials("192.0.2.1", Some("alice")), now));
    assert!(!protection.backs_off(&credentials("192.0.2.1", Some("bob")), now));
    assert!(!protection.backs_off(&credentials("192.0.2.2", Some("alice")), now));
    assert!(!protection.backs_off(&credentials("192.0.2.1", Some("alice")), now + 10 * SECOND));
    for n in 10..30 {
        assert!(!protection.backs_off(&credentials("192.0.2.1", Some("bob")), now), "{n}");
        protection.failed(&credentials("192.0.2.1", Some(&format!("user{n}"))), now);
    }
    assert!(protection.backs_off(&credentials("192.0.2.1", Some("bob")), now));
    assert!(!protection.backs_off(&credentials("192.0.2.2", Some("bob")), now));
    // Of the pair, of the name, and of the address.
    assert_eq!(protection.figures().backoffs, 3);
}

/// Otherwise anyone who knows a name could lock its owner out.
#[test]
fn a_user_name_alone_is_delayed_and_never_refused() {
    let protection = Protection::new(Settings::default());
    let (now, owner) = (Instant::now(), credentials("203.0.113.1", Some("alice")));
    for n in 0..1_000 {
        protection.failed(&credentials(&format!("198.51.{}.{}", n / 250, n % 250), Some("alice")), now);
        assert!(!protection.backs_off(&owner, now), "{n}");
    }
    let delay = protection.delay(&owner, now).expect("a delay");
    assert_eq!((delay.time, delay.pair_max), (SECOND, 10));
    assert_eq!(protection.delay(&owner, now), Some(delay), "the same pair");
    assert_ne!(protection.delay(&credentials("203.0.113.2", Some("alice")), now).unwrap().pair, delay.pair);
    assert_eq!(protection.delay(&credentials("203.0.113.1", Some("bob")), now), None);
    assert_eq!(protection.delay(&owner, now + 10 * SECOND), None);
    protection.set(Settings { failures_delay: Duration::ZERO, ..Settings::default() });
    assert_eq!(protection.delay(&owner, now), None);
    assert_eq!(protection.figures().delayed, 3);
}

#[test]
fn all_addresses_of_one_household_count_as_one() {
    let protection = Protection::new(Settings::default());
    let now = Instant::now();
    for n in 0..10 {
        protection.failed(&credentials(&format!("2001:db8::{n}:1"), None), now);
    }
    assert!(protection.backs_off(&credentials("2001:db8::ffff:ffff:ffff:ffff", None), now));
    assert!(!protection.backs_off(&credentials("2001:db8:0:1::1", None), now));
    for _ in 0..10 {
        protection.failed(&credentials("::ffff:192.0.2.1", None), now);
    }
    assert!(protection.backs_off(&credentials("192.0.2.1", None), now), "IPv4 written as IPv6");
    assert!(!protection.backs_off(&credentials("::ffff:192.0.2.2", None), now));
}

#[test]
fn no_client_backs_off_without_a_limit() {
    let protection = Protection::new(Settings { failures_max: 0, ..Settings::default() });
    let now = Instant::now();
    (0..100).for_each(|_| protection.failed(&credentials("192.0.2.1", Some("a")), now));
    assert!(!protection.backs_off(&credentials("192.0.2.1", Some("a")), now));
    protection.set(Settings { failures_max: 1, ..Settings::default() });
    protection.failed(&credentials("192.0.2.1", Some("a")), now);
    assert!(protection.backs_off(&credentials("192.0.2.1", Some("a")), now), "a reload takes effect");
}

#[test]
fn an_address_has_a_maximum_of_connects_in_a_second() {
    let protection = Protection::new(Settings { address_connects_per_second: 2, ..Settings::default() });
    let (now, peer) = (Instant::now(), Some("192.0.2.1".parse().unwrap()));
    let refused: Vec<bool> = (0..4).map(|_| protection.connects_too_often(peer, now)).collect();
    assert_eq!(refused, [false, false, true, true]);
    assert!(!protection.connects_too_often(peer, now + SECOND));
    assert!(!protection.connects_too_often(Some("192.0.2.2".parse().unwrap()), now));
    assert!(!protection.connects_too_often(None, now), "a Unix socket has no address");
    assert_eq!(protection.figures().rate_refused, 2);
}

#[test]
fn a_flapping_client_is_banned_with_a_reason() {
    let settings = Settings { flapping_connects_max: 3, ..Settings::default() };
    let (protection, bans, now) = (Protection::new(settings), Arc::new(Bans::in_memory(10)), Instant::now());
    let flaps: Vec<bool> = (0..4).map(|_| protection.flaps(("", "c1"), &bans, now)).collect();
    assert_eq!(flaps, [false, false, false, true]);
    assert!(!protection.flaps(("", "c2"), &bans, now));
    // Another thread creates the ban.
    while bans.is_empty() {
        std::thread::yield_now();
    }
    let (list, _) = bans.list(None, 10, SystemTime::now());
    assert!(list[0].reason.contains("flapping") && list[0].reason.contains("3 times within 60 s"));
    assert_eq!(&*list[0].by, "protection");
    assert!(bans.find("c1", None, None, SystemTime::now).is_some());
    let in_six_minutes = || SystemTime::now() + Duration::from_secs(360);
    assert!(bans.find("c1", None, None, in_six_minutes).is_none());
}

/// The leader of a client's shard counts the connects to all nodes, also those to itself, which it counts a second time
/// for itself alone.
#[test]
fn connects_to_the_node_and_to_the_cluster_are_counted_apart() {
    let settings = Settings { flapping_connects_max: 3, ..Settings::default() };
    let (protection, bans, now) = (Protection::new(settings), Arc::new(Bans::in_memory(10)), Instant::now());
    for _ in 0..3 {
        assert!(!protection.flaps(("", "c1"), &bans, now));
        assert!(!protection.flaps_in_cluster("c1", now));
    }
    assert_eq!(protection.figures().entries, 2);
    assert!(protection.flaps_in_cluster("c1", now));
    assert!(bans.is_empty(), "the node of the connection bans");
    protection.ban_flapping(("", "c1"), &bans);
    while bans.is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn connects_that_are_far_apart_do_not_flap() {
    let settings = Settings { flapping_connects_max: 1, ..Settings::default() };
    let (protection, bans, now) = (Protection::new(settings), Arc::new(Bans::in_memory(10)), Instant::now());
    for step in 0..10 {
        assert!(!protection.flaps(("", "c1"), &bans, now + 60 * SECOND * step));
    }
}

/// Devices of many tenants have the same names.
#[test]
fn clients_of_tenants_count_apart_and_are_refused_and_not_banned() {
    let settings = Settings { flapping_connects_max: 2, ..Settings::default() };
    let (protection, bans, now) = (Protection::new(settings), Arc::new(Bans::in_memory(10)), Instant::now());
    for tenant in ["a/", "b/", ""] {
        for _ in 0..2 {
            assert!(!protection.flaps((tenant, "gateway"), &bans, now), "{tenant}");
            assert!(!protection.flaps_in_cluster(&format!("{tenant}gateway"), now), "{tenant}");
        }
    }
    assert!(protection.flaps(("a/", "gateway"), &bans, now));
    assert!(protection.flaps_in_cluster("a/gateway", now));
    protection.ban_flapping(("a/", "gateway"), &bans);
    // Bans are created in order, so once this one exists the others would too.
    protection.ban_flapping(("", "other"), &bans);
    while bans.is_empty() {
        std::thread::yield_now();
    }
    let is_banned = |name| bans.find(name, None, None, SystemTime::now).is_some();
    assert!(is_banned("other") && !is_banned("gateway") && !is_banned("a/gateway"));
    assert!(!protection.flaps(("a/", "gateway"), &bans, now + 60 * SECOND), "the window is over");
}

/// Otherwise its ban would apply to every identifier with this prefix.
#[test]
fn a_flapping_client_with_a_name_like_a_pattern_is_refused_and_not_banned() {
    let settings = Settings { flapping_connects_max: 1, ..Settings::default() };
    let (protection, bans, now) = (Protection::new(settings), Arc::new(Bans::in_memory(10)), Instant::now());
    for client_id in ["a*", "*"] {
        assert!(!protection.flaps(("", client_id), &bans, now));
        assert!(protection.flaps(("", client_id), &bans, now));
    }
    // Bans are created in order, so once this one exists the others would too.
    assert!(!protection.flaps(("", "b"), &bans, now) && protection.flaps(("", "b"), &bans, now));
    while bans.is_empty() {
        std::thread::yield_now();
    }
    assert!(bans.find("abc", None, None, SystemTime::now).is_none());
    assert_eq!(bans.len(), 1);
}
