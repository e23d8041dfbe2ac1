//! Unauthenticated connections: those that never complete CONNECT do not keep other clients out.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use broker::admin::AcceptFigures;
use edge::settings::{Listener, Transport};

use crate::client::{Client, echo};
use crate::secure::{Authority, connect, tls};
use crate::{Directory, Node, PATIENCE, everywhere, everywhere_with};

/// First bytes of a TLS record that would contain a ClientHello.
const BEGINNING: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00";

fn slow(node: &Node, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = node.open();
        stream.write_all(bytes).expect("sent");
        stream
    };
    (0..count).map(open).collect()
}

fn is_closed(stream: &mut TcpStream) -> bool {
    let mut bytes = Vec::new();
    // A reset is an end too, but a timeout is not.
    match stream.read_to_end(&mut bytes) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Waits until the counters of half-open connections satisfy `enough`. Reactors publish them about twice a second.
fn door_until(node: &Node, enough: impl Fn(&AcceptFigures) -> bool) {
    // Reactors publish their counters only while they are awake.
    door_until_with(node, enough, || drop(node.open()));
}

fn door_until_with(node: &Node, enough: impl Fn(&AcceptFigures) -> bool, wake: impl Fn()) {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut sum = AcceptFigures::default();
        for worker in node.node.admin().figures().workers {
            let door = worker.reactor.door;
            sum.half_open += door.half_open;
            sum.waits_half_open += door.waits_half_open;
            sum.waits_overload += door.waits_overload;
            sum.closed_address += door.closed_address;
            sum.closed_timeout += door.closed_timeout;
            sum.handshakes_full += door.handshakes_full;
            sum.handshakes_resumed += door.handshakes_resumed;
        }
        if enough(&sum) {
            return;
        }
        assert!(Instant::now() < until, "{sum:?}");
        wake();
        // Rarely enough that the connections that wake reactors do not add up.
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_thousand_slow_handshakes_do_not_keep_other_clients_out() {
    let (directory, authority) = (Directory::new("slow"), Authority::new());
    everywhere(
        || Listener { handshake_timeout: PATIENCE, ..tls(&directory, &authority) },
        |node| {
            let unauthenticated = slow(node, 1000, BEGINNING);
            let config = authority.client(None);
            let mut good = Client::connect(connect(node, &config, "localhost"), "good");
            echo(&mut good, &[1, 100_000]);
            door_until(node, |door| door.half_open >= 1000 && door.handshakes_full == 1);
            drop(unauthenticated);
            door_until(node, |door| door.half_open < 1000 && door.closed_timeout == 0);
        },
    );
}

/// The deadline applies to TLS, the WebSocket request and the PROXY header.
#[test]
fn slow_handshakes_are_closed() {
    let (directory, authority) = (Directory::new("reaped"), Authority::new());
    let timeout = Duration::from_millis(200);
    let listeners: [(&dyn Fn() -> Listener, &[u8]); 3] = [
        (&|| Listener { handshake_timeout: timeout, ..tls(&directory, &authority) }, BEGINNING),
        (
            &|| Listener { handshake_timeout: timeout, ..crate::websocket::listener() },
            b"GET /mqtt HTTP/1.1\r\n",
        ),
        (
            &|| Listener {
                proxy_networks: "127.0.0.1".into(),
                handshake_timeout: timeout,
                ..Listener::default()
            },
            b"PROXY TC",
        ),
    ];
    for (listener, bytes) in listeners {
        everywhere_with(listener, &|broker| broker.mqtt.connect_timeout = PATIENCE, |node| {
            for mut stream in slow(node, 50, bytes) {
                assert!(is_closed(&mut stream));
            }
            door_until(node, |door| door.closed_timeout >= 50);
        });
    }
}

/// A connection that finishes its layers in time stays, however late CONNECT and later packets arrive.
#[test]
fn the_handshake_timeout_does_not_limit_connect() {
    let timeout = Duration::from_millis(100);
    everywhere(
        || Listener { transport: Transport::WebSocket, handshake_timeout: timeout, ..Listener::default() },
        |node| {
            let through = crate::websocket::Frames::over(node.open(), 1000);
            // These are closed by their own deadline, which began later than that of the other connection.
            for mut stream in slow(node, 1, b"GET ") {
                assert!(is_closed(&mut stream));
            }
            let mut client = Client::connect(through, "late");
            for mut stream in slow(node, 1, b"GET ") {
                assert!(is_closed(&mut stream));
            }
            echo(&mut client, &[1]);
        },
    );
}

/// The system passes on connections whose first bytes are there. Those without any follow a little later.
#[test]
fn connections_that_send_nothing_are_counted_and_closed() {
    let settings: &dyn Fn(&mut broker::settings::Settings) = &|broker| {
        broker.limits.unauthenticated_max = 20;
        broker.mqtt.connect_timeout = Duration::from_millis(500);
    };
    everywhere_with(&Listener::default, settings, |node| {
        let mut silent = slow(node, 60, b"");
        let mut good = Client::connect(node.open(), "good");
        echo(&mut good, &[1]);
        for stream in &mut silent {
            assert!(is_closed(stream));
        }
        door_until(node, |door| door.waits_half_open > 0);
    });
}

/// Beyond the limit, connections wait in the backlog until others are closed.
#[test]
fn connections_wait_while_too_many_are_half_open() {
    let settings: &dyn Fn(&mut broker::settings::Settings) = &|broker| {
        broker.limits.unauthenticated_max = 20;
        broker.mqtt.connect_timeout = Duration::from_millis(100);
    };
    everywhere_with(&Listener::default, settings, |node| {
        let mut there = Client::connect(node.open(), "there");
        let _unauthenticated = slow(node, 25, b"\x10");
        let mut good = Client::connect(node.open(), "good");
        echo(&mut good, &[1]);
        echo(&mut there, &[1]);
        door_until(node, |door| door.waits_half_open > 0);
    });
}

#[test]
fn one_address_has_a_limit_of_half_open_connections() {
    let settings: &dyn Fn(&mut broker::settings::Settings) = &|broker| {
        broker.limits.unauthenticated_per_address = 3;
        broker.mqtt.connect_timeout = PATIENCE;
    };
    everywhere_with(&Listener::default, settings, |node| {
        // Connections with a successful CONNECT do not count.
        let _through: Vec<_> = (0..5).map(|n| Client::connect(node.open(), &format!("c{n}"))).collect();
        let mut half = slow(node, 4, b"\x10");
        // The reactors decide which of the four it is.
        until_one_is_closed(&mut half);
        drop(half);
        // The node notices the closed connections a little later.
        let until = Instant::now() + PATIENCE;
        while Client::try_connect(node.open(), "again").is_none() {
            assert!(Instant::now() < until, "still out");
        }
        door_until(node, |door| door.closed_address > 0);
    });
}

fn until_one_is_closed(streams: &mut [TcpStream]) {
    let until = Instant::now() + PATIENCE;
    for stream in &*streams {
        stream.set_nonblocking(true).expect("a socket");
    }
    while !streams.iter_mut().any(is_closed) {
        assert!(Instant::now() < until, "all are open");
        std::thread::yield_now();
    }
}

/// A balancer's connections are counted by the address in the PROXY header.
#[test]
fn behind_a_balancer_each_address_has_its_limit() {
    let settings: &dyn Fn(&mut broker::settings::Settings) = &|broker| {
        broker.limits.unauthenticated_per_address = 2;
        broker.mqtt.connect_timeout = PATIENCE;
    };
    let listener = || Listener { proxy_networks: "127.0.0.1".into(), ..Listener::default() };
    everywhere_with(&listener, settings, |node| {
        let header = |last: u8| format!("PROXY TCP4 192.0.2.{last} 198.51.100.1 5 1883\r\n");
        let first = header(1);
        let _half = slow(node, 3, first.as_bytes());
        let _others = slow(node, 2, header(2).as_bytes());
        // The reactors decide which of the three it is.
        door_until(node, |door| door.closed_address == 1);
        let mut good = slow(node, 1, header(3).as_bytes());
        let _client = Client::connect(good.remove(0), "good");
    });
}

/// Connected clients are served, if more slowly. New clients wait or are refused.
#[test]
fn an_overloaded_node_accepts_no_new_clients() {
    let patient: &dyn Fn(&mut broker::settings::Settings) = &|broker| broker.mqtt.connect_timeout = PATIENCE;
    everywhere_with(&Listener::default, patient, |node| {
        let mut there = Client::connect(node.open(), "there");
        let mut half = Client::over(node.open());
        // This connection was accepted before the others.
        half.stream.write_all(b"\x10").expect("sent");
        door_until(node, |door| door.half_open >= 1);
        let admin = node.node.admin();
        let calm = admin.settings();
        let mut overloaded = (*calm).clone();
        // Every turn that does something is too long.
        overloaded.overload.turn = Duration::from_nanos(1);
        overloaded.overload.cooldown = Duration::from_secs(3600);
        admin.set_settings(overloaded);
        echo(&mut there, &[900_000]);
        // Some connections arrive each second, fewer than the backlog holds. They stay in it.
        let knock = || {
            drop(node.open());
            std::thread::sleep(Duration::from_millis(50));
        };
        door_until_with(node, |door| door.waits_overload > 0, knock);
        let connect = b"\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c";
        half.stream.write_all(connect).expect("sent");
        let answer = half.next();
        assert!(answer.contains("ServerBusy"), "{answer}");
        echo(&mut there, &[1, 1000]);
        let mut back = (*calm).clone();
        back.overload.cooldown = Duration::ZERO;
        admin.set_settings(back);
        let _again = Client::connect(node.open(), "again");
    });
}
