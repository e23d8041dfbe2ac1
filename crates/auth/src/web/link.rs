//! Link `http` of the authentication chain.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use access::Credentials;
use arc_swap::ArcSwap;
use mqtt::ReasonCode;

use crate::link::{Attempt, CacheKey, Link, Outcome};
use crate::web::answers::{Answers, JoinResult, Lookup, QuestionKey};
use crate::web::figures::{Counters, ServiceFigures};
use crate::web::question::{Kind, Question};
use crate::web::reply::AuthenticationAnswer;
use crate::web::service::{Fault, Service, ServiceError};
use crate::web::settings::HttpAuthSettings;

/// Asks an HTTP service who may connect.
#[derive(Debug)]
pub struct HttpLink {
    state: ArcSwap<ServiceState>,
    counters: Arc<Counters>,
}

/// Settings and files that were read, are usable, and are not in force yet.
pub struct LinkChange<'a> {
    link: &'a HttpLink,
    state: ServiceState,
}

/// State that follows from the settings.
struct ServiceState {
    service: Service,
    answers: Answers<AuthenticationAnswer, SyncSender<AuthenticationAnswer>>,
    allow: Duration,
    deny: Duration,
    /// Time for which a client waits for the answer to another one. That one first waits for a connection.
    wait_timeout: Duration,
}

impl HttpLink {
    /// Opens the link; opens no connection yet. `None` without a URL.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn open(settings: &HttpAuthSettings) -> Result<Option<Self>, ServiceError> {
        let counters = Arc::<Counters>::default();
        let Some(state) = ServiceState::open(settings, &counters)? else { return Ok(None) };
        Ok(Some(Self { state: ArcSwap::from_pointee(state), counters }))
    }

    /// Reads new settings, with the current contents of the header and certificate files. `None` when the URL was
    /// removed: then nothing changes.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn read(&self, settings: &HttpAuthSettings) -> Result<Option<LinkChange<'_>>, ServiceError> {
        let state = ServiceState::open(settings, &self.counters)?;
        Ok(state.map(|state| LinkChange { link: self, state }))
    }

    pub fn figures(&self) -> ServiceFigures {
        let state = self.state.load();
        self.counters.figures(state.service.circuit(), state.answers.len())
    }
}

impl LinkChange<'_> {
    /// Puts the change in force, and clears the cache.
    pub fn apply(self) {
        self.link.state.store(Arc::new(self.state));
    }
}

impl ServiceState {
    fn open(settings: &HttpAuthSettings, counters: &Arc<Counters>) -> Result<Option<Self>, ServiceError> {
        let Some(settings) = settings.service() else { return Ok(None) };
        let answers = Answers::new(settings.cache_max as usize, settings.waiting_max as usize)
            .map_err(|error| ServiceError::system(settings.section, error))?;
        Ok(Some(Self {
            service: Service::open(Kind::Authentication, &settings, counters.clone())?,
            answers,
            allow: settings.cache_ttl_allow,
            deny: settings.cache_ttl_deny,
            wait_timeout: settings.timeout * 3,
        }))
    }

    fn cached(&self, key: &QuestionKey) -> Option<AuthenticationAnswer> {
        match self.answers.find(key, Instant::now()) {
            Lookup::Cached(answer) => {
                Counters::add(&self.service.counters.cached);
                Some(answer)
            }
            Lookup::Pending | Lookup::Unknown => None,
        }
    }

    fn key(&self, question: &Question<'_>) -> QuestionKey {
        self.answers.key(self.service.fields(), question)
    }

    fn authenticate(&self, question: &Question<'_>) -> AuthenticationAnswer {
        let key = self.key(question);
        if let Some(answer) = self.cached(&key) {
            return answer;
        }
        if self.answers.full() {
            return self.failed(Fault::Busy);
        }
        let Ok(request) = self.service.render(question) else {
            // The service expects text, so it does not know this client.
            return AuthenticationAnswer::Refuse(ReasonCode::BadUserNameOrPassword);
        };
        let (sender, answer) = sync_channel(1);
        match self.answers.join(&key, Instant::now(), sender) {
            JoinResult::Cached(answer) => answer,
            JoinResult::Waiting => {
                Counters::add(&self.service.counters.joined);
                match answer.recv_timeout(self.wait_timeout) {
                    Ok(answer) => answer,
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                        self.failed(Fault::Timeout)
                    }
                }
            }
            JoinResult::MustAsk => {
                let mut pending =
                    PendingAnswer { state: self, key, answer: AuthenticationAnswer::Failed(Fault::Timeout) };
                pending.answer = self
                    .service
                    .ask(&request, AuthenticationAnswer::read)
                    .unwrap_or_else(AuthenticationAnswer::Failed);
                self.count(&pending.answer);
                pending.answer.clone()
            }
        }
    }

    fn failed(&self, fault: Fault) -> AuthenticationAnswer {
        self.service.counters.failed(&fault);
        AuthenticationAnswer::Failed(fault)
    }

    fn count(&self, answer: &AuthenticationAnswer) {
        let counters = &self.service.counters;
        match answer {
            AuthenticationAnswer::Admit(_) => Counters::add(&counters.allowed),
            AuthenticationAnswer::Refuse(_) => Counters::add(&counters.denied),
            AuthenticationAnswer::NotMine => Counters::add(&counters.ignored),
            // Logged where it happened.
            AuthenticationAnswer::Failed(_) => {}
        }
    }
}

/// Passes the answer to the waiting clients, also when the asking client fails.
struct PendingAnswer<'a> {
    state: &'a ServiceState,
    key: QuestionKey,
    answer: AuthenticationAnswer,
}

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        let time = match self.answer {
            AuthenticationAnswer::Admit(_) => self.state.allow,
            AuthenticationAnswer::Refuse(_) | AuthenticationAnswer::NotMine => self.state.deny,
            AuthenticationAnswer::Failed(_) => Duration::ZERO,
        };
        for waiter in self.state.answers.finish(&self.key, self.answer.clone(), Instant::now(), time) {
            // The asking client is among them and does not listen. Another one may have stopped waiting.
            let _ = waiter.try_send(self.answer.clone());
        }
    }
}

impl Link for HttpLink {
    fn name(&self) -> &'static str {
        "http"
    }

    fn check_immediately(&self, credentials: Credentials<'_>) -> Option<Outcome> {
        let state = self.state.load();
        let cached = state.cached(&state.key(&Question::for_authentication(credentials)));
        if let Some(answer) = cached {
            return Some(answer.outcome(SystemTime::now()));
        }
        state
            .service
            .refuses(Instant::now())
            .then(|| state.failed(Fault::CircuitOpen).outcome(SystemTime::now()))
    }

    fn work(&self, attempt: &Attempt) -> Outcome {
        // A clone, so that a reload does not wait for this request.
        let state = self.state.load_full();
        state.authenticate(&Question::for_authentication(attempt.credentials())).outcome(SystemTime::now())
    }

    /// The link has its own cache, with the times of its settings.
    fn cache_key(&self, _: Credentials<'_>) -> CacheKey {
        CacheKey::Nothing
    }
}

impl std::fmt::Debug for ServiceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("service", &self.service).finish_non_exhaustive()
    }
}
