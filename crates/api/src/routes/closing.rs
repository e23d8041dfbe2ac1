//! Closing the connections of many clients, step by step.

use std::sync::Arc;

use broker::admin::Identified;
use mqtt::ReasonCode;

use super::listing;
use crate::ask::ask;
use crate::problem::Problem;
use crate::state::State;

/// Closes the connections of all for whom `doomed` holds (DISCONNECT with 0x98), and says of how many. Waits for its turn among the
/// listings.
///
/// # Errors
/// Not all were closed.
pub(super) async fn close(
    state: &State,
    doomed: impl Fn(Identified<'_>) -> bool + Send + Sync + 'static,
) -> Result<usize, Problem> {
    let _turn = listing::turn().await?;
    let admin = &state.admin;
    let doomed = Arc::new(doomed);
    let mut closed = 0;
    for worker in admin.workers() {
        let mut next = Some(0);
        while let Some(from) = next {
            // DISCONNECT has no Banned (3.14.2.1); CONNACK will say what is wrong when they come back.
            let (doomed, reason) = (doomed.clone(), ReasonCode::AdministrativeAction);
            let page = ask(|reply| admin.kick_matching(worker, from, doomed, reason, reply)).await?;
            closed += page.closed;
            next = page.next;
        }
    }
    Ok(closed)
}
