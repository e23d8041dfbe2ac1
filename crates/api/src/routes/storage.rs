//! `/storage`: durable data of the node.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use base64ct::{Base64, Encoding as _};
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use crate::ask::{change_node, run_blocking};
use crate::extract::{Body, Path, Query};
use crate::problem::{FieldProblem, Problem};
use crate::role::Caller;
use crate::routes::listing;
use crate::state::State;
use crate::storage::{Backup, BackupFile, BackupPart, BackupRefused, StorageView};

api_routes! {
    "/api/v1/storage": get storage;
    "/api/v1/storage/backups": post backup;
    "/api/v1/storage/backups/{name}": get files, delete remove;
    "/api/v1/storage/backups/{name}/part": get part;
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
    check_name(&body.name)?;
    let storage = stored(&state)?;
    let backup = change_node(&state, &caller, move |_| storage.start_backup(&body.name)).await??;
    Ok((StatusCode::ACCEPTED, Json(backup)))
}

/// Files of a backup.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct BackupFiles {
    items: Vec<BackupFile>,
}

/// Lists the files of a complete backup below `storage.backup_dir` of the node.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/storage/backups/{name}", tag = "node", operation_id = "get_backup",
    security(("token" = ["admin"])), params(("name" = String, Path)),
    responses((status = 200, body = BackupFiles)),
))]
async fn files(state: State, Path(name): Path<String>) -> Result<Json<BackupFiles>, Problem> {
    check_name(&name)?;
    let storage = stored(&state)?;
    let items = run_blocking(move || storage.backup_files(&name)).await??;
    Ok(Json(BackupFiles { items }))
}

/// Removes a complete backup below `storage.backup_dir` of the node.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/storage/backups/{name}", tag = "node", operation_id = "remove_backup",
    security(("token" = ["admin"])), params(("name" = String, Path)),
    responses((status = 204)),
))]
async fn remove(state: State, caller: Caller, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    check_name(&name)?;
    caller.note(|| name.clone());
    let storage = stored(&state)?;
    change_node(&state, &caller, move |_| storage.remove_backup(&name)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Maximum number of bytes of a part. In Base64 it is smaller than an answer that another node passes on.
const PART_BYTES_MAX: usize = 2 << 20;

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct PartQuery {
    /// Name of the file.
    file: String,
    /// Position of the first byte.
    #[serde(default)]
    offset: u64,
}

/// A part of a file of a backup: up to 2 MiB, or a number of zeros. At the end of the file it has neither.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = StorageBackupPart))]
struct Part {
    bytes_base64: String,
    /// Number of zeros that the part has in place of bytes.
    zeros: u64,
    /// Size of the file.
    file_bytes: u64,
}

/// Returns a part of a file of a backup, so that a backup can be copied from another machine. A backup contains secrets
/// and the payloads of messages.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/storage/backups/{name}/part", tag = "node", operation_id = "read_backup",
    security(("token" = ["admin"])), params(("name" = String, Path), PartQuery),
    responses((status = 200, body = Part)),
))]
async fn part(
    state: State,
    Path(name): Path<String>,
    Query(query): Query<PartQuery>,
) -> Result<Json<Part>, Problem> {
    check_name(&name)?;
    let storage = stored(&state)?;
    let _turn = listing::turn().await?;
    let PartQuery { file, offset } = query;
    let part = run_blocking(move || storage.read_backup(&name, &file, offset, PART_BYTES_MAX)).await??;
    let BackupPart { bytes, zeros, file_bytes } = part;
    Ok(Json(Part { bytes_base64: Base64::encode_string(&bytes), zeros, file_bytes }))
}

fn stored(state: &State) -> Result<Arc<dyn crate::storage::Storage>, Problem> {
    let why = "the node stores nothing on disk (storage.durability = \"memory\")";
    state.storage.clone().ok_or_else(|| Problem::conflict(why))
}

impl From<BackupRefused> for Problem {
    fn from(refused: BackupRefused) -> Self {
        match refused {
            BackupRefused::Conflict(detail) => Self::conflict(detail),
            BackupRefused::Name(detail) => {
                Self::invalid_fields(vec![FieldProblem { name: "name".to_owned(), detail }])
            }
            BackupRefused::Unknown(detail) => Self::not_found(detail),
            BackupRefused::Failed(detail) => Self::unavailable(detail),
        }
    }
}

fn check_name(name: &str) -> Result<(), Problem> {
    if is_name(name) {
        return Ok(());
    }
    let detail =
        "expected up to 64 characters of a-z, A-Z, 0-9, `.`, `_` and `-`, the first one alphanumeric"
            .to_owned();
    Err(Problem::invalid_fields(vec![FieldProblem { name: "name".to_owned(), detail }]))
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
