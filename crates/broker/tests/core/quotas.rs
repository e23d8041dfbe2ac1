//! What belongs to all: one client, one user or one mountpoint takes a part of it, and never everything.

use mqtt::ReasonCode;
use mqtt::Version::V5;

use crate::net::everywhere_with;
use sim::packets::*;

#[test]
fn one_user_leaves_connections_to_others() {
    everywhere_with(
        |settings| settings.quota.user_percent = 50,
        |net| {
            net.node.set_connections_max(8);
            let own: Vec<_> = (0..4)
                .map(|number| net.connect(number, v5(&format!("greedy {number}")).username("greedy")))
                .collect();
            let fifth = net.connecting(1, v5("greedy 4").username("greedy"));
            assert_eq!(net.received(fifth), [refused(ReasonCode::QuotaExceeded), Sent::Closed]);
            assert_eq!(net.counter(|counters| counters.quota_connections), 1);
            net.connect(2, v5("other").username("other"));
            net.connect(0, v5("nameless"));
            net.lose(own[0]);
            net.connect(1, durable(V5, "greedy 4").username("greedy"));
        },
    );
}
