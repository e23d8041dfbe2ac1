//! A client of a cluster that keeps to no rules. Nothing is promised to it; what it does must not harm others.

use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};

use super::oracle::NOISE;
use super::world::SimCluster;
use crate::endpoint::Endpoint;
use crate::net::{Direction, Link};
use crate::packets::{Message, Sent, goodbye, message, puback, pubcomp, pubrec, pubrel, subscribe, v5};
use crate::schedule::{Event, MILLI, SECOND};

/// Never acknowledges, acknowledges what was never sent, reuses identifiers, sends garbage.
#[derive(Default)]
pub struct Hostile {
    pub link: Option<Link>,
}

/// As clients are numbered.
pub const HOSTILE: usize = usize::MAX;

impl SimCluster {
    /// The one that there may be does something.
    pub(super) fn act_hostile(&mut self) {
        if self.is_healing {
            // It is gone for good.
            if let Some(link) = self.hostile.link.take() {
                self.net.lose(&mut self.cx, link);
            }
            return;
        }
        let delay = self.cx.between(MILLI, SECOND / 2);
        self.cx.after(delay, Event::Act { client: HOSTILE });
        self.cx.report.cluster_hostile += 1;
        let Some(link) = self.hostile.link else {
            let node = self.cx.random.below(self.members.len());
            let Some(process) = &mut self.members[node].process else { return };
            let link = self.net.open(HOSTILE);
            self.homes.insert(link, (node, process.node.incarnation()));
            process.node.open(&mut self.cx, link);
            self.hostile.link = Some(link);
            return self.send_hostile(link, &v5("hostile").into());
        };
        let random = &mut self.cx.random;
        let id = 1 + random.below(6) as u16;
        let publish = |qos, topic| Message { packet_id: Some(id), qos, ..message(topic, NOISE) };
        let packet = match random.below(14) {
            0 => puback(id),
            1 => pubrec(id),
            2 => pubrel(id),
            3 => pubcomp(id),
            4..=5 => publish(ExactlyOnce, "t/0").into(),
            6 => publish(ExactlyOnce, "g/0").into(),
            7..=8 => publish(AtLeastOnce, "g/1").into(),
            9 => subscribe(id).to("t/#", ExactlyOnce).into(),
            10 => subscribe(id).to("+/+/#", AtMostOnce).into(),
            11 => goodbye(),
            _ => {
                let garbage = (0..1 + random.below(40)).map(|_| random.draw() as u8).collect();
                return self.net.send(&mut self.cx, link, Direction::ToNode, garbage);
            }
        };
        self.send_hostile(link, &packet);
    }

    fn send_hostile(&mut self, link: Link, packet: &Sent) {
        let mut bytes = Vec::new();
        // Only to encode with: it does not care what comes.
        Endpoint::new(mqtt::Version::V5).write(packet, &mut bytes);
        self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
    }
}
