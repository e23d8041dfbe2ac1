//! `/subscriptions` and `/clients/{client_id}/subscriptions`: subscriptions, and changes of them on a client's behalf.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use broker::admin::{ClientActionError, Invalid, NewSubscription, SubscriptionFilter, SubscriptionInfo};
use mqtt::{QoS, ReasonCode, RetainHandling, Subscription, TopicFilter, TopicName};
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use super::clients::{absent, own_connection};
use super::listing::{self, Budget};
use crate::ask::ask;
use crate::extract::{Body, Path, Query};
use crate::paging::{self, ListingCursor, Page};
use crate::problem::{FieldProblem, Kind, Problem};
use crate::role::Caller;
use crate::state::State;

api_routes! {
    "/api/v1/subscriptions": get list;
    "/api/v1/clients/{client_id}/subscriptions": get list_of_client, post subscribe, delete unsubscribe;
}

const LISTING: &str = "subscriptions";
const LISTING_OF_CLIENT: &str = "client-subscriptions";
/// Number of subscriptions of one client that are read in one step.
const STEP: usize = 1000;

/// A subscription of one client.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct ClientSubscription {
    /// Topic Filter as the client wrote it, with `$share/` where it is shared.
    #[cfg_attr(feature = "document", schema(examples("sensors/+/temperature")))]
    filter: String,
    /// The QoS that was granted.
    qos: u8,
    no_local: bool,
    retain_as_published: bool,
    /// 0: retained messages at each subscribe; 1: when the subscription is new; 2: none.
    retain_handling: u8,
    subscription_id: Option<u32>,
}

/// A subscription and its client.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct SubscriptionItem {
    #[serde(flatten)]
    subscription: ClientSubscription,
    client_id: String,
    connected: bool,
    /// Node that it is connected to, or that keeps its session.
    node: String,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct SubscriptionsQuery {
    /// Exactly this Topic Filter, without `$share/`.
    filter: Option<String>,
    /// A Topic Name that the Topic Filter matches.
    #[serde(rename = "match")]
    matching: Option<String>,
    /// Name of a shared subscription.
    share: Option<String>,
    /// Subscriptions of this client only.
    client_id: Option<String>,
    /// Connection of this node whose subscriptions to list, as in `owner` of a client, or `any` for one of the client
    /// `client_id`. For requests between nodes.
    connection: Option<String>,
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

impl SubscriptionsQuery {
    fn filter(&self) -> Result<SubscriptionFilter, Problem> {
        if let Some(filter) = &self.filter {
            TopicFilter::parse(filter).map_err(|_| Invalid::Filter)?;
        }
        if let Some(topic) = &self.matching {
            let expected = "expected a Topic Name: not empty, without + and #";
            TopicName::parse(topic).map_err(|_| Problem::invalid("match", expected))?;
        }
        let (filter, matching, share) = (self.filter.clone(), self.matching.clone(), self.share.clone());
        Ok(SubscriptionFilter { filter, matching, share })
    }
}

/// Lists subscriptions of connected clients, then of sessions whose clients are not connected.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/subscriptions", tag = "subscriptions", operation_id = "list_subscriptions",
    security(("token" = ["viewer"])),
    params(SubscriptionsQuery),
    responses((status = 200, body = Page<SubscriptionItem>)),
))]
async fn list(
    state: State,
    Query(query): Query<SubscriptionsQuery>,
) -> Result<Json<Page<SubscriptionItem>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let filter = query.filter()?;
    if let Some(client_id) = &query.client_id {
        let of = (&**client_id, query.connection.as_deref());
        return list_one(&state, of, &filter, limit, query.cursor.as_deref()).await;
    }
    let (admin, filter) = (&state.admin, Arc::new(filter));
    let begin = listing::position::<ListingCursor>(admin, LISTING, query.cursor.as_deref())?;
    let _turn = listing::turn().await?;
    let (mut items, mut budget) = (Vec::new(), Budget::begin());
    let mut next = Some(begin.unwrap_or_default().into());
    while let Some(from) = next {
        let left = limit - items.len();
        let page = ask(|reply| admin.subscriptions(from, left, filter.clone(), reply)).await?;
        items.extend(page.items.into_iter().map(|info| {
            let (client_id, connected) = (info.client_id.to_string(), info.connected);
            SubscriptionItem {
                subscription: info.into(),
                client_id,
                connected,
                node: state.node.name.clone(),
            }
        }));
        next = page.next;
        if items.len() >= limit || !budget.step() {
            break;
        }
    }
    let next = next.map(|next| listing::next(admin, LISTING, ListingCursor::from(next)));
    Ok(Json(Page::new(items, next)))
}

/// Lists one client's matching subscriptions; none when the client does not exist.
async fn list_one(
    state: &State,
    (client_id, connection): (&str, Option<&str>),
    filter: &SubscriptionFilter,
    limit: usize,
    cursor: Option<&str>,
) -> Result<Json<Page<SubscriptionItem>>, Problem> {
    let admin = &state.admin;
    let begin = listing::position::<usize>(admin, LISTING_OF_CLIENT, cursor)?;
    let nothing = |problem: Problem| match problem.kind() {
        Kind::NotFound => Ok(Json(Page::whole(Vec::new()))),
        _ => Err(problem),
    };
    let connection = match own_connection(state, client_id, connection).await {
        Ok(connection) => connection,
        Err(problem) => return nothing(problem),
    };
    let _turn = listing::turn().await?;
    let (mut items, mut budget) = (Vec::new(), Budget::begin());
    let mut next = Some(begin.unwrap_or_default());
    while let Some(from) = next {
        let step = match connection {
            Some(id) => ask(|reply| admin.connection_subscriptions(id, from, STEP, reply)).await?,
            None => ask(|reply| admin.client_subscriptions(client_id, from, STEP, reply)).await?,
        };
        let Some((found, behind)) = step else { return nothing(absent(state, client_id).await) };
        let found = (from..).zip(found).filter(|(_, info)| wants(filter, &info.filter));
        next = behind;
        for (at, info) in found {
            if items.len() == limit {
                next = Some(at);
                break;
            }
            let connected = info.connected;
            items.push(SubscriptionItem {
                subscription: info.into(),
                client_id: client_id.to_owned(),
                connected,
                node: state.node.name.clone(),
            });
        }
        if items.len() >= limit || !budget.step() {
            break;
        }
    }
    let next = next.map(|next| listing::next(admin, LISTING_OF_CLIENT, next));
    Ok(Json(Page::new(items, next)))
}

/// Returns whether a subscription matches the conditions.
fn wants(filter: &SubscriptionFilter, text: &str) -> bool {
    let Ok(subscription) = Subscription::parse(text) else { return false };
    let matching =
        |topic: &str| TopicName::parse(topic).is_ok_and(|topic| subscription.filter.matches(topic));
    filter.filter.as_deref().is_none_or(|exact| exact == subscription.filter.as_str())
        && filter.share.as_deref().is_none_or(|share| subscription.share == Some(share))
        && filter.matching.as_deref().is_none_or(matching)
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct PageQuery {
    /// Connection of this node whose subscriptions to list, as in `owner` of a client, or `any` for one of this client.
    /// For requests between nodes.
    connection: Option<String>,
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// Lists one client's subscriptions.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/clients/{client_id}/subscriptions", tag = "clients", operation_id = "list_client_subscriptions",
    security(("token" = ["viewer"])),
    params(("client_id" = String, Path), PageQuery),
    responses((status = 200, body = Page<ClientSubscription>)),
))]
async fn list_of_client(
    state: State,
    Path(client_id): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<ClientSubscription>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let admin = &state.admin;
    let from =
        listing::position::<usize>(admin, LISTING_OF_CLIENT, query.cursor.as_deref())?.unwrap_or_default();
    let step = match own_connection(&state, &client_id, query.connection.as_deref()).await? {
        Some(id) => ask(|reply| admin.connection_subscriptions(id, from, limit, reply)).await?,
        None => ask(|reply| admin.client_subscriptions(&client_id, from, limit, reply)).await?,
    };
    let (found, behind) = match step {
        Some(step) => step,
        None => return Err(absent(&state, &client_id).await),
    };
    let next = behind.map(|next| listing::next(admin, LISTING_OF_CLIENT, next));
    Ok(Json(Page::new(found.into_iter().map(Into::into).collect(), next)))
}

/// A subscription to make for a client.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct SubscribeBody {
    /// Topic Filter, with `$share/NAME/` for a shared subscription.
    #[cfg_attr(feature = "document", schema(examples("sensors/+/temperature")))]
    filter: String,
    /// Maximum QoS: 0, 1 or 2.
    #[serde(default = "one")]
    #[cfg_attr(feature = "document", schema(default = 1, maximum = 2))]
    qos: u8,
    /// True to exclude the client's own messages.
    #[serde(default)]
    no_local: bool,
    #[serde(default)]
    retain_as_published: bool,
    /// 0: retained messages at each subscribe; 1: when the subscription is new; 2: none.
    #[serde(default)]
    #[cfg_attr(feature = "document", schema(maximum = 2))]
    retain_handling: u8,
    /// 1 to 268435455.
    subscription_id: Option<u32>,
}

fn one() -> u8 {
    1
}

impl SubscribeBody {
    /// Checks all fields and reports all faults at once.
    fn check(self) -> Result<NewSubscription, Problem> {
        let mut errors = Vec::new();
        let mut wrong = |name: &str, detail: &str| {
            errors.push(FieldProblem { name: name.to_owned(), detail: detail.to_owned() });
        };
        let shared = match Subscription::parse(&self.filter) {
            Ok(subscription) => subscription.share.is_some(),
            Err(error) => {
                wrong("filter", &error.to_string());
                false
            }
        };
        let qos = QoS::from_bits(self.qos);
        if qos.is_none() {
            wrong("qos", "expected 0, 1 or 2");
        }
        let retain_handling = match self.retain_handling {
            0 => Some(RetainHandling::Send),
            1 => Some(RetainHandling::SendIfNew),
            2 => Some(RetainHandling::DoNotSend),
            _ => None,
        };
        if retain_handling.is_none() {
            wrong("retain_handling", "expected 0, 1 or 2");
        }
        if shared && self.no_local {
            wrong("no_local", "not allowed with a shared subscription [MQTT-3.8.3-4]");
        }
        if self.subscription_id.is_some_and(|id| !(1..=SUBSCRIPTION_ID_MAX).contains(&id)) {
            wrong("subscription_id", "expected 1 to 268435455, or null");
        }
        match (qos, retain_handling) {
            (Some(qos), Some(retain_handling)) if errors.is_empty() => Ok(NewSubscription {
                filter: self.filter,
                qos,
                no_local: self.no_local,
                retain_as_published: self.retain_as_published,
                retain_handling,
                subscription_id: self.subscription_id,
            }),
            _ => Err(Problem::invalid_fields(errors)),
        }
    }
}

/// The largest Variable Byte Integer (3.8.2.1.2).
const SUBSCRIPTION_ID_MAX: u32 = 268_435_455;

/// Result of a subscribe or unsubscribe.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct SubscribeResult {
    filter: String,
    /// Reason Code as in SUBACK or UNSUBACK.
    reason_code: u8,
    #[cfg_attr(feature = "document", schema(examples("granted QoS 1")))]
    reason: String,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct SubscribeQuery {
    /// Connection of this node to subscribe, as in `owner` of a client, or `any` for one of this client. For requests
    /// between nodes.
    connection: Option<String>,
}

/// Subscribes a connected client, as if it had sent SUBSCRIBE. Access rules do not apply to operators.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/clients/{client_id}/subscriptions", tag = "clients", operation_id = "subscribe_client",
    security(("token" = ["operator"])),
    params(("client_id" = String, Path), SubscribeQuery),
    request_body = SubscribeBody,
    responses((status = 201, body = SubscribeResult)),
))]
async fn subscribe(
    state: State,
    caller: Caller,
    Path(client_id): Path<String>,
    Query(query): Query<SubscribeQuery>,
    Body(requested): Body<SubscribeBody>,
) -> Result<(StatusCode, Json<SubscribeResult>), Problem> {
    let new = requested.check()?;
    let filter = new.filter.clone();
    caller.note(|| format!("filter {filter}"));
    let done = match own_connection(&state, &client_id, query.connection.as_deref()).await? {
        Some(id) => ask(|reply| state.admin.subscribe_connection(id, new, reply)).await?,
        None => ask(|reply| state.admin.subscribe(&client_id, new, reply)).await?,
    };
    Ok((StatusCode::CREATED, Json(outcome(&state, &client_id, filter, done, Done::Subscribed).await?)))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct UnsubscribeQuery {
    /// The Topic Filter as it was subscribed, with `$share/NAME/` where it is shared.
    filter: String,
    /// Connection of this node to unsubscribe, as in `owner` of a client, or `any` for one of this client. For requests
    /// between nodes.
    connection: Option<String>,
}

/// Removes a subscription of a connected client, as if it had sent UNSUBSCRIBE.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/clients/{client_id}/subscriptions", tag = "clients", operation_id = "unsubscribe_client",
    security(("token" = ["operator"])),
    params(("client_id" = String, Path), UnsubscribeQuery),
    responses((status = 200, body = SubscribeResult)),
))]
async fn unsubscribe(
    state: State,
    caller: Caller,
    Path(client_id): Path<String>,
    Query(query): Query<UnsubscribeQuery>,
) -> Result<Json<SubscribeResult>, Problem> {
    let filter = query.filter;
    caller.note(|| format!("filter {filter}"));
    let done = match own_connection(&state, &client_id, query.connection.as_deref()).await? {
        Some(id) => ask(|reply| state.admin.unsubscribe_connection(id, &filter, reply)).await?,
        None => ask(|reply| state.admin.unsubscribe(&client_id, &filter, reply)).await?,
    };
    Ok(Json(outcome(&state, &client_id, filter, done, Done::Unsubscribed).await?))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    Subscribed,
    Unsubscribed,
}

async fn outcome(
    state: &State,
    client_id: &str,
    filter: String,
    done: Result<ReasonCode, ClientActionError>,
    what: Done,
) -> Result<SubscribeResult, Problem> {
    let code = match done {
        Ok(code) => code,
        Err(ClientActionError::Unknown | ClientActionError::Elsewhere) => {
            return Err(absent(state, client_id).await);
        }
        Err(ClientActionError::NotConnected) => {
            return Err(Problem::conflict(format!(
                "the client `{client_id}` is not connected; subscriptions of a session can change only while \
                 its client is connected"
            )));
        }
        Err(ClientActionError::Gone) => {
            return Err(Problem::conflict(format!(
                "the client `{client_id}` disconnected during the request; check its subscriptions"
            )));
        }
    };
    match code {
        ReasonCode::QuotaExceeded => Err(Problem::too_many(
            "0x97 Quota exceeded: the client or the node has reached its limit of subscriptions",
        )),
        code if code.is_error() => {
            Err(Problem::invalid("filter", format!("refused with 0x{:02X} {}", code.as_u8(), code.name())))
        }
        ReasonCode::Success if what == Done::Subscribed => {
            Ok(SubscribeResult { filter, reason_code: 0, reason: "granted QoS 0".to_owned() })
        }
        code => Ok(SubscribeResult { filter, reason_code: code.as_u8(), reason: reason(code) }),
    }
}

/// Returns the specification's name of a code, in the form for the middle of a sentence.
pub(super) fn reason(code: ReasonCode) -> String {
    let name = code.name();
    let mut characters = name.chars();
    characters.next().map_or_else(String::new, |first| first.to_lowercase().chain(characters).collect())
}

impl From<SubscriptionInfo> for ClientSubscription {
    fn from(info: SubscriptionInfo) -> Self {
        Self {
            filter: info.filter.into(),
            qos: info.qos as u8,
            no_local: info.no_local,
            retain_as_published: info.retain_as_published,
            retain_handling: info.retain_handling as u8,
            subscription_id: info.subscription_id,
        }
    }
}
