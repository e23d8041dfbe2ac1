//! Metrics of links to other clusters. Without links the families have no samples.

use crate::links::{LinkGiving, LinkStatus, LinkTaking};
use crate::metrics::{Kind, Text};

/// Writes what this node knows. `direction` is `in` for what this cluster takes, and `out` for what it gives.
pub fn cluster_links(text: &mut Text, statuses: &[LinkStatus]) {
    let help = "Whether the clusters are connected for this direction of the link: 1 or 0.";
    let mut family = text.family("meridian_cluster_link_connected", Kind::Gauge, help);
    for (link, taking) in taking(statuses) {
        family.sample(&labels(link, &taking.origin, "in"), f64::from(u8::from(taking.connected)));
    }
    for (link, giving) in giving(statuses) {
        family.sample(&labels(link, &giving.origin, "out"), f64::from(u8::from(giving.connected)));
    }
    let help = "Topic Filters that the taking cluster has subscribed to.";
    let mut family = text.family("meridian_cluster_link_filters", Kind::Gauge, help);
    for (link, taking) in taking(statuses) {
        family.sample(&labels(link, &taking.origin, "in"), taking.filters_subscribed as f64);
    }
    for (link, giving) in giving(statuses) {
        family.sample(&labels(link, &giving.origin, "out"), giving.filters as f64);
    }
    let help = "Messages that the link did not pass on, or that were dropped while they waited, by cause.";
    let mut family = text.family("meridian_cluster_link_dropped_total", Kind::Counter, help);
    for (link, taking) in taking(statuses) {
        for (cause, count) in taking.dropped.by_cause() {
            let [link, origin, direction] = labels(link, &taking.origin, "in");
            family.sample(&[link, origin, direction, ("cause", cause)], count as f64);
        }
    }
    for (link, giving) in giving(statuses) {
        let [link, origin, direction] = labels(link, &giving.origin, "out");
        family.sample(&[link, origin, direction, ("cause", "queue")], giving.dropped as f64);
    }
    of_taking(text, statuses);
    of_giving(text, statuses);
    let help = "Connections that were refused although they used the name of the link.";
    let mut family = text.family("meridian_cluster_link_refused_connections_total", Kind::Counter, help);
    for status in statuses {
        let count = status.refusal.as_ref().map_or(0, |refusal| refusal.count);
        family.sample(&[("link", &status.name)], count as f64);
    }
}

fn of_taking(text: &mut Text, statuses: &[LinkStatus]) {
    let mut each = |name: &str, kind, help: &str, figure: fn(&LinkTaking) -> u64| {
        let mut family = text.family(name, kind, help);
        for (link, taking) in taking(statuses) {
            family.sample(&[("link", link), ("origin", &taking.origin)], figure(taking) as f64);
        }
    };
    let help = "Whether the link has made no progress for more than 30 s: 1 or 0.";
    each("meridian_cluster_link_failing", Kind::Gauge, help, |taking| u64::from(taking.failing));
    let help = "Topic Filters that this cluster wants from the other one.";
    each("meridian_cluster_link_filters_wanted", Kind::Gauge, help, |taking| taking.filters_wanted);
    let help =
        "Topic Filters of these that stand for several ones of clients, which have more than filters_max.";
    each("meridian_cluster_link_filters_broader", Kind::Gauge, help, |taking| taking.filters_broader);
    let help = "Messages that this cluster took by the link.";
    each("meridian_cluster_link_messages_total", Kind::Counter, help, |taking| taking.messages);
    let help = "Bytes of the packets of these messages.";
    each("meridian_cluster_link_bytes_total", Kind::Counter, help, |taking| taking.bytes);
    let help = "Messages of the other cluster that this one refused for good.";
    each("meridian_cluster_link_refused_total", Kind::Counter, help, |taking| taking.refused);
    let help = "Times that the link connected again because this cluster refused a message for now.";
    each("meridian_cluster_link_postponed_total", Kind::Counter, help, |taking| taking.postponed);
    let help = "Subscriptions that the other cluster refused.";
    each("meridian_cluster_link_subscriptions_refused_total", Kind::Counter, help, |taking| {
        taking.filters_refused
    });
    let help = "Connections to the other cluster after the first one.";
    each("meridian_cluster_link_reconnects_total", Kind::Counter, help, |taking| taking.reconnects);
    let help = "Attempts to connect to the other cluster that failed.";
    each("meridian_cluster_link_failed_attempts_total", Kind::Counter, help, |taking| taking.failed_attempts);
    let help = "Times that the other cluster had lost the session of the link.";
    each("meridian_cluster_link_sessions_lost_total", Kind::Counter, help, |taking| {
        taking.remote_sessions_lost
    });
    let help = "Times that the other cluster continued from a backup.";
    each("meridian_cluster_link_restores_total", Kind::Counter, help, |taking| taking.restores);
    let help = "Times that the list of subscriptions of the other cluster was not received.";
    each("meridian_cluster_link_stale_filters_total", Kind::Counter, help, |taking| taking.stale_filters);
}

fn of_giving(text: &mut Text, statuses: &[LinkStatus]) {
    let mut each = |name: &str, help: &str, figure: fn(&LinkGiving) -> u64| {
        let mut family = text.family(name, Kind::Gauge, help);
        for (link, giving) in giving(statuses) {
            family.sample(&[("link", link), ("origin", &giving.origin)], figure(giving) as f64);
        }
    };
    let help = "Messages that wait for the other cluster.";
    each("meridian_cluster_link_queued_messages", help, |giving| giving.queued_messages);
    let help = "Bytes of the messages that wait for the other cluster.";
    each("meridian_cluster_link_queued_bytes", help, |giving| giving.queued_bytes);
    let help = "Age of the oldest message that waits for the other cluster.";
    each("meridian_cluster_link_oldest_age_seconds", help, |giving| giving.oldest_s.unwrap_or(0));
}

fn labels<'a>(link: &'a str, origin: &'a str, direction: &'a str) -> [(&'a str, &'a str); 3] {
    [("link", link), ("origin", origin), ("direction", direction)]
}

fn taking(statuses: &[LinkStatus]) -> impl Iterator<Item = (&str, &LinkTaking)> {
    statuses.iter().flat_map(|status| status.taking.iter().map(|taking| (&*status.name, taking)))
}

fn giving(statuses: &[LinkStatus]) -> impl Iterator<Item = (&str, &LinkGiving)> {
    statuses.iter().flat_map(|status| status.giving.iter().map(|giving| (&*status.name, giving)))
}
