//! `/retained`: messages that are kept for later subscribers.

use axum::Json;
use base64ct::{Base64, Encoding as _};
use broker::ShardId;
use broker::admin::RetainedInfo;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use super::listing::{self, Budget};
use crate::ask::{ANSWER_TIMEOUT, ask};
use crate::extract::Query;
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;

api_routes! {
    "/api/v1/retained": get list, delete delete;
    "/api/v1/retained/message": get get;
}

const LISTING: &str = "retained";
/// Number of messages deleted in one step.
const STEP: usize = 500;

/// A retained message without its payload.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct RetainedItem {
    topic: String,
    qos: u8,
    payload_bytes: usize,
    /// Seconds since it arrived.
    age_s: u64,
    /// Remaining seconds of its Message Expiry Interval; null is never.
    expires_in_s: Option<u64>,
}

impl From<RetainedInfo> for RetainedItem {
    fn from(info: RetainedInfo) -> Self {
        Self {
            topic: info.topic.into(),
            qos: info.qos as u8,
            payload_bytes: info.payload_bytes,
            age_s: info.age.as_secs(),
            expires_in_s: info.expires_in.map(|left| left.as_secs()),
        }
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct RetainedQuery {
    /// A Topic Filter; default `#`, which matches all but `$SYS`.
    filter: Option<String>,
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// The shard to continue in, and the last topic that was listed.
type RetainedPosition = (u16, Option<String>);

fn from_position((shard, after): RetainedPosition) -> (ShardId, Option<Box<str>>) {
    (ShardId(shard), after.map(Into::into))
}

/// Lists retained messages.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/retained", tag = "messages", operation_id = "list_retained",
    security(("token" = ["viewer"])),
    params(RetainedQuery),
    responses((status = 200, body = Page<RetainedItem>)),
))]
async fn list(state: State, Query(query): Query<RetainedQuery>) -> Result<Json<Page<RetainedItem>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let (admin, filter) = (&state.admin, query.filter.as_deref().unwrap_or("#"));
    let mut from =
        listing::position::<RetainedPosition>(admin, LISTING, query.cursor.as_deref())?.map(from_position);
    let _turn = listing::turn().await?;
    let (mut items, mut budget) = (Vec::new(), Budget::begin());
    let next = loop {
        let left = limit - items.len();
        let page = ask(|reply| admin.retained(filter, from, left, reply)).await?;
        items.extend(page.items.into_iter().map(RetainedItem::from));
        if page.next.is_none() || items.len() >= limit || !budget.step() {
            break page.next;
        }
        from = page.next;
    };
    let next = next.map(|(shard, after)| {
        let position: RetainedPosition = (shard.0, after.map(Into::into));
        listing::next(admin, LISTING, position)
    });
    Ok(Json(Page::new(items, next)))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct TopicQuery {
    /// A Topic Name.
    topic: String,
}

/// A retained message.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Retained {
    topic: String,
    qos: u8,
    payload_base64: String,
    /// Payload when it is UTF-8 text.
    payload: Option<String>,
    payload_bytes: usize,
    content_type: Option<String>,
    /// Pairs of name and value, in order.
    user_properties: Vec<(String, String)>,
    age_s: u64,
    expires_in_s: Option<u64>,
}

/// Returns the retained message of one topic, with its payload.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/retained/message", tag = "messages", operation_id = "get_retained",
    security(("token" = ["operator"])),
    params(TopicQuery),
    responses((status = 200, body = Retained)),
))]
async fn get(state: State, Query(query): Query<TopicQuery>) -> Result<Json<Retained>, Problem> {
    let _turn = listing::turn().await?;
    let message = ask(|reply| state.admin.retained_message(&query.topic, reply)).await?;
    let Some(message) = message else {
        return Err(Problem::not_found(format!(
            "no message is retained on `{}`; search with `GET /api/v1/retained?filter=`",
            query.topic
        )));
    };
    let RetainedItem { topic, qos, payload_bytes, age_s, expires_in_s } = message.info.into();
    Ok(Json(Retained {
        topic,
        qos,
        payload_base64: Base64::encode_string(&message.payload),
        payload: String::from_utf8(message.payload).ok(),
        payload_bytes,
        content_type: message.content_type,
        user_properties: message.user_properties,
        age_s,
        expires_in_s,
    }))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct DeleteQuery {
    /// One Topic Name.
    topic: Option<String>,
    /// All topics that match this Topic Filter.
    filter: Option<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Deleted {
    /// Number of deleted messages.
    deleted: usize,
}

/// Deletes the retained message of one topic, or all that match a filter. Subscribers receive nothing.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/retained", tag = "messages", operation_id = "delete_retained",
    security(("token" = ["operator"])),
    params(DeleteQuery),
    responses((status = 200, body = Deleted)),
))]
async fn delete(
    state: State,
    caller: Caller,
    Query(query): Query<DeleteQuery>,
) -> Result<Json<Deleted>, Problem> {
    let filter = match (query.topic, query.filter) {
        (Some(topic), None) => {
            caller.note(|| format!("topic {topic}"));
            let deleted = delete_topics(&state, &[topic.into()]).await?;
            return Ok(Json(Deleted { deleted }));
        }
        (None, Some(filter)) => filter,
        _ => return Err(Problem::bad_request("send either `topic` or `filter`")),
    };
    caller.note(|| format!("filter {filter}"));
    let _turn = listing::turn().await?;
    let (mut deleted, mut from) = (0, None);
    loop {
        let page = ask(|reply| state.admin.retained(&filter, from, STEP, reply)).await?;
        let topics: Vec<_> = page.items.into_iter().map(|info| info.topic).collect();
        deleted += delete_topics(&state, &topics).await?;
        if page.next.is_none() {
            return Ok(Json(Deleted { deleted }));
        }
        from = page.next;
    }
}

async fn delete_topics(state: &State, topics: &[Box<str>]) -> Result<usize, Problem> {
    // One slot for the answer of each worker, so that none is refused.
    let (reply_sender, mut reply_receiver) = mpsc::channel(state.admin.workers().count().max(1));
    let answers = state.admin.delete_retained(topics, move |count| {
        // The receiver is gone when the request was dropped in the meantime.
        let _ = reply_sender.try_send(count);
    });
    let mut deleted = 0;
    for _ in 0..answers {
        match tokio::time::timeout(ANSWER_TIMEOUT, reply_receiver.recv()).await {
            Ok(Some(count)) => deleted += count,
            Ok(None) => return Err(Problem::unavailable("the node is stopping")),
            Err(_) => {
                return Err(Problem::unavailable(
                    "a reactor did not answer in time; repeat the request for \
                    the rest",
                ));
            }
        }
    }
    Ok(deleted)
}
