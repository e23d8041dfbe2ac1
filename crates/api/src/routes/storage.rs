//! `/storage`: durable data of the node.

use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::ask::{change_node, run_blocking};
use crate::extract::Body;
use crate::problem::{FieldProblem, Problem};
use crate::role::Caller;
use crate::state::State;
use crate::storage::{Backup, BackupRefused, StorageView};

api_routes! {
    "/api/v1/storage": get storage;
    "/api/v1/storage/backups": post backup;
}

/// Durable data of the node.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Storage {
    /// `local-disk`, or `memory`: nothing outlives the process.
    durability: &'static str,
    /// Null where nothing is kept on disk.
    log: Option<StorageView>,
}

/// Returns the condition of the disk, figures of the log, the result of the last start, and the last backup.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/storage", tag = "node", operation_id = "storage", security(("token" = ["viewer"])),
    responses((status = 200, body = Storage))))]
async fn storage(state: State) -> Result<Json<Storage>, Problem> {
    let log = match state.storage.clone() {
        Some(storage) => Some(run_blocking(move || storage.view()).await?),
        None => None,
    };
    let durability = if log.is_some() { "local-disk" } else { "memory" };
    Ok(Json(Storage { durability, log }))
}

/// A backup to make.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct BackupBody {
    /// Directory to create below `storage.backup_dir`: `a-z`, `A-Z`, `0-9`, `.`, `_` and `-`; the first character must
    /// be alphanumeric.
    #[cfg_attr(feature = "document", schema(examples("2026-01-31"), max_length = 64))]
    name: String,
}

/// Begins to copy the durable data, while the node runs, into a new directory below `storage.backup_dir`. One copy at a
/// time; `GET /api/v1/storage` shows the progress.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/storage/backups", tag = "node", operation_id = "backup_storage",
    security(("token" = ["admin"])),
    request_body = BackupBody,
    responses((status = 202, body = Backup)),
))]
async fn backup(
    state: State,
    caller: Caller,
    Body(body): Body<BackupBody>,
) -> Result<(StatusCode, Json<Backup>), Problem> {
    if !is_name(&body.name) {
        let detail = "expected up to 64 characters of a-z, A-Z, 0-9, `.`, `_` and `-`, the first one \
            alphanumeric"
            .to_owned();
        return Err(Problem::invalid_fields(vec![FieldProblem { name: "name".to_owned(), detail }]));
    }
    let Some(storage) = state.storage.clone() else {
        return Err(Problem::conflict("the node stores nothing on disk (storage.durability = \"memory\")"));
    };
    match change_node(&state, &caller, move |_| storage.start_backup(&body.name)).await? {
        Ok(backup) => Ok((StatusCode::ACCEPTED, Json(backup))),
        Err(BackupRefused::Conflict(detail)) => Err(Problem::conflict(detail)),
        Err(BackupRefused::Name(detail)) => {
            Err(Problem::invalid_fields(vec![FieldProblem { name: "name".to_owned(), detail }]))
        }
        Err(BackupRefused::Failed(detail)) => Err(Problem::unavailable(detail)),
    }
}

/// Returns whether a name is one component of a path and cannot lead elsewhere.
fn is_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.len() <= 64
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn a_name_leads_nowhere_else() {
        for good in ["a", "2026-01-31", "before.upgrade_2"] {
            assert!(is_name(good), "{good}");
        }
        let long = "a".repeat(65);
        for bad in ["", ".", "..", ".hidden", "-a", "a/b", "/a", "a\\b", "a b", "a\0", "\u{fc}", &long] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
