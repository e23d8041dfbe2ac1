use super::decode::Reader;
use super::encode::{put_varint, varint_len};

use super::*;

fn one(b: &[u8], v5: bool) -> Res<Packet<'_>> {
    match frame(b)? {
        Frame::Have(h, s, e) => {
            assert_eq!(e, b.len());
            parse(h, &b[s..e], v5)
        }
        Frame::Need(_) => Err("incomplete"),
    }
}

#[test]
fn varints() {
    for (v, enc) in [
        (0usize, vec![0u8]),
        (127, vec![0x7f]),
        (128, vec![0x80, 1]),
        (16383, vec![0xff, 0x7f]),
        (16384, vec![0x80, 0x80, 1]),
        (2097151, vec![0xff, 0xff, 0x7f]),
        (2097152, vec![0x80, 0x80, 0x80, 1]),
        (268435455, vec![0xff, 0xff, 0xff, 0x7f]),
    ] {
        let mut b = vec![];
        put_varint(&mut b, v);
        assert_eq!(b, enc);
        assert_eq!(varint_len(v), enc.len());
        assert_eq!(Reader(&b).varint().unwrap(), v);
    }
    assert!(Reader(&[0x80, 0x80, 0x80, 0x80, 1]).varint().is_err());
}

#[test]
fn frames_at_every_split() {
    let mut b = vec![];
    let payload = vec![7u8; 300];
    let head = publish_head(Some(&[]), 1, "a/b", payload.len());
    publish_start(&mut b, Some(&[]), 1, 0, &head, 9);
    b.extend_from_slice(&payload);
    for i in 0..b.len() {
        match frame(&b[..i]).unwrap() {
            Frame::Need(n) => assert!(n == 0 || n == b.len()),
            f => panic!("{f:?} at {i}"),
        }
    }
    let twice = [b.clone(), b.clone()].concat();
    assert_eq!(frame(&twice).unwrap(), Frame::Have(0x32, 3, b.len()));
    assert!(frame(&[0x30, 0xff, 0xff, 0xff, 0xff, 0x01]).is_err());
    assert!(frame(&[0x30, 0xff, 0xff, 0xff, 0x80]).is_err());
}

#[test]
fn publish_all_forms() {
    for v5 in [false, true] {
        for qos in 0..3u8 {
            for dup in [false, true] {
                if dup && qos == 0 {
                    continue;
                }
                for len in [0usize, 1, 24, 120, 128, 20000] {
                    let pl = vec![0xabu8; len];
                    let head = publish_head(v5.then_some(&[]), qos, "t/é/1", len);
                    let mut b = vec![];
                    publish_start(&mut b, v5.then_some(&[]), qos, (dup as u8) << 3, &head, 513);
                    b.extend_from_slice(&pl);
                    let p = one(&b, v5).unwrap();
                    let pid = if qos > 0 { 513 } else { 0 };
                    assert_eq!(
                        p,
                        Packet::Publish {
                            dup,
                            qos,
                            retain: false,
                            topic: "t/é/1".as_bytes(),
                            pid,
                            payload: &pl
                        }
                    );
                }
            }
        }
    }
}

#[test]
fn publish_bad() {
    assert!(one(&[0x36, 5, 0, 1, b'a', 0, 1], false).is_err()); // QoS 3
    assert!(one(&[0x32, 5, 0, 1, b'a', 0, 0], false).is_err()); // packet id 0
    assert!(one(&[0x38, 3, 0, 1, b'a'], false).is_err()); // DUP at QoS 0
    assert!(one(&[0x30, 3, 0, 9, b'a'], false).is_err()); // topic longer than the packet
    assert!(one(&[0x30, 2, 0, 0], false).is_err()); // empty topic
    assert!(one(&[0x30, 4, 0, 1, b'a', 3], true).is_err()); // properties longer than the packet
    assert!(one(&[0x30, 6, 0, 1, b'a', 2, 0x7e, 0], true).is_err()); // unknown property
}

#[test]
fn publish_with_properties() {
    // Message Expiry Interval, User Property, Subscription Identifier (varint), then the payload.
    let mut props = vec![0x02, 0, 0, 0, 9, 0x26, 0, 1, b'k', 0, 1, b'v', 0x0b, 0x80, 0x01];
    props.extend_from_slice(&[0x09, 0, 2, 1, 2]);
    let mut b = vec![0x30, 0, 0, 1, b'a', props.len() as u8];
    b.extend_from_slice(&props);
    b.extend_from_slice(b"hi");
    b[1] = (b.len() - 2) as u8;
    match one(&b, true).unwrap() {
        Packet::Publish { payload, topic, .. } => {
            assert_eq!(payload, b"hi");
            assert_eq!(topic, b"a");
        }
        p => panic!("{p:?}"),
    }
}

#[test]
fn connect_bytes() {
    let mut b = vec![];
    let mut o = ConnectOpts {
        version: Version::V311,
        clean: true,
        keepalive: 60,
        client_id: "ab",
        user: Some("u"),
        pass: Some("pw"),
        expiry: 0,
        recv_max: 0,
        ..ConnectOpts::default()
    };
    connect(&mut b, &o);
    assert_eq!(
        b,
        [&[0x10, 21, 0, 4][..], b"MQTT", &[4, 0xc2, 0, 60, 0, 2], b"ab", &[0, 1], b"u", &[0, 2], b"pw"]
            .concat()
    );
    b.clear();
    o.version = Version::V5;
    o.clean = false;
    o.user = None;
    o.pass = None;
    o.expiry = 3600;
    o.recv_max = 100;
    connect(&mut b, &o);
    assert_eq!(
        b,
        [&[0x10, 23, 0, 4][..], b"MQTT", &[5, 0, 0, 60, 8, 0x11, 0, 0, 14, 16, 0x21, 0, 100, 0, 2], b"ab"]
            .concat()
    );
}

#[test]
fn subscribe_bytes() {
    let mut b = vec![];
    subscribe(&mut b, false, 7, &["a/+", "b"], 1);
    assert_eq!(b, [&[0x82, 12, 0, 7, 0, 3][..], b"a/+", &[1, 0, 1], b"b", &[1]].concat());
    b.clear();
    subscribe(&mut b, true, 7, &["b"], 2);
    assert_eq!(b, [&[0x82, 7, 0, 7, 0, 0, 1][..], b"b", &[2]].concat());
}

#[test]
fn acks() {
    for v5 in [false, true] {
        for kind in [PUBACK, PUBREC, PUBREL, PUBCOMP] {
            let mut b = vec![];
            ack(&mut b, kind, 0x1234);
            assert_eq!(one(&b, v5).unwrap(), Packet::Ack { kind, pid: 0x1234, reason: 0 });
        }
    }
    assert_eq!(
        one(&[0x40, 3, 0, 1, 0x10], true).unwrap(),
        Packet::Ack { kind: PUBACK, pid: 1, reason: 0x10 }
    );
    assert_eq!(
        one(&[0x40, 4, 0, 1, 0x97, 0], true).unwrap(),
        Packet::Ack { kind: PUBACK, pid: 1, reason: 0x97 }
    );
    assert!(one(&[0x40, 3, 0, 1, 0x10], false).is_err());
    assert!(one(&[0x40, 2, 0, 0], false).is_err());
    assert!(one(&[0x60, 2, 0, 1], false).is_err()); // PUBREL needs flags 2
    assert!(one(&[0x42, 2, 0, 1], false).is_err());
}

#[test]
fn connacks() {
    assert_eq!(
        one(&[0x20, 2, 1, 0], false).unwrap(),
        Packet::ConnAck { session_present: true, code: 0, props: Default::default() }
    );
    let b = [0x20, 18, 0, 0, 15, 0x21, 0, 20, 0x24, 1, 0x13, 0, 30, 0x11, 0, 0, 0, 60, 0x2a, 1];
    match one(&b, true).unwrap() {
        Packet::ConnAck { session_present, code, props } => {
            assert!(!session_present);
            assert_eq!(code, 0);
            assert_eq!(props.receive_max, Some(20));
            assert_eq!(props.max_qos, Some(1));
            assert_eq!(props.server_keepalive, Some(30));
            assert_eq!(props.session_expiry, Some(60));
        }
        p => panic!("{p:?}"),
    }
    assert!(one(&[0x20, 2, 2, 0], false).is_err());
    assert_eq!(connack_name(false, 5), "5 not authorized");
    assert_eq!(connack_name(true, 0x87), "0x87 not authorized");
}

#[test]
fn others() {
    assert_eq!(one(&[0x90, 4, 0, 1, 0, 0x80], false).unwrap(), Packet::SubAck { pid: 1, codes: &[0, 0x80] });
    assert_eq!(one(&[0x90, 4, 0, 1, 0, 2], true).unwrap(), Packet::SubAck { pid: 1, codes: &[2] });
    assert!(one(&[0x90, 2, 0, 1], false).is_err());
    assert_eq!(one(&[0xd0, 0], false).unwrap(), Packet::PingResp);
    assert_eq!(one(&[0xe0, 0], true).unwrap(), Packet::Disconnect { reason: 0 });
    assert_eq!(one(&[0xe0, 1, 0x8e], true).unwrap(), Packet::Disconnect { reason: 0x8e });
    assert!(one(&[0xe0, 0], false).is_err());
    assert!(one(&[0x10, 0], false).is_err());
}

/// Random bytes cause no panic.
#[test]
fn fuzz() {
    let mut random = crate::random::Random::new(0);
    let mut rnd = move || random.next();
    for _ in 0..200_000 {
        let n = (rnd() % 40) as usize;
        let mut b: Vec<u8> = (0..n).map(|_| rnd() as u8).collect();
        if n > 1 {
            b[1] = (n - 2) as u8;
        }
        if let Ok(Frame::Have(h, s, e)) = frame(&b) {
            let _ = parse(h, &b[s..e], rnd() & 1 == 0);
        }
    }
}
