//! Minimal program with a broker: `cargo run --release -p edge --example serve -- 127.0.0.1:1883 2`.

use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:1883".into());
    let workers = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let listener = edge::settings::Listener { address: address.into(), ..Default::default() };
    let node = edge::start(edge::Options {
        edge: edge::settings::EdgeSettings { workers, listeners: vec![listener], ..Default::default() },
        broker: broker::settings::Settings::default(),
        access: Arc::new(broker::access::AllowAll),
        version: env!("CARGO_PKG_VERSION").into(),
        store: None,
        peers: None,
        spans: None,
        descriptors_reserved: 0,
    })?;
    println!("listening on {}; the end of the input stops it", node.listeners()[0].address);
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    println!("{:?}", node.stop(std::time::Duration::from_secs(5)));
    Ok(())
}
