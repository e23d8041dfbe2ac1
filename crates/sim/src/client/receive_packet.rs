//! Packets that a client receives.

use mqtt::QoS::{AtLeastOnce, ExactlyOnce};
use mqtt::ReasonCode;

use super::{Await, Client, Kind, LONG, Session};
use crate::oracle::SHARE;
use crate::scene::Scene;
use testkit::packets::{Sent, puback, pubcomp, pubrec, pubrel};

/// Time by which a session may expire early, milliseconds: the client does not see the exact moment.
const EARLY_MS: u64 = 100;
/// Time by which a session may expire late, milliseconds.
const LATE_MS: u64 = 3_000;

impl Client {
    pub(super) fn receive_packet(&mut self, scene: &mut Scene, packet: Sent) {
        let Some(connection) = &mut self.connection else { return };
        if let Sent::ConnAck { session_present, reason } = packet {
            if reason != ReasonCode::Success {
                return; // A later connection of the client has taken over, or the disk has failed: the connection ends next.
            }
            return self.is_accepted(scene, session_present);
        }
        if matches!(packet, Sent::Disconnect { .. } | Sent::Closed) {
            return; // The connection ends next.
        }
        let Some(session) = &mut self.session else { panic!("{packet:?} before CONNACK") };
        match packet {
            Sent::PubAck(id, reason) => {
                let number = session.settle(id, Await::Ack, None).expect("PUBACK of a publish");
                answered(scene, number, reason);
            }
            Sent::PubRec(id, reason) => {
                let to = (!reason.is_error()).then_some(Await::Comp);
                if let Some(number) = session.settle(id, Await::Rec, to) {
                    answered(scene, number, reason);
                }
                if !reason.is_error() {
                    connection.to_send.push_back(pubrel(id));
                }
            }
            Sent::PubComp(id, _) => {
                session.settle(id, Await::Comp, None);
            }
            Sent::PubRel(id, reason) => {
                assert_eq!(reason, ReasonCode::Success);
                session.received.remove(&id);
                session.doubtful.remove(&id);
                connection.to_send.push_back(pubcomp(id));
            }
            Sent::Publish(message) => {
                scene.cx.report.redelivered += u64::from(message.dup);
                let is_new = match (message.qos, message.packet_id) {
                    (ExactlyOnce, Some(id)) => {
                        connection.to_send.push_back(pubrec(id));
                        match session.received.get(&id) {
                            Some(_) if session.doubtful.contains(&id) => {
                                scene.oracle.may_have_come(session.view, &message);
                                false
                            }
                            Some(payload) => {
                                assert!(
                                    message.dup,
                                    "{id} is not released, and comes without DUP: {message:?}"
                                );
                                let same = *payload == message.payload;
                                assert!(
                                    same,
                                    "{id} is not released, and comes with another message: {message:?}"
                                );
                                scene.cx.report.check_identifiers += 1;
                                false
                            }
                            None => session.received.insert(id, message.payload.clone()).is_none(),
                        }
                    }
                    (AtLeastOnce, Some(id)) => {
                        connection.to_send.push_back(puback(id));
                        true
                    }
                    _ => true,
                };
                let view = session.view;
                if is_new {
                    let time = scene.time_on(connection.link);
                    scene.oracle.arrives(&mut scene.cx.report, view, &message, time);
                }
            }
            Sent::SubAck(id, reasons) => {
                let at = connection
                    .asked
                    .iter()
                    .position(|(known, _)| *known == id)
                    .expect("SUBACK of a SUBSCRIBE");
                let (_, filters) = connection.asked.remove(at);
                assert_eq!(reasons.len(), filters.len());
                for ((filter, qos), reason) in filters.into_iter().zip(reasons) {
                    if !filter.is_empty() && !reason.is_error() {
                        scene.oracle.group_is_steady |=
                            self.kind == Kind::Steady && filter.starts_with(SHARE);
                        scene.oracle.is_granted(session.view, filter, qos);
                    }
                }
            }
            Sent::UnsubAck(id, _) => {
                let at = connection.asked.iter().position(|(known, _)| *known == id).expect("UNSUBACK");
                connection.asked.remove(at);
            }
            other => panic!("{} gets {other:?}", self.name),
        }
    }

    fn is_accepted(&mut self, scene: &mut Scene, session_present: bool) {
        let Some(connection) = &mut self.connection else { return };
        let time = scene.time_on(connection.link);
        connection.accepted = true;
        if connection.old {
            scene.cx.report.by_old_clients += 1;
        } else {
            scene.cx.report.by_new_clients += 1;
        }
        let (link, clean, expiry, began) =
            (connection.link, connection.clean, connection.expiry, connection.began);
        // The connection may have ended since CONNACK was sent.
        if scene.node.as_ref().is_some_and(|node| node.serves(link)) {
            self.served.push(link);
        }
        assert!(!(clean && session_present), "Clean Start finds a session");
        if clean {
            self.must_clean = false;
        }
        scene.oracle.will_is_accepted(link);
        for with_will in self.with_will.iter().filter(|with_will| session_present && **with_will != link) {
            scene.oracle.will_is_outlived(&mut scene.cx.report, *with_will, time);
        }
        if let Some(session) = &self.session {
            self.check_present(scene, session_present, session.expiry, began, time);
            if !session_present {
                scene.cx.report.expired += 1;
                self.end_session(scene);
            }
        }
        self.ended = None;
        if std::mem::take(&mut self.in_doubt)
            && let Some(session) = self.session.as_mut().filter(|session| session.expiry < LONG)
        {
            session.view = scene.oracle.renew(session.view);
            session.doubtful = session.received.keys().copied().collect();
            for (_, number, _, what) in &session.publishes {
                if *what == Await::Rec {
                    scene.oracle.may_come_twice(*number);
                }
            }
        }
        match &mut self.session {
            Some(session) => {
                scene.cx.report.resumed += 1;
                session.expiry = expiry;
                let view = scene.oracle.session(session.view);
                (view.connected, view.durable) = (true, expiry > 0);
                self.resumes(scene);
            }
            None => {
                let view = scene.oracle.new_session(scene.cx.now(), expiry > 0);
                scene.cx.log(|| format!("{} has session {view}", self.name));
                self.session = Some(Session::new(view, expiry));
            }
        }
        self.with_will.retain(|with_will| *with_will + 200 > link);
    }

    /// Asserts that the session exists until it expires, and not longer.
    fn check_present(&self, scene: &mut Scene, present: bool, expiry: u32, began: u64, time: u64) {
        let lasts = u64::from(expiry) * 1000;
        let report = &mut scene.cx.report;
        match self.ended {
            _ if expiry >= LONG => {
                assert!(present, "the session of {} is lost", self.name);
                report.check_session_present += 1;
            }
            None => {
                assert!(present, "the session of {} is lost after a takeover", self.name);
                report.check_session_present += 1;
            }
            Some((earliest, latest)) => {
                let may_end = time + EARLY_MS >= earliest + lasts;
                assert!(
                    present || may_end,
                    "the session of {} ended too early: {earliest} {time}",
                    self.name
                );
                let may_last = began <= latest + lasts + LATE_MS;
                assert!(
                    !present || may_last,
                    "the session of {} should have ended: {latest} {began}",
                    self.name
                );
                report.check_session_expired += u64::from(!present || !may_end);
            }
        }
    }

    /// Repeats what is not acknowledged [MQTT-4.4.0-1].
    fn resumes(&mut self, scene: &mut Scene) {
        let at = scene.time();
        let (Some(connection), Some(session)) = (&mut self.connection, &mut self.session) else { return };
        for (id, number, message, what) in &session.publishes {
            if *what == Await::Comp {
                connection.to_send.push_back(pubrel(*id));
            } else {
                scene.cx.report.repeated += 1;
                scene.oracle.repeat(*number, connection.link, at, connection.old);
                connection.to_send.push_back(message.clone().dup().into());
            }
        }
        // New publishes come after these.
        self.answers(scene, usize::MAX);
    }
}

fn answered(scene: &mut Scene, number: usize, reason: ReasonCode) {
    if reason.is_error() {
        let failed = scene.node.as_ref().is_some_and(|node| node.failed().is_some());
        let accounted =
            [ReasonCode::QuotaExceeded, ReasonCode::ImplementationSpecificError].contains(&reason);
        assert!(accounted, "message {number} is refused with {reason:?}");
        scene.cx.report.refused_when_full += u64::from(!failed);
        return scene.oracle.abandoned(number);
    }
    scene.oracle.acknowledged(number, scene.cx.now());
}
