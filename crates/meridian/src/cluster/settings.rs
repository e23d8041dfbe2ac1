use std::path::PathBuf;
use std::time::Duration;

use cluster::meta::{MetaConfig, RecordSyncConfig};
use cluster::{Config, ForwardAck, NodeInfo, Role, WithoutQuorum};
use replog::{Batching, Incarnation};
use settings::{ByteSize, HostPort, HostPorts, choices, section};

section! {
    /// The cluster that this node belongs to: with `listen`, one whose members the cores agree on; with `[[cluster_node]]`, one of a fixed
    /// list of nodes; with neither, none.
    [cluster]
    pub struct ClusterSettings {
        /// What the cluster is called. Nodes of another cluster are refused.
        pub id: String = "meridian", at start;
        /// A file with the secret that all nodes of the cluster know, of 16 bytes or more; space around it does not count.
        pub secret_file: Option<PathBuf> = "", at start;
        /// Where other nodes connect to, `HOST:PORT`. With `[[cluster_node]]`: the address of this node there when unset.
        pub listen: Option<HostPort> = "", at start;
        /// Where other nodes reach this one, `HOST:PORT`, when that is not `listen`.
        pub advertise: Option<HostPort> = "", at start;
        /// Cluster ports of some nodes, as in `10.0.0.1:7883,10.0.0.2:7883`, where this one finds the others; a name may have many addresses.
        /// All cores may have the same list. A core without any begins a cluster by itself.
        pub join: Option<HostPorts> = "", at start;
        /// Cores that a new cluster waits for; as many as `join` has addresses, and two at least, when 0.
        pub expect: u16 = "0" in "0..=99", at start;
        /// `core`: the node votes, and others hear from it. `replicant`: it hears from one core.
        pub role: RoleSetting = "core", at start;
        /// Where the node is: nodes of one region are near each other.
        pub region: String = "", at start;
        /// PEM file with the certificate chain that this node shows to others. With it, links are encrypted.
        pub tls_certificate: Option<PathBuf> = "", at start;
        /// PEM file with its private key.
        pub tls_key: Option<PathBuf> = "", at start;
        /// PEM file with the authorities that have signed the certificates of nodes.
        pub tls_ca: Option<PathBuf> = "", at start;
        /// Connections to each other node. With more than one, the first carries no messages of clients, so that nothing waits behind them.
        pub connections: u8 = "4" in "1..=17", at start;
        /// When a message of QoS 1 or 2 has reached another node, as far as its publisher is concerned.
        pub forward_ack: ForwardAckSetting = "received", at start;
        /// Messages of QoS 1 and 2 that wait for one other node, at most; QoS 0 has a quarter of it. What finds no place is refused, or
        /// dropped when the node is cut off.
        pub buffer_max: ByteSize = "64MiB" in "1MiB..=64GiB", at start;
        /// A node of which nothing is heard for so long is cut off: nobody waits for it.
        pub silence_max: Duration = "5s" in "500ms..=5m", at start;
        /// How long a node acknowledges messages after a majority of cores has last told it that it knows all routes.
        pub lease: Duration = "2s" in "200ms..=1m", at start;
        /// What a node does that reaches no majority of cores.
        pub without_quorum: WithoutQuorumSetting = "hold", at start;
        /// Maximum time for which SUBACK waits for other nodes. After that, SUBACK of level `core` is sent. For `region` and `cluster` the
        /// connection is closed instead; with `without_quorum = "serve"` SUBACK of level `region` is sent, too.
        pub suback_timeout: Duration = "10s" in "100ms..=5m", at start;
        /// Time for which other nodes go on sending messages of QoS 0 for a durable session that is away. A client that comes back
        /// within it misses none of those that are published on other nodes right after its CONNACK; `0s` saves the traffic meanwhile.
        pub qos0_linger: Duration = "1m" in "0s..=1h", at start;
        /// Whether what goes to nodes of other regions is made smaller.
        pub compression: CompressionSetting = "between_regions", at start;
        /// How long the API and `ctl` wait for the answer of another node; whoever does not answer in time is named in theirs.
        pub request_timeout: Duration = "3s" in "100ms..=1m", at start;
        /// Bytes of filters in one piece of a copy of all routes, for a node that has none.
        pub bootstrap_batch: ByteSize = "64KiB" in "1KiB..=4MiB", at start;
        /// Routes that are gone are remembered for nodes that are behind: so many of each node. Who is further behind gets a copy.
        pub tombstones_max: u32 = "100000" in "1000..", at start;
    }
}

section! {
    /// One node of the cluster. The same list stands in the configuration of each: a node finds itself by `node.name`.
    [cluster_node]
    pub struct ClusterNode {
        /// Its `node.name`.
        pub name: String = "", at start;
        /// Where other nodes reach it, `HOST:PORT`.
        pub address: Option<HostPort> = "", at start;
        /// Whether other nodes hear from it.
        pub role: RoleSetting = "core", at start;
        /// Where it is: nodes of one region are near each other.
        pub region: String = "", at start;
    }
}

choices! {
    /// Whether other nodes hear from it.
    pub enum RoleSetting {
        /// It hears from all cores, and tells the replicants that are attached to it.
        Core = "core",
        /// It hears from one core: that of its region with the fewest replicants, and another when that is gone.
        Replicant = "replicant",
    }
}

choices! {
    /// When a message of QoS 1 or 2 has reached another node.
    pub enum ForwardAckSetting {
        /// When it has its places there: in the queues of connected clients, on the disk for durable sessions.
        Received = "received",
        /// When it is on its way.
        Sent = "sent",
    }
}

choices! {
    /// Whether what goes to other nodes is made smaller on its way (LZ4).
    pub enum CompressionSetting {
        /// No.
        Off = "off",
        /// To nodes of other regions, if they read it. Nodes of one region are near each other: there it would cost more than it saves.
        BetweenRegions = "between_regions",
    }
}

choices! {
    /// What a node does that reaches no majority of cores.
    pub enum WithoutQuorumSetting {
        /// Publishers at QoS 1 and 2 wait: somebody whom this node has not heard of may have subscribed elsewhere.
        Hold = "hold",
        /// It goes on: what is published here may be missed elsewhere though it is acknowledged.
        Serve = "serve",
    }
}

/// What is wrong with the list of nodes, with what to do about it.
pub fn check(nodes: &[ClusterNode], own: &str) -> Result<(), String> {
    for (index, node) in nodes.iter().enumerate() {
        if node.name.is_empty() || node.name.len() > 255 {
            return Err(format!("cluster_node.{index}: a name of 1 to 255 bytes is needed"));
        }
        let Some(address) = &node.address else {
            return Err(format!(
                "cluster_node.{index}: it says not where {:?} is reached: add its address, such as address = \"10.0.0.1:7883\"",
                node.name
            ));
        };
        if address.is_unspecified() {
            return Err(format!(
                "cluster_node.{index}: nobody can be reached at {address}: name an address of that node, and set its cluster.listen to this one"
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
            "cluster_node.{index}: its address is reached from the same machine only, and other nodes are on other machines: write an address at \
             which they reach it"
        ));
    }
    if !nodes.iter().any(|node| node.name == own) {
        let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
        return Err(format!(
            "this node is called {own:?}, and the [[cluster_node]] list has {}: set node.name (--name) to one of them, or add it \
             to the list of every node",
            names.join(", ")
        ));
    }
    if !nodes.iter().any(|node| node.role == RoleSetting::Core) {
        return Err("no [[cluster_node]] is a core: at least one has to be, better three".to_owned());
    }
    Ok(())
}

/// Settings of this node that its place in the list of nodes contradicts, with what to do about it.
pub fn check_static(cluster: &ClusterSettings, nodes: &[ClusterNode], own: &str) -> Result<(), String> {
    let role = nodes.iter().find(|node| node.name == own).map(|node| node.role);
    let wrong = if cluster.join.is_some() {
        "cluster.join and [[cluster_node]] are two ways to say who the other nodes are: take one of them away"
    } else if cluster.advertise.is_some() {
        "with [[cluster_node]] the list says where nodes are reached: write the address there, and take cluster.advertise away"
    } else if cluster.role == RoleSetting::Replicant && role == Some(RoleSetting::Core) {
        "cluster.role is replicant, and in the list of nodes this one is a core: the list says which; take cluster.role away"
    } else {
        return Ok(());
    };
    Err(wrong.to_owned())
}

/// What is better otherwise, or not as it may be meant, though it holds.
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
            "of {cores} cores{whose} {} have to be there, so that no more may be lost than of {}: let one of them be a replicant, or add one",
            cores / 2 + 1,
            cores - 1
        )
    });
    even.into_iter().chain(is_alone(cluster)).collect()
}

/// Addresses of `cluster.join` where this core's own is among them: then all cores have the same list. Otherwise there are more, and 0 is said.
fn all_cores(cluster: &ClusterSettings) -> usize {
    let join = join(cluster);
    let is_among = cluster.role == RoleSetting::Core && join.iter().any(|address| is_own(cluster, address));
    // One alone is told of otherwise.
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
        "cluster.join names this node only: until it belongs to a cluster it waits for another core that has its address in join. Name others, \
         or take cluster.join away: then it begins a cluster by itself"
            .to_owned()
    })
}

/// Settings of a cluster in the configuration of a node that belongs to none.
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
            "{} of a node that belongs to no cluster: set cluster.listen (--cluster-listen) and cluster.join (--join) where it is to belong to one",
            said.join(", ")
        )
    })
}

/// What is wrong with how a node is to find a cluster whose cores agree on its members, with what to do about it.
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
            "cluster.join: {} is there twice: take one of the two away, or name another node there",
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

/// Whether those who are met can reach this node.
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

/// On another machine for sure. What a name stands for is not known yet.
fn is_elsewhere(address: &HostPort) -> bool {
    address.ip().is_some_and(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

fn advertised(cluster: &ClusterSettings) -> Option<&HostPort> {
    cluster.advertise.as_ref().or(cluster.listen.as_ref())
}

/// Where other nodes are to be met.
fn join(cluster: &ClusterSettings) -> &[HostPort] {
    cluster.join.as_ref().map_or(&[], |join| &join.0)
}

/// As the cluster's core has addresses.
fn text(address: Option<&HostPort>) -> Box<str> {
    address.map(|address| address.as_str().into()).unwrap_or_default()
}

/// How the node takes part in what cores agree on. The settings have been checked.
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

/// What the cluster's core is told of a node that finds the others by itself.
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

/// What the cluster's core is told. The list has been checked.
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
    fn a_list_that_cannot_be_says_how_it_could() {
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
            (vec![node("a", "", RoleSetting::Core)], "a", "add its address"),
            (vec![node("a", "[::]:1", RoleSetting::Core)], "a", "nobody can be reached"),
            (vec![b()], "b", "core"),
        ] {
            let error = check(&nodes, own).expect_err("is wrong");
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn what_a_list_contradicts_is_refused() {
        let nodes = ["a", "b", "c", "d"].map(|name| node(name, "10.0.0.1:1", RoleSetting::Core));
        let of = |change: &dyn Fn(&mut ClusterSettings)| {
            let mut settings = ClusterSettings::default();
            change(&mut settings);
            check_static(&settings, &nodes, "a").map_err(|why| why.split_once(' ').unwrap().0.to_owned())
        };
        assert_eq!(of(&|_| ()), Ok(()));
        assert_eq!(of(&|settings| settings.join = joined("h:1")), Err("cluster.join".into()));
        assert_eq!(of(&|settings| settings.advertise = at("h:1")), Err("with".into()));
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
        // The addresses are those of all cores where this one's own is among them.
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
    fn a_core_that_joins_itself_only_is_told_of() {
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
    fn settings_of_a_cluster_that_there_is_not_are_told_of() {
        assert_eq!(unused(&ClusterSettings::default()), None);
        let secret_file = Some("secret".into());
        let told = unused(&ClusterSettings { secret_file, ..ClusterSettings::default() }).expect("advice");
        assert!(told.starts_with("cluster.secret_file of") && told.contains("--cluster-listen"), "{told}");
    }

    #[test]
    fn how_to_find_a_cluster_is_checked_and_a_mistake_says_how_to_mend_it() {
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
