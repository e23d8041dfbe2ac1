//! A running topology.

use crate::forwarder::Forwarder;
use crate::namespace::{Namespace, enter};
use crate::network::{Counters, Network};
use crate::{LabError, Topology};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Hosts, and the thread that carries their packets. The thread ends when the lab is dropped. Processes that are
/// still in a host's namespace then reach no other host.
pub struct Lab {
    topology: Topology,
    namespaces: Vec<File>,
    forwarder: Forwarder,
}

impl Lab {
    /// Starts the hosts.
    ///
    /// # Errors
    /// The process is not root, or the system refuses an operation. Nothing stays behind.
    pub fn start(topology: Topology) -> Result<Self, LabError> {
        let mut namespaces = Vec::with_capacity(topology.hosts.len());
        let mut tuns = Vec::with_capacity(topology.hosts.len());
        for host in &topology.hosts {
            let Namespace { net, tun } = Namespace::open(host, &topology)?;
            namespaces.push(net);
            tuns.push(tun);
        }
        let forwarder = Forwarder::start(Network::new(topology.clone()), tuns)?;
        Ok(Self { topology, namespaces, forwarder })
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the address of a host.
    ///
    /// # Errors
    /// No host has this name.
    pub fn address(&self, host: &str) -> Result<Ipv4Addr, LabError> {
        Ok(self.topology.hosts[self.topology.host(host)?].address)
    }

    /// Makes the command's process run on the host.
    ///
    /// # Errors
    /// No host has this name.
    pub fn enter_host(&self, host: &str, command: &mut Command) -> Result<(), LabError> {
        let net = self.namespaces[self.topology.host(host)?].as_raw_fd();
        // SAFETY: one system call, which is async-signal-safe. The descriptor is open in the child until it
        // executes. A command that outlives this lab fails to start, or starts where nothing is reachable.
        unsafe { command.pre_exec(move || enter(net)) };
        Ok(())
    }

    /// Runs `work` on a new thread on the host: sockets that it opens belong to the host.
    ///
    /// # Errors
    /// No host has this name, or the system refuses an operation.
    ///
    /// # Panics
    /// Panics when `work` does.
    pub fn within<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let net = self.namespaces[self.topology.host(host)?].as_raw_fd();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || enter(net).map(|()| work()));
            match thread.join() {
                Ok(done) => done.map_err(LabError::system("setns")),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Changes the line between two sites in both directions: `lab.set(("fra", "hkg"), "rate", "50mbit")`.
    ///
    /// # Errors
    /// An unknown name, or an invalid value.
    pub fn set(&self, (a, b): (&str, &str), name: &str, value: &str) -> Result<(), LabError> {
        let [a, b, name, value] = [a, b, name, value].map(String::from);
        self.forwarder.ask(move |now, network| network.set(now, (&a, &b), &name, &value))?
    }

    /// Stops all packets from one host or site to the other.
    ///
    /// # Errors
    /// A name that is neither a host nor a site.
    pub fn cut(&self, from: &str, to: &str) -> Result<(), LabError> {
        let [from, to] = [from, to].map(String::from);
        self.forwarder.ask(move |_, network| network.cut(&from, &to))?
    }

    /// Ends all cuts.
    ///
    /// # Errors
    /// The thread that carries packets has ended.
    pub fn heal(&self) -> Result<(), LabError> {
        self.forwarder.ask(|_, network| network.heal())
    }

    /// Returns the counters of packets.
    ///
    /// # Errors
    /// The thread that carries packets has ended.
    pub fn counters(&self) -> Result<Counters, LabError> {
        self.forwarder.ask(|_, network| network.counters())
    }

    /// Returns the number of bytes that the line from one site to another one has carried.
    ///
    /// # Errors
    /// An unknown site.
    pub fn carried(&self, from: &str, to: &str) -> Result<u64, LabError> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.forwarder.ask(move |_, network| network.carried(&from, &to))?
    }
}
