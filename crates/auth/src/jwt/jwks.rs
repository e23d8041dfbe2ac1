//! JWK Set that a separate thread keeps up to date.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::error::JwtError;
use super::fetch::{Fetched, Origin};
use super::jwk::JwkSet;
use super::keyring::Keys;
use super::settings::Jwt;

/// Maximum number of clients that wait for one fetch, each with a thread. Others are refused and may try again.
const WAITING_MAX: u32 = 4;

/// Keys of an issuer, and the thread that fetches them. Dropping it ends the thread.
#[derive(Debug)]
pub struct Jwks(Arc<Shared>);

/// Counters of a JWK Set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JwksFigures {
    /// Successful fetches of the set, from a URL or a file, including those of an unchanged set.
    pub fetched: u64,
    /// Failed fetches.
    pub failures: u64,
    /// Tokens that named a key which was not in the set.
    pub unknown_key_ids: u64,
    /// Tokens that were verified with keys whose last fetch had failed.
    pub with_old_keys: u64,
    /// Number of usable keys.
    pub keys: u64,
    /// Time since the set was last known to be the issuer's; `None` before the first time.
    pub age: Option<Duration>,
}

/// Waiting behaviour of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait for a fetch, up to its timeout.
    ForFetch,
    /// Do not wait, but a fetch may be requested.
    No,
}

/// Result of a request for newer keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refetched {
    /// The keys are as the issuer has them now, or had them a moment ago.
    Fresh,
    /// The issuer could not be reached, or the caller did not wait.
    Unknown,
}

/// Source of a set, and how it is kept up to date.
#[derive(Debug)]
pub struct FetchSettings {
    origin: Origin,
    refresh: Duration,
    pause: Duration,
    timeout: Duration,
    stale_max: Duration,
}

impl FetchSettings {
    /// Reads the settings and the authorities; `None` when neither a file nor a server of keys is configured.
    ///
    /// # Errors
    /// Errors of [`Origin::of`].
    pub fn of(settings: &Jwt) -> Result<Option<Self>, JwtError> {
        let Some(origin) = Origin::of(settings)? else { return Ok(None) };
        Ok(Some(Self {
            origin,
            refresh: settings.jwks_refresh,
            pause: settings.jwks_fetch_pause,
            timeout: settings.jwks_timeout,
            stale_max: settings.jwks_stale_max,
        }))
    }

    /// Checks the set in a file. A server is not asked.
    ///
    /// # Errors
    /// The fault of the file.
    pub fn check_file(&self) -> Result<(), JwtError> {
        if !self.origin.is_file() {
            return Ok(());
        }
        let fetched = self.origin.fetch(None).map_err(JwtError::Settings)?;
        self.parse(&fetched.document.unwrap_or_default()).map_err(JwtError::Settings)?;
        Ok(())
    }

    fn parse(&self, document: &[u8]) -> Result<JwkSet, String> {
        JwkSet::parse(document).map_err(|error| match &self.origin {
            Origin::File(path) => format!("{}: {error}", path.display()),
            Origin::Server(_) => {
                format!("the answer of the server of jwt.jwks_url is not a JWK Set: {error}")
            }
        })
    }
}

#[derive(Debug)]
struct Shared {
    fetch_settings: ArcSwap<FetchSettings>,
    current: ArcSwapOption<Current>,
    state: Mutex<State>,
    /// The thread waits for this.
    wanted: Condvar,
    /// Clients wait for this.
    finished: Condvar,
    fetched: AtomicU64,
    failures: AtomicU64,
    unknown_key_ids: AtomicU64,
    with_old_keys: AtomicU64,
}

#[derive(Debug)]
struct Current {
    keys: Arc<Keys>,
    etag: Option<String>,
    confirmed: Instant,
}

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    ended: bool,
    /// Numbers of fetches that began and that ended; at most one is in progress.
    started: u64,
    finished: u64,
    /// Time of the end of the last fetch, and whether it succeeded.
    last: Option<(Instant, bool)>,
    waiting: u32,
}

impl Jwks {
    /// Starts the thread. A file is read at once and must be valid; a server may become available later.
    ///
    /// # Errors
    /// The file has no set, or the system provides no threads.
    pub fn start(fetch_settings: FetchSettings) -> Result<Self, JwtError> {
        let is_file = fetch_settings.origin.is_file();
        let shared = Arc::new(Shared {
            fetch_settings: ArcSwap::from_pointee(fetch_settings),
            current: ArcSwapOption::empty(),
            state: Mutex::default(),
            wanted: Condvar::new(),
            finished: Condvar::new(),
            fetched: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            unknown_key_ids: AtomicU64::new(0),
            with_old_keys: AtomicU64::new(0),
        });
        let first = if is_file {
            shared.state().started = 1;
            let due = shared.fetch().map_err(JwtError::Settings)?;
            shared.end_of_fetch(true);
            due
        } else {
            Duration::ZERO
        };
        let run = shared.clone();
        critical::spawn("jwks", move || run.run(first)).map_err(JwtError::System)?;
        Ok(Self(shared))
    }

    /// Returns the keys in force; `None` when there were none yet, or they are too old.
    pub fn keys(&self) -> Option<Arc<Keys>> {
        let current = self.0.current.load();
        let current = current.as_deref()?;
        let age = current.confirmed.elapsed();
        let failing = self.0.state().last.is_some_and(|(_, well)| !well);
        // A thread that no longer fetches is a failure too, though it reports none.
        let fetch_settings = self.0.fetch_settings.load();
        let next_at_latest = fetch_settings.refresh.max(fetch_settings.pause) + fetch_settings.timeout * 2;
        if (failing && age > fetch_settings.stale_max) || age > fetch_settings.stale_max + next_at_latest {
            return None;
        }
        if failing {
            self.0.with_old_keys.fetch_add(1, Ordering::Relaxed);
        }
        Some(current.keys.clone())
    }

    /// Requests a fetch because a token needs unknown keys. Simultaneous requests share one fetch, and none begins
    /// within the pause after the last.
    pub fn refetch(&self, wait: Wait) -> Refetched {
        let shared = &*self.0;
        let (pause, timeout) = {
            let fetch_settings = shared.fetch_settings.load();
            (fetch_settings.pause, fetch_settings.timeout)
        };
        let mut state = shared.state();
        let under_way = state.started > state.finished;
        if !under_way
            && let Some((at, well)) = state.last
            && at.elapsed() < pause
        {
            return if well { Refetched::Fresh } else { Refetched::Unknown };
        }
        let awaited = if under_way { state.started } else { state.started + 1 };
        if !under_way {
            state.wanted = true;
            shared.wanted.notify_one();
        }
        if wait == Wait::No || state.waiting >= WAITING_MAX {
            return Refetched::Unknown;
        }
        state.waiting += 1;
        let patience = timeout + Duration::from_secs(1);
        let pending = |state: &mut State| state.finished < awaited && !state.ended;
        let waited = shared.finished.wait_timeout_while(state, patience, pending);
        let (mut state, _) = sync::ignore_poison(waited);
        state.waiting -= 1;
        match state.last {
            Some((_, true)) if state.finished >= awaited => Refetched::Fresh,
            _ => Refetched::Unknown,
        }
    }

    pub fn count_unknown_key_id(&self) {
        self.0.unknown_key_ids.fetch_add(1, Ordering::Relaxed);
    }

    /// Applies new settings, and fetches soon.
    pub fn change(&self, fetch_settings: Arc<FetchSettings>) {
        self.0.fetch_settings.store(fetch_settings);
        self.0.state().wanted = true;
        self.0.wanted.notify_one();
    }

    pub fn figures(&self) -> JwksFigures {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let current = self.0.current.load();
        JwksFigures {
            fetched: value(&self.0.fetched),
            failures: value(&self.0.failures),
            unknown_key_ids: value(&self.0.unknown_key_ids),
            with_old_keys: value(&self.0.with_old_keys),
            keys: current.as_deref().map_or(0, |current| current.keys.all.len() as u64),
            age: current.as_deref().map(|current| current.confirmed.elapsed()),
        }
    }
}

impl Drop for Jwks {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.wanted.notify_all();
        self.0.finished.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    /// Body of the thread: waits until a fetch is due or requested, and fetches. `first` is the time until the first
    /// one.
    fn run(&self, first: Duration) {
        let mut due = Instant::now() + first;
        let mut failures: u32 = 0;
        while self.wait_until(due) {
            let fetched = self.fetch();
            self.end_of_fetch(fetched.is_ok());
            let pause = match fetched {
                Ok(pause) => {
                    if failures > 0 {
                        tracing::info!(failures, "jwt: fetching the keys succeeds again");
                    }
                    failures = 0;
                    pause
                }
                Err(why) => {
                    tracing::warn!("jwt: keys could not be fetched, keeping the old ones; {why}");
                    failures = failures.saturating_add(1);
                    let FetchSettings { pause, refresh, .. } = **self.fetch_settings.load();
                    pause.saturating_mul(1 << (failures - 1).min(16)).min(refresh).max(pause)
                }
            };
            due = Instant::now() + pause;
        }
    }

    /// Returns false when the thread has to end.
    fn wait_until(&self, due: Instant) -> bool {
        let mut state = self.state();
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if state.ended || state.wanted || left.is_zero() {
                break;
            }
            state = sync::ignore_poison(self.wanted.wait_timeout(state, left)).0;
        }
        state.wanted = false;
        state.started += 1;
        !state.ended
    }

    /// Fetches once, and returns the time until the next fetch.
    fn fetch(&self) -> Result<Duration, String> {
        let before = self.current.load_full();
        let etag = before.as_ref().and_then(|current| current.etag.as_deref());
        let fetch_settings = self.fetch_settings.load_full();
        let fetched = fetch_settings.origin.fetch(etag);
        fetched.and_then(|fetched| self.take(&fetch_settings, fetched, before.as_deref()))
    }

    fn take(
        &self,
        fetch_settings: &FetchSettings,
        fetched: Fetched,
        before: Option<&Current>,
    ) -> Result<Duration, String> {
        let keys = match (&fetched.document, before) {
            (None, Some(before)) => before.keys.clone(),
            (None, None) => {
                return Err("the server answers the first request with 304 (Not Modified)".to_owned());
            }
            (Some(document), _) => {
                let set = fetch_settings.parse(document)?;
                if set.keys.is_empty() {
                    tracing::warn!(skipped = set.skipped, "the JWK Set has no usable key");
                }
                Arc::new(Keys { all: set.keys, named: true })
            }
        };
        let current = Current { keys, etag: fetched.etag, confirmed: Instant::now() };
        self.current.store(Some(Arc::new(current)));
        Ok(fetched
            .max_age
            .unwrap_or(fetch_settings.refresh)
            .min(fetch_settings.refresh)
            .max(fetch_settings.pause))
    }

    fn end_of_fetch(&self, well: bool) {
        let mut state = self.state();
        let counter = if well { &self.fetched } else { &self.failures };
        counter.fetch_add(1, Ordering::Relaxed);
        state.finished = state.started;
        state.last = Some((Instant::now(), well));
        self.finished.notify_all();
    }
}
