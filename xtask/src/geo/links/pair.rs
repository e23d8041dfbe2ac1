//! The two clusters, and what their API says about the link.

use anyhow::{Context, Result, ensure};
use lab::Lab;
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::judge::Load;
use super::{EAST, Setup, WEST, hosts};
use crate::bench::child::interrupted;
use crate::geo::cluster::{Cluster, MQTT, Plan};

/// Maximum time until both links are connected.
const LINKED: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(100);

/// Means by which `east` takes messages from `west`.
#[derive(Clone, Copy, PartialEq)]
pub enum Means {
    /// Links in both directions, with limits of the messages that wait and of those that are not acknowledged.
    Links { queue_messages: Option<u32>, in_flight: Option<u16> },
    /// A bridge of `east` that takes everything.
    Bridge,
}

pub struct Pair<'a> {
    lab: &'a Lab,
    pub east: Cluster<'a>,
    pub west: Cluster<'a>,
}

impl<'a> Pair<'a> {
    /// Starts both clusters, and waits until the links are connected.
    ///
    /// # Errors
    /// A node ends, or they do not do so in time.
    pub fn start(lab: &'a Lab, setup: &Setup, means: Means) -> Result<Self> {
        let secret = setup.directory.join("link.secret");
        std::fs::write(&secret, format!("{}\n", "0123456789abcdef".repeat(4)))?;
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600))?;
        let begin = |own: &str, other: &str| {
            let hosts = hosts(own);
            let cores: Vec<&str> = hosts.iter().map(String::as_str).collect();
            let plan = Plan {
                cores: &cores,
                replicants: &[],
                level: "cluster",
                connack: "overlap",
                batch_sync: "auto",
                leaders: "spread",
            };
            let text = config(means, (own, other), &addresses(lab, other)?, &secret);
            Cluster::begin_with(lab, setup.program, &setup.directory.join(own), (&plan, &text))
        };
        let mut pair = Self { lab, east: begin(EAST, WEST)?, west: begin(WEST, EAST)? };
        pair.east.wait_for_links()?;
        pair.west.wait_for_links()?;
        if means != Means::Bridge {
            pair.wait_until_linked()?;
        }
        pair.east.settle()?;
        pair.west.settle()?;
        Ok(pair)
    }

    pub fn lab(&self) -> &'a Lab {
        self.lab
    }

    fn wait_until_linked(&self) -> Result<()> {
        let begun = Instant::now();
        let connected = |link: Option<Value>| link.is_some_and(|link| link["taking"][0]["connected"] == true);
        while !connected(self.link_of_east()) || !connected(self.link_of_west()) {
            ensure!(!interrupted(), "interrupted");
            let logs = "see the logs of the nodes in target/geo/links";
            ensure!(
                begun.elapsed() < LINKED,
                "the links are not connected after {} s, {logs}",
                LINKED.as_secs()
            );
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// The link of `east`, from the first node that answers.
    pub fn link_of_east(&self) -> Option<Value> {
        link(&self.east, WEST)
    }

    /// The link of `west`, from the first node that answers.
    pub fn link_of_west(&self) -> Option<Value> {
        link(&self.west, EAST)
    }

    /// Node of `east` that runs the link.
    ///
    /// # Errors
    /// None does.
    pub fn runner(&self) -> Result<String> {
        let link = self.link_of_east().context("no node of east answers")?;
        let node = link["taking"][0]["node"].as_str().filter(|node| !node.is_empty());
        Ok(node.context("no node of east runs the link")?.to_owned())
    }

    /// A load of publishers at `west` and subscribers at `east`.
    ///
    /// # Errors
    /// A host has no address.
    pub fn load(&self, setup: &Setup, qos: u8, rate: f64, (seconds, drain): (u32, u32)) -> Result<Load> {
        Ok(Load {
            publish_to: addresses(self.lab, WEST)?,
            subscribe_to: addresses(self.lab, EAST)?,
            version: 5,
            qos,
            payload: setup.args.payload,
            rate,
            seconds,
            clients: (20, 4, "fan-in"),
            drain,
            still: Duration::from_secs(10),
        })
    }
}

fn link(cluster: &Cluster, other: &str) -> Option<Value> {
    let path = format!("/api/v1/links/external/{other}");
    cluster.hosts().find_map(|host| cluster.document(host, &path).ok().filter(|link| link["name"] == other))
}

/// Addresses of the nodes of a cluster for clients.
pub fn addresses(lab: &Lab, site: &str) -> Result<Vec<SocketAddr>> {
    hosts(site).iter().map(|host| Ok((lab.address(host)?, MQTT).into())).collect()
}

fn config(means: Means, (own, other): (&str, &str), addresses: &[SocketAddr], secret: &Path) -> String {
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let address = addresses.join(",");
    match means {
        Means::Links { queue_messages, in_flight } => {
            let queue = queue_messages.map_or(String::new(), |max| format!("queue_messages_max = {max}\n"));
            let in_flight = in_flight.map_or(String::new(), |max| format!("in_flight = {max}\n"));
            format!(
                "[[cluster_link]]\nname = {other:?}\nown_name = {own:?}\naddress = {address:?}\ntopics = \"#\"\n\
                 secret_file = {:?}\n{in_flight}{queue}",
                secret.display().to_string()
            )
        }
        // A line that begins with `#` is a comment. `+/#` is everything, too.
        Means::Bridge if own == EAST => {
            format!(
                "[[bridge]]\nname = \"all\"\naddress = {address:?}\ntopics = \"+/# in 1\"\nin_flight = 10000\n"
            )
        }
        Means::Bridge => String::new(),
    }
}

/// Maxima of the messages that wait at `west`, and counters of dropped ones. Counters of a node that took over start
/// at zero, so the earlier ones are kept.
#[derive(Default)]
pub struct Watch {
    pub queued_max: u64,
    pub bytes_max: u64,
    /// Growth of the files of all nodes of `west`, in bytes.
    pub disk_max: u64,
    disk_before: Option<u64>,
    dropped: Kept,
    not_taken: Kept,
    pub now: Option<Waiting>,
}

/// State of the link at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waiting {
    pub queued: u64,
    pub in_flight: u64,
    /// `east` is connected.
    pub connected: bool,
}

impl Watch {
    /// Asks both clusters.
    pub fn look(&mut self, pair: &Pair) {
        let disk = pair.west.data().map(|directory| allocated(&directory)).sum();
        let before = *self.disk_before.get_or_insert(disk);
        self.disk_max = self.disk_max.max(disk.saturating_sub(before));
        if let Some(link) = pair.link_of_east() {
            self.taken(&link);
        }
        self.now = pair.link_of_west().and_then(|link| self.given(&link));
    }

    fn taken(&mut self, link: &Value) {
        let taking = &link["taking"][0];
        let causes = taking["dropped"].as_object().into_iter().flatten();
        let dropped: u64 = causes.filter_map(|(_, count)| count.as_u64()).sum();
        let refused = taking["refused"].as_u64().unwrap_or_default();
        if let Some(node) = taking["node"].as_str() {
            self.not_taken.count(node, dropped + refused);
        }
    }

    fn given(&mut self, link: &Value) -> Option<Waiting> {
        let giving = &link["giving"][0];
        let number = |name: &str| giving[name].as_u64();
        let queued = number("queued_messages")?;
        self.queued_max = self.queued_max.max(queued);
        self.bytes_max = self.bytes_max.max(number("queued_bytes")?);
        self.dropped.count(giving["node"].as_str()?, number("dropped")?);
        Some(Waiting { queued, in_flight: number("in_flight")?, connected: giving["connected"] == true })
    }

    /// Returns whether the last answer says that nothing waits.
    pub fn is_idle(&self) -> bool {
        self.now.is_some_and(|now| now.queued == 0 && now.in_flight == 0)
    }

    /// Messages that were dropped from the queue at `west`, or expired there.
    pub fn dropped(&self) -> u64 {
        self.dropped.sum()
    }

    /// Messages that the link of `east` dropped, or `east` refused.
    pub fn not_taken(&self) -> u64 {
        self.not_taken.sum()
    }
}

/// A counter of the node that has the work now, and the sum of earlier ones.
#[derive(Default)]
struct Kept {
    node: String,
    now: u64,
    earlier: u64,
}

impl Kept {
    fn count(&mut self, node: &str, count: u64) {
        if self.node != node || count < self.now {
            self.earlier += self.now;
            node.clone_into(&mut self.node);
        }
        self.now = count;
    }

    fn sum(&self) -> u64 {
        self.earlier + self.now
    }
}

/// Bytes that the files below a directory take. Files that vanish meanwhile do not count.
fn allocated(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => allocated(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counters_of_earlier_nodes_are_kept() {
        let mut kept = Kept::default();
        for (node, count) in [("west1", 3), ("west1", 5), ("west2", 0), ("west2", 2), ("west2", 1)] {
            kept.count(node, count);
        }
        assert_eq!(kept.sum(), 8, "5 of west1, 2 of west2 and 1 after its restart");
    }

    #[test]
    fn a_watch_keeps_maxima_and_says_what_waits() {
        let mut watch = Watch::default();
        let link = |queued: u64, dropped: u64| {
            json!({ "giving": [{
                "node": "west1", "queued_messages": queued, "queued_bytes": queued * 100, "in_flight": 0,
                "dropped": dropped, "connected": true
            }] })
        };
        watch.now = watch.given(&link(7, 1));
        assert!(!watch.is_idle());
        watch.now = watch.given(&link(0, 4));
        assert!(watch.is_idle());
        assert_eq!((watch.queued_max, watch.bytes_max, watch.dropped()), (7, 700, 4));
        assert_eq!(watch.given(&json!({ "giving": [] })), None, "no session is no answer");
    }

    #[test]
    fn only_east_has_the_bridge() {
        let address = [SocketAddr::from(([10, 77, 2, 1], 1883))];
        let text = |means, sites| config(means, sites, &address, Path::new("/secret"));
        assert!(text(Means::Bridge, (EAST, WEST)).contains("topics = \"+/# in 1\""));
        assert_eq!(text(Means::Bridge, (WEST, EAST)), "");
        let links = text(Means::Links { queue_messages: Some(9), in_flight: Some(8) }, (WEST, EAST));
        assert!(links.contains("name = \"east\"\nown_name = \"west\""), "{links}");
        assert!(links.ends_with("in_flight = 8\nqueue_messages_max = 9\n"), "{links}");
    }
}
