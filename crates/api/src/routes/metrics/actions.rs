//! Metrics of actions. Without actions the families have no samples.

use crate::actions::ActionStatus;
use crate::metrics::{Kind, Text};

pub fn actions(text: &mut Text, statuses: &[ActionStatus]) {
    let mut each = |name: &str, kind, help: &str, figure: fn(&ActionStatus) -> u64| {
        let mut family = text.family(name, kind, help);
        statuses.iter().for_each(|status| family.sample(&[("action", &status.name)], figure(status) as f64));
    };
    let help = "Whether the action has written nothing for more than 30 s although records wait: 1 or 0.";
    each("meridian_action_failing", Kind::Gauge, help, |status| u64::from(status.failing));
    let help = "Messages that wait in the session of the action.";
    each("meridian_action_queued_messages", Kind::Gauge, help, |status| status.queued_messages);
    let help = "Bytes of the messages that wait in the session of the action.";
    each("meridian_action_queued_bytes", Kind::Gauge, help, |status| status.queued_bytes);
    let help = "Time that the oldest message in the session of the action has waited.";
    each("meridian_action_oldest_age_seconds", Kind::Gauge, help, |status| status.oldest_s.unwrap_or(0));
    let help = "Messages that the action works on.";
    each("meridian_action_in_flight_messages", Kind::Gauge, help, |status| status.in_flight);
    let help = "Messages that the action received.";
    each("meridian_action_received_total", Kind::Counter, help, |status| status.received);
    let help = "Messages that the rule of the action did not select.";
    each("meridian_action_not_selected_total", Kind::Counter, help, |status| status.not_selected);
    let help = "Records that the action made.";
    each("meridian_action_records_total", Kind::Counter, help, |status| status.records);
    let help = "Records that the other system, or this broker, has confirmed.";
    each("meridian_action_written_total", Kind::Counter, help, |status| status.written);
    let help = "Bytes of the records that were confirmed.";
    each("meridian_action_bytes_total", Kind::Counter, help, |status| status.bytes);
    let help = "Batches that were written.";
    each("meridian_action_batches_total", Kind::Counter, help, |status| status.batches);
    let help = "Attempts to write that were repeated.";
    each("meridian_action_retries_total", Kind::Counter, help, |status| status.retries);

    let help = "Records and messages that were dropped for good, by reason: given up without a fallback and a dead \
        letter topic, in a queue that was full or where they had waited for too long, or of QoS 0 without room.";
    let mut family = text.family("meridian_action_dropped_total", Kind::Counter, help);
    for status in statuses {
        let (queue, qos0) = (status.dropped_queue, status.dropped_qos0);
        let given_up = status.dropped.saturating_sub(queue + qos0);
        for (reason, value) in [("given_up", given_up), ("queue", queue), ("qos0", qos0)] {
            family.sample(&[("action", &status.name), ("reason", reason)], value as f64);
        }
    }
    let help = "Messages and records that could not be written, by reason. Some went to the fallback or the dead \
        letter topic, and the others were dropped.";
    let mut family = text.family("meridian_action_failures_total", Kind::Counter, help);
    for status in statuses {
        for (reason, value) in [
            ("evaluation", status.evaluation_errors),
            ("template", status.render_errors),
            ("refused", status.refused),
            ("expired", status.expired),
            ("failed", status.given_up),
            ("loop", status.loops),
        ] {
            family.sample(&[("action", &status.name), ("reason", reason)], value as f64);
        }
    }
    let help = "Messages and records that could not be written and were kept elsewhere, by destination.";
    let mut family = text.family("meridian_action_diverted_total", Kind::Counter, help);
    for status in statuses {
        for (to, value) in [("dead_letter", status.dead_letters), ("fallback", status.fallbacks)] {
            family.sample(&[("action", &status.name), ("to", to)], value as f64);
        }
    }
}
