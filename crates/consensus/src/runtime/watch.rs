//! A value and the tasks that wait for it to change. The `watch` of `tokio` wakes tasks in an order that depends on the
//! operating system's randomness. This one wakes them in the order in which the receivers were made.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use std::task::{Poll, Waker};

use openraft::rt::watch::{RecvError, SendError};
use openraft::rt::{Watch, WatchReceiver, WatchSender};

pub struct Watched;

struct Shared<T> {
    value: RwLock<T>,
    version: AtomicU64,
    endpoints: Mutex<Endpoints>,
}

#[derive(Default)]
struct Endpoints {
    senders: usize,
    receivers: usize,
    count: u64,
    waiting: BTreeMap<u64, Waker>,
}

pub struct Sender<T>(Arc<Shared<T>>);

pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    number: u64,
    seen: u64,
}

impl<T> Shared<T> {
    /// Locks the value for reading.
    fn read(&self) -> RwLockReadGuard<'_, T> {
        sync::ignore_poison(self.value.read())
    }

    fn change(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let is_changed = change(&mut *sync::ignore_poison(self.value.write()));
        if is_changed {
            self.version.fetch_add(1, Ordering::AcqRel);
            self.wake();
        }
        is_changed
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut sync::lock(&self.endpoints).waiting);
        waiting.into_values().for_each(Waker::wake);
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

impl<T> Sender<T> {
    fn new(shared: Arc<Shared<T>>) -> Self {
        sync::lock(&shared.endpoints).senders += 1;
        Self(shared)
    }
}

impl<T> Receiver<T> {
    fn new(shared: Arc<Shared<T>>, seen: u64) -> Self {
        let number = {
            let mut endpoints = sync::lock(&shared.endpoints);
            endpoints.receivers += 1;
            endpoints.count += 1;
            endpoints.count
        };
        Self { shared, number, seen }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self::new(self.shared.clone(), self.seen)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let is_last = {
            let mut endpoints = sync::lock(&self.0.endpoints);
            endpoints.senders -= 1;
            endpoints.senders == 0
        };
        if is_last {
            self.0.wake();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut endpoints = sync::lock(&self.shared.endpoints);
        endpoints.receivers -= 1;
        endpoints.waiting.remove(&self.number);
    }
}

impl Watch for Watched {
    type Sender<T: Send + Sync> = Sender<T>;
    type Receiver<T: Send + Sync> = Receiver<T>;
    type Ref<'a, T: Send + 'a> = RwLockReadGuard<'a, T>;

    fn channel<T: Send + Sync>(init: T) -> (Sender<T>, Receiver<T>) {
        let shared =
            Shared { value: RwLock::new(init), version: AtomicU64::new(0), endpoints: Mutex::default() };
        let shared = Arc::new(shared);
        (Sender::new(shared.clone()), Receiver::new(shared, 0))
    }
}

impl<T: Send + Sync> WatchSender<Watched, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if sync::lock(&self.0.endpoints).receivers == 0 {
            return Err(SendError(value));
        }
        self.0.change(|current| {
            *current = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        self.0.change(modify)
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.0.read()
    }

    fn subscribe(&self) -> Receiver<T> {
        Receiver::new(self.0.clone(), self.0.version())
    }
}

impl<T: Send + Sync> WatchReceiver<Watched, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        poll_fn(|context| {
            let version = self.shared.version();
            if version != self.seen {
                self.seen = version;
                return Poll::Ready(Ok(()));
            }
            let mut endpoints = sync::lock(&self.shared.endpoints);
            if endpoints.senders == 0 {
                return Poll::Ready(Err(RecvError(())));
            }
            endpoints.waiting.insert(self.number, context.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.shared.read()
    }

    fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        self.seen = self.shared.version();
        self.shared.read()
    }
}
