//! `/rules`: the built-in database of access rules.

use auth::{NewRule, RuleId, RuleTable, RuleTableError, StoredRule};
use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use super::listing;
use crate::ask::propose;
use crate::extract::{Body, Path, Query};
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;
use crate::timestamp::Timestamp;

api_routes! {
    "/api/v1/rules": get list, post add, put replace_all;
    "/api/v1/rules/{id}": get get, put replace, delete remove;
    "/api/v1/rules/{id}/position": put move_rule;
}

const LISTING: &str = "rules";

/// An access rule.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct RuleItem {
    #[cfg_attr(feature = "document", schema(examples("17")))]
    id: String,
    /// Position among the rules, from 1. The first rule that matches a question decides it.
    position: usize,
    /// A line as in a rules file.
    rule: String,
    /// False disables the rule.
    enabled: bool,
    description: String,
    /// Name of the key that wrote it last; empty in open mode.
    author: String,
    changed_at: Timestamp,
}

impl RuleItem {
    fn of(position: usize, rule: &StoredRule) -> Self {
        Self {
            id: rule.id.0.to_string(),
            position,
            rule: rule.text.clone(),
            enabled: rule.enabled,
            description: rule.description.clone(),
            author: rule.author.clone(),
            changed_at: Timestamp::of_ms(rule.changed_ms),
        }
    }
}

/// Contents of a rule.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct RuleBody {
    /// A line as in a rules file.
    #[cfg_attr(feature = "document", schema(examples("allow user sensor publish sensors/#")))]
    rule: String,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default)]
    description: String,
}

/// A rule to add.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct AddRule {
    /// A line as in a rules file.
    #[cfg_attr(feature = "document", schema(examples("allow user sensor publish sensors/#")))]
    rule: String,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default)]
    description: String,
    /// Position, from 1; without it the rule is the last.
    position: Option<usize>,
}

/// All rules to store, in their order.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct AllRules {
    rules: Vec<RuleBody>,
}

/// New position of a rule.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct RulePosition {
    /// Position from 1; a value beyond the last is the last.
    position: usize,
}

/// Number of rules.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct RuleCount {
    rules: usize,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct PageQuery {
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

fn yes() -> bool {
    true
}

impl From<RuleBody> for NewRule {
    fn from(body: RuleBody) -> Self {
        Self { text: body.rule, enabled: body.enabled, description: body.description }
    }
}

/// Lists rules in their order.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/rules", tag = "rules", operation_id = "rules",
    security(("token" = ["viewer"])), params(PageQuery),
    responses((status = 200, body = Page<RuleItem>)),
))]
async fn list(state: State, Query(query): Query<PageQuery>) -> Result<Json<Page<RuleItem>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let from = listing::position::<usize>(&state.admin, LISTING, query.cursor.as_deref())?.unwrap_or(0);
    let rules = state.rules.list();
    let page = rules.iter().zip(1..).skip(from).take(limit);
    let items: Vec<_> = page.map(|(rule, position)| RuleItem::of(position, rule)).collect();
    let behind = from.saturating_add(items.len());
    let next = (behind < rules.len()).then(|| listing::next(&state.admin, LISTING, behind));
    Ok(Json(Page::new(items, next)))
}

/// Returns one rule.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/rules/{id}", tag = "rules", operation_id = "rule",
    security(("token" = ["viewer"])), params(("id" = String, Path)),
    responses((status = 200, body = RuleItem)),
))]
async fn get(state: State, Path(id): Path<String>) -> Result<Json<RuleItem>, Problem> {
    let id = number(&id)?;
    let (position, rule) = state.rules.get(id).ok_or(RuleTableError::Unknown(id))?;
    Ok(Json(RuleItem::of(position, &rule)))
}

/// Adds a rule. This and all other changes of rules check subscriptions again: those that are no longer allowed end.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/rules", tag = "rules", operation_id = "rule_add",
    security(("token" = ["admin"])), request_body = AddRule,
    responses((status = 201, body = RuleItem)),
))]
async fn add(
    state: State,
    caller: Caller,
    Body(body): Body<AddRule>,
) -> Result<(StatusCode, Json<RuleItem>), Problem> {
    let AddRule { rule, enabled, description, position } = body;
    caller.note(|| rule.clone());
    check_position(position)?;
    let (new, by) = (NewRule { text: rule, enabled, description }, caller.authorship());
    let item = changed(&state, &caller, move |rules| rules.add(&new, position, &by)).await?;
    Ok((StatusCode::CREATED, Json(item)))
}

/// Replaces the contents of a rule.
#[cfg_attr(feature = "document", utoipa::path(
    put, path = "/api/v1/rules/{id}", tag = "rules", operation_id = "rule_replace",
    security(("token" = ["admin"])), params(("id" = String, Path)), request_body = RuleBody,
    responses((status = 200, body = RuleItem)),
))]
async fn replace(
    state: State,
    caller: Caller,
    Path(id): Path<String>,
    Body(body): Body<RuleBody>,
) -> Result<Json<RuleItem>, Problem> {
    caller.note(|| body.rule.clone());
    let (id, by) = (number(&id)?, caller.authorship());
    let new = NewRule::from(body);
    Ok(Json(changed(&state, &caller, move |rules| rules.replace(id, &new, &by)).await?))
}

/// Moves a rule to another position.
#[cfg_attr(feature = "document", utoipa::path(
    put, path = "/api/v1/rules/{id}/position", tag = "rules", operation_id = "rule_move",
    security(("token" = ["admin"])), params(("id" = String, Path)), request_body = RulePosition,
    responses((status = 200, body = RuleItem)),
))]
async fn move_rule(
    state: State,
    caller: Caller,
    Path(id): Path<String>,
    Body(body): Body<RulePosition>,
) -> Result<Json<RuleItem>, Problem> {
    caller.note(|| format!("to {}", body.position));
    check_position(Some(body.position))?;
    let (id, by) = (number(&id)?, caller.authorship());
    Ok(Json(changed(&state, &caller, move |rules| rules.move_to(id, body.position, &by)).await?))
}

/// Removes a rule.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/rules/{id}", tag = "rules", operation_id = "rule_remove",
    security(("token" = ["admin"])), params(("id" = String, Path)),
    responses((status = 204)),
))]
async fn remove(state: State, caller: Caller, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    let id = number(&id)?;
    let removed = propose(&state, &caller, move |state| state.rules.remove(id)).await??;
    caller.note(|| removed.text);
    Ok(StatusCode::NO_CONTENT)
}

/// Replaces all rules with these.
#[cfg_attr(feature = "document", utoipa::path(
    put, path = "/api/v1/rules", tag = "rules", operation_id = "rules_replace",
    security(("token" = ["admin"])), request_body = AllRules,
    responses((status = 200, body = RuleCount)),
))]
async fn replace_all(
    state: State,
    caller: Caller,
    Body(body): Body<AllRules>,
) -> Result<Json<RuleCount>, Problem> {
    caller.note(|| format!("{} rules", body.rules.len()));
    let by = caller.authorship();
    let new: Vec<NewRule> = body.rules.into_iter().map(NewRule::from).collect();
    let rules = new.len();
    propose(&state, &caller, move |state| state.rules.replace_all(&new, &by)).await??;
    Ok(Json(RuleCount { rules }))
}

async fn changed<P>(
    state: &State,
    caller: &Caller,
    change: impl FnOnce(&RuleTable) -> Result<(usize, P), RuleTableError> + Send + 'static,
) -> Result<RuleItem, Problem>
where
    P: std::ops::Deref<Target = StoredRule>,
{
    let changed = propose(state, caller, move |state| {
        change(&state.rules).map(|(position, rule)| RuleItem::of(position, &rule))
    });
    Ok(changed.await??)
}

fn number(id: &str) -> Result<RuleId, Problem> {
    let unknown =
        |_| Problem::not_found(format!("there is no rule `{id}`; `GET /api/v1/rules` lists the rules"));
    id.parse().map(RuleId).map_err(unknown)
}

fn check_position(position: Option<usize>) -> Result<(), Problem> {
    match position {
        Some(0) => Err(Problem::invalid("position", "positions are counted from 1")),
        _ => Ok(()),
    }
}

impl From<RuleTableError> for Problem {
    fn from(error: RuleTableError) -> Self {
        let detail = error.to_string();
        match error {
            RuleTableError::Unknown(_) => Self::not_found(detail + "; `GET /api/v1/rules` lists the rules"),
            RuleTableError::TooMany => Self::conflict(detail),
            RuleTableError::Of { .. } => Self::invalid("rules", detail),
            RuleTableError::Rule(_)
            | RuleTableError::Blank
            | RuleTableError::Lines
            | RuleTableError::Long => Self::invalid("rule", detail),
            RuleTableError::ConfigStore(error) => error.into(),
        }
    }
}
