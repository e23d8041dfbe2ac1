//! Source of authorisation that asks an HTTP service.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use access::{Action, Identity, RetryAuthorize};
use arc_swap::ArcSwap;

use crate::opinion::Opinion;
use crate::web::answers::{Answers, JoinResult, Lookup, QuestionKey};
use crate::web::figures::{Counters, ServiceFigures};
use crate::web::question::{Kind, Question};
use crate::web::reply::opinion;
use crate::web::service::{Fault, Service, ServiceError};
use crate::web::settings::HttpAclSettings;
use crate::web::template::Rendered;

/// Asks a service what clients may do. Answers from memory, or later, after separate threads have asked.
#[derive(Debug)]
pub struct HttpAcl {
    workers: ArcSwap<ServiceWorkers>,
    counters: Arc<Counters>,
}

/// Settings and files that were read, are usable, and are not in force yet.
pub struct AclChange<'a> {
    acl: &'a HttpAcl,
    workers: ServiceWorkers,
}

/// Service with its threads. They end when this is dropped and the queue is empty.
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
    /// Starts the threads; opens no connection yet. `None` without a URL.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn open(settings: &HttpAclSettings) -> Result<Option<Self>, ServiceError> {
        let counters = Arc::<Counters>::default();
        let Some(workers) = ServiceWorkers::open(settings, &counters)? else { return Ok(None) };
        Ok(Some(Self { workers: ArcSwap::from_pointee(workers), counters }))
    }

    /// Reads new settings, with the current contents of the header and certificate files. `None` when the URL was
    /// removed: then nothing changes.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn read(&self, settings: &HttpAclSettings) -> Result<Option<AclChange<'_>>, ServiceError> {
        let workers = ServiceWorkers::open(settings, &self.counters)?;
        Ok(workers.map(|workers| AclChange { acl: self, workers }))
    }

    /// Decides about an action. Never waits. With [`Opinion::Later`] it keeps the value of `later`, and drops it when
    /// the answer is known. The answer, or its failure, is then cached for at least a second. Deliveries
    /// ([`Action::Receive`]) are never asked about: messages of a granted subscription are delivered.
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
            // The answer arrived meanwhile. The value of `later` is dropped, and the question is asked again.
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
    /// Puts the change in force, and clears the cache.
    pub fn apply(self) {
        self.acl.workers.store(Arc::new(self.workers));
    }
}

impl ServiceWorkers {
    fn open(settings: &HttpAclSettings, counters: &Arc<Counters>) -> Result<Option<Self>, ServiceError> {
        let Some(settings) = settings.service() else { return Ok(None) };
        let system = |error: std::io::Error| ServiceError::system(settings.section, error);
        let waiting_max = settings.waiting_max as usize;
        // The cache must hold answers until their clients fetch them.
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
        let job = sync::lock(jobs).recv();
        let Ok(Job { key, request, queued }) = job else { return };
        let pending = PendingAnswer { state, key };
        if queued.elapsed() >= state.timeout {
            // The client has already waited for the maximum time of an answer, and many others wait too.
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

/// Question that counts as failed unless it is completed.
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
        // Dropping the result wakes the waiting clients.
        drop(self.answers.finish(key, opinion, Instant::now(), time));
    }
}

impl std::fmt::Debug for ServiceWorkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceWorkers").field("service", &self.state.service).finish_non_exhaustive()
    }
}

/// Minimum time for which an answer is cached, so that the waiting clients find it.
const CACHE_TTL_MIN: Duration = Duration::from_secs(1);
/// Minimum capacity of the cache.
const CACHE_MIN: usize = 1024;
