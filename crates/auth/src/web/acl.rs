//! A source of authorisation that asks an HTTP service.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use broker::access::{Action, Identity, RetryAuthorize};

use crate::opinion::Opinion;
use crate::web::answers::{Answers, JoinResult, Lookup, QuestionKey};
use crate::web::figures::{Counters, ServiceFigures};
use crate::web::question::{Kind, Question};
use crate::web::reply::opinion;
use crate::web::service::{Fault, Service, ServiceError};
use crate::web::settings::HttpAclSettings;
use crate::web::template::Rendered;

/// Asks what clients may do. Answers from memory, or when it has asked, on threads of its own.
#[derive(Debug)]
pub struct HttpAcl {
    workers: ArcSwap<ServiceWorkers>,
    counters: Arc<Counters>,
}

/// Settings and files that were read and can be used, and are not in force yet.
pub struct AclChange<'a> {
    acl: &'a HttpAcl,
    workers: ServiceWorkers,
}

/// What the settings gave. Its threads end when it is dropped and what is queued is done.
struct ServiceWorkers {
    state: Arc<ServiceState>,
    queue: SyncSender<Job>,
}

struct ServiceState {
    service: Service,
    answers: Answers<Opinion, RetryAuthorize>,
    allow: Duration,
    deny: Duration,
    timeout: Duration,
}

struct Job {
    key: QuestionKey,
    request: Rendered,
    queued: Instant,
}

impl HttpAcl {
    /// Starts the threads; connects to nobody yet. `None` without a URL.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn open(settings: &HttpAclSettings) -> Result<Option<Self>, ServiceError> {
        let counters = Arc::<Counters>::default();
        let Some(workers) = ServiceWorkers::open(settings, &counters)? else { return Ok(None) };
        Ok(Some(Self { workers: ArcSwap::from_pointee(workers), counters }))
    }

    /// Reads other settings, with the headers and certificates that are in their files now. `None` when there is no URL any more: then
    /// everything stays as it was.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn read(&self, settings: &HttpAclSettings) -> Result<Option<AclChange<'_>>, ServiceError> {
        let workers = ServiceWorkers::open(settings, &self.counters)?;
        Ok(workers.map(|workers| AclChange { acl: self, workers }))
    }

    /// Never waits. With [`Opinion::Later`] it took what `later` returns, and drops it when the answer is there; the answer then
    /// stays for at least a second, also when it is that there is none. Deliveries ([`Action::Receive`]) are never asked about:
    /// what a subscription was granted is delivered.
    pub fn decide(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Opinion {
        let Some(question) = Question::for_authorization(identity, action, topic) else {
            return Opinion::None;
        };
        let workers = self.workers.load();
        let ServiceWorkers { state, queue } = &**workers;
        let key = state.answers.key(state.service.fields(), &question);
        let now = Instant::now();
        let found = state.answers.find(&key, now);
        if let Lookup::Cached(opinion) = found {
            Counters::add(&self.counters.cached);
            return opinion;
        }
        if found == Lookup::Unknown && state.service.refuses(now) {
            self.counters.failed(&Fault::CircuitOpen);
            return Opinion::Failed;
        }
        if state.answers.full() {
            self.counters.failed(&Fault::Busy);
            return Opinion::Failed;
        }
        let Ok(request) = state.service.render(&question) else { return Opinion::Deny };
        match state.answers.join(&key, now, later()) {
            // It came in between; what `later` returned is dropped, and the question is asked again.
            JoinResult::Cached(_) => {}
            JoinResult::Waiting => Counters::add(&self.counters.joined),
            JoinResult::MustAsk => {
                if queue.try_send(Job { key, request, queued: now }).is_err() {
                    self.counters.failed(&Fault::Busy);
                    state.finish(&key, Opinion::Failed);
                }
            }
        }
        Opinion::Later
    }

    pub fn figures(&self) -> ServiceFigures {
        let workers = self.workers.load();
        self.counters.figures(workers.state.service.circuit(), workers.state.answers.len())
    }
}

impl AclChange<'_> {
    /// Puts it in force. Nothing is remembered from before.
    pub fn apply(self) {
        self.acl.workers.store(Arc::new(self.workers));
    }
}

impl ServiceWorkers {
    fn open(settings: &HttpAclSettings, counters: &Arc<Counters>) -> Result<Option<Self>, ServiceError> {
        let Some(settings) = settings.service() else { return Ok(None) };
        let system = |error: std::io::Error| ServiceError::system(settings.section, error);
        let waiting_max = settings.waiting_max as usize;
        // Answers have to be there when they are fetched.
        let answers = Answers::new((settings.cache_max as usize).max(CACHE_MIN), waiting_max)
            .map_err(|error| ServiceError::system(settings.section, error))?;
        let state = Arc::new(ServiceState {
            service: Service::open(Kind::Authorisation, &settings, counters.clone())?,
            answers,
            allow: settings.cache_ttl_allow.max(CACHE_TTL_MIN),
            deny: settings.cache_ttl_deny.max(CACHE_TTL_MIN),
            timeout: settings.timeout,
        });
        let (queue, jobs) = sync_channel(waiting_max);
        let jobs = Arc::new(Mutex::new(jobs));
        for index in 0..settings.connections_max {
            let (state, jobs) = (state.clone(), jobs.clone());
            critical::spawn(format!("http-acl-{index}"), move || run(&state, &jobs)).map_err(system)?;
        }
        Ok(Some(Self { state, queue }))
    }
}

fn run(state: &ServiceState, jobs: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is held while waiting for a job, not while working on it.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { key, request, queued }) = job else { return };
        let pending = PendingAnswer { state, key };
        if queued.elapsed() >= state.timeout {
            // Its client has waited for as long as a whole answer may take, and many wait behind it.
            state.service.counters.failed(&Fault::Timeout);
            continue;
        }
        let Ok(opinion) = state.service.ask(&request, opinion) else { continue };
        let counters = &state.service.counters;
        Counters::add(match opinion {
            Opinion::Allow => &counters.allowed,
            Opinion::Deny => &counters.denied,
            Opinion::None | Opinion::Later | Opinion::Failed => &counters.ignored,
        });
        pending.done(opinion);
    }
}

/// A question that has failed unless it is done.
struct PendingAnswer<'a> {
    state: &'a ServiceState,
    key: QuestionKey,
}

impl PendingAnswer<'_> {
    fn done(self, opinion: Opinion) {
        self.state.finish(&self.key, opinion);
        std::mem::forget(self);
    }
}

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        self.state.finish(&self.key, Opinion::Failed);
    }
}

impl ServiceState {
    fn finish(&self, key: &QuestionKey, opinion: Opinion) {
        let time = match opinion {
            Opinion::Allow => self.allow,
            Opinion::Deny | Opinion::None => self.deny,
            Opinion::Failed | Opinion::Later => CACHE_TTL_MIN,
        };
        // Dropped here, which wakes those who wait.
        drop(self.answers.finish(key, opinion, Instant::now(), time));
    }
}

impl std::fmt::Debug for ServiceWorkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceWorkers").field("service", &self.state.service).finish_non_exhaustive()
    }
}

/// How long an answer is kept at least, so that whoever waited for it finds it.
const CACHE_TTL_MIN: Duration = Duration::from_secs(1);
/// As many are kept at least.
const CACHE_MIN: usize = 1024;
