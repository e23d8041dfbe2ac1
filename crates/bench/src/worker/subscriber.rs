//! State of a subscriber's received messages.

use super::connection::Received;
use crate::config::Config;
use crate::topology::Topology;
use crate::track::Stream;

/// Messages that a subscriber received, by publisher.
pub struct Subscriber {
    /// Publishers of the subscriber: `base`, `base + stride`, ... `count` of them.
    pub base: usize,
    pub stride: usize,
    pub count: usize,
    pub streams: Vec<Stream>,
    /// Highest sequence number + 1 by publisher; shared topology only.
    pub last: Vec<u64>,
    pub group: usize,
    pub received: Received,
}

impl Subscriber {
    /// Subscriber `id` of the run.
    pub fn new(cfg: &Config, id: usize) -> Subscriber {
        let traffic = &cfg.traffic;
        let (base, stride, count) = traffic.topology.publishers_of(id, traffic.n_pub, traffic.n_sub);
        let shared = traffic.topology == Topology::Shared;
        Subscriber {
            base,
            stride,
            count,
            streams: if shared { vec![] } else { vec![Stream::default(); count] },
            last: if shared { vec![0; count] } else { vec![] },
            group: id % traffic.groups.max(1),
            received: Received::default(),
        }
    }

    /// Index of a publisher among those of this subscriber.
    #[inline]
    pub fn index_of(&self, publisher: usize) -> Option<usize> {
        let index = if self.stride == 1 {
            publisher.wrapping_sub(self.base)
        } else if publisher >= self.base && (publisher - self.base).is_multiple_of(self.stride) {
            (publisher - self.base) / self.stride
        } else {
            usize::MAX
        };
        (index < self.count).then_some(index)
    }
}
