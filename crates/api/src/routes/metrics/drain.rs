//! Metrics of the drain of this node. Without one the families have no samples.

use crate::drains::DrainView;
use crate::metrics::{Kind, Text};

pub fn drain(text: &mut Text, view: Option<&DrainView>) {
    let mut one = |name: &str, help: &str, figure: fn(&DrainView) -> f64| {
        let mut family = text.family(name, Kind::Gauge, help);
        if let Some(view) = view {
            family.sample(&[("kind", view.kind)], figure(view));
        }
    };
    let help = "Clients that a drain of this node has not disconnected yet.";
    one("meridian_drain_clients_left", help, |view| view.clients_left as f64);
    let help = "Clients that a drain of this node has disconnected.";
    one("meridian_drain_disconnected", help, |view| view.disconnected as f64);
    let help = "Seconds since a drain of this node that is not done has made no progress.";
    one("meridian_drain_stalled_seconds", help, |view| view.stalled_s as f64);
}
