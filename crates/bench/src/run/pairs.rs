//! The command `pubsub` in the style of emqtt-bench: runs the checker's flow, which accounts for every message, with
//! these options.

use crate::config::{Config, Reconnect, SetupError};
use crate::pace::Pace;
use crate::plan::Plan;
use crate::topology::Topology;

/// Default duration of publishing.
pub const DURATION: std::time::Duration = std::time::Duration::from_secs(10);

/// Returns whether every publisher has its own topic.
pub fn is_paired(plan: &Plan) -> bool {
    plan.messages.topics.iter().any(|topic| ["%i", "%c"].iter().any(|name| topic.contains(name)))
}

/// Configuration of the flow. Every publisher has the subscriber of the same number, or, without a number in the
/// topic, all of them.
pub(crate) fn config(plan: &Plan) -> Result<Config, SetupError> {
    let mut cfg = plan.config()?;
    let per_s = match &plan.schedule.pace {
        Pace::Every(interval) if !interval.is_zero() => plan.clients.count as f64 / interval.as_secs_f64(),
        _ => 0.0,
    };
    // In the topic, %c is one Client Identifier for both ends; the sessions need two.
    let expand = |topic: &String| {
        topic
            .replace(
                "%c",
                &if plan.clients.id.contains("%i") {
                    plan.clients.id.clone()
                } else {
                    plan.clients.id.clone() + "%i"
                },
            )
            .replace("%u", plan.clients.username.as_deref().unwrap_or(""))
    };
    cfg.plain = None;
    cfg.traffic.n_sub = plan.clients.count;
    cfg.traffic.n_pub = plan.clients.count;
    cfg.traffic.pub_topic = plan.messages.topics.first().map(expand).unwrap_or_default();
    cfg.traffic.sub_topics = vec![cfg.traffic.pub_topic.clone()];
    cfg.traffic.topology = if is_paired(plan) { Topology::OneToOne } else { Topology::All };
    cfg.identity.sub_prefix = format!("{}s", plan.clients.id);
    cfg.identity.pub_prefix = format!("{}p", plan.clients.id);
    cfg.traffic.payload = plan.messages.size.max(crate::tag::LONG);
    cfg.sending.rate = per_s;
    cfg.sending.window = plan.messages.inflight;
    cfg.checks.verify = true;
    cfg.connecting.reconnect = Reconnect::Limited { first: plan.connecting.retries, later: 0 };
    Ok(cfg)
}
