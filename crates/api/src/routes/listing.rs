//! Long listings in short steps: the cost of one page, the number of simultaneous listings, and the cursor.

use std::time::{Duration, Instant};

use broker::admin::Admin;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::paging;
use crate::problem::Problem;

/// Maximum cost of one page. A page that is not full by then is returned as it is, with a cursor.
#[derive(Debug)]
pub(super) struct Budget {
    began: Instant,
    steps: u32,
}

impl Budget {
    pub fn begin() -> Self {
        Self { began: Instant::now(), steps: 0 }
    }

    /// Counts a step. Returns whether another one is allowed.
    pub fn step(&mut self) -> bool {
        self.steps += 1;
        self.steps < STEPS_MAX && self.began.elapsed() < TIME_MAX
    }
}

/// Maximum number of commands to reactors for one page. Each costs its reactor at most a few hundred slots.
const STEPS_MAX: u32 = 200;
const TIME_MAX: Duration = Duration::from_millis(50);

/// Permits for simultaneous listings of all kinds. Each listing has at most one command in progress, so this bounds the
/// work of the reactors at any moment.
static AT_ONCE: Semaphore = Semaphore::const_new(LISTINGS_MAX);
const LISTINGS_MAX: usize = 4;
/// Maximum time that a listing waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for a turn among the listings, which lasts until it is dropped.
///
/// # Errors
/// 429 when there is none within [`TURN_TIMEOUT`].
pub(super) async fn turn() -> Result<SemaphorePermit<'static>, Problem> {
    turn_among(&AT_ONCE, TURN_TIMEOUT).await
}

async fn turn_among(listings: &Semaphore, within: Duration) -> Result<SemaphorePermit<'_>, Problem> {
    match tokio::time::timeout(within, listings.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(Problem::too_many(format!(
            "{LISTINGS_MAX} listings are running already; try again later, and request smaller pages"
        ))),
    }
}

/// A position in one kind of listing of one run of the node. In another listing or run it would skip or repeat items
/// unnoticed.
#[derive(Debug, Serialize, Deserialize)]
struct ListingMark<T> {
    #[serde(rename = "l")]
    listing: String,
    #[serde(rename = "r")]
    run: u64,
    #[serde(rename = "p")]
    position: T,
}

fn run(admin: &Admin) -> u64 {
    admin.started().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Returns the text of `next`.
pub(super) fn next<T: Serialize>(admin: &Admin, listing: &str, position: T) -> String {
    paging::encode(&ListingMark { listing: listing.to_owned(), run: run(admin), position })
}

/// Reads `?cursor=`; `None` when it is absent.
///
/// # Errors
/// 400 when it is of another listing, or from before the node's last start.
pub(super) fn position<T: DeserializeOwned>(
    admin: &Admin,
    listing: &str,
    cursor: Option<&str>,
) -> Result<Option<T>, Problem> {
    let Some(mark) = paging::decode::<ListingMark<T>>(cursor)? else { return Ok(None) };
    if mark.listing != listing {
        return Err(Problem::bad_request("cursor: it belongs to another listing; leave it out to begin"));
    }
    if mark.run != run(admin) {
        return Err(Problem::bad_request("cursor: the node has restarted since; leave it out to begin"));
    }
    Ok(Some(mark.position))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_waits_for_its_turn_but_not_for_ever() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let listings = Semaphore::new(1);
            let first = turn_among(&listings, TURN_TIMEOUT).await.unwrap();
            let refused = turn_among(&listings, Duration::from_millis(1)).await.unwrap_err();
            assert_eq!(refused.kind().status(), 429);
            let (second, ()) = tokio::join!(turn_among(&listings, TURN_TIMEOUT), async { drop(first) });
            assert!(second.is_ok());
        });
    }

    #[test]
    fn a_page_takes_so_many_steps_at_most() {
        let mut budget = Budget { began: Instant::now() + Duration::from_secs(3600), steps: 0 };
        let steps = std::iter::repeat_with(|| budget.step()).take_while(|more| *more).count();
        assert_eq!(steps as u32 + 1, STEPS_MAX);
        let mut late = Budget { began: Instant::now() - TIME_MAX, steps: 0 };
        assert!(!late.step());
    }
}
