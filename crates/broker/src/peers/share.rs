/// The members of a shared subscription group on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// How many: those that are connected when there are any, else sessions that are away.
    pub count: u32,
    /// Whether they are connected.
    pub are_connected: bool,
}

impl Members {
    pub const NONE: Self = Self { count: 0, are_connected: false };
}
