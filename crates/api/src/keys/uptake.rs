//! A running node takes up what `meridian key` wants in its data directory.

use std::io;
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use registry::ProposeError;

use super::KeyError;
use super::wanted::{FILE, Looks, Wanted};
use crate::ask::{off_runtime, propose};
use crate::audit::Entry;
use crate::complaints::Complaints;
use crate::problem::Problem;
use crate::role::{Caller, Role};
use crate::state::State;

/// From one look to the next.
const LOOK: Duration = Duration::from_secs(1);
/// Who did it, in the audit log. No key can have this name.
const BY: &str = "meridian key";

/// Looks for it, as long as it lives.
pub struct Uptake {
    state: State,
    /// What waits, or cannot be read or removed.
    late: Complaints,
    /// What is no wish of `meridian key`.
    untrusted: Complaints,
    looks: Option<Looks>,
}

impl Uptake {
    pub fn begin(state: State) -> Self {
        let (late, untrusted) = (Complaints::default(), Complaints::default());
        let mut uptake = Self { state, late, untrusted, looks: None };
        uptake.begin_looks();
        uptake
    }

    /// Not before there is a data directory: a node that keeps nothing makes none, and `meridian key` writes the first key itself.
    fn begin_looks(&mut self) {
        match Looks::begin(&self.state.node.data_dir) {
            Ok(looks) => self.looks = Some(looks),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.complain(&format!(
                "`meridian key` is not heard, as another node seems to be in this data directory: keys.lock: {error}"
            )),
        }
    }

    /// Until the node stops.
    pub async fn run(mut self) {
        loop {
            if self.looks.is_some() {
                self.look().await;
            } else {
                self.begin_looks();
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn look(&mut self) {
        let data_dir = self.state.node.data_dir.clone();
        match off_runtime(move || Wanted::read(&data_dir)).await {
            Ok(Ok(None)) | Err(_) => {}
            Ok(Ok(Some(wanted))) => self.take_up(wanted).await,
            Ok(Err(error @ KeyError::NotWanted { .. })) => {
                if let Some(unsaid) = self.untrusted.another(Instant::now()) {
                    tracing::error!(
                        unsaid,
                        "what is wanted in the data directory is taken away, and not done: {error}; said once a minute at most"
                    );
                }
                self.withdraw().await;
            }
            Ok(Err(error)) => self.later(&error.to_string()),
        }
    }

    async fn take_up(&mut self, wanted: Wanted) {
        // The stop waits for what was begun.
        let Ok(_place) = self.state.changes.begin() else { return };
        let caller = Caller::new(Some(BY.into()), Role::Admin, self.state.address);
        let made = {
            let wanted = wanted.clone();
            propose(&self.state, &caller, move |state| state.keys.make(&wanted)).await
        };
        let why = match made {
            Ok(Ok(())) => None,
            Ok(Err(error)) if !waits(&error) => Some(error),
            Ok(Err(error)) => return self.later(&error.to_string()),
            Err(problem) => return self.later(problem.detail()),
        };
        let text = wanted.to_string();
        match &why {
            None => tracing::warn!(
                "{text}, as somebody wants who is this node's user on this machine (`meridian key`)"
            ),
            Some(why) => tracing::error!("`meridian key` wants this, and it is not done: {text}: {why}"),
        }
        self.state.audit.write(self.entry(&wanted, text, why)).await;
        self.withdraw().await;
    }

    fn entry(&self, wanted: &Wanted, text: String, why: Option<KeyError>) -> Entry {
        let (method, path, status) = match wanted {
            Wanted::Add(_) => (Method::POST, "/api/v1/keys".to_owned(), StatusCode::CREATED),
            Wanted::Remove(name) => (Method::DELETE, format!("/api/v1/keys/{name}"), StatusCode::NO_CONTENT),
        };
        let file = self.state.node.data_dir.join(FILE).display().to_string();
        let problem = why.map(Problem::from);
        let status = problem.as_ref().map_or(status, |problem| problem.kind().status());
        let detail = problem.map_or(text, |problem| problem.detail().to_owned());
        Entry::beside(BY, file, method.as_str(), &path, status.as_u16(), detail)
    }

    async fn withdraw(&mut self) {
        let data_dir = self.state.node.data_dir.clone();
        if let Ok(Err(error)) = off_runtime(move || Wanted::withdraw(&data_dir)).await {
            self.complain(&format!("{FILE} cannot be removed from the data directory, remove it: {error}"));
        }
    }

    fn later(&mut self, why: &str) {
        self.complain(&format!("what `meridian key` wants waits: {why}"));
    }

    fn complain(&mut self, what: &str) {
        if let Some(unsaid) = self.late.another(Instant::now()) {
            tracing::warn!(unsaid, "{what}; tried again each second, said once a minute at most");
        }
    }
}

/// Whether it may go well another time.
fn waits(error: &KeyError) -> bool {
    let KeyError::Write(error) = error else { return false };
    matches!(error, ProposeError::NotAgreed { .. } | ProposeError::Write { .. } | ProposeError::Broken { .. })
}
