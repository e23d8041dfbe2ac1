//! Numbers of requests. By them, a command that comes again is recognised.

use crate::command::{Claim, Command};
use crate::eras::NodeIncarnation;

/// Maximum number of lanes of an owner.
pub const LANES_MAX: u16 = 64;

/// Number of a command that a node of a cluster has requested.
///
/// When the leader of a shard changes, a node sends its unanswered requests again, in order. Some of them may have
/// been applied. Such a command changes nothing and is answered again. A request that becomes several commands has a
/// number for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestNumber {
    /// Number of a Claim with an owner. The owner uses it for no other Claim. Claims may be proposed in any order. Of
    /// each owner the shard remembers the last [`CLAIMS_MAX`](crate::CLAIMS_MAX) Claims, so that no owner has more
    /// that are unanswered.
    Claim { number: u64 },
    /// Number of a Publish, Retain, Enqueue, Forget, ForgetBelow or ForgetOrigin. Numbers grow from one command of a
    /// lane to the next, in the order in which they are proposed. `lane` is less than [`LANES_MAX`]. `owner.node` is
    /// not 0.
    Lane { owner: NodeIncarnation, lane: u16, number: u64 },
    /// Number of a command with an epoch, or of a Walk. Numbers start at 1 with each epoch of a session, and grow
    /// from one command to the next.
    Connection { epoch: u32, number: u64 },
}

const _: () = assert!(size_of::<Option<RequestNumber>>() <= 32, "each decoded command has room for one");

impl RequestNumber {
    /// Returns whether a command may have this number. [`BatchBuilder`](crate::BatchBuilder) accepts no other one, so
    /// what another node sends is checked first.
    pub fn fits(&self, command: &Command<'_>) -> bool {
        match *self {
            Self::Claim { .. } => match command {
                Command::Claim(Claim { owner, .. }) => owner.is_some_and(|owner| owner.node > 0),
                _ => false,
            },
            Self::Lane { owner, lane, number } => {
                let is_of_lane = matches!(
                    command,
                    Command::Publish { .. }
                        | Command::Retain { .. }
                        | Command::RetainIfLater { .. }
                        | Command::Enqueue(_)
                        | Command::Forget(_)
                        | Command::ForgetBelow(_)
                        | Command::ForgetOrigin { .. }
                );
                is_of_lane && number > 0 && lane < LANES_MAX && owner.node > 0
            }
            Self::Connection { epoch, number } => {
                let fits = |(_, own): (_, Option<u32>)| own.is_none_or(|own| own == epoch);
                number > 0 && epoch > 0 && command.of_session().is_some_and(fits)
            }
        }
    }
}
