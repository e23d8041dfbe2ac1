//! `/publish`: messages that an operator sends.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Json;
use base64ct::{Base64, Encoding as _};
use broker::admin::{Admin, Publication};
use mqtt::ReasonCode;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::Instant;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use super::subscriptions::reason;
use crate::extract::Body;
use crate::problem::{Problem, ProblemDocument};
use crate::role::Caller;
use crate::state::State;

api_routes! {
    "/api/v1/publish": post publish;
    "/api/v1/publish/batch": post publish_batch;
}

/// Maximum number of messages in one batch.
const BATCH_MAX: usize = 1000;
/// Maximum number of messages of a batch that wait for their acknowledgement.
const UNDER_WAY_MAX: usize = 64;
/// Maximum time for one message. Full queues make it wait as a client would, `queue.full_wait` by default 5 s.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for a whole batch. Messages that are not sent by then are not sent.
const BATCH_TIMEOUT: Duration = Duration::from_secs(20);

/// A message to publish.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct MessageBody {
    #[cfg_attr(feature = "document", schema(examples("sensors/kitchen/temperature")))]
    topic: String,
    /// Payload as text. Without this and `payload_base64` the payload is empty.
    payload: Option<String>,
    /// Payload as Base64, instead of `payload`.
    payload_base64: Option<String>,
    /// 0, 1 or 2.
    #[serde(default)]
    #[cfg_attr(feature = "document", schema(maximum = 2))]
    qos: u8,
    /// True to keep the message for later subscribers. An empty payload deletes the retained message.
    #[serde(default)]
    retain: bool,
    #[serde(default)]
    properties: PropertiesBody,
}

/// Properties of a message (3.3.2.3).
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct PropertiesBody {
    /// Message Expiry Interval; null is never.
    message_expiry_s: Option<u32>,
    content_type: Option<String>,
    response_topic: Option<String>,
    correlation_data_base64: Option<String>,
    /// Payload Format Indicator 1: the payload is UTF-8 text.
    #[serde(default)]
    payload_is_text: bool,
    /// Pairs of name and value, in order; a name may appear more than once.
    #[serde(default)]
    user_properties: Vec<(String, String)>,
}

impl MessageBody {
    fn publication(self) -> Result<Publication, Problem> {
        let base64 = |name: &str, text: &str| {
            Base64::decode_vec(text)
                .map_err(|_| Problem::invalid(name, "expected Base64 (RFC 4648, section 4) with its padding"))
        };
        let payload = match (self.payload, self.payload_base64) {
            (Some(_), Some(_)) => {
                return Err(Problem::invalid("payload_base64", "send either `payload` or `payload_base64`"));
            }
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => base64("payload_base64", &text)?,
            (None, None) => Vec::new(),
        };
        let properties = self.properties;
        let correlation_data = properties.correlation_data_base64;
        let correlation_data =
            correlation_data.map(|text| base64("properties.correlation_data_base64", &text)).transpose()?;
        Ok(Publication {
            topic: self.topic,
            payload,
            qos: self.qos,
            retain: self.retain,
            message_expiry: properties.message_expiry_s,
            content_type: properties.content_type,
            response_topic: properties.response_topic,
            correlation_data,
            payload_is_text: properties.payload_is_text,
            user_properties: properties.user_properties,
        })
    }
}

/// Result of a published message.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Published {
    /// 0, or 16 when there is no matching subscriber.
    reason_code: u8,
    #[cfg_attr(feature = "document", schema(examples("no matching subscribers")))]
    reason: String,
}

/// Publishes a message. The answer comes when all its receivers have it, as a PUBACK would. A message of QoS 0 is
/// answered at once, or when it is retained.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/publish", tag = "messages", operation_id = "publish",
    security(("token" = ["operator"])),
    request_body = MessageBody,
    responses((status = 200, body = Published)),
))]
async fn publish(
    state: State,
    caller: Caller,
    Body(message): Body<MessageBody>,
) -> Result<Json<Published>, Problem> {
    caller.note(|| format!("topic {}, QoS {}", message.topic, message.qos));
    let sent = send(&state.admin, message)?;
    Ok(Json(sent.outcome(Instant::now() + TIMEOUT).await?))
}

/// Messages to publish, in this order. Messages on one topic arrive in this order.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct BatchBody {
    #[cfg_attr(feature = "document", schema(min_items = 1, max_items = 1000))]
    messages: Vec<MessageBody>,
}

/// Results of the messages, in the order of the request.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Batch {
    results: Vec<BatchResult>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(untagged)]
enum BatchResult {
    Published(Published),
    Refused { problem: ProblemDocument },
}

/// Publishes up to 1000 messages. A refused message does not delay the others.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/publish/batch", tag = "messages", operation_id = "publish_batch",
    security(("token" = ["operator"])),
    request_body = BatchBody,
    responses((status = 200, body = Batch)),
))]
async fn publish_batch(
    state: State,
    caller: Caller,
    Body(batch): Body<BatchBody>,
) -> Result<Json<Batch>, Problem> {
    let count = batch.messages.len();
    if !(1..=BATCH_MAX).contains(&count) {
        return Err(Problem::invalid(
            "messages",
            format!("expected 1 to {BATCH_MAX} messages, found {count}"),
        ));
    }
    caller.note(|| format!("{count} messages"));
    let deadline = Instant::now() + BATCH_TIMEOUT;
    let mut results = Vec::with_capacity(count);
    let mut under_way = VecDeque::with_capacity(UNDER_WAY_MAX);
    for message in batch.messages {
        if under_way.len() == UNDER_WAY_MAX
            && let Some(oldest) = under_way.pop_front()
        {
            results.push(finish(oldest, deadline).await);
        }
        under_way.push_back(if Instant::now() < deadline {
            send(&state.admin, message)
        } else {
            Err(Problem::unavailable(
                "not sent: the messages before it took too long; send fewer at once, or later",
            ))
        });
    }
    for sent in under_way {
        results.push(finish(sent, deadline).await);
    }
    Ok(Json(Batch { results }))
}

async fn finish(sent: Result<Sent, Problem>, deadline: Instant) -> BatchResult {
    let outcome = match sent {
        Ok(sent) => sent.outcome(deadline.min(Instant::now() + TIMEOUT)).await,
        Err(problem) => Err(problem),
    };
    match outcome {
        Ok(published) => BatchResult::Published(published),
        Err(problem) => BatchResult::Refused { problem: problem.document() },
    }
}

/// A message whose acknowledgement is pending.
struct Sent(oneshot::Receiver<ReasonCode>);

/// Sends a message to its reactor. Messages of one topic go to the same one, so they keep their order.
fn send(admin: &Admin, message: MessageBody) -> Result<Sent, Problem> {
    let publication = message.publication()?;
    let (reply_sender, reply_receiver) = oneshot::channel();
    let reply = move |code| {
        // The receiver is gone when the request was dropped in the meantime.
        let _ = reply_sender.send(code);
    };
    admin.publish(&publication, Box::new(reply))?;
    Ok(Sent(reply_receiver))
}

impl Sent {
    async fn outcome(self, deadline: Instant) -> Result<Published, Problem> {
        let code = match tokio::time::timeout_at(deadline, self.0).await {
            Ok(Ok(code)) => code,
            Ok(Err(_)) => return Err(Problem::unavailable("the node is stopping")),
            Err(_) => {
                return Err(Problem::unavailable(
                    "sent, but not every receiver accepted it in time: queues are full or clients do not read",
                ));
            }
        };
        match code {
            ReasonCode::QuotaExceeded => Err(Problem::too_many(
                "0x97 Quota exceeded: the queue of a receiver is full; send more slowly",
            )),
            code if code.is_error() => {
                Err(Problem::unavailable(format!("refused with 0x{:02X} {}", code.as_u8(), code.name())))
            }
            code => Ok(Published { reason_code: code.as_u8(), reason: reason(code) }),
        }
    }
}
