//! Nodes that know addresses and no names, over real sockets.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use link::{MeshConfig, NodeId};
use transport::Names;

use crate::Authority;
use crate::node::{News, Node, Spec, exchange, join};

fn at(node: &Node) -> String {
    format!("127.0.0.1:{}", node.port())
}

/// Addresses of the host names in these tests. Each test has names of its own.
static NAMES: Mutex<BTreeMap<String, Vec<SocketAddr>>> = Mutex::new(BTreeMap::new());

fn name(name: &str, addresses: Vec<SocketAddr>) -> String {
    sync::lock(&NAMES).insert(name.into(), addresses);
    name.into()
}

fn resolve(name: &str) -> io::Result<Vec<SocketAddr>> {
    let names = sync::lock(&NAMES);
    names.get(name).cloned().ok_or_else(|| io::Error::other("no such name"))
}

/// Returns a node that resolves these names and gives up silent connections soon.
fn seeker(name: &str) -> Spec {
    let mesh = MeshConfig { handshake_max: Duration::from_millis(500), ..Spec::new(name).mesh };
    Spec { resolve, mesh, ..Spec::new(name) }
}

/// Returns an address that accepts connections and sends nothing.
fn silence() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// Returns an address without a listener.
fn nobody() -> SocketAddr {
    silence().1
}

fn are_introduced(a: &Node, b: &Node) {
    a.discover(&at(b));
    // The introduction repeats.
    for _ in 0..3 {
        a.until_introduced("b", Some(&at(b)));
        b.until_introduced("a", None);
    }
    for node in [a, b] {
        assert_eq!(node.look(|_, mesh| mesh.peers().count()), 0);
        let refused = node.news().into_iter().find(|news| matches!(news, News::Refused(_)));
        assert_eq!(refused, None);
    }
}

#[test]
fn two_unknown_nodes_are_introduced() {
    let (a, b) = (Spec::new("a").start(), Spec::new("b").start());
    are_introduced(&a, &b);
    // After that they know their peers, and discovery continues next to the link.
    join(&[("a", &a), ("b", &b)]);
    exchange(&a, &b, 10_000);
    a.until_introduced("b", Some(&at(&b)));
    assert_eq!((a.retransmitted(), b.retransmitted()), (0, 0));
}

#[test]
fn two_unknown_nodes_are_introduced_over_tls() {
    let authority = Authority::new("introduced");
    let tls = |name| Some(authority.issue(name, &authority, Names::Any));
    let a = Spec { tls: tls("a.example"), ..Spec::new("a") }.start();
    let b = Spec { tls: tls("b.example"), ..Spec::new("b") }.start();
    are_introduced(&a, &b);
    let other = Authority::new("other introduced");
    let c = Spec { tls: Some(other.issue("c.example", &other, Names::Any)), ..Spec::new("c") }.start();
    c.discover(&at(&a));
    c.until_refused("TLS");
    a.until_refused("TLS");
    assert_eq!(c.look(|_, mesh| mesh.counters().introduced), 0);
}

#[test]
fn a_node_finds_itself() {
    let a = Spec::new("a").start();
    a.discover(&at(&a));
    a.until_introduced("a", Some(&at(&a)));
    a.until_introduced("a", None);
}

/// Runs two nodes, the other one after `change`: neither learns of the other, and both log the reason.
fn not_introduced(change: impl FnOnce(&mut Spec), at_seeker: &str, at_sought: &str) {
    let mut spec = Spec::new("b");
    change(&mut spec);
    let (a, b) = (Spec::new("a").start(), spec.start());
    a.discover(&at(&b));
    a.until_refused(at_seeker);
    b.until_refused(at_sought);
    for node in [a, b] {
        assert_eq!(node.look(|_, mesh| mesh.counters().introduced), 0);
    }
}

#[test]
fn a_node_with_another_secret_is_not_introduced() {
    let change = |spec: &mut Spec| spec.secret = "guess".into();
    not_introduced(change, "does not know the cluster's secret", "secret is not the same on both");
}

#[test]
fn a_node_of_another_cluster_is_not_introduced() {
    let change = |spec: &mut Spec| spec.cluster = 2;
    not_introduced(change, "different clusters", "different clusters");
}

#[test]
fn an_address_without_a_node_is_reported() {
    let (_silent, silent) = silence();
    let (garbage, address) = silence();
    thread::spawn(move || {
        for stream in garbage.incoming() {
            let mut stream = stream.expect("a connection");
            // Its answer is no handshake, so the node closes the connection.
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    let a = seeker("a").start();
    a.discover(&silent.to_string());
    a.until_refused("was not joined within 500ms");
    a.discover(&address.to_string());
    a.until_refused("no Meridian node's cluster port");
    a.discover(&nobody().to_string());
    a.until_refused("cannot be reached");
    a.discover("none.example:1");
    a.until_refused("no such name");
    assert_eq!(a.look(|_, mesh| mesh.discovery().count()), 4, "all of them are still tried");
}

#[test]
fn all_nodes_behind_one_name_are_found() {
    let nodes = ["b", "c", "d"].map(|name| Spec::new(name).start());
    let mut addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.handle.addresses()[0]).collect();
    let (_silent, silent) = silence();
    addresses.extend([silent, nobody()]);
    let name = name("all.example:1", addresses);
    let a = seeker("a").start();
    a.discover(&name);
    for round in 0..2 {
        let mut missing = vec!["b", "c", "d"];
        while !missing.is_empty() {
            let news = a.until("an introduction", |news| matches!(news, News::Introduced(..)));
            let News::Introduced(found, _, address) = news else { panic!("{news:?}") };
            assert_eq!(address.as_deref(), Some(&*name), "round {round}");
            missing.retain(|it| *it != found);
        }
    }
}

/// The first addresses of its name belong to a silent server, to another node, and to none.
#[test]
fn a_peer_is_found_behind_a_name_with_several_addresses() {
    let (a, b) = (seeker("a"), seeker("b"));
    let (a, b, c) = (a.start(), b.start(), Spec::new("c").start());
    let (dials, accepts) = if a.id < b.id { (&a, &b) } else { (&b, &a) };
    let (_silent, silent) = silence();
    let of = |node: &Node| node.handle.addresses()[0];
    let name = name("peer.example:1", vec![silent, of(&c), nobody(), of(accepts)]);
    let name_of = |node: &Node| if node.id == a.id { "a" } else { "b" };
    dials.add(name_of(accepts), &name);
    accepts.add(name_of(dials), "127.0.0.1:1");
    dials.until_is(&News::Up(accepts.id));
    exchange(&a, &b, 1_000);
    // The other connections use the address of the first one.
    while dials.look(|_, mesh| mesh.peers().any(|peer| peer.connections != (3, 3))) {
        thread::yield_now();
    }
}

/// The old address still accepts connections, but sends nothing.
#[test]
fn a_peer_that_has_moved_is_found_at_the_next_address_of_its_name() {
    let ids = ["a", "b"].map(NodeId::of_name);
    let (dialer, acceptor) = if ids[0] < ids[1] { ("a", "b") } else { ("b", "a") };
    let (dials, accepts) = (seeker(dialer).start(), seeker(acceptor).start());
    let (first, second) = (accepts.handle.addresses()[0], nobody());
    dials.add(acceptor, &name("moved.example:1", vec![first, second]));
    accepts.add(dialer, "127.0.0.1:1");
    exchange(&dials, &accepts, 1_000);
    let id = accepts.id;
    accepts.handle.stop();
    let _silent = TcpListener::bind(first).expect("it is free again");
    let accepts = Spec { listen: second, ..seeker(acceptor) }.start();
    accepts.add(dialer, "127.0.0.1:1");
    dials.until_is(&News::Restarted(id));
    exchange(&dials, &accepts, 1_000);
}

/// The name has no address at first, then hundreds without a node, then different ones.
#[test]
fn a_name_may_have_no_address_or_hundreds_and_may_change() {
    let (b, c) = (Spec::new("b").start(), Spec::new("c").start());
    let a = seeker("a").start();
    let sought = name("nonsense.example:1", Vec::new());
    a.discover(&sought);
    a.until_refused("the name has no address");
    let unauthenticated_nodes =
        (0..300_u16).map(|at| SocketAddr::from(([127, 9, (at >> 8) as u8, at as u8], 9)));
    name(&sought, unauthenticated_nodes.chain(b.handle.addresses().iter().copied()).collect());
    a.until_introduced("b", Some(&sought));
    name(&sought, c.handle.addresses().to_vec());
    a.until_introduced("c", Some(&sought));
}
