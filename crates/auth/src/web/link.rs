//! The link `http` of the authentication chain.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use broker::access::Credentials;
use mqtt::ReasonCode;

use crate::link::{Attempt, Link, Memory, Outcome};
use crate::web::answers::{Answers, Found, Joined, QuestionKey};
use crate::web::figures::{Counters, ServiceFigures};
use crate::web::question::{Kind, Question};
use crate::web::reply::Entry;
use crate::web::service::{Fault, Service, ServiceError};
use crate::web::settings::HttpAuthSettings;

/// Asks an HTTP service who may connect.
#[derive(Debug)]
pub struct HttpLink {
    desk: ArcSwap<Desk>,
    counters: Arc<Counters>,
}

/// Settings and files that were read and can be used, and are not in force yet.
pub struct LinkChange<'a> {
    link: &'a HttpLink,
    desk: Desk,
}

/// What the settings gave.
struct Desk {
    service: Service,
    answers: Answers<Entry, SyncSender<Entry>>,
    allow: Duration,
    deny: Duration,
    /// How long one who waits for the answer of another does so: that one waits for a connection first.
    patience: Duration,
}

impl HttpLink {
    /// `None` without a URL. Connects to nobody yet.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn open(settings: &HttpAuthSettings) -> Result<Option<Self>, ServiceError> {
        let counters = Arc::<Counters>::default();
        let Some(desk) = Desk::open(settings, &counters)? else { return Ok(None) };
        Ok(Some(Self { desk: ArcSwap::from_pointee(desk), counters }))
    }

    /// Reads other settings, with the headers and certificates that are in their files now. `None` when there is no URL any more: then
    /// everything stays as it was.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn read(&self, settings: &HttpAuthSettings) -> Result<Option<LinkChange<'_>>, ServiceError> {
        let desk = Desk::open(settings, &self.counters)?;
        Ok(desk.map(|desk| LinkChange { link: self, desk }))
    }

    pub fn figures(&self) -> ServiceFigures {
        let desk = self.desk.load();
        self.counters.figures(desk.service.circuit(), desk.answers.len())
    }
}

impl LinkChange<'_> {
    /// Puts it in force. Nothing is remembered from before.
    pub fn apply(self) {
        self.link.desk.store(Arc::new(self.desk));
    }
}

impl Desk {
    fn open(settings: &HttpAuthSettings, counters: &Arc<Counters>) -> Result<Option<Self>, ServiceError> {
        let Some(settings) = settings.service() else { return Ok(None) };
        let answers = Answers::new(settings.cache_max as usize, settings.waiting_max as usize)
            .map_err(|error| ServiceError::system(settings.section, error))?;
        Ok(Some(Self {
            service: Service::open(Kind::Authentication, &settings, counters.clone())?,
            answers,
            allow: settings.cache_ttl_allow,
            deny: settings.cache_ttl_deny,
            patience: settings.timeout * 3,
        }))
    }

    fn known(&self, key: &QuestionKey) -> Option<Entry> {
        match self.answers.find(key, Instant::now()) {
            Found::Known(entry) => {
                Counters::add(&self.service.counters.cached);
                Some(entry)
            }
            Found::Asked | Found::Unknown => None,
        }
    }

    fn key(&self, question: &Question<'_>) -> QuestionKey {
        self.answers.key(self.service.fields(), question)
    }

    fn find_out(&self, question: &Question<'_>) -> Entry {
        let key = self.key(question);
        if let Some(entry) = self.known(&key) {
            return entry;
        }
        if self.answers.full() {
            return self.failed(Fault::Busy);
        }
        let Ok(request) = self.service.render(question) else {
            // The service is one of text, so this is no client of its.
            return Entry::Refuse(ReasonCode::BadUserNameOrPassword);
        };
        let (sender, answer) = sync_channel(1);
        match self.answers.join(&key, Instant::now(), sender) {
            Joined::Known(entry) => entry,
            Joined::Waits => {
                Counters::add(&self.service.counters.joined);
                match answer.recv_timeout(self.patience) {
                    Ok(entry) => entry,
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                        self.failed(Fault::Timeout)
                    }
                }
            }
            Joined::Asks => {
                let mut asking = Asking { desk: self, key, entry: Entry::Failed(Fault::Timeout) };
                asking.entry = self.service.ask(&request, Entry::read).unwrap_or_else(Entry::Failed);
                self.count(&asking.entry);
                asking.entry.clone()
            }
        }
    }

    fn failed(&self, fault: Fault) -> Entry {
        self.service.counters.failed(&fault);
        Entry::Failed(fault)
    }

    fn count(&self, entry: &Entry) {
        let counters = &self.service.counters;
        match entry {
            Entry::Admit(_) => Counters::add(&counters.allowed),
            Entry::Refuse(_) => Counters::add(&counters.denied),
            Entry::NotMine => Counters::add(&counters.ignored),
            // Where it happened.
            Entry::Failed(_) => {}
        }
    }
}

/// Hands the answer to those who wait, whatever becomes of the one who asks.
struct Asking<'a> {
    desk: &'a Desk,
    key: QuestionKey,
    entry: Entry,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let time = match self.entry {
            Entry::Admit(_) => self.desk.allow,
            Entry::Refuse(_) | Entry::NotMine => self.desk.deny,
            Entry::Failed(_) => Duration::ZERO,
        };
        for waiter in self.desk.answers.finish(&self.key, self.entry.clone(), Instant::now(), time) {
            // The one who asks is among them and does not listen; another may have lost patience.
            let _ = waiter.try_send(self.entry.clone());
        }
    }
}

impl Link for HttpLink {
    fn name(&self) -> &'static str {
        "http"
    }

    fn at_once(&self, credentials: Credentials<'_>) -> Option<Outcome> {
        let desk = self.desk.load();
        let known = desk.known(&desk.key(&Question::who(credentials)));
        if let Some(entry) = known {
            return Some(entry.outcome(SystemTime::now()));
        }
        desk.service
            .refuses(Instant::now())
            .then(|| desk.failed(Fault::CircuitOpen).outcome(SystemTime::now()))
    }

    fn work(&self, attempt: &Attempt) -> Outcome {
        // Not a guard: a reload meanwhile is not to wait for it.
        let desk = self.desk.load_full();
        desk.find_out(&Question::who(attempt.credentials())).outcome(SystemTime::now())
    }

    /// It remembers by itself, for as long as its settings say.
    fn memory(&self, _: Credentials<'_>) -> Memory {
        Memory::Nothing
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("service", &self.service).finish_non_exhaustive()
    }
}
