/// Event that occurs in simulated clusters only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Starts a node's process.
    Start { node: usize },
    /// Runs a turn of a node's cluster router.
    Turn { incarnation: u32 },
    /// Delivers the next piece to one end of a connection between nodes.
    Carry { wire: usize, end: usize },
    /// Delivers a connection attempt to a node.
    Dial { wire: usize },
    /// Delivers the answer to a connection attempt.
    Dialed { wire: usize, is_there: bool },
    /// Reports the loss of a connection to one end.
    Broken { wire: usize, end: usize },
    /// Loses the connections between two nodes, repeatedly until a time.
    Flap { one: usize, other: usize, until: u64 },
    /// Lets an unauthenticated peer send something.
    Intrude { unauthenticated: usize },
    /// Checks that an unauthenticated peer was rejected.
    CheckRejected { unauthenticated: usize },
    /// Restarts a node whose disk has failed.
    End { incarnation: u32 },
    /// Removes the limit of room on a node's disk.
    Room { node: usize },
    /// Lets an operator change something in the cluster.
    Operate,
    /// Switches a node off for long.
    BeginLongOutage { node: usize },
    /// Lets an unauthenticated peer use the name of a node that may be dead.
    Impersonate,
    /// Resumes a client that had stopped.
    Resume { client: usize, link: crate::net::Link },
}
