//! Crowds at the door: connections that never come to CONNECT keep nobody out.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use broker::admin::AcceptFigures;
use edge::settings::{Listener, Transport};

use crate::client::{Client, echo};
use crate::secure::{Authority, connect, tls};
use crate::{Directory, Node, PATIENCE, everywhere, everywhere_with};

/// The first bytes of a TLS record that would be a ClientHello.
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
    // A reset is an end as well; a time-out is none.
    match stream.read_to_end(&mut bytes) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Figures are told about twice a second.
fn door_until(node: &Node, enough: impl Fn(&AcceptFigures) -> bool) {
    // Reactors tell their figures when they are awake.
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
        // Seldom enough that what is opened only to wake somebody is no crowd of its own.
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_thousand_slow_handshakes_keep_nobody_out() {
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

/// Whatever they wait for: TLS, the request of WebSocket, or the PROXY header.
#[test]
fn slow_handshakes_end() {
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

/// Who is through in time stays, however late CONNECT and everything after it come.
#[test]
fn the_time_for_the_handshake_is_not_the_time_for_connect() {
    let timeout = Duration::from_millis(100);
    everywhere(
        || Listener { transport: Transport::WebSocket, handshake_timeout: timeout, ..Listener::default() },
        |node| {
            let through = crate::websocket::Frames::over(node.open(), 1000);
            // Closed after this one's time, which began later than the other's.
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

/// Beyond the limit others wait in the backlog, and come in when these are gone.
#[test]
fn when_too_many_are_half_open_others_wait() {
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
fn one_address_has_its_share_of_half_open_connections() {
    let settings: &dyn Fn(&mut broker::settings::Settings) = &|broker| {
        broker.limits.unauthenticated_per_address = 3;
        broker.mqtt.connect_timeout = PATIENCE;
    };
    everywhere_with(&Listener::default, settings, |node| {
        // Those that are through do not count.
        let _through: Vec<_> = (0..5).map(|n| Client::connect(node.open(), &format!("c{n}"))).collect();
        let mut half = slow(node, 4, b"\x10");
        // Which of the four depends on the reactors.
        until_one_is_closed(&mut half);
        drop(half);
        // The node learns a little later that they have gone.
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

/// A balancer's connections count for those whom it speaks for.
#[test]
fn behind_a_balancer_each_address_has_its_share() {
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
        // Which of the three depends on the reactors.
        door_until(node, |door| door.closed_address == 1);
        let mut good = slow(node, 1, header(3).as_bytes());
        let _client = Client::connect(good.remove(0), "good");
    });
}

/// Who is there is served, if more slowly; who is not has to wait, or is told to.
#[test]
fn an_overloaded_node_takes_nobody_else_in() {
    let patient: &dyn Fn(&mut broker::settings::Settings) = &|broker| broker.mqtt.connect_timeout = PATIENCE;
    everywhere_with(&Listener::default, patient, |node| {
        let mut there = Client::connect(node.open(), "there");
        let mut half = Client::over(node.open());
        // It has been accepted before the others.
        half.stream.write_all(b"\x10").expect("sent");
        door_until(node, |door| door.half_open >= 1);
        let admin = node.node.admin();
        let calm = admin.settings();
        let mut overloaded = (*calm).clone();
        // Any turn that does something is too long.
        overloaded.overload.turn = Duration::from_nanos(1);
        overloaded.overload.cooldown = Duration::from_secs(3600);
        admin.set_settings(overloaded);
        echo(&mut there, &[900_000]);
        // Some come each second, and fewer than the backlog holds: whoever waits in it stays there.
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
