//! Settings, brokers and faults of one run.

use std::time::Duration;

use bridge::{
    AddressOrder, AddressSessions, Backoff, Direction, InterestSettings, Notifications, Settings, Topic,
};
use mqtt::{QoS, Version};
use random::Random;

use super::broker::Caps;
use super::report::Report;

/// Choices that are drawn before a run.
pub struct Plan {
    pub settings: Settings,
    pub local: Caps,
    pub remote: Caps,
    /// Each address is a broker of its own.
    pub is_separate: bool,
    pub faults: Faults,
}

/// Faults of a run.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub cuts: bool,
    pub kills: bool,
    pub remote_sessions: bool,
    pub local_sessions: bool,
    pub stalls: bool,
    /// A broker refuses all messages for some time.
    pub refusals: bool,
    /// The bridge is stopped and started, and gets new settings.
    pub operator: bool,
    /// Faults in 1,000 steps.
    pub rate: usize,
}

pub const QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

impl Plan {
    pub fn draw(random: &mut Random, report: &mut Report) -> Self {
        let version = if random.percent(40) { Version::V3_1_1 } else { Version::V5 };
        let is_v5 = version == Version::V5;
        report.add(if is_v5 { "runs of 5.0" } else { "runs of 3.1.1" });
        let mut settings = Settings::new("b", "remote-1");
        settings.addresses.push("remote-2".into());
        settings.version = version;
        settings.keep_alive = 5;
        let is_separate = random.percent(10);
        settings.address_sessions =
            if is_separate { AddressSessions::Separate } else { AddressSessions::Shared };
        settings.address_order = *random.pick(&[AddressOrder::Ordered, AddressOrder::RoundRobin]);
        if is_separate {
            report.add("runs with separate sessions");
            settings.address_order = AddressOrder::RoundRobin;
        }
        settings.packet_size_max = 1_100;
        settings.in_flight = 1 + random.below(12) as u16;
        settings.outgoing_max = 50 + random.below(2000);
        settings.notifications = Notifications { local: Some("state".into()), remote: Some("state".into()) };
        settings.backoff = Backoff {
            min: Duration::from_millis(100),
            max: Duration::from_secs(2),
            stable: Duration::from_secs(1),
        };
        let any_qos =
            |random: &mut Random| if random.percent(80) { QoS::ExactlyOnce } else { *random.pick(&QOS) };
        settings.topics = vec![
            Topic::prefixed("out/#", Direction::Out, any_qos(random), "", "site/"),
            Topic::prefixed("in/#", Direction::In, any_qos(random), "plant/", ""),
            Topic::remapped("both/+/x", "x/+/both", Direction::Both, QoS::ExactlyOnce),
        ];
        let knows_bridges = is_v5 || random.percent(80);
        if !knows_bridges {
            settings.topics.pop();
        }
        if is_v5 && random.percent(50) {
            report.add("runs with subscriptions that change");
            let qos = any_qos(random);
            settings.topics = vec![Topic::prefixed("#", Direction::In, qos, "plant/", "")];
            let interest = InterestSettings::new("own", "far", None);
            let requests_max = 1 + random.below(8);
            settings.interest = Some(InterestSettings { qos, requests_max, ..interest });
        }
        let local = Caps {
            receive_maximum: 2 + random.below(12) as u16,
            maximum_qos: QoS::ExactlyOnce,
            packet_size_max: 800,
            in_flight: 12,
            ids_max: 4 + random.below(20) as u16,
            knows_bridges: true,
        };
        let lowers = is_v5 && random.percent(15);
        let remote = Caps {
            receive_maximum: if is_v5 { 1 + random.below(12) as u16 } else { 65_535 },
            maximum_qos: if lowers { *random.pick(&QOS[..2]) } else { QoS::ExactlyOnce },
            packet_size_max: if is_v5 { 800 } else { 100_000 },
            in_flight: 1 + random.below(20),
            ids_max: 4 + random.below(20) as u16,
            knows_bridges,
        };
        if lowers {
            report.add("runs with a lower maximum QoS");
        }
        let mut faults = Faults {
            cuts: random.percent(80),
            kills: random.percent(50),
            remote_sessions: random.percent(if settings.interest.is_some() { 35 } else { 18 }),
            local_sessions: random.percent(7),
            stalls: random.percent(60),
            refusals: random.percent(40),
            operator: random.percent(50),
            rate: 5 + random.below(40),
        };
        if faults.kills && (faults.remote_sessions || faults.local_sessions) {
            faults.kills = random.percent(40);
            // A process that does not know the identifiers releases all of them: 262 kB. A small bound takes long.
            settings.outgoing_max += 20_000;
        }
        Self { settings, local, remote, is_separate, faults }
    }
}
