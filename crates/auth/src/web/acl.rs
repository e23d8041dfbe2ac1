//! A source of authorisation that asks an HTTP service.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use broker::access::{Action, AskAgain, Identity};

use crate::opinion::Opinion;
use crate::web::answers::{Answers, Found, Joined, QuestionKey};
use crate::web::figures::{Counters, ServiceFigures};
use crate::web::question::{Kind, Question};
use crate::web::reply::opinion;
use crate::web::service::{Fault, Service, ServiceError};
use crate::web::settings::HttpAclSettings;
use crate::web::template::Rendered;

/// Asks what clients may do. Answers from memory, or when it has asked, on threads of its own.
#[derive(Debug)]
pub struct HttpAcl {
    office: ArcSwap<Office>,
    counters: Arc<Counters>,
}

/// Settings and files that were read and can be used, and are not in force yet.
pub struct AclChange<'a> {
    acl: &'a HttpAcl,
    office: Office,
}

/// What the settings gave. Its threads end when it is dropped and what is queued is done.
struct Office {
    desk: Arc<Desk>,
    queue: SyncSender<Job>,
}

struct Desk {
    service: Service,
    answers: Answers<Opinion, AskAgain>,
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
        let Some(office) = Office::open(settings, &counters)? else { return Ok(None) };
        Ok(Some(Self { office: ArcSwap::from_pointee(office), counters }))
    }

    /// Reads other settings, with the headers and certificates that are in their files now. `None` when there is no URL any more: then
    /// everything stays as it was.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn read(&self, settings: &HttpAclSettings) -> Result<Option<AclChange<'_>>, ServiceError> {
        let office = Office::open(settings, &self.counters)?;
        Ok(office.map(|office| AclChange { acl: self, office }))
    }

    /// Never waits. With [`Opinion::Later`] it took what `later` returns, and drops it when the answer is there; the answer then
    /// stays for at least a second, also when it is that there is none. Deliveries ([`Action::Receive`]) are never asked about:
    /// what a subscription was granted is delivered.
    pub fn decide(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> AskAgain,
    ) -> Opinion {
        let Some(question) = Question::what(identity, action, topic) else { return Opinion::None };
        let office = self.office.load();
        let Office { desk, queue } = &**office;
        let key = desk.answers.key(desk.service.fields(), &question);
        let now = Instant::now();
        let found = desk.answers.find(&key, now);
        if let Found::Known(opinion) = found {
            Counters::add(&self.counters.cached);
            return opinion;
        }
        if found == Found::Unknown && desk.service.refuses(now) {
            self.counters.failed(&Fault::CircuitOpen);
            return Opinion::Failed;
        }
        if desk.answers.full() {
            self.counters.failed(&Fault::Busy);
            return Opinion::Failed;
        }
        let Ok(request) = desk.service.render(&question) else { return Opinion::Deny };
        match desk.answers.join(&key, now, later()) {
            // It came in between; what `later` returned is dropped, and the question is asked again.
            Joined::Known(_) => {}
            Joined::Waits => Counters::add(&self.counters.joined),
            Joined::Asks => {
                if queue.try_send(Job { key, request, queued: now }).is_err() {
                    self.counters.failed(&Fault::Busy);
                    desk.finish(&key, Opinion::Failed);
                }
            }
        }
        Opinion::Later
    }

    pub fn figures(&self) -> ServiceFigures {
        let office = self.office.load();
        self.counters.figures(office.desk.service.circuit(), office.desk.answers.len())
    }
}

impl AclChange<'_> {
    /// Puts it in force. Nothing is remembered from before.
    pub fn apply(self) {
        self.acl.office.store(Arc::new(self.office));
    }
}

impl Office {
    fn open(settings: &HttpAclSettings, counters: &Arc<Counters>) -> Result<Option<Self>, ServiceError> {
        let Some(settings) = settings.service() else { return Ok(None) };
        let system = |error: std::io::Error| ServiceError::system(settings.section, error);
        let waiting_max = settings.waiting_max as usize;
        // Answers have to be there when they are fetched.
        let answers = Answers::new((settings.cache_max as usize).max(CACHE_MIN), waiting_max)
            .map_err(|error| ServiceError::system(settings.section, error))?;
        let desk = Arc::new(Desk {
            service: Service::open(Kind::Authorisation, &settings, counters.clone())?,
            answers,
            allow: settings.cache_ttl_allow.max(KEPT_MIN),
            deny: settings.cache_ttl_deny.max(KEPT_MIN),
            timeout: settings.timeout,
        });
        let (queue, jobs) = sync_channel(waiting_max);
        let jobs = Arc::new(Mutex::new(jobs));
        for index in 0..settings.connections_max {
            let (desk, jobs) = (desk.clone(), jobs.clone());
            vital::spawn(format!("http-acl-{index}"), move || run(&desk, &jobs)).map_err(system)?;
        }
        Ok(Some(Self { desk, queue }))
    }
}

fn run(desk: &Desk, jobs: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is held while waiting for a job, not while working on it.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { key, request, queued }) = job else { return };
        let asking = Asking { desk, key };
        if queued.elapsed() >= desk.timeout {
            // Its client has waited for as long as a whole answer may take, and many wait behind it.
            desk.service.counters.failed(&Fault::Timeout);
            continue;
        }
        let Ok(opinion) = desk.service.ask(&request, opinion) else { continue };
        let counters = &desk.service.counters;
        Counters::add(match opinion {
            Opinion::Allow => &counters.allowed,
            Opinion::Deny => &counters.denied,
            Opinion::None | Opinion::Later | Opinion::Failed => &counters.ignored,
        });
        asking.done(opinion);
    }
}

/// A question that has failed unless it is done.
struct Asking<'a> {
    desk: &'a Desk,
    key: QuestionKey,
}

impl Asking<'_> {
    fn done(self, opinion: Opinion) {
        self.desk.finish(&self.key, opinion);
        std::mem::forget(self);
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.desk.finish(&self.key, Opinion::Failed);
    }
}

impl Desk {
    fn finish(&self, key: &QuestionKey, opinion: Opinion) {
        let time = match opinion {
            Opinion::Allow => self.allow,
            Opinion::Deny | Opinion::None => self.deny,
            Opinion::Failed | Opinion::Later => KEPT_MIN,
        };
        // Dropped here, which wakes those who wait.
        drop(self.answers.finish(key, opinion, Instant::now(), time));
    }
}

impl std::fmt::Debug for Office {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Office").field("service", &self.desk.service).finish_non_exhaustive()
    }
}

/// How long an answer is kept at least, so that whoever waited for it finds it.
const KEPT_MIN: Duration = Duration::from_secs(1);
/// As many are kept at least.
const CACHE_MIN: usize = 1024;
