//! One client's pass through the chain, when it takes work on threads.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use access::{AuthReply, AuthResult, Credentials};
use mqtt::ReasonCode;

use super::Member;
use super::deadlines::{Ticket, TooMany};
use crate::guard::{Decision, Policy, Shared};
use crate::link::{Attempt, CacheKey, Outcome, Threads};
use crate::recent::Fingerprint;
use crate::settings::OnFailure;

/// One client's pass through the chain. One thread at a time works on it; only [`Run::expire`] may be called from
/// another.
pub struct Run {
    shared: Arc<Shared>,
    attempt: Attempt,
    state: Mutex<State>,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Run").field(&self.attempt).finish()
    }
}

struct State {
    policy: Arc<Policy>,
    task: Task,
    progress: ChainProgress,
    /// `None` once the client was answered.
    reply: Option<AuthReply>,
    ticket: Option<Ticket>,
}

/// Next work of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Ask this link.
    Ask(usize),
    /// Hide by this link's work that no link knows the client.
    Decoy(usize),
}

/// Results for a client so far.
#[derive(Clone, Debug, Default)]
pub struct ChainProgress {
    /// A link failed, and the next one was asked.
    failed: bool,
    worked: bool,
    forgettable: bool,
    fingerprint: Option<Fingerprint>,
}

/// Next step for a client.
#[derive(Debug)]
pub enum NextStep {
    Work(Task),
    Done(Decision),
}

impl ChainProgress {
    /// Asks the links from `from` on, as long as they answer at once.
    pub fn advance(
        &mut self,
        shared: &Shared,
        policy: &Policy,
        credentials: Credentials<'_>,
        from: usize,
    ) -> NextStep {
        let now = Instant::now();
        let backs_off = || shared.protection().backs_off(&credentials, now);
        let mut at = from;
        while let Some(member) = policy.chain.at(at) {
            let outcome = member.check_immediately(credentials);
            if outcome.is_none() {
                let fingerprint = *self
                    .fingerprint
                    .get_or_insert_with(|| policy.chain.fingerprint(at, credentials, shared.recent()));
                if !self.worked
                    && let Some(admission) = shared.recent().get(&fingerprint, now)
                {
                    return NextStep::Done(Decision::Remembered(Box::new(admission)));
                }
            }
            let is_asked = !matches!(outcome, Some(Outcome::NotMine | Outcome::Failed(_)));
            if is_asked && member.link.guessable() && backs_off() {
                return NextStep::Done(Decision::BacksOff);
            }
            let Some(outcome) = outcome else { return NextStep::Work(Task::Ask(at)) };
            if let Some(decision) = self.apply_outcome(policy, member, outcome) {
                return NextStep::Done(decision);
            }
            at += 1;
        }
        self.no_link_matched(policy, credentials, backs_off)
    }

    /// Returns the decision that follows from a link's answer; `None` asks the next link.
    fn apply_outcome(&mut self, policy: &Policy, member: &Member, outcome: Outcome) -> Option<Decision> {
        match outcome {
            Outcome::Admit(admission) => Some(Decision::Admit(admission)),
            Outcome::Refuse(reason) => Some(Decision::Refuse(reason)),
            Outcome::NotMine => None,
            Outcome::Failed(why) => {
                if member.counters.may_log_failure(Instant::now()) {
                    tracing::warn!(link = member.link.name(), why, "authentication: link failed");
                }
                self.failed = true;
                match policy.on_failure {
                    OnFailure::Refuse => Some(Decision::Failed),
                    OnFailure::Next => None,
                }
            }
        }
    }

    fn no_link_matched(
        &self,
        policy: &Policy,
        credentials: Credentials<'_>,
        backs_off: impl Fn() -> bool,
    ) -> NextStep {
        let has_no_credentials = credentials.username.is_none() && credentials.password.is_none();
        if self.failed {
            // The failed link might have known the client.
            return NextStep::Done(Decision::Failed);
        }
        if !has_no_credentials && !policy.chain.is_empty() {
            if backs_off() {
                return NextStep::Done(Decision::BacksOff);
            }
            if let Some(at) = policy.chain.decoy()
                && !self.worked
            {
                return NextStep::Work(Task::Decoy(at));
            }
        }
        NextStep::Done(Decision::Unknown)
    }
}

impl Run {
    /// Queues a client for the threads of its task.
    pub fn start(
        shared: &Arc<Shared>,
        policy: Arc<Policy>,
        credentials: Credentials<'_>,
        (task, progress): (Task, ChainProgress),
        reply: AuthReply,
    ) {
        let Some(threads) = task.threads(&policy) else { return };
        let now = Instant::now();
        let delay = shared.protection().delay(&credentials, now);
        let begins = now + delay.map_or(Duration::ZERO, |delay| delay.time);
        let deadline = begins + policy.timeout;
        let state = State { policy, task, progress, reply: Some(reply), ticket: None };
        let run = Arc::new(Self {
            shared: shared.clone(),
            attempt: Attempt::of(credentials),
            state: Mutex::new(state),
        });
        let ticket = shared.deadlines().add(deadline, &run);
        run.lock().ticket = Some(ticket);
        let Some(delay) = delay else { return run.submit(threads) };
        let all_max = shared.pools().waiting_max(threads);
        let (counter, reason) = match shared.deadlines().delay(begins, delay, all_max, &run) {
            Ok(()) => return,
            Err(TooMany::OfPair) => (&shared.counters().backed_off, ReasonCode::ConnectionRateExceeded),
            Err(TooMany::OfAll) => (&shared.counters().busy, ReasonCode::ServerBusy),
        };
        run.answer(|_| {
            counter.fetch_add(1, Ordering::Relaxed);
            AuthResult::Deny(reason)
        });
    }

    /// Continues a run that was delayed.
    pub fn start_delayed(self: Arc<Self>) {
        let threads = {
            let state = self.lock();
            state.task.threads(&state.policy)
        };
        if let Some(threads) = threads {
            self.submit(threads);
        }
    }

    fn submit(self: Arc<Self>, threads: Threads) {
        let counters = self.counters();
        counters.as_ref().inspect(|counters| _ = counters.waiting.fetch_add(1, Ordering::Relaxed));
        let shared = self.shared.clone();
        if let Err(run) = shared.pools().submit(threads, self) {
            if let Some(counters) = counters {
                counters.waiting.fetch_sub(1, Ordering::Relaxed);
                counters.busy.fetch_add(1, Ordering::Relaxed);
            }
            run.answer(|_| {
                shared.counters().busy.fetch_add(1, Ordering::Relaxed);
                AuthResult::Deny(ReasonCode::ServerBusy)
            });
        }
    }

    fn counters(&self) -> Option<Arc<super::LinkCounters>> {
        let state = self.lock();
        state.policy.chain.at(state.task.at()).map(|member| member.counters.clone())
    }

    /// Works on a thread of this kind, until another kind has to continue or the client is answered.
    pub fn work(self: Arc<Self>, here: Threads) {
        loop {
            let (policy, task, mut progress, client_waits) = {
                let state = self.lock();
                (state.policy.clone(), state.task, state.progress.clone(), state.reply.is_some())
            };
            let Some(member) = policy.chain.at(task.at()) else { return };
            let next_step = client_waits.then(|| self.step(&policy, member, task, &mut progress));
            member.counters.waiting.fetch_sub(1, Ordering::Relaxed);
            let next = match next_step {
                None => return,
                Some(NextStep::Done(decision)) => match self.end(&policy, &mut progress, decision) {
                    Some(next) => next,
                    None => return,
                },
                Some(NextStep::Work(task)) => (policy, task),
            };
            let (policy, task) = next;
            let Some(threads) = task.threads(&policy) else { return };
            let stays = threads == here;
            if stays && let Some(member) = policy.chain.at(task.at()) {
                member.counters.waiting.fetch_add(1, Ordering::Relaxed);
            }
            {
                let mut state = self.lock();
                (state.policy, state.task, state.progress) = (policy, task, progress);
            }
            if !stays {
                return self.submit(threads);
            }
        }
    }

    fn step(&self, policy: &Policy, member: &Member, task: Task, progress: &mut ChainProgress) -> NextStep {
        let at = match task {
            Task::Ask(at) => at,
            Task::Decoy(_) => {
                member.work_decoy(&self.attempt);
                return NextStep::Done(Decision::Unknown);
            }
        };
        let credentials = self.attempt.credentials();
        let outcome = member.work(&self.attempt);
        progress.worked = true;
        progress.forgettable |= member.link.cache_key(credentials) == CacheKey::Nothing;
        match progress.apply_outcome(policy, member, outcome) {
            Some(decision) => NextStep::Done(decision),
            None => progress.advance(&self.shared, policy, credentials, at + 1),
        }
    }

    /// Answers the client. A result of settings that are no longer in force is discarded, and the chain is asked again.
    fn end(
        &self,
        policy: &Arc<Policy>,
        progress: &mut ChainProgress,
        decision: Decision,
    ) -> Option<(Arc<Policy>, Task)> {
        let credentials = self.attempt.credentials();
        let mut decision = decision;
        let mut policy = policy.clone();
        while let now = self.shared.policy()
            && !Arc::ptr_eq(&now, &policy)
        {
            policy = now;
            *progress = ChainProgress::default();
            match progress.advance(&self.shared, &policy, credentials, 0) {
                NextStep::Work(task) => return Some((policy, task)),
                NextStep::Done(other) => decision = other,
            }
        }
        if let (Decision::Admit(admission), Some(fingerprint), false) =
            (&decision, progress.fingerprint, progress.forgettable)
            && progress.worked
        {
            // Remembered even if the client is gone, because it will reconnect.
            self.shared.recent().insert(fingerprint, admission, Instant::now());
        }
        self.answer(|shared| shared.conclude(&policy, &credentials, decision));
        None
    }

    /// Refuses the client because its time is over, whatever a link may still return.
    pub fn expire(&self) {
        let counters = self.counters();
        self.answer(|shared| {
            if let Some(counters) = counters {
                counters.timed_out.fetch_add(1, Ordering::Relaxed);
            }
            shared.counters().timed_out.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(attempt = ?self.attempt, "authentication: `auth.timeout` reached; refusing");
            AuthResult::Deny(ReasonCode::ServerUnavailable)
        });
    }

    fn answer(&self, verdict: impl FnOnce(&Shared) -> AuthResult) {
        let (reply, ticket) = {
            let mut state = self.lock();
            (state.reply.take(), state.ticket.take())
        };
        if let Some(ticket) = ticket {
            self.shared.deadlines().remove(ticket);
        }
        if let Some(reply) = reply {
            reply.complete(verdict(&self.shared));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

impl Task {
    fn at(self) -> usize {
        match self {
            Self::Ask(at) | Self::Decoy(at) => at,
        }
    }

    fn threads(self, policy: &Policy) -> Option<Threads> {
        policy.chain.at(self.at()).map(|member| member.link.threads())
    }
}
