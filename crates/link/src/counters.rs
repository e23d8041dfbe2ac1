use crate::lane::Class;

/// Counters of a link since it was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    classes: [ClassCounters; Class::ALL.len()],
    /// Bytes of records of any kind, with their headers.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Connections that became channels.
    pub attached: u64,
    /// Channels that were silent for too long.
    pub silent: u64,
    /// Times that the peer had forgotten the link.
    pub restarts: u64,
}

/// Counters of one class of lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassCounters {
    /// Frames written to a channel, including retransmissions.
    pub sent: u64,
    pub sent_bytes: u64,
    /// Frames written again because the channel that carried them was lost.
    pub retransmitted: u64,
    pub received: u64,
    pub received_bytes: u64,
    /// Frames refused because their class was full.
    pub refused: u64,
    /// Frames that were lost with a channel, or that the peer forgot by a restart.
    pub lost: u64,
    /// Times that frames had to wait for credit.
    pub stalled: u64,
}

impl Counters {
    pub fn of(&self, class: Class) -> &ClassCounters {
        &self.classes[class as usize]
    }

    pub(crate) fn at(&mut self, class: Class) -> &mut ClassCounters {
        &mut self.classes[class as usize]
    }
}
