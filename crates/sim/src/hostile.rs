//! A client that violates the protocol. It has no guarantees, and must not harm others.

use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};

use crate::net::Link;
use crate::scene::Scene;
use testkit::Endpoint;
use testkit::packets::{Message, Sent, goodbye, message, puback, pubcomp, pubrec, pubrel, subscribe, v5};

/// A client that acknowledges nothing or what was never sent, reuses Packet Identifiers, and sends garbage.
pub struct Hostile {
    pub number: usize,
    link: Option<Link>,
    /// Encoder only: answers are ignored.
    end: Endpoint,
}

impl Hostile {
    pub fn new(number: usize) -> Self {
        Self { number, link: None, end: Endpoint::new(mqtt::Version::V5) }
    }

    pub fn loses_link(&mut self, link: Link) {
        self.link.take_if(|own| *own == link);
    }

    /// Closes the connection for good.
    pub fn leaves(&mut self, scene: &mut Scene) {
        if let Some(link) = self.link.take() {
            scene.net.lose(&mut scene.cx, link);
        }
    }

    pub fn act(&mut self, scene: &mut Scene) {
        let Some(link) = self.link else { return self.connects(scene) };
        scene.cx.report.hostile += 1;
        let id = 1 + scene.cx.random.below(6) as u16;
        let publish = |qos| Message { packet_id: Some(id), qos, ..message("t/0", "x") };
        let packet: Sent = match scene.cx.random.below(14) {
            0 => puback(id),
            1 => pubrec(id),
            2 => pubrel(id),
            3 => pubcomp(id),
            4..=6 => publish(ExactlyOnce).into(),
            7..=8 => publish(AtLeastOnce).into(),
            9 => subscribe(id).to("t/#", ExactlyOnce).into(),
            10 => subscribe(id).to("+/+/#", AtMostOnce).into(),
            11 => return self.connects(scene),
            12 => goodbye(),
            _ => {
                let garbage =
                    (0..1 + scene.cx.random.below(40)).map(|_| scene.cx.random.draw() as u8).collect();
                return scene.send(link, garbage);
            }
        };
        self.send(scene, link, &packet);
    }

    /// Connects, perhaps while it is connected already.
    fn connects(&mut self, scene: &mut Scene) {
        let Some(link) = scene.connect(self.number) else { return };
        self.link = Some(link);
        self.end = Endpoint::new(mqtt::Version::V5);
        let mut connecting = v5(&format!("hostile {}", self.number)).expiry(30);
        connecting.clean_start = scene.cx.random.percent(20);
        self.send(scene, link, &connecting.into());
    }

    fn send(&mut self, scene: &mut Scene, link: Link, packet: &Sent) {
        let mut bytes = Vec::new();
        self.end.write(packet, &mut bytes);
        scene.send(link, bytes);
    }
}
