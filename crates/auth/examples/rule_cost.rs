//! Measures a decision with 0, 100 and 10,000 rules: `cargo run --release -p auth --example rule_cost`.

use std::hint::black_box;
use std::time::Instant;

use access::{Action, Identity};
use auth::RuleSet;
use mqtt::QoS;

const DECISIONS: u32 = 1_000_000;

/// Kind of rules, by what distinguishes them.
struct Kind {
    name: &'static str,
    rule: fn(usize) -> String,
}

const KINDS: [Kind; 4] = [
    Kind { name: "a rule for each user", rule: |n| format!("allow user u{n} all data/u{n}/#") },
    Kind { name: "a rule for each client", rule: |n| format!("allow client c{n} all data/c{n}/#") },
    Kind { name: "a rule for each topic", rule: |n| format!("allow user u* all data/u{n}/#") },
    Kind { name: "no part to index by", rule: |n| format!("allow user *{n} all +/u{n}/#") },
];

fn main() {
    println!("| rules | publish, allowed | publish, no rule applies | subscribe, allowed |");
    println!("|---|---|---|---|");
    for Kind { name, rule } in KINDS {
        for count in [0, 100, 10_000] {
            let lines: Vec<String> = (0..count).map(rule).collect();
            let rules = RuleSet::parse(&lines.join("\n")).expect("these are rules");
            let last = count.max(1) - 1;
            let (username, client_id) = (format!("u{last}"), format!("c{last}"));
            let who = Identity { client_id: &client_id, username: Some(&username), ..Identity::default() };
            let topics = [format!("data/u{last}/temp"), format!("data/c{last}/temp")];
            let allowed = topics
                .iter()
                .find(|topic| rules.ruling(who, PUBLISH, topic).is_some_and(|ruling| ruling.allowed));
            let topic = allowed.unwrap_or(&topics[0]);
            let filter = topic.replace("temp", "+");
            let costs = [(PUBLISH, &**topic), (PUBLISH, "other/x/temp"), (SUBSCRIBE, &*filter)]
                .map(|(action, topic)| format!("{:.0} ns", cost(&rules, who, action, topic)));
            println!("| {count} ({name}) | {} |", costs.join(" | "));
        }
    }
}

/// Returns the nanoseconds of one decision.
fn cost(rules: &RuleSet, who: Identity<'_>, action: Action, topic: &str) -> f64 {
    // Searching many rules takes long enough to be measured with fewer decisions.
    let decisions = if rules.len() > 1000 { DECISIONS / 100 } else { DECISIONS };
    let begin = Instant::now();
    for _ in 0..decisions {
        black_box(rules.ruling(black_box(who), action, black_box(topic)));
    }
    begin.elapsed().as_nanos() as f64 / f64::from(decisions)
}

const PUBLISH: Action = Action::Publish { qos: QoS::AtMostOnce, retain: false };
const SUBSCRIBE: Action = Action::Subscribe { qos: QoS::AtMostOnce };
