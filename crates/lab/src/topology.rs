//! Topology: sites, the hosts in them and the lines between them, from a TOML file.

use crate::LabError;
use crate::line::Parameters;
use crate::quantity;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Topology of a lab. Addresses are 10.77.SITE.HOST, in the order of the file.
#[derive(Clone, Debug)]
pub struct Topology {
    pub name: String,
    /// Seed of losses and jitter.
    pub seed: u64,
    /// Maximum size of a packet between hosts, in bytes.
    pub mtu: u16,
    /// Settings below `net.` of each host's kernel.
    pub sysctl: BTreeMap<String, String>,
    pub sites: Vec<String>,
    pub hosts: Vec<Host>,
    /// Lines from each site (rows) to each site, itself included.
    lines: Vec<Vec<Parameters>>,
}

#[derive(Clone, Debug)]
pub struct Host {
    pub name: String,
    /// Index in `Topology::sites`.
    pub site: usize,
    pub address: Ipv4Addr,
    /// Delay in one direction of the host's own line to its site.
    pub access: Duration,
}

const NET: [u8; 2] = [10, 77];
/// Maximum number of sites, and of hosts of each site: one byte of the address, without 0 and 255.
const EACH_MAX: usize = 254;
/// Maximum number of hosts of all sites: each has a file descriptor and a namespace.
const HOSTS_MAX: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default)]
    seed: u64,
    #[serde(default = "mtu")]
    mtu: u16,
    #[serde(default)]
    sysctl: BTreeMap<String, String>,
    site: Vec<SiteEntry>,
    host: Vec<HostEntry>,
    #[serde(default)]
    line: Vec<BTreeMap<String, String>>,
}

fn mtu() -> u16 {
    1500
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteEntry {
    name: String,
    /// Round-trip time between hosts of the same site.
    #[serde(default)]
    rtt: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    site: String,
    #[serde(default)]
    access: Option<String>,
}

impl Topology {
    /// Parses a topology.
    ///
    /// # Errors
    /// An invalid topology. The message names the invalid part.
    pub fn parse(text: &str) -> Result<Self, LabError> {
        let file: File = toml::from_str(text).map_err(|error| LabError::Topology(error.to_string()))?;
        if !(576..=9000).contains(&file.mtu) {
            return invalid(format!("mtu {}: use 576 to 9000", file.mtu));
        }
        if let Some(name) = file.sysctl.keys().find(|name| !is_net(name)) {
            return invalid(format!(
                "sysctl {name:?}: use only names that begin with `net.`, because others do not belong to one host"
            ));
        }
        let count = file.site.len();
        let mut topology = Self {
            name: file.name,
            seed: file.seed,
            mtu: file.mtu,
            sysctl: file.sysctl,
            sites: Vec::with_capacity(count),
            hosts: Vec::new(),
            lines: vec![vec![Parameters::default(); count]; count],
        };
        if count == 0 || count > EACH_MAX {
            return invalid(format!("{count} sites: use 1 to {EACH_MAX}"));
        }
        for (index, site) in file.site.iter().enumerate() {
            topology.check_name(&site.name)?;
            topology.sites.push(site.name.clone());
            if let Some(rtt) = &site.rtt {
                topology.lines[index][index].set("rtt", rtt)?;
            }
        }
        for host in &file.host {
            topology.add_host(host)?;
        }
        topology.add_lines(&file.line)?;
        Ok(topology)
    }

    fn add_host(&mut self, entry: &HostEntry) -> Result<(), LabError> {
        self.check_name(&entry.name)?;
        let site = self.site(&entry.site)?;
        let number = 1 + self.hosts.iter().filter(|host| host.site == site).count();
        if number > EACH_MAX || self.hosts.len() >= HOSTS_MAX {
            return invalid(format!(
                "host {}: use at most {HOSTS_MAX} hosts, and {EACH_MAX} hosts of a site",
                entry.name
            ));
        }
        let access = entry.access.as_deref().map_or(Ok(Duration::ZERO), quantity::duration)?;
        let address = Ipv4Addr::new(NET[0], NET[1], site as u8 + 1, number as u8);
        self.hosts.push(Host { name: entry.name.clone(), site, address, access });
        Ok(())
    }

    /// Adds the lines. Every two sites have a line, with the same parameters in both directions.
    fn add_lines(&mut self, entries: &[BTreeMap<String, String>]) -> Result<(), LabError> {
        let count = self.sites.len();
        let mut has_line = vec![vec![false; count]; count];
        for entry in entries {
            let end = |name: &str| match entry.get(name) {
                Some(site) => self.site(site),
                None => invalid(format!("a [[line]] has no {name:?}: give the name of a site")),
            };
            let (a, b) = (end("a")?, end("b")?);
            let mut parameters = Parameters::default();
            for (name, value) in entry.iter().filter(|(name, _)| !["a", "b"].contains(&name.as_str())) {
                parameters.set(name, value)?;
            }
            if a == b || std::mem::replace(&mut has_line[a][b], true) {
                return invalid(format!(
                    "line {} to {}: use one between each two sites",
                    self.sites[a], self.sites[b]
                ));
            }
            has_line[b][a] = true;
            self.lines[a][b] = parameters.clone();
            self.lines[b][a] = parameters;
        }
        for (a, row) in has_line.iter().enumerate() {
            if let Some(b) = (0..count).find(|b| *b != a && !row[*b]) {
                return invalid(format!(
                    "there is no [[line]] between {} and {}",
                    self.sites[a], self.sites[b]
                ));
            }
        }
        Ok(())
    }

    fn check_name(&self, name: &str) -> Result<(), LabError> {
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
        if name.is_empty() || name.len() > 40 || !name.bytes().all(is_plain) {
            return invalid(format!(
                "{name:?} is not a name: use at most 40 characters, A-Z, a-z, 0-9 and -"
            ));
        }
        if self.sites.iter().any(|site| site == name) || self.host(name).is_ok() {
            return invalid(format!("{name} is there twice: give sites and hosts different names"));
        }
        Ok(())
    }

    /// Returns the index of a site.
    ///
    /// # Errors
    /// No site has this name.
    pub fn site(&self, name: &str) -> Result<usize, LabError> {
        let found = self.sites.iter().position(|site| site == name);
        found.ok_or_else(|| LabError::Topology(format!("no site {name:?}: use {}", self.sites.join(", "))))
    }

    /// Returns the index of a host.
    ///
    /// # Errors
    /// No host has this name.
    pub fn host(&self, name: &str) -> Result<usize, LabError> {
        let found = self.hosts.iter().position(|host| host.name == name);
        found.ok_or_else(|| LabError::Topology(format!("no host {name:?}")))
    }

    /// Returns the host of this name, or all hosts of the site of this name.
    ///
    /// # Errors
    /// There is neither a host nor a site of this name.
    pub fn hosts_of(&self, name: &str) -> Result<Vec<usize>, LabError> {
        if let Ok(host) = self.host(name) {
            return Ok(vec![host]);
        }
        let site = self.site(name)?;
        Ok((0..self.hosts.len()).filter(|host| self.hosts[*host].site == site).collect())
    }

    pub fn host_at(&self, address: [u8; 4]) -> Option<usize> {
        let address = Ipv4Addr::from(address);
        self.hosts.iter().position(|host| host.address == address)
    }

    pub fn line(&self, from: usize, to: usize) -> &Parameters {
        &self.lines[from][to]
    }

    /// Returns the round-trip time between two hosts, without queues and jitter.
    pub fn round_trip(&self, one: usize, other: usize) -> Duration {
        let (one, other) = (&self.hosts[one], &self.hosts[other]);
        let one_way_delays = self.lines[one.site][other.site].delay + self.lines[other.site][one.site].delay;
        one_way_delays + 2 * (one.access + other.access)
    }
}

fn is_net(name: &str) -> bool {
    name.starts_with("net.") && !name.contains("..") && !name.contains('/')
}

fn invalid<T>(what: String) -> Result<T, LabError> {
    Err(LabError::Topology(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"
        name = "two"
        [[site]]
        name = "east"
        rtt = "0.4ms"
        [[site]]
        name = "west"
        [[host]]
        name = "e1"
        site = "east"
        [[host]]
        name = "w1"
        site = "west"
        access = "0.5ms"
        [[host]]
        name = "e2"
        site = "east"
        [[line]]
        a = "east"
        b = "west"
        rtt = "100ms"
        loss = "1%"
    "#;

    fn refused(text: &str) -> String {
        Topology::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn hosts_have_addresses_and_distances() {
        let two = Topology::parse(TWO).unwrap();
        let addresses: Vec<String> = two.hosts.iter().map(|host| host.address.to_string()).collect();
        assert_eq!(addresses, ["10.77.1.1", "10.77.2.1", "10.77.1.2"]);
        assert_eq!(two.round_trip(0, 1), Duration::from_millis(101));
        assert_eq!(two.round_trip(0, 2), Duration::from_micros(400));
        assert_eq!(two.hosts_of("east").unwrap(), [0, 2]);
        assert_eq!(two.hosts_of("w1").unwrap(), [1]);
        assert_eq!(two.host_at([10, 77, 2, 1]), Some(1));
        assert_eq!(two.host_at([10, 77, 2, 2]), None);
        assert!((two.line(1, 0).loss - 0.01).abs() < 1e-9);
    }

    #[test]
    fn the_geo_lab_has_the_distances_of_the_experiments() {
        let geo = Topology::parse(include_str!("../labs/geo.toml")).unwrap();
        let round_trip =
            |one: &str, other: &str| geo.round_trip(geo.host(one).unwrap(), geo.host(other).unwrap());
        assert_eq!(round_trip("ape1-clients", "ape1"), Duration::from_micros(1500));
        for (one, other, ms) in [("euc1", "afs1", 160), ("euc1", "ape1", 200), ("ape1", "aps2", 98)] {
            assert_eq!(round_trip(one, other), Duration::from_millis(ms), "{one} to {other}");
        }
    }

    #[test]
    fn contradictions_are_refused_with_their_name() {
        let twice = TWO.replace("name = \"e2\"", "name = \"west\"");
        let nowhere = TWO.replace("site = \"west\"", "site = \"north\"");
        let apart = TWO.replace("[[line]]", "[[site]]\nname = \"south\"\n[[line]]");
        let unknown = TWO.replace("loss", "lost");
        let misspelt = TWO.replace("access", "acces");
        let global = TWO.replace("name = \"two\"", "name = \"two\"\nsysctl = { \"vm.swappiness\" = \"1\" }");
        for (text, word) in [
            (twice, "west is there twice"),
            (nowhere, "no site \"north\""),
            (apart, "no [[line]] between"),
            (unknown, "\"lost\""),
            (misspelt, "acces"),
            (global, "vm.swappiness"),
            (TWO.replace("b = \"west\"", "b = \"east\""), "one between each two"),
            (TWO.replace("name = \"e2\"", "name = \"../e\""), "is not a name"),
            (TWO.replace("name = \"two\"", "name = \"two\"\nmtu = 68"), "mtu 68"),
        ] {
            let said = refused(&text);
            assert!(said.contains(word), "{said}");
        }
    }
}
