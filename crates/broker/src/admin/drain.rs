//! Steps of a drain: the node refuses new clients, and its clients are disconnected a few at a time.

use std::sync::Arc;

use mqtt::ReasonCode;

use super::{Admin, AdminRequest, Reply};
use crate::ids::WorkerId;

/// Clients that a step of a drain may disconnect. Each class includes the previous ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainClass {
    /// Clients that have sent nothing for a few seconds, have nothing in flight, and are in no shared group.
    #[default]
    Idle,
    /// All clients that are in no shared group.
    Unshared,
    /// All clients. Of each shared group, the node disconnects one member in [`DrainStep::GROUP_PAUSE`].
    All,
}

/// One step of a drain on one worker.
#[derive(Clone, Debug)]
pub struct DrainStep {
    /// Maximum number of clients to disconnect.
    pub limit: u32,
    pub class: DrainClass,
    /// True if the members of shared groups need not leave one after the other.
    pub hurries: bool,
    /// Reason Code of DISCONNECT: Use another server, or Server moved.
    pub reason: ReasonCode,
}

impl DrainStep {
    /// Time between two members of one shared group, so that the first one can subscribe on another node before the
    /// next one leaves.
    pub const GROUP_PAUSE: std::time::Duration = std::time::Duration::from_millis(500);
}

/// Result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    pub disconnected: u32,
    /// True if the worker has looked at all its connections since the last one that it disconnected: none of the class
    /// is left, except members of shared groups that have to wait.
    pub is_exhausted: bool,
}

impl Admin {
    /// Refuses new clients from now on, or accepts them again. MQTT 5.0 clients get Use another server, with this
    /// Server Reference if there is one.
    pub fn refuse_clients(&self, refuses: bool) {
        self.node.drain.set_refusing(refuses);
    }

    /// Sets the Server Reference of refusals and drains (MQTT 5.0, 3.2.2.3.16). Only the first call counts.
    pub fn set_server_reference(&self, reference: Option<Arc<str>>) {
        self.node.drain.set_reference(reference);
    }

    /// Sets the addresses that refusals and drains name from now on instead of the Server Reference of this node; none
    /// ends that. Clients get all of them, each client another one first.
    pub fn set_successors(&self, addresses: &[String]) {
        self.node.drain.set_successors(addresses);
    }

    /// Disconnects some clients of one worker.
    pub fn drain_some(&self, worker: WorkerId, step: DrainStep, reply: Reply<Drained>) {
        self.send(worker, AdminRequest::Drain { step, reply });
    }

    /// Returns the number of clients that are connected to this node, without connections that the process makes to
    /// itself. It is up to about a second old.
    pub fn connected_clients(&self) -> u64 {
        let figures = self.figures();
        let connected = figures.total(|worker| worker.counters.clients_connected);
        let disconnected = figures.total(|worker| worker.counters.clients_disconnected);
        connected.saturating_sub(disconnected).saturating_sub(self.node.drain.own_connections())
    }
}
