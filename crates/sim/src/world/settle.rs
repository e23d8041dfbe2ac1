//! End of a simulation: without further faults, all messages arrive, and the oracle checks them.

use std::collections::BTreeMap;

use mqtt::QoS;

use super::World;
use crate::net::Link;
use crate::schedule::{Event, SECOND};
use testkit::Endpoint;
use testkit::packets::{Sent, subscribe, v5};

/// Client that reads all retained messages.
pub struct Reader {
    pub link: Link,
    pub end: Endpoint,
}

/// Maximum number of seconds until all messages have arrived.
const PATIENCE: usize = 240;
/// Seconds of silence. Longer than the longest delay of a Will.
const SILENCE: usize = 14;

impl World {
    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        let scene = &mut self.scene;
        scene.cx.log(|| "healing".to_owned());
        scene.healing = true;
        scene.cx.has_slow_reads = false;
        scene.net.calm = true;
        // Hostile clients would occupy queue slots that publishers wait for.
        self.hostile.iter_mut().for_each(|hostile| hostile.leaves(scene));
        let off = self.cut_at.is_some_and(|at| scene.machine.disk.operations() >= at);
        if !off {
            self.cut_at = None;
            scene.machine.mend();
        }
        let failed = scene.node.as_ref().is_some_and(|node| node.failed().is_some());
        if off || failed {
            self.cut();
        } else if scene.node.is_none() {
            scene.cx.after(0, Event::Start);
        }
    }

    /// Runs until nothing happens any more.
    pub(super) fn settle(&mut self) {
        let mut silent = 0;
        for _ in 0..PATIENCE {
            let until = self.scene.cx.now() + SECOND;
            self.run_until(until);
            let mut quiet = self.scene.node.is_some();
            for client in &mut self.clients {
                quiet &= client.is_quiet() & !std::mem::take(&mut client.has_received);
            }
            silent = if quiet { silent + 1 } else { 0 };
            if silent >= if self.plan.is_slow_with_retained() { 3 * SILENCE } else { SILENCE } {
                return;
            }
        }
        self.clients.iter().for_each(|client| client.check_all_answered(&mut self.scene));
        panic!("clients never become quiet");
    }

    pub(super) fn check(&mut self) {
        let scene = &mut self.scene;
        self.clients.iter().for_each(|client| client.check_all_answered(scene));
        for (_, link) in std::mem::take(&mut self.taken_back) {
            scene.oracle.will_is_taken_back(&mut scene.cx.report, link);
        }
        scene.oracle.check_all_arrived(&mut scene.cx.report);
        if let Some(node) = &scene.node {
            node.check_invariants(&mut scene.cx);
        }
        let found = self.read_retained();
        self.scene.oracle.check_retained(&mut self.scene.cx.report, &found);
    }

    /// Retained messages that a new subscriber finds.
    fn read_retained(&mut self) -> BTreeMap<String, String> {
        let number = self.clients.len() + self.hostile.len();
        let link = self.scene.connect(number).expect("the node runs");
        let mut end = Endpoint::new(mqtt::Version::V5);
        let mut bytes = Vec::new();
        end.write(&v5("reader").into(), &mut bytes);
        end.write(&subscribe(1).to("r/#", QoS::AtMostOnce).into(), &mut bytes);
        self.scene.send(link, bytes);
        self.reader = Some(Reader { link, end });
        let time = if self.plan.is_slow_with_retained() { 20 * SECOND } else { 2 * SECOND };
        let until = self.scene.cx.now() + time;
        self.run_until(until);
        let mut reader = self.reader.take().expect("the reader was set");
        let mut found = BTreeMap::new();
        for packet in reader.end.received() {
            if let Sent::Publish(message) = packet {
                assert!(message.retain);
                let before = found.insert(message.topic, message.payload);
                assert!(before.is_none(), "one retained message a topic");
            }
        }
        self.scene.net.lose(&mut self.scene.cx, link);
        found
    }

    /// Cuts the power once more: all delivered state is durable, so nothing changes.
    pub(super) fn crash_once_more(&mut self) {
        self.check_limits();
        if self.plan.is_slow_with_retained() {
            // The power is cut before all retained messages have arrived.
            self.clients.iter_mut().for_each(|client| client.asks_for_retained(&mut self.scene));
            let until = self.scene.cx.now() + self.scene.cx.between(SECOND / 10, 2 * SECOND);
            self.run_until(until);
        }
        self.cut();
    }

    /// Asserts that missing messages were dropped by rule and counted.
    fn check_limits(&mut self) {
        let missing = self.scene.oracle.missing_by_rule;
        let dropped = self.dropped + self.scene.node.as_ref().map_or(0, |node| node.dropped());
        // Messages that were dropped in the last second of an incarnation are not counted.
        if self.plan.tight && self.incarnations == 1 {
            assert!(missing <= dropped, "{missing} messages are missing, {dropped} were dropped by rule");
            self.scene.cx.report.check_limits += missing;
        }
    }
}
