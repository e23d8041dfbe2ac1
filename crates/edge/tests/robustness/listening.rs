//! Addresses, sockets and file descriptors, and shortages of them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::client::{Client, Got, PINGREQ, With, connect};
use crate::{Node, PATIENCE, in_a_process_of_its_own, with_1_and_3_workers};

/// A node that cannot accept continues to serve its clients, and accepts again when it can.
#[test]
fn accept_recovers_after_a_shortage_of_descriptors() {
    if !in_a_process_of_its_own("listening::accept_recovers_after_a_shortage_of_descriptors") {
        return;
    }
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        let mut early = node.client("early");
        let sockets: Vec<_> = (0..10).map(|_| Socket::new(Domain::IPV4, Type::STREAM, None)).collect();
        let hog = Hog::take_all();
        let connect = |socket: io::Result<Socket>| {
            let socket = socket.expect("there was a descriptor");
            // The system accepts connections before the node does.
            socket.connect_timeout(&node.address().into(), PATIENCE).expect("the backlog has room");
            let mut client = Client::over(socket.into()).expect("an open socket");
            client.send_connect("", With::default());
            client
        };
        let late: Vec<_> = sockets.into_iter().map(connect).collect();
        for _ in 0..3 {
            early.ping();
        }
        drop(hog);
        for mut client in late {
            assert_eq!(client.next(), Got::ConnAck);
            client.ping();
        }
        early.ping();
        node.stop(PATIENCE);
    });
}

/// Takes all descriptors that this process may have, until it is dropped.
struct Hog {
    limit: libc::rlimit,
    files: Vec<File>,
}

impl Hog {
    fn take_all() -> Hog {
        let first = File::open("/dev/null").expect("a descriptor");
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structure is valid for the duration of the call.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        set(libc::rlimit { rlim_cur: first.as_raw_fd() as libc::rlim_t + 50, ..limit });
        let mut files = vec![first];
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        Hog { limit, files }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.files.clear();
        set(self.limit);
    }
}

fn set(limit: libc::rlimit) {
    // SAFETY: the structure is valid for the duration of the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

#[test]
fn the_error_for_a_port_in_use_names_it_and_a_fix() {
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        let address = node.address().to_string();
        let other = Node::try_start(workers, |_, listener| listener.address = address.clone().into());
        let error = other.err().expect("one port is for one node").to_string();
        assert!(error.contains(&address) && error.contains("another process uses it"), "{error}");
        let next = node.address().port() + 1;
        assert!(
            error.contains(&format!("--set listener.0.address=127.0.0.1:{next}")),
            "not --listen, which replaces all listeners: {error}"
        );
        // The first node continues, and when it has stopped the port is free at once.
        node.client("c").ping();
        node.stop(PATIENCE);
        Node::with(workers, |_, listener| listener.address = address.clone().into()).client("c").ping();
    });
}

#[test]
fn a_host_name_listens_on_all_its_addresses() {
    with_1_and_3_workers(|workers| {
        let node = Node::with(workers, |_, listener| listener.address = "localhost:0".into());
        let addresses: Vec<_> = node.0.listeners().iter().map(|bound| bound.tcp.expect("TCP")).collect();
        assert!(!addresses.is_empty());
        for address in &addresses {
            assert_eq!(address.port(), addresses[0].port());
            Client::connect(*address, "c").ping();
        }
        node.stop(PATIENCE);
    });
}

#[test]
fn ipv6_is_served_and_every_address_includes_ipv4() {
    if TcpListener::bind("[::1]:0").is_err() {
        return eprintln!("skipped: there is no IPv6 here");
    }
    with_1_and_3_workers(|workers| {
        let node = Node::with(workers, |_, listener| listener.address = "[::1]:0".into());
        node.client("c").ping();
        node.stop(PATIENCE);
        let node = Node::with(workers, |_, listener| listener.address = "[::]:0".into());
        for host in ["127.0.0.1", "::1"] {
            let address = SocketAddr::new(host.parse().expect("an address"), node.address().port());
            Client::connect(address, "c").ping();
        }
        node.stop(PATIENCE);
    });
}

/// File path of a test, removed at its end.
struct Path(PathBuf);

impl Path {
    fn new(name: &str) -> Path {
        let path = std::env::temp_dir().join(format!("meridian-{name}-{}", std::process::id()));
        assert!(!path.exists(), "{} is left from something else", path.display());
        Path(path)
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        // The file is already gone after a successful test.
        if self.0.exists() {
            std::fs::remove_file(&self.0).expect("our own file");
        }
    }
}

#[test]
fn a_unix_socket_is_served_and_leaves_no_file() {
    with_1_and_3_workers(|workers| {
        let path = Path::new(&format!("served-{workers}"));
        let start = || {
            Node::try_start(workers, |_, listener| {
                listener.address = format!("unix:{}", path.0.display()).into()
            })
        };
        // Left by a killed process: no process listens.
        drop(UnixListener::bind(&path.0).expect("a socket"));
        let node = start().expect("an abandoned file is no obstacle");
        for _ in 0..2 * workers {
            let mut stream = UnixStream::connect(&path.0).expect("somebody listens");
            let connect = [0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 0, 0, 0, 0];
            stream.write_all(&connect).expect("the server reads");
            stream.write_all(&PINGREQ).expect("the server reads");
            stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
            let mut first = [0; 2];
            stream.read_exact(&mut first).expect("CONNACK");
            assert_eq!(first[0], 0x20);
            let mut rest = vec![0; usize::from(first[1]) + 2];
            stream.read_exact(&mut rest).expect("CONNACK and PINGRESP");
            assert_eq!(rest[rest.len() - 2..], [0xD0, 0]);
        }
        let error = start().err().expect("somebody listens there").to_string();
        assert!(error.contains("another process uses it"), "{error}");
        UnixStream::connect(&path.0).expect("the first node was not disturbed");
        node.stop(PATIENCE);
        assert!(!path.0.exists());
    });
}

/// The node must not remove other files with that name.
#[test]
fn a_file_that_is_not_a_socket_is_kept() {
    let path = Path::new("file");
    std::fs::write(&path.0, "precious").expect("a file");
    let node =
        Node::try_start(1, |_, listener| listener.address = format!("unix:{}", path.0.display()).into());
    assert!(node.is_err());
    assert_eq!(std::fs::read_to_string(&path.0).expect("it is there"), "precious");
}

#[test]
fn a_full_listener_refuses_connections_until_one_ends() {
    with_1_and_3_workers(|workers| {
        let node = Node::with(workers, |_, listener| listener.connections_max = 2);
        let mut clients = vec![node.client("a"), node.client("b")];
        for _ in 0..3 {
            let mut refused = Client::open(node.address()).expect("the system accepts it");
            assert_eq!(refused.next(), Got::End);
        }
        clients[0].ping();
        drop(clients.pop());
        until_accepted(&node, "c", With::default());
        clients[0].ping();
        node.stop(PATIENCE);
    });
}

/// Tries until a slot is free: the node notices the end of connections with a delay.
pub fn until_accepted(node: &Node, name: &str, with: With) -> Client {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Ok(mut client) = Client::open(node.address())
            // A refused connection may already be closed when this is written.
            && client.stream.write_all(&connect(name, with)).is_ok()
            && client.next() == Got::ConnAck
        {
            return client;
        }
        assert!(Instant::now() < end, "no place became free");
        std::thread::yield_now();
    }
}

/// Four a second over all sockets: nine connections take more than a second, and none is refused.
#[test]
fn the_connect_rate_applies_to_the_whole_listener() {
    for workers in [1, 3] {
        let node = Node::with(workers, |_, listener| listener.connect_rate = 4);
        let begin = Instant::now();
        let clients: Vec<_> =
            (0..9).map(|_| Client::open(node.address()).expect("the backlog has room")).collect();
        for mut client in clients {
            client.send_connect("", With::default());
            assert_eq!(client.next(), Got::ConnAck);
        }
        assert!(begin.elapsed() >= Duration::from_millis(1000), "{:?}", begin.elapsed());
        node.stop(PATIENCE);
    }
}
