//! Messages that an action gives up.

use bridge::VIA;
use mqtt::{QoS, TopicName};

use super::outgoing::{self, Purpose};
use super::{Consumer, Failure, client_id, hops_of};
use crate::incoming::Incoming;
use crate::lane::Sequence;

impl Consumer {
    /// Passes a message with an output that failed to the dead letter topic and to the fallback.
    pub(super) fn settle(&mut self, sequence: Sequence, out: &mut Vec<u8>) {
        let at = sequence.checked_sub(self.first).map(|at| at as usize);
        let Some(pending) = at.and_then(|at| self.pending.get_mut(at)) else { return };
        if pending.open > 0 || pending.is_settled {
            return;
        }
        pending.is_settled = true;
        let (message, failure) = (pending.message.take(), pending.failure.take());
        let (Some(message), Some(failure)) = (message, failure) else { return };
        let plan = self.plan.clone();
        let mut hops = hops_of(&message);
        let is_loop = hops.contains(&self.hop) || hops.len() >= usize::from(plan.settings.hops_max);
        hops.push(self.hop.clone());
        let mut sent = 0;
        let dead_letter = plan.dead_letter_topic(&message.topic, failure.reason);
        let dead_letter = dead_letter.and_then(|topic| match topic {
            Ok(topic) => Some(topic),
            Err(error) => {
                self.last_error = Some(error.to_string());
                None
            }
        });
        let fallback = &*plan.settings.fallback;
        let fallback = (!fallback.is_empty())
            .then(|| format!("{}/{}", client_id(fallback), plan.namespace.of_broker(&message.topic)));
        if is_loop && (dead_letter.is_some() || fallback.is_some()) {
            self.counters.loops += 1;
        } else {
            if let Some(topic) = dead_letter {
                sent += 1;
                self.give_up(sequence, (&topic, None), &message, &failure, &hops, out);
            }
            if let Some(topic) = fallback {
                sent += 1;
                let origin = message.origin.to_value();
                self.give_up(sequence, (&topic, Some(&origin)), &message, &failure, &hops, out);
            }
        }
        if sent == 0 {
            self.counters.dropped += 1;
        }
    }

    /// Publishes a message that was given up.
    fn give_up(
        &mut self,
        sequence: Sequence,
        (topic, origin): (&str, Option<&str>),
        message: &Incoming,
        failure: &Failure,
        hops: &[String],
        out: &mut Vec<u8>,
    ) {
        if TopicName::parse(topic).is_err() {
            self.counters.dropped += 1;
            self.last_error =
                Some(format!("the topic `{topic}` for a message that was given up is too long"));
            return;
        }
        let name = self.plan.settings.name.clone();
        let own: Vec<_> = message.properties().user_properties().filter(|(name, _)| *name != VIA).collect();
        let mut properties: Vec<(&str, &str)> = hops.iter().map(|hop| (VIA, &**hop)).collect();
        if origin.is_none() {
            properties.extend([
                ("action", &*name),
                ("topic", &*message.topic),
                ("reason", failure.reason),
                ("error", &*failure.text),
                ("clientid", &*message.origin.client_id),
            ]);
        }
        properties.extend(own);
        let packet = outgoing::Message {
            topic,
            payload: &message.payload,
            qos: QoS::AtLeastOnce,
            retain: false,
            user_properties: &properties,
            passed_on: origin,
        };
        let at = sequence.checked_sub(self.first).map(|at| at as usize);
        if let Some(pending) = at.and_then(|at| self.pending.get_mut(at)) {
            let bytes = topic.len() + message.payload.len();
            pending.open += 1;
            pending.bytes += bytes;
            self.bytes += bytes;
        }
        let purpose = if origin.is_some() { Purpose::Fallback } else { Purpose::DeadLetter };
        let finished = self.outbound.publish(sequence, purpose, &packet, out);
        self.published(finished);
    }
}
