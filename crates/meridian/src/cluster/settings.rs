use std::path::PathBuf;
use std::time::Duration;

use cluster::meta::{MetaConfig, RecordSyncConfig};
use cluster::{Config, ForwardAck, NodeInfo, Role, WithoutQuorum};
use replog::{Batching, Incarnation};
use settings::{ByteSize, HostPort, HostPorts, choices, section};

section! {
    /// Cluster that this node belongs to. With `listen` the cores agree on its members; with `[[cluster_node]]` it
    /// has a fixed list of nodes; with neither the node belongs to none.
    [cluster]
    pub struct ClusterSettings {
        /// Name of the cluster. Nodes of another cluster are refused.
        pub id: String = "meridian", at start;
        /// File with the secret that all nodes of the cluster share, of 16 bytes or more. Surrounding space is
        /// ignored.
        pub secret_file: Option<PathBuf> = "", at start;
        /// Address that other nodes connect to, `HOST:PORT`. With `[[cluster_node]]` the default is the address of
        /// this node in that list.
        pub listen: Option<HostPort> = "", at start;
        /// Address at which other nodes reach this one, `HOST:PORT`, when it is not `listen`.
        pub advertise: Option<HostPort> = "", at start;
        /// Cluster ports of some nodes, as in `10.0.0.1:7883,10.0.0.2:7883`, through which this one finds the others.
        /// A name may have many addresses. All cores may have the same list. A core without any starts a cluster by
        /// itself.
        pub join: Option<HostPorts> = "", at start;
        /// Number of cores that a new cluster waits for. With 0: as many as `join` has addresses, and two at least.
        pub expect: u16 = "0" in "0..=99", at start;
        /// Role of the node. A `core` votes and stores the configuration, and receives routes from all cores. A
        /// `replicant` serves clients only, and receives routes from one core.
        pub role: RoleSetting = "core", at start;
        /// Region of the node: nodes of one region are near each other.
        pub region: String = "", at start;
        /// PEM file with the certificate chain that this node presents to others. With it, links are encrypted.
        pub tls_certificate: Option<PathBuf> = "", at start;
        /// PEM file with the private key of `tls_certificate`.
        pub tls_key: Option<PathBuf> = "", at start;
        /// PEM file with the authorities that have signed the certificates of nodes.
        pub tls_ca: Option<PathBuf> = "", at start;
        /// Number of connections to each other node. With more than one, the first carries no messages of clients, so
        /// that cluster traffic does not wait behind them.
        pub connections: u8 = "4" in "1..=17", at start;
        /// Point at which a message of QoS 1 or 2 counts as forwarded to another node, so that its publisher can be
        /// acknowledged.
        pub forward_ack: ForwardAckSetting = "received", at start;
        /// Maximum size of the messages of QoS 1 and 2 that wait for one other node; QoS 0 has a quarter of it.
        /// Messages beyond it are refused, or dropped when the node is not reachable.
        pub buffer_max: ByteSize = "64MiB" in "1MiB..=64GiB", at start;
        /// Maximum time that a node may be silent. After that it is treated as unreachable, and nothing waits for it.
        pub silence_max: Duration = "5s" in "500ms..=5m", at start;
        /// Time for which a node acknowledges messages after a majority of cores has last confirmed that it knows all
        /// routes.
        pub lease: Duration = "2s" in "200ms..=1m", at start;
        /// Behaviour of a node that reaches no majority of cores.
        pub without_quorum: WithoutQuorumSetting = "hold", at start;
        /// Maximum time that SUBACK waits for other nodes. After that, SUBACK of level `core` is sent. For `region`
        /// and `cluster` the connection is closed instead; with `without_quorum = "serve"` SUBACK of level `region`
        /// is sent, too.
        pub suback_timeout: Duration = "10s" in "100ms..=5m", at start;
        /// Time for which other nodes continue to send messages of QoS 0 for a durable session whose client is
        /// disconnected. A client that reconnects within it misses none of the messages that are published on other
        /// nodes right after its CONNACK. `0s` saves this traffic.
        pub qos0_linger: Duration = "1m" in "0s..=1h", at start;
        /// Compression of traffic to nodes of other regions.
        pub compression: CompressionSetting = "between_regions", at start;
        /// Time that the API and `ctl` wait for the answer of another node. Nodes that do not answer in time are
        /// named in the response.
        pub request_timeout: Duration = "3s" in "100ms..=1m", at start;
        /// Maximum size of the filters in one part of a copy of all routes, for a node that has none.
        pub bootstrap_batch: ByteSize = "64KiB" in "1KiB..=4MiB", at start;
        /// Number of removed routes that are remembered for each node, for nodes that lag behind. A node that lags
        /// further behind receives a copy of all routes.
        pub tombstones_max: u32 = "100000" in "1000..", at start;
    }
}

section! {
    /// Node of a cluster with a fixed list. The list is the same in the configuration of each node: a node finds
    /// itself by `node.name`.
    [cluster_node]
    pub struct ClusterNode {
        /// Name of the node: its `node.name`.
        pub name: String = "", at start;
        /// Address at which other nodes reach it, `HOST:PORT`.
        pub address: Option<HostPort> = "", at start;
        /// Role of the node.
        pub role: RoleSetting = "core", at start;
        /// Region of the node: nodes of one region are near each other.
        pub region: String = "", at start;
    }
}

choices! {
    /// Role of a node.
    pub enum RoleSetting {
        /// Receives routes from all cores, and passes them on to the replicants attached to it.
        Core = "core",
        /// Receives routes from one core: that of its region with the fewest replicants, and another when that one
        /// fails.
        Replicant = "replicant",
    }
}

choices! {
    /// Point at which a message of QoS 1 or 2 counts as forwarded to another node.
    pub enum ForwardAckSetting {
        /// The other node has queued it: in the queues of connected clients, and on disk for durable sessions.
        Received = "received",
        /// The message has been sent.
        Sent = "sent",
    }
}

choices! {
    /// Compression of traffic to other nodes (LZ4).
    pub enum CompressionSetting {
        /// No compression.
        Off = "off",
        /// Compresses traffic to nodes of other regions, if they support it. Within a region compression would cost
        /// more than it saves.
        BetweenRegions = "between_regions",
    }
}

choices! {
    /// Behaviour of a node that reaches no majority of cores.
    pub enum WithoutQuorumSetting {
        /// Acknowledgements at QoS 1 and 2 wait: a client may have subscribed elsewhere without this node knowing it.
        Hold = "hold",
        /// The node continues: subscribers elsewhere may miss messages that are published here and acknowledged.
        Serve = "serve",
    }
}

/// Checks the list of nodes. Errors contain advice.
pub fn check(nodes: &[ClusterNode], own: &str) -> Result<(), String> {
    for (index, node) in nodes.iter().enumerate() {
        if node.name.is_empty() || node.name.len() > 255 {
            return Err(format!("cluster_node.{index}: a name of 1 to 255 bytes is needed"));
        }
        let Some(address) = &node.address else {
            return Err(format!(
                "cluster_node.{index}: the address of {:?} is missing: add it, such as address = \
                     \"10.0.0.1:7883\"",
                node.name
            ));
        };
        if address.is_unspecified() {
            return Err(format!(
                "cluster_node.{index}: no node can be reached at {address}: write an address of \
                     that node, and set its cluster.listen to this one"
            ));
        }
        let is_same = |earlier: &ClusterNode| earlier.address.as_ref().is_some_and(|it| it.is_same(address));
        if let Some(earlier) = nodes[..index].iter().find(|earlier| is_same(earlier)) {
            return Err(format!(
                "cluster_node.{index}: {address} is the address of {:?} too: each node needs one of its own",
                earlier.name
            ));
        }
        if nodes[..index].iter().any(|earlier| earlier.name == node.name) {
            return Err(format!(
                "cluster_node.{index}: there is another node {:?}: each needs a name of its own",
                node.name
            ));
        }
    }
    let here = nodes.iter().position(|node| node.address.as_ref().is_some_and(HostPort::is_loopback));
    let has_elsewhere = nodes.iter().filter_map(|node| node.address.as_ref()).any(is_elsewhere);
    if let Some(index) = here.filter(|_| has_elsewhere) {
        return Err(format!(
            "cluster_node.{index}: its address is reached from the same machine only, and other \
             nodes are on other machines: write an address at which they reach it"
        ));
    }
    if !nodes.iter().any(|node| node.name == own) {
        let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
        return Err(format!(
            "this node is called {own:?}, and the [[cluster_node]] list has {}: set node.name \
             (--name) to one of them, or add it to the list of every node",
            names.join(", ")
        ));
    }
    if !nodes.iter().any(|node| node.role == RoleSetting::Core) {
        return Err("no [[cluster_node]] is a core: at least one is needed, better three".to_owned());
    }
    Ok(())
}

/// Checks settings of this node that contradict its entry in the list of nodes. Errors contain advice.
pub fn check_static(cluster: &ClusterSettings, nodes: &[ClusterNode], own: &str) -> Result<(), String> {
    let role = nodes.iter().find(|node| node.name == own).map(|node| node.role);
    let wrong = if cluster.join.is_some() {
        "cluster.join and [[cluster_node]] exclude each other, both name the other nodes: remove \
             one of them"
    } else if cluster.advertise.is_some() {
        "cluster.advertise and [[cluster_node]] exclude each other: write the address in the \
             list, and remove cluster.advertise"
    } else if cluster.role == RoleSetting::Replicant && role == Some(RoleSetting::Core) {
        "cluster.role is replicant, and in the list of nodes this one is a core: the list \
             decides; remove cluster.role"
    } else {
        return Ok(());
    };
    Err(wrong.to_owned())
}

/// Advice on settings that are valid and not recommended, or probably not intended.
pub fn advice(cluster: &ClusterSettings, nodes: &[ClusterNode]) -> Vec<String> {
    let is_listed = !nodes.is_empty();
    let listed = nodes.iter().filter(|node| node.role == RoleSetting::Core).count();
    let (cores, whose) = match usize::from(cluster.expect) {
        _ if is_listed => (listed, ""),
        0 => (all_cores(cluster), " that cluster.join names, which a new cluster waits for,"),
        expect => (expect, " that a new cluster waits for (cluster.expect)"),
    };
    let is_even = cores > 0 && cores % 2 == 0;
    let even = is_even.then(|| {
        format!(
            "of {cores} cores{whose} {} have to be there, so that no more may be lost than of \
                 {}: let one of them be a replicant, or add one",
            cores / 2 + 1,
            cores - 1
        )
    });
    even.into_iter().chain(is_alone(cluster)).collect()
}

/// Number of addresses in `cluster.join` when this core's own is among them: then all cores have the same list.
/// Otherwise there are more cores, and the result is 0.
fn all_cores(cluster: &ClusterSettings) -> usize {
    let join = join(cluster);
    let is_among = cluster.role == RoleSetting::Core && join.iter().any(|address| is_own(cluster, address));
    // Another piece of advice covers a list with one address.
    if is_among && join.len() > 1 { join.len() } else { 0 }
}

fn is_own(cluster: &ClusterSettings, address: &HostPort) -> bool {
    [&cluster.advertise, &cluster.listen].into_iter().flatten().any(|own| address.is_same(own))
}

fn is_alone(cluster: &ClusterSettings) -> Option<String> {
    let join = join(cluster);
    let here = |address: &HostPort| is_own(cluster, address);
    let is_alone = cluster.role == RoleSetting::Core && !join.is_empty() && join.iter().all(here);
    (is_alone && cluster.expect != 1).then(|| {
        "cluster.join names this node only: until it belongs to a cluster it waits for another \
         core that has its address in join. Name others, or remove cluster.join to start a \
         cluster by itself"
            .to_owned()
    })
}

/// Names settings of a cluster in the configuration of a node that belongs to none.
pub fn unused(cluster: &ClusterSettings) -> Option<String> {
    let settings = [
        ("advertise", cluster.advertise.is_some()),
        ("role", cluster.role != RoleSetting::Core),
        ("expect", cluster.expect != 0),
        ("tls_certificate", cluster.tls_certificate.is_some()),
        ("secret_file", cluster.secret_file.is_some()),
    ];
    let said: Vec<_> =
        settings.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| format!("cluster.{name}")).collect();
    (!said.is_empty()).then(|| {
        format!(
            "{} of a node that belongs to no cluster: set cluster.listen (--cluster-listen) and \
                 cluster.join (--join) to let it join one",
            said.join(", ")
        )
    })
}

/// Checks the settings by which a node finds a cluster whose cores agree on its members. Errors contain advice.
pub fn check_dynamic(cluster: &ClusterSettings, own: &str) -> Result<(), String> {
    if own.is_empty() || own.len() > 255 {
        return Err("a node of a cluster needs a name of 1 to 255 bytes, which no other node has: set node.name (--name)".to_owned());
    }
    if cluster.region.len() > 63 {
        return Err("cluster.region: at most 63 bytes".to_owned());
    }
    if cluster.id.is_empty() {
        return Err("cluster.id: a cluster needs a name, the same on all of its nodes".to_owned());
    }
    if cluster.listen.is_none() {
        return Err("other nodes have to reach this one: set cluster.listen (--cluster-listen), such as 10.0.0.1:7883".to_owned());
    }
    check_reached(cluster)?;
    let join_at = join(cluster);
    let is_twice = |at: usize| join_at[..at].iter().any(|earlier| earlier.is_same(&join_at[at]));
    if let Some(at) = (0..join_at.len()).find(|at| is_twice(*at)) {
        return Err(format!(
            "cluster.join: {} is there twice: remove one of the two, or name another node there",
            join_at[at]
        ));
    }
    if cluster.role == RoleSetting::Replicant && join(cluster).is_empty() {
        return Err(
            "a replicant joins a cluster: set cluster.join (--join) to the addresses of some of its cores"
                .to_owned(),
        );
    }
    Ok(())
}

/// Checks that the nodes in `cluster.join` can reach this node.
fn check_reached(cluster: &ClusterSettings) -> Result<(), String> {
    let Some(advertised) = advertised(cluster) else { return Ok(()) };
    let setting = if cluster.advertise.is_some() { "cluster.advertise" } else { "cluster.listen" };
    if advertised.is_unspecified() {
        return Err(format!(
            "{setting}: other nodes cannot reach this one at {advertised}: set cluster.advertise to an address at which they can"
        ));
    }
    if advertised.is_loopback() && join(cluster).iter().any(is_elsewhere) {
        return Err(format!(
            "{setting}: only nodes on this machine can reach this one at {advertised}, and cluster.join names others: set cluster.listen, \
             or cluster.advertise, to an address at which they can"
        ));
    }
    Ok(())
}

/// Returns whether the address is certainly on another machine. Names are not looked up, so they are not.
fn is_elsewhere(address: &HostPort) -> bool {
    address.ip().is_some_and(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

fn advertised(cluster: &ClusterSettings) -> Option<&HostPort> {
    cluster.advertise.as_ref().or(cluster.listen.as_ref())
}

/// Addresses of other nodes, from `cluster.join`.
fn join(cluster: &ClusterSettings) -> &[HostPort] {
    cluster.join.as_ref().map_or(&[], |join| &join.0)
}

/// Address in the form that the crate `cluster` uses.
fn text(address: Option<&HostPort>) -> Box<str> {
    address.map(|address| address.as_str().into()).unwrap_or_default()
}

/// Configuration of the node's meta group. The settings have been checked.
pub fn meta_config(cluster: &ClusterSettings, founding: u128) -> MetaConfig {
    let join: Vec<_> = join(cluster).iter().map(|address| address.as_str().into()).collect();
    let expect = match usize::from(cluster.expect) {
        0 => join.len().max(2),
        expect => expect,
    };
    MetaConfig {
        join,
        expect,
        patience: Duration::ZERO,
        lease: cluster.lease,
        founding,
        record_sync: RecordSyncConfig::default(),
        features: cluster::FEATURES,
    }
}

/// Configuration of the cluster router of a node that finds the others by itself.
pub fn dynamic_config(
    cluster: &ClusterSettings,
    own: &str,
    batches: bool,
    incarnation: Incarnation,
) -> Config {
    let own = NodeInfo {
        name: own.into(),
        role: role(cluster.role),
        region: cluster.region.as_str().into(),
        address: text(advertised(cluster)),
    };
    of(cluster, own, Vec::new(), batches, incarnation)
}

fn role(role: RoleSetting) -> Role {
    match role {
        RoleSetting::Core => Role::Core,
        RoleSetting::Replicant => Role::Replicant,
    }
}

/// Configuration of the cluster router of a node in a fixed list. The list has been checked.
pub fn config(
    cluster: &ClusterSettings,
    nodes: &[ClusterNode],
    own: &str,
    batches: bool,
    incarnation: Incarnation,
) -> Option<Config> {
    let info = |node: &ClusterNode| NodeInfo {
        name: node.name.as_str().into(),
        role: role(node.role),
        region: node.region.as_str().into(),
        address: text(node.address.as_ref()),
    };
    let others = nodes.iter().filter(|node| node.name != own).map(info).collect();
    let own = info(nodes.iter().find(|node| node.name == own)?);
    Some(of(cluster, own, others, batches, incarnation))
}

fn of(
    cluster: &ClusterSettings,
    own: NodeInfo,
    others: Vec<NodeInfo>,
    batches: bool,
    incarnation: Incarnation,
) -> Config {
    let bytes_max = cluster.bootstrap_batch.bytes() as usize;
    let gathered = Batching { bytes_max, ..Batching::default() };
    let single = Batching { interval: Duration::ZERO, bytes_max: 1, ..Batching::default() };
    Config {
        own,
        others,
        incarnation,
        wall_ms: 0,
        batching: if batches { gathered } else { single },
        tombstones_max: cluster.tombstones_max as usize,
        forward_ack: match cluster.forward_ack {
            ForwardAckSetting::Received => ForwardAck::Received,
            ForwardAckSetting::Sent => ForwardAck::Sent,
        },
        suback_timeout: cluster.suback_timeout,
        qos0_linger: cluster.qos0_linger,
        lease: cluster.lease,
        packs: cluster.compression == CompressionSetting::BetweenRegions,
        without_quorum: match cluster.without_quorum {
            WithoutQuorumSetting::Hold => WithoutQuorum::Hold,
            WithoutQuorumSetting::Serve => WithoutQuorum::Serve,
        },
    }
}

#[cfg(test)]
mod tests {
    use settings::{Raw, Value};

    use super::*;

    fn at(address: &str) -> Option<HostPort> {
        Value::from_raw(&Raw::Text(address.to_owned())).expect(address)
    }

    fn joined(addresses: &str) -> Option<HostPorts> {
        Value::from_raw(&Raw::Text(addresses.to_owned())).expect(addresses)
    }

    fn node(name: &str, address: &str, role: RoleSetting) -> ClusterNode {
        ClusterNode { name: name.into(), address: at(address), role, ..ClusterNode::default() }
    }

    #[test]
    fn an_invalid_list_is_refused_with_advice() {
        let a = || node("a", "127.0.0.1:1", RoleSetting::Core);
        let b = || node("b", "[::1]:2", RoleSetting::Replicant);
        assert_eq!(check(&[a(), b()], "b"), Ok(()));
        for (nodes, own, says) in [
            (vec![a(), b()], "c", "node.name"),
            (vec![a(), node("a", "127.0.0.1:3", RoleSetting::Core)], "a", "a name of its own"),
            (vec![a(), node("c", "127.0.0.1:1", RoleSetting::Core)], "a", "is the address of \"a\" too"),
            (
                vec![a(), node("c", "10.0.0.1:1", RoleSetting::Core)],
                "a",
                "cluster_node.0: its address is reached",
            ),
            (vec![node("", "h:1", RoleSetting::Core)], "", "a name of 1 to 255 bytes"),
            (vec![node("a", "", RoleSetting::Core)], "a", "add it, such as address"),
            (vec![node("a", "[::]:1", RoleSetting::Core)], "a", "no node can be reached"),
            (vec![b()], "b", "core"),
        ] {
            let error = check(&nodes, own).expect_err("is wrong");
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn settings_that_contradict_the_list_are_refused() {
        let nodes = ["a", "b", "c", "d"].map(|name| node(name, "10.0.0.1:1", RoleSetting::Core));
        let of = |change: &dyn Fn(&mut ClusterSettings)| {
            let mut settings = ClusterSettings::default();
            change(&mut settings);
            check_static(&settings, &nodes, "a").map_err(|why| why.split_once(' ').unwrap().0.to_owned())
        };
        assert_eq!(of(&|_| ()), Ok(()));
        assert_eq!(of(&|settings| settings.join = joined("h:1")), Err("cluster.join".into()));
        assert_eq!(of(&|settings| settings.advertise = at("h:1")), Err("cluster.advertise".into()));
        assert_eq!(of(&|settings| settings.role = RoleSetting::Replicant), Err("cluster.role".into()));
    }

    #[test]
    fn an_even_number_of_cores_is_advised_against() {
        let nodes = ["a", "b", "c", "d"].map(|name| node(name, "10.0.0.1:1", RoleSetting::Core));
        let settings = ClusterSettings::default();
        assert_eq!(advice(&settings, &nodes[..3]), Vec::<String>::new());
        let [advised] = &advice(&settings, &nodes)[..] else { panic!("four") };
        assert!(advised.starts_with("of 4 cores 3 have") && advised.contains("than of 3"), "{advised}");
        let expecting = |expect| advice(&ClusterSettings { expect, ..ClusterSettings::default() }, &[]);
        let [advised] = &expecting(2)[..] else { panic!("two") };
        assert!(advised.starts_with("of 2 cores that") && advised.contains("cluster.expect"), "{advised}");
        assert!([0, 1, 3].into_iter().all(|expect| expecting(expect).is_empty()));
        // A list that contains the own address names all cores.
        let joining = |expect, role, addresses| {
            let listen = at("10.0.0.1:1");
            let join = joined(addresses);
            advice(&ClusterSettings { listen, join, expect, role, ..ClusterSettings::default() }, &[])
        };
        let (core, two) = (RoleSetting::Core, "10.0.0.1:1,10.0.0.2:1");
        let [advised] = &joining(0, core, two)[..] else { panic!("two") };
        assert!(advised.starts_with("of 2 cores that cluster.join names"), "{advised}");
        assert!(joining(3, core, two).is_empty(), "cluster.expect says how many there are");
        assert!(joining(0, core, "10.0.0.2:1,10.0.0.3:1").is_empty(), "with this one there are three");
        assert!(joining(0, RoleSetting::Replicant, two).is_empty());
    }

    #[test]
    fn a_core_that_joins_itself_only_is_reported() {
        let of = |listen: &str, advertise: &str, join: &str| {
            let settings = ClusterSettings {
                listen: at(listen),
                advertise: at(advertise),
                join: joined(join),
                ..ClusterSettings::default()
            };
            advice(&settings, &[])
        };
        assert!(of("10.0.0.1:1", "", "10.0.0.1:1")[0].contains("names this node only"));
        assert!(of("0.0.0.0:1", "a.example:1", "A.example:1")[0].contains("names this node only"));
        for join in ["", "10.0.0.1:2", "10.0.0.1:1,10.0.0.2:1,10.0.0.3:1"] {
            assert_eq!(of("10.0.0.1:1", "", join), Vec::<String>::new());
        }
    }

    #[test]
    fn unused_cluster_settings_are_reported() {
        assert_eq!(unused(&ClusterSettings::default()), None);
        let secret_file = Some("secret".into());
        let warning = unused(&ClusterSettings { secret_file, ..ClusterSettings::default() }).expect("advice");
        assert!(
            warning.starts_with("cluster.secret_file of") && warning.contains("--cluster-listen"),
            "{warning}"
        );
    }

    #[test]
    fn wrong_settings_of_joining_are_refused_with_advice() {
        let settings = |listen: &str, join: &str, role| ClusterSettings {
            listen: at(listen),
            join: joined(join),
            role,
            ..ClusterSettings::default()
        };
        let core = settings("10.0.0.1:7883", " a:1 ,b:2,", RoleSetting::Core);
        assert_eq!(check_dynamic(&core, "n"), Ok(()));
        let meta = meta_config(&core, 7);
        assert_eq!((meta.join, meta.expect, meta.founding), (vec!["a:1".into(), "b:2".into()], 2, 7));
        assert_eq!(meta_config(&ClusterSettings { expect: 3, ..core.clone() }, 7).expect, 3);
        for (settings, own, says) in [
            (core.clone(), "", "node.name"),
            (settings("0.0.0.0:7883", "", RoleSetting::Core), "n", "cluster.advertise"),
            (settings("[::]:7883", "", RoleSetting::Core), "n", "cluster.advertise"),
            (
                settings("127.0.0.1:7883", "127.0.0.2:1,10.0.0.2:7883", RoleSetting::Core),
                "n",
                "only nodes on this machine",
            ),
            (
                settings("localhost:7883", "[fd00::2]:7883", RoleSetting::Core),
                "n",
                "only nodes on this machine",
            ),
            (ClusterSettings { id: String::new(), ..core.clone() }, "n", "cluster.id"),
            (ClusterSettings { listen: None, ..core.clone() }, "n", "--cluster-listen"),
            (settings("h:1", "", RoleSetting::Replicant), "n", "--join"),
            (settings("h:1", "a:1,b:2,A:1", RoleSetting::Core), "n", "A:1 is there twice"),
            (ClusterSettings { region: "x".repeat(64), ..core }, "n", "cluster.region"),
        ] {
            let error = check_dynamic(&settings, own).expect_err("is wrong");
            assert!(error.contains(says), "{error}");
        }
        let open = settings("0.0.0.0:7883", "", RoleSetting::Core);
        let advertise = at("10.0.0.1:7883");
        assert_eq!(check_dynamic(&ClusterSettings { advertise, ..open }, "n"), Ok(()));
    }

    #[test]
    fn a_node_finds_itself_by_its_name() {
        let nodes = [node("a", "h:1", RoleSetting::Core), node("b", "h:2", RoleSetting::Replicant)];
        let config =
            config(&ClusterSettings::default(), &nodes, "b", true, Incarnation(7)).expect("is there");
        assert_eq!((&*config.own.name, config.own.role), ("b", Role::Replicant));
        assert_eq!(config.others.iter().map(|other| &*other.name).collect::<Vec<_>>(), ["a"]);
    }
}
