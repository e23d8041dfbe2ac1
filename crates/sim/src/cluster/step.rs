/// What only happens where there are several nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A node's process starts.
    Start {
        node: usize,
    },
    /// The thread that joins a node to the others has something to do.
    Turn {
        incarnation: u32,
    },
    /// The next piece arrives at one end of a connection between nodes.
    Carry {
        wire: usize,
        end: usize,
    },
    /// Somebody's wish to connect reaches a node.
    Dial {
        wire: usize,
    },
    /// The answer to it.
    Dialed {
        wire: usize,
        is_there: bool,
    },
    /// An end learns that the connection is gone.
    Broken {
        wire: usize,
        end: usize,
    },
    /// The connections between two nodes are lost, and again a while later, until then.
    Flap {
        one: usize,
        other: usize,
        until: u64,
    },
    /// Somebody who is no node says something to one; has been turned away by now.
    Intrude {
        unauthenticated: usize,
    },
    CheckRejected {
        unauthenticated: usize,
    },
    /// A node whose disk has failed is started again.
    End {
        incarnation: u32,
    },
    /// There is room on a node's disk again.
    Room {
        node: usize,
    },
    /// An operator changes something that the cores agree on.
    Operate,
    /// A node is switched off for long.
    BeginLongOutage {
        node: usize,
    },
    /// Somebody goes by the name of a node that may be dead.
    Impersonate,
    /// A client that had stopped goes on.
    Resume {
        client: usize,
        link: crate::net::Link,
    },
}
