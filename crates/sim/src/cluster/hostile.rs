//! A client of a cluster that violates the protocol. It has no guarantees, and must not harm others.

use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};

use super::oracle::NOISE;
use super::world::SimCluster;
use crate::net::{Direction, Link};
use crate::schedule::{Event, MILLI, SECOND};
use testkit::Endpoint;
use testkit::packets::{Message, Sent, goodbye, message, puback, pubcomp, pubrec, pubrel, subscribe, v5};

/// A client that acknowledges nothing or what was never sent, reuses Packet Identifiers, and sends garbage.
#[derive(Default)]
pub struct Hostile {
    pub link: Option<Link>,
}

/// Client number of the hostile client.
pub const HOSTILE: usize = usize::MAX;

impl SimCluster {
    /// Lets the hostile client do one random action.
    pub(super) fn act_hostile(&mut self) {
        if self.is_healing {
            // The hostile client never comes back.
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
        // The endpoint only encodes: answers are ignored.
        Endpoint::new(mqtt::Version::V5).write(packet, &mut bytes);
        self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
    }
}
