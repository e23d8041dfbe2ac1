//! Links over real sockets.

mod introductions;
mod node;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use link::MeshConfig;
use node::{News, NodeCommand, PATIENCE, Spec, cutting_proxy, exchange, join, trickling_proxy};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use socket2::{Domain, SockAddr, Socket, Type};
use transport::{Names, Tls, TlsFiles};

#[test]
fn two_nodes_exchange_frames() {
    let (a, b) = (Spec::new("a").start(), Spec::new("b").start());
    join(&[("a", &a), ("b", &b)]);
    exchange(&a, &b, 100_000);
    assert_eq!((a.retransmitted(), b.retransmitted()), (0, 0));
    let figures = a.handle.figures();
    assert_eq!(figures.connections, 3);
    assert!(figures.bytes_read > 100_000 * 100 && figures.bytes_written > 100_000 * 100, "{figures:?}");
    assert!(figures.reads < 100_000 && figures.writes < 100_000, "frames go together: {figures:?}");
    assert!(a.handle.stop_within(PATIENCE) && b.handle.stop_within(PATIENCE));
}

#[test]
fn three_nodes_exchange_frames() {
    let nodes = ["a", "b", "c"].map(|name| Spec::new(name).start());
    let [a, b, c] = &nodes;
    join(&[("a", a), ("b", b), ("c", c)]);
    for (one, other) in [(a, b), (b, c), (c, a)] {
        for (from, to) in [(one, other), (other, one)] {
            to.send(NodeCommand::Expect { from: from.id, count: 20_000 });
            from.send(NodeCommand::Flood { to: to.id, count: 20_000 });
        }
    }
    for node in &nodes {
        for _ in 0..2 {
            node.until("all frames", |news| matches!(news, News::Enough(_)));
        }
    }
}

#[test]
fn frames_arrive_once_over_connections_that_are_cut() {
    let (a, b) = (Spec::new("a").start(), Spec::new("b").start());
    // The dialer goes through the proxy, by a name that must be resolved.
    let (dials, accepts) = if a.id < b.id { (&a, &b) } else { (&b, &a) };
    let name = |node: &node::Node| if node.id == a.id { "a" } else { "b" };
    let (port, cuts) = cutting_proxy(accepts.port(), 200_000);
    dials.add(name(accepts), &format!("localhost:{port}"));
    accepts.add(name(dials), "127.0.0.1:1");
    exchange(&a, &b, 50_000);
    assert!(cuts.load(Ordering::Relaxed) > 2, "{cuts:?}");
    assert!(a.retransmitted() + b.retransmitted() > 0);
}

#[test]
fn a_node_that_is_stopped_and_started_is_joined_again() {
    let (a, b) = (Spec::new("a").start(), Spec::new("b").start());
    join(&[("a", &a), ("b", &b)]);
    exchange(&a, &b, 1_000);
    let (id, listen) = (b.id, b.handle.addresses()[0]);
    b.handle.stop();
    a.until_is(&News::Suspect(id));
    let b = Spec { listen, ..Spec::new("b") }.start();
    b.add("a", &format!("127.0.0.1:{}", a.port()));
    a.until_is(&News::Restarted(id));
    b.until_is(&News::Up(a.id));
    exchange(&a, &b, 1_000);
}

#[test]
fn a_node_with_another_secret_is_refused() {
    let a = Spec::new("a").start();
    let b = Spec { secret: "guess".into(), ..Spec::new("b") }.start();
    for (node, name, other) in [(&a, "b", &b), (&b, "a", &a)] {
        node.add(name, &format!("127.0.0.1:{}", other.port()));
    }
    let (dials, accepts) = if a.id < b.id { (&a, &b) } else { (&b, &a) };
    dials.until_refused("does not know the cluster's secret");
    accepts.until_refused("the cluster's secret is not the same on both: check the secret's file");
    assert!(a.look(|_, mesh| mesh.peers().all(|peer| !peer.is_up)));
}

/// Certificate authority with its certificates in files.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: std::path::PathBuf,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let directory = std::env::temp_dir().join(format!("meridian-carrier-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("ca.pem"), issuer.pem()).expect("a file");
        Self { issuer, directory }
    }

    fn issue(&self, name: &str, trusts: &Authority, names: Names) -> Tls {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("parameters");
        let issued = params.signed_by(&key, &self.issuer).expect("a certificate");
        let file = |suffix: &str| self.directory.join(format!("{name}.{suffix}"));
        std::fs::write(file("crt"), issued.pem()).expect("a file");
        std::fs::write(file("key"), key.serialize_pem()).expect("a file");
        let (certificate, key, authorities) = (file("crt"), file("key"), trusts.directory.join("ca.pem"));
        Tls::load(&TlsFiles { certificate, key, authorities, names }).expect("good files")
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn links_go_over_tls() {
    let authority = Authority::new("good");
    let tls = |name| Some(authority.issue(name, &authority, Names::Any));
    let a = Spec { tls: tls("a.example"), ..Spec::new("a") }.start();
    let b = Spec { tls: tls("b.example"), ..Spec::new("b") }.start();
    join(&[("a", &a), ("b", &b)]);
    exchange(&a, &b, 20_000);
    assert_eq!((a.retransmitted(), b.retransmitted()), (0, 0));
    // A connection without TLS sees no handshake.
    let mut unauthenticated = TcpStream::connect(("127.0.0.1", a.port())).expect("it listens");
    unauthenticated.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    unauthenticated.write_all(b"MLNK\x05\0\x01\0\x01\0\0").expect("it takes them");
    a.until_refused("the other node uses no TLS");
    let figures = a.handle.figures();
    assert_eq!(figures.tls_errors, 1);
}

/// Runs two nodes with different TLS settings: they are never joined, and at least one logs the reason.
fn never_joined(of_a: Option<Tls>, of_b: Option<Tls>, why: &str) {
    let a = Spec { tls: of_a, ..Spec::new("a") }.start();
    let b = Spec { tls: of_b, ..Spec::new("b") }.start();
    for (node, name, other) in [(&a, "b", &b), (&b, "a", &a)] {
        node.add(name, &format!("127.0.0.1:{}", other.port()));
    }
    let (dials, accepts) = if a.id < b.id { (&a, &b) } else { (&b, &a) };
    dials.until("a reason", |news| matches!(news, News::Refused(_)));
    accepts.until_refused(why);
    for node in [&a, &b] {
        assert!(node.look(|_, mesh| mesh.peers().all(|peer| !peer.is_up)));
    }
}

#[test]
fn a_certificate_of_another_authority_is_refused() {
    let (good, other) = (Authority::new("ours"), Authority::new("theirs"));
    // Both nodes have to trust each other's authority; here one does not.
    for (of_a, of_b) in [(&good, &other), (&other, &good)] {
        let a = of_a.issue("a.example", of_b, Names::Any);
        let b = of_b.issue("b.example", of_b, Names::Any);
        never_joined(Some(a), Some(b), "TLS");
        let a = of_a.issue("a.example", of_a, Names::Any);
        let b = of_b.issue("b.example", of_a, Names::Any);
        never_joined(Some(a), Some(b), "TLS");
    }
}

#[test]
fn certificates_are_renewed_while_a_transport_runs() {
    let (good, other) = (Authority::new("renewed"), Authority::new("replaced"));
    let a = Spec { tls: Some(good.issue("a.example", &good, Names::Any)), ..Spec::new("a") }.start();
    let b = Spec { tls: Some(other.issue("b.example", &good, Names::Any)), ..Spec::new("b") }.start();
    for (node, name, peer) in [(&a, "b", &b), (&b, "a", &a)] {
        node.add(name, &format!("127.0.0.1:{}", peer.port()));
    }
    let dials = if a.id < b.id { &a } else { &b };
    dials.until("a reason", |news| matches!(news, News::Refused(_)));
    let renewed = good.issue("b.example", &good, Names::Any);
    assert_eq!(renewed.expiries().len(), 2, "of the chain and of the authority");
    b.handle.renew(renewed);
    a.until_is(&News::Up(b.id));
    b.until_is(&News::Up(a.id));
    // Existing connections continue after any renewal.
    b.handle.renew(other.issue("b.example", &other, Names::Any));
    exchange(&a, &b, 1_000);
}

#[test]
fn a_host_that_is_not_in_the_certificate_is_refused_when_names_are_checked() {
    let authority = Authority::new("names");
    let tls = |name| Some(authority.issue(name, &authority, Names::Host));
    never_joined(tls("a.example"), tls("b.example"), "TLS");
    let a = Spec { tls: tls("127.0.0.1"), ..Spec::new("a") }.start();
    let b = Spec { tls: tls("127.0.0.1"), ..Spec::new("b") }.start();
    join(&[("a", &a), ("b", &b)]);
    exchange(&a, &b, 100);
}

#[test]
fn tls_on_one_side_only_is_explained() {
    let authority = Authority::new("one");
    let tls = || Some(authority.issue("a.example", &authority, Names::Any));
    never_joined(tls(), None, "TLS");
    never_joined(None, tls(), "TLS");
    let set = "set cluster.tls_certificate, cluster.tls_key and cluster.tls_ca on both, or on neither";
    for dials_with in [true, false] {
        let with = Spec { tls: tls(), ..Spec::new("a") }.start();
        let without = Spec::new("b").start();
        let (dials, accepts) = if dials_with { (&with, &without) } else { (&without, &with) };
        dials.discover(&format!("127.0.0.1:{}", accepts.port()));
        with.until_refused(&format!("the other node uses no TLS between nodes, and this node does: {set}"));
        without
            .until_refused(&format!("the other node uses TLS between nodes, and this node does not: {set}"));
    }
}

fn a_node_reads_nothing(tls: Option<&Tls>, count: u64) {
    let nodes = ["a", "b", "c"].map(|name| Spec { tls: tls.cloned(), ..Spec::new(name) }.start());
    let [a, b, c] = &nodes;
    join(&[("a", a), ("b", b), ("c", c)]);
    let (resume, until) = channel::<()>();
    c.send(NodeCommand::Halt(until));
    // These frames exceed the buffers, windows and sockets on the way.
    a.send(NodeCommand::Flood { to: c.id, count });
    exchange(a, b, count / 16);
    let (id, waits) = (c.id, std::time::Duration::from_secs(60).as_micros() as u64);
    let (held, is_up) = a.look(move |now, mesh| {
        let peer = mesh.peer(id).expect("a peer");
        assert!(peer.link.waiting(now, link::Class::Assured).2 < waits);
        (peer.link.waiting(now, link::Class::Assured).0, peer.is_up)
    });
    assert!(is_up && held > 0 && held <= 64 << 20, "{held} bytes wait");
    drop(resume);
    c.send(NodeCommand::Expect { from: a.id, count });
    c.until_is(&News::Enough(a.id));
    assert_eq!(a.retransmitted(), 0);
}

#[test]
fn a_node_that_reads_nothing_slows_no_other() {
    a_node_reads_nothing(None, 800_000);
}

#[test]
fn a_node_that_reads_nothing_over_tls_slows_no_other() {
    let authority = Authority::new("stalled");
    a_node_reads_nothing(Some(&authority.issue("node.example", &authority, Names::Any)), 300_000);
}

/// Checks that a slow peer costs only the bytes that a link may hold, and delays no other peer. All bytes that it reads
/// during the test do not fill a window.
#[test]
fn a_node_that_reads_a_byte_at_a_time_slows_no_other() {
    let nodes = ["a", "b", "c"].map(|name| Spec::new(name).start());
    let [a, b, c] = &nodes;
    let (dials, accepts) = if a.id < c.id { (a, c) } else { (c, a) };
    let name = |node: &node::Node| if node.id == a.id { "a" } else { "c" };
    join(&[("a", a), ("b", b)]);
    // The proxy passes bytes from `c` to `a` at full speed. Once the two are joined, it passes bytes to `c` one at a
    // time.
    let (port, trickle) = trickling_proxy(accepts.port(), dials.id == a.id);
    dials.add(name(accepts), &format!("127.0.0.1:{port}"));
    accepts.add(name(dials), "127.0.0.1:1");
    a.until_is(&News::Up(c.id));
    c.until_is(&News::Up(a.id));
    trickle.begin();
    let count = 400_000;
    a.send(NodeCommand::Flood { to: c.id, count });
    exchange(a, b, 50_000);
    exchange(a, b, 50_000);
    let before = trickle.bytes();
    trickle.wait_for(before + 2);
    let id = c.id;
    let held = a.look(move |now, mesh| {
        let peer = mesh.peer(id).expect("a peer");
        peer.link.waiting(now, link::Class::Assured).0
    });
    assert!(held > 0 && held <= 64 << 20, "{held} bytes wait");
    let carried = trickle.bytes();
    trickle.end();
    c.send(NodeCommand::Expect { from: a.id, count });
    c.until_is(&News::Enough(a.id));
    assert!(carried < 4 << 20, "{carried} bytes are too many for one byte at a time");
}

#[test]
fn commands_to_a_thread_that_is_awake_cause_no_wakeup() {
    let a = Spec::new("a").start();
    a.look(|_, _| ());
    let before = a.handle.figures();
    let (resume, until) = channel::<()>();
    a.send(NodeCommand::Halt(until));
    for _ in 0..10_000 {
        a.add("b", "127.0.0.1:1");
    }
    assert!(a.handle.sender().waiting() >= 10_000);
    drop(resume);
    a.look(|_, _| ());
    let after = a.handle.figures();
    assert_eq!(after.commands - before.commands, 10_002);
    assert!(after.wakeups - before.wakeups < 10, "{before:?} {after:?}");
}

#[test]
fn garbage_on_the_port_disturbs_nobody() {
    let (a, b) = (Spec::new("a").start(), Spec::new("b").start());
    join(&[("a", &a), ("b", &b)]);
    let mut state = 7_u64;
    for round in 0..200 {
        let mut unauthenticated = TcpStream::connect(("127.0.0.1", a.port())).expect("it listens");
        unauthenticated.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let mut bytes: Vec<u8> = match round % 4 {
            0 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            1 => b"MLNK\xff\xff".to_vec(),
            2 => b"\x16\x03\x01\x02\x00".to_vec(),
            _ => b"MLNK\x20\x00".to_vec(),
        };
        bytes.extend((0..40).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        }));
        // The node may have closed the connection before all was written.
        let _ = unauthenticated.write_all(&bytes);
        let mut said = Vec::new();
        let _ = unauthenticated.read_to_end(&mut said);
        assert!(said.len() <= 7, "a refusal at most: {said:?}");
    }
    exchange(&a, &b, 1_000);
    assert_eq!((a.retransmitted(), a.handle.figures().connections), (0, 3));
}

/// The poll reports both at once, and neither again: the end must not be noticed only by a missed ping.
#[test]
fn the_end_of_a_connection_that_comes_with_bytes_is_noticed() {
    let mesh = MeshConfig { handshake_max: 10 * PATIENCE, ..Spec::new("a").mesh };
    let a = Spec { mesh, ..Spec::new("a") }.start();
    let (resume, until) = channel::<()>();
    a.send(NodeCommand::Halt(until));
    let mut unauthenticated = TcpStream::connect(("127.0.0.1", a.port())).expect("it listens");
    unauthenticated.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    unauthenticated.write_all(b"MLNK").expect("it takes them");
    unauthenticated.shutdown(Shutdown::Write).expect("it is connected");
    drop(resume);
    assert_eq!(unauthenticated.read(&mut [0; 1]).expect("it closes the connection"), 0);
    assert_eq!(a.handle.figures().accepted, 1);
}

#[test]
fn the_oldest_connections_beyond_the_limit_are_closed() {
    let few = MeshConfig { handshakes_max: 4, handshake_max: PATIENCE, ..Spec::new("a").mesh };
    let a = Spec { mesh: few.clone(), ..Spec::new("a") }.start();
    let b = Spec { mesh: few, ..Spec::new("b") }.start();
    join(&[("a", &a), ("b", &b)]);
    // Until then these connections hold some of the slots.
    while a.look(|_, mesh| mesh.peers().any(|peer| peer.connections != (3, 3))) {
        std::thread::yield_now();
    }
    let connect = || {
        let unauthenticated = TcpStream::connect(("127.0.0.1", a.port())).expect("it listens");
        unauthenticated.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        unauthenticated
    };
    let mut unauthenticated_nodes: Vec<TcpStream> = (0..14).map(|_| connect()).collect();
    let kept = unauthenticated_nodes.split_off(10);
    for mut unauthenticated in unauthenticated_nodes {
        assert!(matches!(unauthenticated.read(&mut [0; 1]), Ok(0) | Err(_)), "it makes room for the next");
    }
    assert_eq!(a.look(|_, mesh| mesh.counters().unauthenticated_closed), 10);
    exchange(&a, &b, 1_000);
    drop(kept);
}

#[test]
fn stopping_waits_for_a_hanging_thread_only_as_long_as_requested() {
    let a = Spec::new("a").start();
    let (resume, until) = channel::<()>();
    a.send(NodeCommand::Halt(until));
    assert!(!a.handle.stop_within(Duration::from_millis(1)));
    drop(resume);
}

#[test]
fn a_port_in_use_is_named_in_the_error() {
    let a = Spec::new("a").start();
    let taken = a.handle.addresses()[0];
    let config = transport::TransportConfig { listen: vec![taken], ..Default::default() };
    let error = node::idle(config).err().expect("it is taken");
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
}

#[test]
fn an_unavailable_congestion_control_is_logged_and_the_default_is_used() {
    let listen = vec![([127, 0, 0, 1], 0).into()];
    let config = transport::TransportConfig {
        listen,
        congestion: "none-such".into(),
        ..transport::TransportConfig::default()
    };
    let handle = node::idle(config).expect("it listens all the same");
    assert!(handle.figures().is_congestion_refused);
    assert!(TcpStream::connect(handle.addresses()[0]).is_ok());
    assert!(handle.stop_within(PATIENCE));
}

/// Environment variable that is set in the process without free file descriptors.
const CHILD: &str = "TRANSPORT_CHILD";

#[test]
fn connections_that_cannot_be_accepted_are_logged_once() {
    let own = "connections_that_cannot_be_accepted_are_logged_once";
    if std::env::var_os(CHILD).is_some() {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
        return cannot_accept();
    }
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new("sh");
    child.args(["-c", "ulimit -n 64; exec \"$0\" --exact \"$1\" --nocapture"]).arg(program).arg(own);
    let child = child.env(CHILD, "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{said}");
    assert_eq!(said.matches("cannot be accepted").count(), 1, "{said}");
}

/// Checks that the node retries.
fn cannot_accept() {
    let a = Spec::new("a").start();
    let address = SockAddr::from(a.handle.addresses()[0]);
    let stranger = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a descriptor");
    let strangers: Vec<Socket> = (0..8).map(|_| stranger()).collect();
    let free = || std::fs::File::open("/dev/null").ok();
    let mut files: Vec<_> = std::iter::from_fn(free).collect();
    for stranger in &strangers {
        stranger.connect(&address).expect("it listens");
    }
    // `accept` holds a descriptor while it finds nobody, which may be the last one when the files
    // are opened. Then it is free later, and one of the connections takes it.
    while a.handle.figures().accept_errors < 3 {
        files.extend(std::iter::from_fn(free));
        std::thread::yield_now();
    }
}
