//! Pages of a listing: number of items, cursor, and form of the answer.

use std::ops::RangeInclusive;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::problem::Problem;

/// Number of items of a page without `limit`.
pub const LIMIT_DEFAULT: usize = 100;
/// Maximum number of items of a page.
pub const LIMIT_MAX: usize = 1000;
/// Maximum number of bytes of a cursor's text. It has room for the longest Topic Name.
const CURSOR_MAX: usize = 128 * 1024;

/// One page. It may hold fewer items than `limit` while there are more: `next` shows whether there are.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Cursor of the next page, for `?cursor=`; `null` on the last page.
    pub next: Option<String>,
    /// Nodes of the cluster that did not answer: their items are not listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "document", schema(required = false))]
    pub missing: Vec<String>,
}

impl<T> Page<T> {
    pub fn new(items: Vec<T>, next: Option<String>) -> Self {
        Self { items, next, missing: Vec::new() }
    }

    /// Returns the only page of a listing.
    pub fn whole(items: Vec<T>) -> Self {
        Self::new(items, None)
    }
}

/// Returns the number of items of a page: 1 to 1000, 100 without `limit`.
///
/// # Errors
/// 400 when it is out of range.
pub fn limit(asked: Option<usize>) -> Result<usize, Problem> {
    limit_within(asked, LIMIT_DEFAULT, 1..=LIMIT_MAX)
}

/// Returns the number of items of a page within other bounds.
///
/// # Errors
/// 400 when it is out of range.
pub fn limit_within(
    asked: Option<usize>,
    default: usize,
    range: RangeInclusive<usize>,
) -> Result<usize, Problem> {
    let asked = asked.unwrap_or(default);
    if range.contains(&asked) {
        return Ok(asked);
    }
    Err(Problem::bad_request(format!("limit: expected {} to {}, found {asked}", range.start(), range.end())))
}

/// Encodes a cursor. Clients return it unchanged.
pub fn encode<C: Serialize>(cursor: &C) -> String {
    // Only maps whose keys are not strings fail, and no cursor is one.
    let json = serde_json::to_vec(cursor).unwrap_or_default();
    Base64UrlUnpadded::encode_string(&json)
}

/// Reads `?cursor=`; `None` when it is absent.
///
/// # Errors
/// 400 when the server did not make it.
pub fn decode<C: DeserializeOwned>(cursor: Option<&str>) -> Result<Option<C>, Problem> {
    let Some(text) = cursor else { return Ok(None) };
    let read = || {
        let bytes = (text.len() <= CURSOR_MAX).then(|| Base64UrlUnpadded::decode_vec(text).ok())??;
        serde_json::from_slice(&bytes).ok()
    };
    let found = || {
        Problem::bad_request("cursor: send `next` of the previous page unchanged, or leave it out to begin")
    };
    read().map(Some).ok_or_else(found)
}

/// A position in the broker's listings; `broker::admin::Cursor` with a text form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListingCursor(u32, u32, u32);

impl From<broker::admin::Cursor> for ListingCursor {
    fn from(cursor: broker::admin::Cursor) -> Self {
        Self(cursor.stage, cursor.slot, cursor.within)
    }
}

impl From<ListingCursor> for broker::admin::Cursor {
    fn from(ListingCursor(stage, slot, within): ListingCursor) -> Self {
        Self { stage, slot, within }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_decoded_as_it_was_encoded() {
        let cursor = ListingCursor(3, u32::MAX, 0);
        assert_eq!(decode::<ListingCursor>(Some(&encode(&cursor))).unwrap(), Some(cursor));
        assert_eq!(decode::<ListingCursor>(None).unwrap(), None);
    }

    #[test]
    fn a_bad_cursor_is_a_bad_request() {
        for bad in ["", "!", "e30", "WzEsMl0", "WzEsMiwtM10", "MQ=="] {
            let problem = decode::<ListingCursor>(Some(bad)).unwrap_err();
            assert_eq!(problem.kind().status(), 400, "{bad}");
        }
        assert!(decode::<String>(Some(&"A".repeat(CURSOR_MAX + 1))).is_err());
    }

    #[test]
    fn a_limit_is_within_its_bounds() {
        assert_eq!(limit(None).unwrap(), 100);
        assert_eq!(limit(Some(1000)).unwrap(), 1000);
        for bad in [0, 1001] {
            assert!(limit(Some(bad)).unwrap_err().detail().contains("expected 1 to 1000"));
        }
    }
}
