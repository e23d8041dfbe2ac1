//! A broker of the library `rmqtt`, in a cluster that broadcasts. The program `rmqttd` has twice as many
//! dependencies, which the measurements do not use.

use std::num::NonZeroU16;
use std::time::Duration;

use rmqtt::context::ServerContext;
use rmqtt::net::Builder;
use rmqtt::node::Node;
use rmqtt::server::MqttServer;

const USAGE: &str = "rmqtt-peer ID MQTT-ADDRESS NODE-ADDRESS ID@NODE-ADDRESS...";

#[tokio::main]
async fn main() -> rmqtt::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == ["--version"] {
        println!("rmqtt {}", env!("CARGO_PKG_VERSION"));
        return Ok(());
    }
    let [id, mqtt, own, nodes @ ..] = &words[..] else { panic!("{USAGE}") };
    // The limits keep it from ever reporting itself as busy.
    let node = Node::new(id.parse()?, f32::MAX, f32::MAX, Duration::from_secs(2));
    let context = ServerContext::new()
        .node(node)
        .busy_check_enable(false)
        .plugins_config_map_add("rmqtt-cluster-broadcast", format!("node_grpc_addrs = {nodes:?}"))
        .build()
        .await;
    context.node.start_grpc_server(context.clone(), own.parse()?, true, false);
    rmqtt_cluster_broadcast::register(&context, true, false).await?;
    let listener = Builder::new()
        .name("tcp")
        .laddr(mqtt.parse()?)
        .nodelay(true)
        .max_connections(100_000)
        .max_handshaking_limit(100_000)
        .max_inflight(NonZeroU16::MAX)
        .max_mqueue_len(1_000_000)
        .bind()?
        .tcp()?;
    MqttServer::new(context).listener(listener).build().run().await
}
