//! Rules that a client brings: the `acl` claim of its token, or `acl` in the answer of an HTTP service.
//!
//! There are two forms. `{"publish": [FILTER], "subscribe": [FILTER], "all": [FILTER]}` only allows. A list of
//! `{"permission": "allow", "action": "publish", "topic": FILTER, "qos": [0, 1], "retain": false}` is searched for the
//! first entry that applies to a topic. Topics to which no entry applies are left to the other sources of
//! authorisation.

use access::{Action, Grants, Identity};
use mqtt::QoS;
use serde_json::{Map, Value};

use crate::rule::{Fit, RuleFilter};

/// Maximum number of rules of a client.
pub const GRANTS_MAX: usize = 1000;

/// Rules of a client, in order.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientGrants {
    rules: Box<[Rule]>,
}

#[derive(Debug, PartialEq, Eq)]
struct Rule {
    allow: bool,
    publish: bool,
    subscribe: bool,
    topic: Topic,
    /// One bit for each QoS that the rule applies to.
    qos: u8,
    /// The only value of RETAIN that the rule applies to, if any.
    retain: Option<bool>,
}

#[derive(Debug, PartialEq, Eq)]
enum Topic {
    Filter(RuleFilter),
    /// This text and no other: `eq a/#` applies to a subscription to `a/#`, and not to one to `a/b`.
    Exactly(RuleFilter),
}

impl ClientGrants {
    /// Parses the claim `acl`, or the member `acl` of an answer.
    ///
    /// # Errors
    /// The fault, as the end of a sentence that begins with the name of the claim or member.
    pub fn parse(claim: &Value) -> Result<Self, &'static str> {
        let mut rules = Vec::new();
        match claim {
            Value::Object(lists) => {
                for (action, filters) in lists {
                    let (publish, subscribe) = parse_action(action)?;
                    let Value::Array(filters) = filters else {
                        return Err("has a member that is not a list");
                    };
                    for filter in filters {
                        let Value::String(topic) = filter else {
                            return Err("has a topic that is not a string");
                        };
                        let topic = Topic::parse(topic)?;
                        add(
                            &mut rules,
                            Rule { allow: true, publish, subscribe, topic, qos: QOS_ALL, retain: None },
                        )?;
                    }
                }
            }
            Value::Array(list) => {
                for rule in list {
                    let Value::Object(rule) = rule else { return Err("has a rule that is not an object") };
                    add(&mut rules, Rule::parse(rule)?)?;
                }
            }
            _ => return Err("is neither an object nor a list"),
        }
        Ok(Self { rules: rules.into() })
    }
}

fn add(rules: &mut Vec<Rule>, rule: Rule) -> Result<(), &'static str> {
    if rules.len() == GRANTS_MAX {
        return Err("has more than 1000 rules");
    }
    rules.push(rule);
    Ok(())
}

/// Returns whether the action includes publishing, and subscribing.
fn parse_action(action: &str) -> Result<(bool, bool), &'static str> {
    match action {
        "publish" => Ok((true, false)),
        "subscribe" => Ok((false, true)),
        "all" => Ok((true, true)),
        _ => Err("has an action that is not publish, subscribe or all"),
    }
}

impl Rule {
    /// Parses one rule. An unknown member is an error, because it may have been meant to narrow the rule.
    fn parse(members: &Map<String, Value>) -> Result<Self, &'static str> {
        let (mut permission, mut action, mut topic, mut qos, mut retain) = (None, None, None, QOS_ALL, None);
        for (name, value) in members {
            match (name.as_str(), value) {
                ("permission", Value::String(value)) => {
                    permission = Some(match value.as_str() {
                        "allow" => true,
                        "deny" => false,
                        _ => return Err("has a permission that is neither allow nor deny"),
                    });
                }
                ("action", Value::String(value)) => action = Some(parse_action(value)?),
                ("topic", Value::String(value)) => topic = Some(Topic::parse(value)?),
                ("qos", value) => qos = parse_qos(value)?,
                ("retain", Value::Bool(value)) => retain = Some(*value),
                _ => return Err("has a rule with an unknown member, or one of a wrong type"),
            }
        }
        let (Some(allow), Some((publish, subscribe)), Some(topic)) = (permission, action, topic) else {
            return Err("has a rule without permission, action or topic");
        };
        if retain.is_some() && !publish {
            return Err("has a rule with `retain` that is not about publishing");
        }
        Ok(Self { allow, publish, subscribe, topic, qos, retain })
    }

    /// Returns whether the rule applies to this action, apart from the topic.
    fn means(&self, action: Action) -> bool {
        match action {
            Action::Publish { qos, retain } => {
                self.publish && self.has(qos) && self.retain.is_none_or(|only| only == retain)
            }
            Action::Subscribe { qos } => self.subscribe && self.has(qos),
            // A message of a granted subscription is not refused because of its QoS.
            Action::Receive => self.subscribe && (self.allow || self.qos == QOS_ALL),
        }
    }

    fn has(&self, qos: QoS) -> bool {
        self.qos & (1 << qos as u8) != 0
    }
}

fn parse_qos(value: &Value) -> Result<u8, &'static str> {
    let one = |value: &Value| match value.as_u64() {
        Some(qos @ 0..=2) => Ok(1 << qos),
        _ => Err("has a qos that is not 0, 1 or 2"),
    };
    match value {
        Value::Array(list) if list.is_empty() => Err("has a rule for no qos"),
        Value::Array(list) => list.iter().try_fold(0, |all, value| Ok(all | one(value)?)),
        value => one(value),
    }
}

impl Topic {
    fn parse(text: &str) -> Result<Self, &'static str> {
        const WRONG: &str = "has a topic that is not a Topic Filter, or has an unknown placeholder";
        // A share name is not part of the topic that rules are asked about, so such a rule would never apply.
        if text.starts_with("$share/") || text.starts_with("eq $share/") {
            return Err("has a topic with a share name; write it without");
        }
        match text.strip_prefix("eq ") {
            Some(exact) => RuleFilter::literal(exact).map(Self::Exactly).map_err(|_| WRONG),
            None => RuleFilter::template(text).map(Self::Filter).map_err(|_| WRONG),
        }
    }
}

impl Grants for ClientGrants {
    /// Returns the decision of the first rule that applies. An allowing rule applies to a subscription when it covers
    /// the whole Topic Filter. A denying rule applies when the two have one topic in common.
    fn decide(&self, identity: Identity<'_>, action: Action, topic: &str) -> Option<bool> {
        self.rules.iter().filter(|rule| rule.means(action)).find_map(|rule| {
            let filter = match &rule.topic {
                Topic::Filter(filter) => filter,
                // A client that may subscribe to exactly this filter may also receive its messages. A client that may
                // not subscribe to it may still receive them by other subscriptions.
                Topic::Exactly(filter) if action == Action::Receive && rule.allow => filter,
                Topic::Exactly(_) if action == Action::Receive => return None,
                Topic::Exactly(filter) => {
                    // `+/#` is another form of `#`.
                    let all = !rule.allow && topic == "+/#" && filter.is(identity, "#");
                    return (all || filter.is(identity, topic)).then_some(rule.allow);
                }
            };
            let speaks = match (filter.fit(identity), rule.allow) {
                (Fit::Usable, true) if matches!(action, Action::Subscribe { .. }) => {
                    filter.covers(identity, topic)
                }
                (Fit::Usable, false) if matches!(action, Action::Subscribe { .. }) => {
                    filter.overlaps(identity, topic)
                }
                (Fit::Usable, _) => filter.matches(identity, topic),
                // The forbidden topics cannot be determined, so all are forbidden.
                (Fit::Dangerous, false) => true,
                (Fit::Dangerous, true) | (Fit::NoName, _) => false,
            };
            speaks.then_some(rule.allow)
        })
    }
}

const QOS_ALL: u8 = 0b111;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PUBLISH: Action = Action::Publish { qos: QoS::AtMostOnce, retain: false };
    const SUBSCRIBE: Action = Action::Subscribe { qos: QoS::AtMostOnce };

    fn decide(claim: &Value, action: Action, topic: &str) -> Option<bool> {
        let identity = Identity { client_id: "c1", username: Some("alice"), ..Identity::default() };
        ClientGrants::parse(claim).unwrap().decide(identity, action, topic)
    }

    #[test]
    fn the_short_form_allows_and_leaves_the_rest_to_other_sources() {
        let claim = json!({"publish": ["up/${clientid}"], "subscribe": ["down/+"], "all": ["both/#"]});
        assert_eq!(decide(&claim, PUBLISH, "up/c1"), Some(true));
        assert_eq!(decide(&claim, PUBLISH, "up/c2"), None);
        assert_eq!(decide(&claim, SUBSCRIBE, "up/c1"), None);
        assert_eq!(decide(&claim, SUBSCRIBE, "down/+"), Some(true));
        assert_eq!(decide(&claim, SUBSCRIBE, "down/#"), None, "wider than allowed");
        assert_eq!(decide(&claim, Action::Receive, "down/x"), Some(true));
        assert_eq!(decide(&claim, PUBLISH, "down/x"), None);
        for action in [PUBLISH, SUBSCRIBE, Action::Receive] {
            assert_eq!(decide(&claim, action, "both/x"), Some(true));
        }
        assert_eq!(decide(&json!({}), PUBLISH, "a"), None);
    }

    #[test]
    fn the_first_applicable_rule_of_a_list_decides() {
        let rule = |permission: &str, action: &str, topic: &str| json!({"permission": permission, "action": action, "topic": topic});
        let claim =
            json!([rule("deny", "all", "a/secret"), rule("allow", "all", "a/#"), rule("deny", "all", "#")]);
        assert_eq!(decide(&claim, PUBLISH, "a/secret"), Some(false));
        assert_eq!(decide(&claim, PUBLISH, "a/b"), Some(true));
        assert_eq!(decide(&claim, PUBLISH, "b"), Some(false));
        assert_eq!(decide(&claim, PUBLISH, "$SYS/b"), None, "hidden from first wildcards");
        assert_eq!(decide(&claim, SUBSCRIBE, "a/b"), Some(true));
        assert_eq!(decide(&claim, SUBSCRIBE, "a/#"), Some(false), "a part of it is denied");
        assert_eq!(decide(&claim, SUBSCRIBE, "a/+"), Some(false));
    }

    #[test]
    fn qos_and_retain_narrow_a_rule() {
        let claim = json!([
            {"permission": "allow", "action": "publish", "topic": "a", "qos": [0, 1], "retain": false},
            {"permission": "allow", "action": "subscribe", "topic": "a", "qos": 1},
            {"permission": "deny", "action": "subscribe", "topic": "#", "qos": [2]},
        ]);
        let publish = |qos, retain| decide(&claim, Action::Publish { qos, retain }, "a");
        assert_eq!(publish(QoS::AtMostOnce, false), Some(true));
        assert_eq!(publish(QoS::ExactlyOnce, false), None);
        assert_eq!(publish(QoS::AtMostOnce, true), None);
        assert_eq!(decide(&claim, Action::Subscribe { qos: QoS::AtLeastOnce }, "a"), Some(true));
        assert_eq!(decide(&claim, SUBSCRIBE, "a"), None);
        assert_eq!(decide(&claim, Action::Subscribe { qos: QoS::ExactlyOnce }, "a"), Some(false));
        assert_eq!(decide(&claim, Action::Receive, "a"), Some(true));
        assert_eq!(decide(&claim, Action::Receive, "b"), None, "only subscriptions with QoS 2 are denied");
    }

    #[test]
    fn eq_takes_wildcards_and_placeholders_literally() {
        let claim = json!([
            {"permission": "deny", "action": "all", "topic": "eq #"},
            {"permission": "allow", "action": "all", "topic": "eq a/+"},
            {"permission": "allow", "action": "all", "topic": "eq ${clientid}"},
        ]);
        assert_eq!(decide(&claim, SUBSCRIBE, "#"), Some(false));
        assert_eq!(decide(&claim, SUBSCRIBE, "+/#"), Some(false));
        assert_eq!(decide(&claim, SUBSCRIBE, "a/+"), Some(true));
        assert_eq!(decide(&claim, SUBSCRIBE, "a/b"), None);
        assert_eq!(decide(&claim, Action::Receive, "a/b"), Some(true));
        assert_eq!(decide(&claim, Action::Receive, "b"), None);
        assert_eq!(decide(&claim, PUBLISH, "c1"), None);
        assert_eq!(decide(&claim, PUBLISH, "${clientid}"), Some(true));
    }

    #[test]
    fn a_name_with_wildcards_does_not_widen_a_rule() {
        let of = |client_id: &'static str, claim: Value, topic: &str| {
            let identity = Identity { client_id, username: None, ..Identity::default() };
            ClientGrants::parse(&claim).unwrap().decide(identity, PUBLISH, topic)
        };
        for client_id in ["+", "#", "a/b", "$SYS"] {
            assert_eq!(of(client_id, json!({"all": ["${clientid}/x"]}), &format!("{client_id}/x")), None);
            let deny = json!([{"permission": "deny", "action": "all", "topic": "${clientid}/x"}]);
            assert_eq!(of(client_id, deny, "other"), Some(false));
        }
        assert_eq!(of("c1", json!({"all": ["u/${username}"]}), "u/"), None, "there is no user name");
    }

    #[test]
    fn an_invalid_list_of_rules_is_refused() {
        for claim in [
            json!("publish"),
            json!(null),
            json!({"publish": "a"}),
            json!({"publish": [1]}),
            json!({"publish": ["a/#/b"]}),
            json!({"publish": [""]}),
            json!({"publish": ["a\u{0}"]}),
            json!({"all": ["$share/g/a"]}),
            json!({"Publish": []}),
            json!([["allow"]]),
            json!([{"permission": "allow", "action": "publish"}]),
            json!([{"permission": "ALLOW", "action": "publish", "topic": "a"}]),
            json!([{"permission": "allow", "action": "pub", "topic": "a"}]),
            json!([{"permission": "allow", "action": "publish", "topic": "a", "qos": 3}]),
            json!([{"permission": "allow", "action": "publish", "topic": "a", "qos": []}]),
            json!([{"permission": "allow", "action": "publish", "topic": "a", "retain": "true"}]),
            json!([{"permission": "allow", "action": "subscribe", "topic": "a", "retain": true}]),
            json!([{"permission": "allow", "action": "publish", "topic": "a", "ip": "10.0.0.1"}]),
        ] {
            assert!(ClientGrants::parse(&claim).is_err(), "{claim}");
        }
        let many = |count: usize| ClientGrants::parse(&json!({"all": vec!["a"; count]})).is_ok();
        assert!(many(GRANTS_MAX) && !many(GRANTS_MAX + 1));
    }
}
