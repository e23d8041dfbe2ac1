//! Metrics of bridges to other brokers. Without bridges the families have no samples.

use crate::bridges::BridgeView;
use crate::metrics::{Kind, Text};

pub fn bridges(text: &mut Text, views: &[BridgeView]) {
    let mut each = |name: &str, kind, help: &str, figure: fn(&BridgeView) -> u64| {
        let mut family = text.family(name, kind, help);
        views.iter().for_each(|view| family.sample(&[("bridge", &view.name)], figure(view) as f64));
    };
    let help = "Whether the bridge is connected to the other broker: 1 or 0.";
    each("meridian_bridge_connected", Kind::Gauge, help, |view| u64::from(view.connected));
    let help = "Whether the bridge has made no progress for more than 30 s: 1 or 0.";
    each("meridian_bridge_failing", Kind::Gauge, help, |view| u64::from(view.failing));
    let help = "Messages that wait in the session of the bridge.";
    each("meridian_bridge_queued_messages", Kind::Gauge, help, |view| view.queued_messages);
    let help = "Bytes of these messages.";
    each("meridian_bridge_queued_bytes", Kind::Gauge, help, |view| view.queued_bytes);
    let help = "Time that the oldest of these messages has waited; 0 while none waits.";
    each("meridian_bridge_oldest_age_seconds", Kind::Gauge, help, |view| view.oldest_s.unwrap_or(0));
    let help = "Messages that one of the brokers refused for good.";
    each("meridian_bridge_refused_total", Kind::Counter, help, |view| view.refused);
    let help = "Times that the bridge connected again because a broker refused a message for now.";
    each("meridian_bridge_postponed_total", Kind::Counter, help, |view| view.postponed);
    let help = "Connections to the other broker after the first one.";
    each("meridian_bridge_reconnects_total", Kind::Counter, help, |view| view.reconnects);
    let help = "Times that the other broker had lost the session of the bridge.";
    each("meridian_bridge_sessions_lost_total", Kind::Counter, help, |view| view.remote_sessions_lost);
    let help = "Messages that the bridge did not pass on, or that its queue has dropped, by cause.";
    let mut family = text.family("meridian_bridge_dropped_total", Kind::Counter, help);
    for view in views {
        for (cause, count) in view.dropped_by_cause.by_cause() {
            family.sample(&[("bridge", &view.name), ("cause", cause)], count as f64);
        }
    }
    let mut both = |name: &str, kind, help: &str, figure: fn(&BridgeView) -> [u64; 2]| {
        let mut family = text.family(name, kind, help);
        for view in views {
            for (direction, value) in ["out", "in"].into_iter().zip(figure(view)) {
                family.sample(&[("bridge", &view.name), ("direction", direction)], value as f64);
            }
        }
    };
    let help = "Messages that are not complete, by direction.";
    both("meridian_bridge_in_flight_messages", Kind::Gauge, help, |view| {
        [view.in_flight_out, view.in_flight_in]
    });
    let help = "Messages that the bridge passed on, by direction.";
    both("meridian_bridge_messages_total", Kind::Counter, help, |view| [view.messages_out, view.messages_in]);
    let help = "Bytes of these messages, as packets.";
    both("meridian_bridge_bytes_total", Kind::Counter, help, |view| [view.bytes_out, view.bytes_in]);
}
