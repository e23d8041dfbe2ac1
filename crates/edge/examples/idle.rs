//! Measures the user memory of an idle connection: connections without sockets through the real reactor and codec, each
//! with a wildcard subscription. `cargo xtask idle --connections 1000000` runs this.

use std::sync::Arc;
use std::time::Instant;

use broker::access::AllowAll;
use edge::Reactor;
use mqtt::{
    Connect, Packet, PacketId, Properties, QoS, RetainHandling, Subscribe, SubscribeFiltersBuf,
    SubscriptionOptions, Version,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The broker itself does the same at start.
    // SAFETY: this option takes one number and touches no memory of ours.
    if unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let connections: u32 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let settings = broker::settings::Settings::default();
    let node = broker::Node::new(settings, Arc::new(AllowAll), "idle".into(), 1, *b"a fixed hash key");
    let mut reactor = Reactor::detached(node)?;
    // Structures that grow once do so before the measurement begins.
    add(&mut reactor, 0, 1_000);
    let before = anonymous_pss()?;
    let clock = Instant::now();
    add(&mut reactor, 1_000, connections);
    let elapsed = clock.elapsed();
    let growth = anonymous_pss()? - before;
    assert_eq!(reactor.worker().connections(), connections as usize + 1_000, "every connection is there");
    let counters = reactor.worker().counters();
    assert_eq!(counters.clients_connected, u64::from(connections) + 1_000, "every client was accepted");
    assert_eq!(
        counters.subscriptions_added,
        u64::from(connections) + 1_000,
        "every subscription was granted"
    );
    println!("connections                       {connections}");
    println!("growth of anonymous PSS           {growth} bytes");
    println!("user memory per connection        {:.0} bytes", growth as f64 / f64::from(connections));
    println!(
        "connect + subscribe, CPU and all  {:.2} us",
        elapsed.as_secs_f64() * 1e6 / f64::from(connections)
    );
    Ok(())
}

/// Adds clients `from..from + count`: each sends CONNECT, then SUBSCRIBE to its own filter.
fn add(reactor: &mut Reactor, from: u32, count: u32) {
    let mut bytes = Vec::new();
    for number in from..from + count {
        let slot = reactor.attach();
        bytes.clear();
        connect(number, &mut bytes);
        reactor.push(slot, &bytes);
        reactor.turn();
        bytes.clear();
        subscribe(number, &mut bytes);
        reactor.push(slot, &bytes);
        if number % 64 == 0 {
            reactor.turn();
        }
    }
    reactor.turn();
    reactor.turn();
}

fn connect(number: u32, out: &mut Vec<u8>) {
    let client_id = format!("client-{number:07}");
    let connect = Connect {
        version: Version::V3_1_1,
        bridge: false,
        clean_start: true,
        keep_alive: 300,
        client_id: &client_id,
        will: None,
        username: None,
        password: None,
        properties: Properties::default(),
    };
    assert!(Packet::Connect(connect).encode(Version::V3_1_1, out));
}

fn subscribe(number: u32, out: &mut Vec<u8>) {
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let mut filters = SubscribeFiltersBuf::default();
    filters.push(&format!("bench/{number}/#"), options);
    let packet_id = PacketId::new(1).expect("not 0");
    let subscribe = Subscribe { packet_id, properties: Properties::default(), filters: filters.as_filters() };
    assert!(Packet::Subscribe(subscribe).encode(Version::V3_1_1, out));
}

fn anonymous_pss() -> Result<i64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line =
        text.lines().find(|line| line.starts_with("Pss_Anon:")).ok_or("no Pss_Anon in smaps_rollup")?;
    let kib = line.split_whitespace().nth(1).ok_or("Pss_Anon without a number")?;
    Ok(kib.parse::<i64>()? * 1024)
}
