use std::path::PathBuf;
use std::time::Duration;

use cluster::meta::{MetaConfig, REPLACE_AFTER, RecordSyncConfig};
use cluster::{Config, ForwardAck, LeaderPolicy, NodeInfo, Replicas, Role, WithoutQuorum};
use replog::{Batching, Incarnation};
use settings::{ByteSize, HostPort, HostPorts, Invalid, Raw, Value, choices, section};

section! {
    /// Cluster that this node belongs to. Without `listen` the node belongs to none.
    [cluster]
    pub struct ClusterSettings {
        /// Name of the cluster. Nodes of another cluster are refused.
        pub id: String = "meridian", at start;
        /// File with the secret that all nodes of the cluster share, of 16 bytes or more. Surrounding space is
        /// ignored.
        pub secret_file: Option<PathBuf> = "", at start;
        /// Address that other nodes connect to, `HOST:PORT`.
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
        /// Point at which CONNACK is sent to a client with Clean Start. Other clients always wait for their session.
        pub connack: ConnackSetting = "overlap", at start;
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
        /// Number of cores that have each durable session with its queue, and each retained message; all cores, while
        /// there are fewer. The cluster keeps the number with which it is founded. With 0 on all nodes, each node keeps
        /// those of its own clients, in one copy.
        pub replicas: u8 = "3" in "0..=7", at start;
        /// Cores that should lead the shards of `replicas`: `spread` gives each core as many as the others.
        /// `region:NAME` does so with the cores of a region, such as that of most clients. With `follow`, each shard
        /// is led in the region in which most of its connected clients are. A core without a replica leads none. All
        /// cores have the same value.
        pub leaders: LeadersSetting = "spread", at start;
        /// Maximum number of bytes that a core copies in a second for a replica that it lacks, such as after the loss
        /// of its disk. A higher rate makes the copy faster, and the messages of clients wait longer meanwhile.
        pub copy_rate: ByteSize = "32MiB" in "1MiB..=1TiB", at start;
        /// Maximum size of the filters in one part of a copy of all routes, for a node that has none.
        pub bootstrap_batch: ByteSize = "64KiB" in "1KiB..=4MiB", at start;
        /// Number of removed routes that are remembered for each node, for nodes that lag behind. A node that lags
        /// further behind receives a copy of all routes.
        pub tombstones_max: u32 = "100000" in "1000..", at start;
    }
}

/// Cores that should lead shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeadersSetting(LeaderPolicy);

impl From<LeadersSetting> for LeaderPolicy {
    fn from(setting: LeadersSetting) -> Self {
        setting.0
    }
}

const LEADERS: &str = "`spread`, `follow`, or `region:NAME` with the name of a region (cluster.region)";

impl Value for LeadersSetting {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let (Raw::Text(text) | Raw::String(text)) = raw else { return Err(raw.expected(LEADERS)) };
        match (text.as_str(), text.strip_prefix("region:")) {
            ("spread", _) => Ok(Self(LeaderPolicy::Spread)),
            ("follow", _) => Ok(Self(LeaderPolicy::Follow)),
            (_, Some(name)) if !name.is_empty() => Ok(Self(LeaderPolicy::Region(name.into()))),
            _ => Err(raw.expected(LEADERS)),
        }
    }

    fn to_toml(&self) -> Option<String> {
        match &self.0 {
            LeaderPolicy::Spread => "spread".to_owned(),
            LeaderPolicy::Follow => "follow".to_owned(),
            LeaderPolicy::Region(name) => format!("region:{name}"),
        }
        .to_toml()
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
    /// Point at which CONNACK is sent to a client with Clean Start.
    pub enum ConnackSetting {
        /// CONNACK is sent at once. The client gets nothing else until the cluster has given it the Client Identifier.
        /// So a client far from the cores waits for one trip less.
        Overlap = "overlap",
        /// CONNACK waits until the cluster has given the client its Client Identifier.
        Claimed = "claimed",
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
        /// QoS 0 goes on, so two connections of one Client Identifier may get it.
        Hold = "hold",
        /// Like `hold`, and clients wait for everything: nothing is read from them or sent to them. So a client that is
        /// connected elsewhere meanwhile has only one connection that is served, also at QoS 0.
        Freeze = "freeze",
        /// The node continues: subscribers elsewhere may miss messages that are published here and acknowledged. Two
        /// connections of one Client Identifier may both get acknowledgements, one here and one elsewhere.
        Serve = "serve",
    }
}

/// Advice on settings that are valid and not recommended, or probably not intended.
pub fn advice(cluster: &ClusterSettings) -> Vec<String> {
    let (cores, whose) = match usize::from(cluster.expect) {
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

/// Checks the settings by which a node finds its cluster. Errors contain advice.
pub fn check(cluster: &ClusterSettings, own: &str) -> Result<(), String> {
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
pub fn join(cluster: &ClusterSettings) -> &[HostPort] {
    cluster.join.as_ref().map_or(&[], |join| &join.0)
}

/// Address in the form that the crate `cluster` uses.
fn text(address: Option<&HostPort>) -> Box<str> {
    address.map(|address| address.as_str().into()).unwrap_or_default()
}

/// Features of a node that takes part in the shards of its cluster. `has_own_state` says that it has sessions of its
/// own for them.
pub fn features_of_shards(cluster: &ClusterSettings, has_own_state: bool) -> u64 {
    let shards = cluster::SHARDS
        | cluster::EPHEMERAL_SESSIONS
        | cluster::QUEUE_LIMITS
        | cluster::QUEUE_REFUSALS
        | cluster::LINKS
        | cluster::LINKED_GROUPS;
    match has_own_state {
        _ if cluster.replicas == 0 => 0,
        true => shards | cluster::OWN_STATE,
        false => shards | cluster::EMPTY_SHARDS,
    }
}

/// Configuration of the node's meta group. The settings have been checked.
///
/// `own_state` is the key for owners of sessions, if the node has sessions of its own for the shards of the cluster.
pub fn meta_config(
    cluster: &ClusterSettings,
    (founding, owner_key): (u128, u128),
    own_state: Option<[u8; 16]>,
) -> MetaConfig {
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
        replicas: Replicas::new(cluster.replicas).unwrap_or_default(),
        owner_key: owner_key.to_le_bytes(),
        own_state,
        replace_after: REPLACE_AFTER,
        features: cluster::FEATURES | cluster::ORIGINS | features_of_shards(cluster, own_state.is_some()),
    }
}

/// Configuration of the node's cluster router. The settings have been checked.
pub fn config(cluster: &ClusterSettings, own: &str, batches: bool, incarnation: Incarnation) -> Config {
    let own = NodeInfo {
        name: own.into(),
        role: match cluster.role {
            RoleSetting::Core => Role::Core,
            RoleSetting::Replicant => Role::Replicant,
        },
        region: cluster.region.as_str().into(),
        address: text(advertised(cluster)),
    };
    let bytes_max = cluster.bootstrap_batch.bytes() as usize;
    let gathered = Batching { bytes_max, ..Batching::default() };
    let single = Batching { interval: Duration::ZERO, bytes_max: 1, ..Batching::default() };
    Config {
        own,
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
        leaders: cluster.leaders.clone().into(),
        without_quorum: match cluster.without_quorum {
            WithoutQuorumSetting::Hold => WithoutQuorum::Hold,
            WithoutQuorumSetting::Freeze => WithoutQuorum::Freeze,
            WithoutQuorumSetting::Serve => WithoutQuorum::Serve,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> Option<HostPort> {
        Value::from_raw(&Raw::Text(address.to_owned())).expect(address)
    }

    fn joined(addresses: &str) -> Option<HostPorts> {
        Value::from_raw(&Raw::Text(addresses.to_owned())).expect(addresses)
    }

    #[test]
    fn an_even_number_of_cores_is_advised_against() {
        let expecting = |expect| advice(&ClusterSettings { expect, ..ClusterSettings::default() });
        let [advised] = &expecting(4)[..] else { panic!("four") };
        assert!(advised.contains(" 3 have to be there") && advised.contains("than of 3"), "{advised}");
        let [advised] = &expecting(2)[..] else { panic!("two") };
        assert!(advised.starts_with("of 2 cores that") && advised.contains("cluster.expect"), "{advised}");
        assert!([0, 1, 3].into_iter().all(|expect| expecting(expect).is_empty()));
        // A list that contains the own address names all cores.
        let joining = |expect, role, addresses| {
            let listen = at("10.0.0.1:1");
            let join = joined(addresses);
            advice(&ClusterSettings { listen, join, expect, role, ..ClusterSettings::default() })
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
            advice(&settings)
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
        assert_eq!(check(&core, "n"), Ok(()));
        let meta = meta_config(&core, (7, 8), None);
        assert_eq!((meta.join, meta.expect, meta.founding), (vec!["a:1".into(), "b:2".into()], 2, 7));
        assert_eq!(meta_config(&ClusterSettings { expect: 3, ..core.clone() }, (7, 8), None).expect, 3);
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
            let error = check(&settings, own).expect_err("is wrong");
            assert!(error.contains(says), "{error}");
        }
        let open = settings("0.0.0.0:7883", "", RoleSetting::Core);
        let advertise = at("10.0.0.1:7883");
        assert_eq!(check(&ClusterSettings { advertise, ..open }, "n"), Ok(()));
    }

    #[test]
    fn leaders_are_spread_over_all_cores_or_those_of_a_region_or_follow_their_clients() {
        let read = |text: &str| LeadersSetting::from_raw(&Raw::Text(text.to_owned()));
        assert_eq!(read("spread").expect("a value").0, LeaderPolicy::Spread);
        let follow = read("follow").expect("a value");
        assert_eq!((&follow.0, follow.to_toml().as_deref()), (&LeaderPolicy::Follow, Some("\"follow\"")));
        let region = read("region:eu").expect("a value");
        assert_eq!(
            (&region.0, region.to_toml().as_deref()),
            (&LeaderPolicy::Region("eu".into()), Some("\"region:eu\""))
        );
        for wrong in ["", "follows", "region", "region:", "Spread"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn other_nodes_connect_to_the_advertised_address() {
        let settings = ClusterSettings {
            listen: at("0.0.0.0:1"),
            advertise: at("a.example:2"),
            role: RoleSetting::Replicant,
            ..ClusterSettings::default()
        };
        let own = config(&settings, "a", true, Incarnation(7)).own;
        assert_eq!((&*own.name, own.role, &*own.address), ("a", Role::Replicant, "a.example:2"));
    }
}
