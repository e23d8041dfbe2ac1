//! Cache of a service's recent answers, and its questions in progress.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::web::question::{Field, Question, Value};

/// Question as a hash, under a key that only this process has and that is never written.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuestionKey([u8; 32]);

/// Cached answers `A`, each until its time is over, and waiting clients `W`.
pub struct Answers<A, W> {
    key: [u8; 32],
    shard_max: usize,
    waiting: AtomicUsize,
    waiting_max: usize,
    /// Several shards, so that reactors rarely contend for a lock, which is held for one look-up.
    shards: [Mutex<Shard<A, W>>; SHARDS],
}

struct Shard<A, W> {
    cached: HashMap<QuestionKey, Cached<A>>,
    /// Keys in `cached`, in order of arrival, each once.
    order: VecDeque<QuestionKey>,
    pending: HashMap<QuestionKey, Vec<W>>,
}

struct Cached<A> {
    answer: A,
    until: Instant,
}

/// State of a question.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup<A> {
    Cached(A),
    /// Another client is asking.
    Pending,
    Unknown,
}

/// Result of joining a question.
#[derive(Debug, PartialEq, Eq)]
pub enum JoinResult<A> {
    /// The answer is known meanwhile.
    Cached(A),
    /// Another client is asking, and this one waits for the same answer.
    Waiting,
    /// No other client is asking. This one must ask, and call [`Answers::finish`].
    MustAsk,
}

impl<A: Clone, W> Answers<A, W> {
    /// Creates a cache for about `max` answers, with room for `waiting_max` waiting clients.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn new(max: usize, waiting_max: usize) -> Result<Self, getrandom::Error> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        let shards = std::array::from_fn(|_| Mutex::new(Shard::default()));
        Ok(Self { key, shard_max: max.div_ceil(SHARDS), waiting: AtomicUsize::new(0), waiting_max, shards })
    }

    /// Returns the key of a question. It covers only what is sent to the service: two questions with the same request
    /// are equal.
    pub fn key(&self, fields: &[Field], question: &Question<'_>) -> QuestionKey {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of every length");
        for field in fields {
            let small;
            let value = question.value(*field);
            let (kind, bytes): (u8, &[u8]) = match &value {
                Value::Absent => (0, &[]),
                Value::Text(text) => (1, text.as_bytes()),
                Value::Bytes(bytes) => (1, bytes),
                Value::Number(number) => {
                    small = [*number];
                    (2, &small)
                }
                Value::Flag(flag) => {
                    small = [u8::from(*flag)];
                    (3, &small)
                }
            };
            // The length separates this part from the next.
            mac.update(&[kind]);
            mac.update(&(bytes.len() as u64).to_le_bytes());
            mac.update(bytes);
        }
        QuestionKey(mac.finalize().into_bytes().into())
    }

    pub fn find(&self, key: &QuestionKey, now: Instant) -> Lookup<A> {
        self.shard(key).find(key, now)
    }

    /// Returns whether the maximum number of clients waits.
    pub fn full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= self.waiting_max
    }

    /// Joins a question. `waiter` is kept until [`Answers::finish`], also that of the asking client, unless the answer
    /// is cached.
    pub fn join(&self, key: &QuestionKey, now: Instant, waiter: W) -> JoinResult<A> {
        let mut shard = self.shard(key);
        match shard.find(key, now) {
            Lookup::Cached(answer) => return JoinResult::Cached(answer),
            Lookup::Pending | Lookup::Unknown => {}
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        match shard.pending.get_mut(key) {
            Some(waiters) => {
                waiters.push(waiter);
                JoinResult::Waiting
            }
            None => {
                shard.pending.insert(*key, vec![waiter]);
                JoinResult::MustAsk
            }
        }
    }

    /// Caches the answer for `time`, and returns the waiting clients. The caller wakes them, after the lock is
    /// released.
    pub fn finish(&self, key: &QuestionKey, answer: A, now: Instant, time: Duration) -> Vec<W> {
        let mut shard = self.shard(key);
        if !time.is_zero() {
            shard.keep(*key, Cached { answer, until: now + time }, self.shard_max);
        }
        let waiters = shard.pending.remove(key).unwrap_or_default();
        self.waiting.fetch_sub(waiters.len(), Ordering::Relaxed);
        waiters
    }

    /// Returns the number of cached answers, including expired ones that were not requested since.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| sync::lock(shard).cached.len()).sum()
    }

    fn shard(&self, key: &QuestionKey) -> MutexGuard<'_, Shard<A, W>> {
        sync::lock(&self.shards[usize::from(key.0[0]) % SHARDS])
    }
}

impl<A, W> Default for Shard<A, W> {
    fn default() -> Self {
        Self { cached: HashMap::new(), order: VecDeque::new(), pending: HashMap::new() }
    }
}

impl<A: Clone, W> Shard<A, W> {
    fn find(&self, key: &QuestionKey, now: Instant) -> Lookup<A> {
        match self.cached.get(key) {
            Some(cached) if now < cached.until => Lookup::Cached(cached.answer.clone()),
            _ if self.pending.contains_key(key) => Lookup::Pending,
            _ => Lookup::Unknown,
        }
    }

    fn keep(&mut self, key: QuestionKey, cached: Cached<A>, max: usize) {
        if max == 0 {
            return;
        }
        if self.cached.insert(key, cached).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > max
            && let Some(oldest) = self.order.pop_front()
        {
            self.cached.remove(&oldest);
        }
    }
}

const SHARDS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(30);

    fn key(n: u8) -> QuestionKey {
        let mut bytes = [0; 32];
        bytes[1] = n;
        QuestionKey(bytes)
    }

    fn answers(max: usize) -> Answers<u8, char> {
        Answers::new(max, 3).unwrap()
    }

    #[test]
    fn equal_questions_are_asked_once_and_all_get_the_answer() {
        let (answers, now) = (answers(16), Instant::now());
        assert_eq!(answers.find(&key(1), now), Lookup::Unknown);
        assert_eq!(answers.join(&key(1), now, 'a'), JoinResult::MustAsk);
        assert_eq!(answers.find(&key(1), now), Lookup::Pending);
        assert_eq!(answers.join(&key(1), now, 'b'), JoinResult::Waiting);
        assert_eq!(answers.join(&key(2), now, 'c'), JoinResult::MustAsk);
        assert!(answers.full());
        assert_eq!(answers.finish(&key(1), 7, now, TIME), ['a', 'b']);
        assert!(!answers.full());
        assert_eq!(answers.join(&key(1), now, 'd'), JoinResult::Cached(7));
        assert_eq!(answers.find(&key(1), now + TIME), Lookup::Unknown);
        assert_eq!(answers.join(&key(1), now + TIME, 'e'), JoinResult::MustAsk);
        assert_eq!(answers.finish(&key(1), 8, now, Duration::ZERO), ['e']);
        assert_eq!(answers.find(&key(1), now), Lookup::Cached(7), "the older answer has not expired");
        assert_eq!(answers.finish(&key(2), 8, now, Duration::ZERO), ['c']);
        assert_eq!(answers.find(&key(2), now), Lookup::Unknown);
    }

    #[test]
    fn the_number_of_answers_is_bounded() {
        let (answers, now) = (answers(2 * SHARDS), Instant::now());
        for n in 0..100 {
            answers.join(&key(n), now, 'x');
            answers.finish(&key(n), n, now, TIME);
        }
        let kept: Vec<u8> = (0..100).filter(|n| answers.find(&key(*n), now) == Lookup::Cached(*n)).collect();
        assert_eq!((kept, answers.len()), (vec![98, 99], 2));
        let none = Answers::<u8, char>::new(0, 3).unwrap();
        none.finish(&key(1), 1, now, TIME);
        assert_eq!(none.len(), 0);
    }

    #[test]
    fn the_key_covers_the_sent_fields_and_no_others() {
        let answers = answers(1);
        let question = Question {
            client_id: "c",
            username: Some("alice"),
            password: Some(b"pw"),
            peer: None,
            listener: "l",
            certificate: None,
            requested: None,
        };
        let fields = [Field::ClientId, Field::Username, Field::Password];
        let of = |question: Question<'_>| answers.key(&fields, &question).0;
        let first = of(question);
        assert_eq!(first, of(Question { listener: "other", ..question }));
        for other in [
            Question { client_id: "", ..question },
            Question { username: None, ..question },
            Question { username: Some(""), ..question },
            Question { username: Some("alicep"), password: Some(b"w"), ..question },
            Question { password: Some(b"pw2"), ..question },
            Question { password: None, ..question },
        ] {
            assert_ne!(first, of(other));
        }
        let another_key = Answers::<u8, char>::new(1, 1).unwrap();
        assert_ne!(first, another_key.key(&fields, &question).0);
    }
}
