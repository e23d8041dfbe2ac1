//! The command `pubsub` in the style of emqtt-bench: runs the checker's flow, which accounts for every message, with
//! these options.

use crate::config::{Config, SetupError};
use crate::pace::Pace;
use crate::plan::Plan;
use crate::topology::Topology;

/// Default duration of publishing.
pub const DURATION: std::time::Duration = std::time::Duration::from_secs(10);

/// Returns whether every publisher has its own topic.
pub fn is_paired(plan: &Plan) -> bool {
    plan.topics.iter().any(|topic| ["%i", "%c"].iter().any(|name| topic.contains(name)))
}

/// Configuration of the flow. Every publisher has the subscriber of the same number, or, without a number in the
/// topic, all of them.
pub(crate) fn config(plan: &Plan) -> Result<Config, SetupError> {
    let mut cfg = plan.config()?;
    let per_s = match &plan.pace {
        Pace::Every(interval) if !interval.is_zero() => plan.count as f64 / interval.as_secs_f64(),
        _ => 0.0,
    };
    // In the topic, %c is one Client Identifier for both ends; the sessions need two.
    let expand = |topic: &String| {
        topic
            .replace(
                "%c",
                &if plan.client_id.contains("%i") {
                    plan.client_id.clone()
                } else {
                    plan.client_id.clone() + "%i"
                },
            )
            .replace("%u", plan.username.as_deref().unwrap_or(""))
    };
    cfg.plain = None;
    cfg.n_sub = plan.count;
    cfg.n_pub = plan.count;
    cfg.pub_topic = plan.topics.first().map(expand).unwrap_or_default();
    cfg.sub_topics = vec![cfg.pub_topic.clone()];
    cfg.topology = if is_paired(plan) { Topology::OneToOne } else { Topology::All };
    cfg.sub_prefix = format!("{}s", plan.client_id);
    cfg.pub_prefix = format!("{}p", plan.client_id);
    cfg.payload = plan.size.max(crate::tag::LONG);
    cfg.rate = per_s;
    cfg.window = plan.inflight;
    cfg.verify = true;
    cfg.connect_retries = plan.connect_retries;
    cfg.reconnects = 0;
    Ok(cfg)
}
