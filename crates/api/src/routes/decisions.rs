//! `/rules/test`: decisions about the actions of a client, and their sources.

use std::collections::BTreeMap;
use std::net::IpAddr;

use auth::{Explanation, Opinion};
use axum::Json;
use broker::access::{Action, ClientCertificate, Identity, Principal};
use mqtt::{QoS, Subscription, TopicName};
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::ask::ask;
use crate::extract::Body;
use crate::problem::Problem;
use crate::state::State;

api_routes! {
    "/api/v1/rules/test": post test;
}

/// A question to the access rules.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct RuleTestBody {
    client_id: String,
    /// User name. For a connected client, `username` and `address` default to those of its connection.
    username: Option<String>,
    #[cfg_attr(feature = "document", schema(value_type = Option<String>))]
    address: Option<IpAddr>,
    /// Name of the listener.
    #[serde(default)]
    listener: String,
    /// Common Name of its certificate.
    cert_cn: Option<String>,
    /// Attributes of the user or its token.
    #[serde(default)]
    attributes: BTreeMap<String, String>,
    /// `publish`, `subscribe` or `receive`.
    #[cfg_attr(feature = "document", schema(examples("subscribe")))]
    action: String,
    /// A Topic Name; to subscribe, a Topic Filter.
    #[cfg_attr(feature = "document", schema(examples("sensors/+/temp")))]
    topic: String,
    /// 0, 1 or 2.
    #[serde(default)]
    #[cfg_attr(feature = "document", schema(maximum = 2))]
    qos: u8,
    /// True when the message is published as retained.
    #[serde(default)]
    retain: bool,
}

/// Decision, and the opinions of all sources.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct DecisionItem {
    allowed: bool,
    /// Source of the decision: `superuser`, `token`, `rules`, `database`, `acl_file`, `http`, `no_match` or `broker`.
    decided_by: &'static str,
    /// The rule, and its location.
    reason: String,
    /// All sources in their order; the first whose opinion is not `none` decides.
    steps: Vec<DecisionStep>,
}

/// Opinion of one source.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct DecisionStep {
    by: &'static str,
    /// `allow`, `deny`, `none`, `later` (the source is still being asked: repeat the request) or `failed`.
    opinion: &'static str,
    reason: String,
}

impl From<Explanation> for DecisionItem {
    fn from(explanation: Explanation) -> Self {
        let Explanation { allowed, steps, decided_by } = explanation;
        let (by, reason) = (steps[decided_by].by.name(), steps[decided_by].reason.clone());
        let step = |step: auth::Step| DecisionStep {
            by: step.by.name(),
            opinion: match step.opinion {
                Opinion::Allow => "allow",
                Opinion::Deny => "deny",
                Opinion::None => "none",
                Opinion::Later => "later",
                Opinion::Failed => "failed",
            },
            reason: step.reason,
        };
        Self { allowed, decided_by: by, reason, steps: steps.into_iter().map(step).collect() }
    }
}

impl RuleTestBody {
    /// Returns the action, and the topic as rules see it.
    fn action_and_topic(&self) -> Result<(Action, &str), Problem> {
        let qos = QoS::from_bits(self.qos).ok_or_else(|| Problem::invalid("qos", "expected 0, 1 or 2"))?;
        if self.action == "subscribe" {
            let subscription = Subscription::parse(&self.topic)
                .map_err(|why| Problem::invalid("topic", format!("invalid Topic Filter: {why}")))?;
            return Ok((Action::Subscribe { qos }, subscription.filter.as_str()));
        }
        TopicName::parse(&self.topic)
            .map_err(|why| Problem::invalid("topic", format!("invalid Topic Name: {why}")))?;
        match &*self.action {
            "publish" => Ok((Action::Publish { qos, retain: self.retain }, &self.topic)),
            "receive" => Ok((Action::Receive, &self.topic)),
            other => Err(Problem::invalid(
                "action",
                format!("expected publish, subscribe or receive, found `{other}`"),
            )),
        }
    }
}

/// Decides whether a client may do something, and names the rule. Nothing is done or counted.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/rules/test", tag = "rules", operation_id = "test_rules",
    security(("token" = ["operator"])),
    request_body = RuleTestBody,
    responses((status = 200, body = DecisionItem)),
))]
async fn test(state: State, Body(body): Body<RuleTestBody>) -> Result<Json<DecisionItem>, Problem> {
    let (action, topic) = body.action_and_topic()?;
    let to_sys = topic == "$SYS" || topic.starts_with("$SYS/");
    if to_sys && matches!(action, Action::Publish { .. }) {
        let reason = "the broker takes nothing on `$SYS` from clients, whatever the rules".to_owned();
        return Ok(Json(DecisionItem { allowed: false, decided_by: "broker", reason, steps: Vec::new() }));
    }
    let client_id = body.client_id.clone();
    let known = ask(|reply| state.admin.client(&client_id, reply)).await?;
    let (username, address) = match known.filter(|detail| detail.info.connected) {
        Some(detail) => (detail.info.username, detail.info.address.map(|address| address.ip())),
        None => (None, None),
    };
    let attributes = &body.attributes;
    let principal = Principal {
        attributes: attributes
            .iter()
            .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
            .collect(),
        ..Principal::default()
    };
    let certificate = body.cert_cn.as_ref().map(|name| ClientCertificate {
        common_name: Some(name.as_str().into()),
        ..ClientCertificate::default()
    });
    let who = Identity {
        client_id: &body.client_id,
        username: body.username.as_deref().or(username.as_deref()),
        peer: body.address.or(address),
        listener: &body.listener,
        certificate: certificate.as_ref(),
        principal: Some(&principal),
    };
    Ok(Json(state.guard.explain(who, action, topic).into()))
}
