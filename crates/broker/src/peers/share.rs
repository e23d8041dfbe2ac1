/// The members of a shared subscription group on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Number of connected members if there are any, else of absent durable sessions.
    pub count: u32,
    /// True when the counted members are connected.
    pub are_connected: bool,
}

impl Members {
    pub const NONE: Self = Self { count: 0, are_connected: false };
}
