//! Tests with real namespaces: they need root, which CI has.

use lab::{Lab, LabError, Topology};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

const TOPOLOGY: &str = r#"
    name = "two"
    [[site]]
    name = "east"
    [[site]]
    name = "west"
    [[host]]
    name = "e1"
    site = "east"
    [[host]]
    name = "w1"
    site = "west"
    [[line]]
    a = "east"
    b = "west"
    rtt = "60ms"
"#;
const LONGEST: Duration = Duration::from_secs(20);

/// Starts a lab. Returns `None` where namespaces may not be created, which is an error when `MERIDIAN_LAB_REQUIRED`
/// is set.
fn lab() -> Option<Lab> {
    match Lab::start(Topology::parse(TOPOLOGY).expect("the topology")) {
        Ok(lab) => Some(lab),
        Err(error @ LabError::NotRoot) if std::env::var_os("MERIDIAN_LAB_REQUIRED").is_none() => {
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn bytes_arrive_after_the_delay_of_the_line_until_it_is_cut() {
    let Some(lab) = lab() else { return };
    let listener = lab.within("w1", || TcpListener::bind("0.0.0.0:7000").expect("a port")).expect("w1");
    let west = SocketAddr::from((lab.address("w1").expect("w1"), 7000));
    let begun = Instant::now();
    let mut near =
        lab.within("e1", || TcpStream::connect_timeout(&west, LONGEST)).expect("e1").expect("west");
    let (mut far, from) = listener.accept().expect("a connection");
    // Only a lower bound: a loaded machine may take longer.
    assert!(begun.elapsed() >= Duration::from_millis(60), "{:?}", begun.elapsed());
    assert_eq!(from.ip(), lab.address("e1").expect("e1"));
    let mut byte = [0];
    let begun = Instant::now();
    near.write_all(b"a").expect("a byte out");
    far.set_read_timeout(Some(LONGEST)).expect("a bound");
    far.read_exact(&mut byte).expect("a byte in");
    assert!(begun.elapsed() >= Duration::from_millis(30), "{:?}", begun.elapsed());

    lab.cut("e1", "w1").expect("a cut");
    near.write_all(b"b").expect("a byte out");
    far.set_read_timeout(Some(Duration::from_millis(200))).expect("a bound");
    let error = far.read(&mut byte).expect_err("no byte passes a cut");
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    lab.heal().expect("healed");
    far.set_read_timeout(Some(LONGEST)).expect("a bound");
    far.read_exact(&mut byte).expect("the byte that TCP sends again");
    assert_eq!(byte, *b"b");
    let counters = lab.counters().expect("counters");
    assert!(counters.delivered > 0 && counters.cut > 0, "{counters:?}");
}

#[test]
fn processes_are_on_their_host_and_reach_nothing_else() {
    let Some(lab) = lab() else { return };
    let mut command = Command::new("cat");
    command.arg("/proc/net/dev");
    lab.enter_host("e1", &mut command).expect("e1");
    let seen = command.output().expect("cat");
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    let mut devices: Vec<&str> =
        seen.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect();
    devices.retain(|name| ["eth0", "wan0", "lo"].contains(name));
    devices.sort_unstable();
    assert_eq!(devices, ["lo", "wan0"]);
    // A listener on another host is not reachable.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let outside = listener.local_addr().expect("its address");
    let tried = lab.within("e1", || TcpStream::connect_timeout(&outside, Duration::from_secs(1)));
    assert!(tried.expect("e1").is_err());
}
