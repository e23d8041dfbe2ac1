//! The service that lists the subscriptions of a session for the other cluster.
//!
//! It is one connection of each node. The node that leads the shard of the session answers.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bridge::{Client, ConnectOptions, Event, Time};
use broker::admin::{Admin, ClientDetail, SubscriptionInfo};
use broker::internal::{LINK, LINK_FILTERS, LINK_LIST, LINK_SERVICE};
use edge::Door;
use mio::{Events, Interest, Poll, Token, Waker};
use mqtt::{Outgoing, Packet, QoS, SubscriptionOptions, Version};

const SOCKET: Token = Token(0);
const WAKER: Token = Token(1);
/// Maximum size of an answer.
const PAGE_MAX: usize = 32 << 10;
/// Maximum number of filters in an answer.
const PAGE_FILTERS: usize = 1000;
/// Maximum number of requests that are being answered. Others get no answer, and ask again.
const OPEN_MAX: usize = 16;
/// Number of requests of a session in a second, and at once.
const REQUESTS_PER_SECOND: f64 = 50.0;
const REQUESTS_BURST: f64 = 200.0;
/// Maximum number of sessions whose rate is known.
const SESSIONS_MAX: usize = 1024;
/// Pause after a connection that failed.
const RETRY: Duration = Duration::from_secs(1);
/// Time without a connection after which it is logged: at a start, shards have no leaders for a while.
const QUIET: Duration = Duration::from_secs(60);
/// Minimum time between two such lines.
const LOG: Duration = Duration::from_secs(60);
const PACKET_MAX: u32 = 64 << 10;
const READ: usize = 16 << 10;

/// The thread of the service. It ends when this is dropped.
pub struct Service(Arc<Shared>);

struct Shared {
    admin: Admin,
    /// False while there is no link.
    is_needed: AtomicBool,
    has_ended: AtomicBool,
    waker: Waker,
    open: AtomicUsize,
    answers: Mutex<Vec<Answer>>,
}

/// An answer to be published.
struct Answer {
    topic: String,
    payload: Vec<u8>,
}

impl Service {
    /// Starts the thread. It connects while [`Self::need`].
    ///
    /// # Errors
    /// The system has no threads or files.
    pub fn start(node: &str, door: &Door, admin: &Admin) -> Result<Self, String> {
        let poll = Poll::new().map_err(|error| error.to_string())?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(|error| error.to_string())?;
        let shared = Arc::new(Shared {
            admin: admin.clone(),
            is_needed: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            waker,
            open: AtomicUsize::new(0),
            answers: Mutex::default(),
        });
        let thread = Thread {
            shared: shared.clone(),
            door: door.clone(),
            client_id: format!("{LINK_SERVICE}{node}"),
            poll,
            clock: Instant::now(),
            rates: HashMap::new(),
            failures: Failures::default(),
            page_max: PAGE_MAX,
        };
        critical::spawn("link-lists", move || thread.run()).map_err(|error| error.to_string())?;
        Ok(Self(shared))
    }

    /// Says whether there are links.
    pub fn need(&self, is_needed: bool) {
        if self.0.is_needed.swap(is_needed, Ordering::Relaxed) != is_needed {
            self.0.wake();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Relaxed);
        self.0.wake();
    }
}

impl Shared {
    fn wake(&self) {
        // It fails only without descriptors; the thread then looks at the next event.
        let _ = self.waker.wake();
    }

    fn is_wanted(&self) -> bool {
        self.is_needed.load(Ordering::Relaxed) && !self.has_ended.load(Ordering::Relaxed)
    }
}

/// A request that is being answered. Dropping it makes room for another one.
struct Open(Arc<Shared>);

impl Open {
    fn begin(shared: &Arc<Shared>) -> Option<Self> {
        let open = Self(shared.clone());
        (shared.open.fetch_add(1, Ordering::Relaxed) < OPEN_MAX).then_some(open)
    }

    fn answer(self, session: &str, payload: Vec<u8>) {
        sync::lock(&self.0.answers).push(Answer { topic: format!("{session}{LINK_FILTERS}"), payload });
        self.0.wake();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Thread {
    shared: Arc<Shared>,
    door: Door,
    client_id: String,
    poll: Poll,
    clock: Instant,
    rates: HashMap<String, Rate>,
    failures: Failures,
    /// Maximum size of an answer that the broker accepts.
    page_max: usize,
}

/// Requests that a session may still make, and the time of this number.
struct Rate {
    left: f64,
    at: Instant,
}

impl Rate {
    fn take(&mut self, now: Instant) -> bool {
        let gained = now.duration_since(self.at).as_secs_f64() * REQUESTS_PER_SECOND;
        (self.left, self.at) = ((self.left + gained).min(REQUESTS_BURST), now);
        let may = self.left >= 1.0;
        self.left -= f64::from(u8::from(may));
        may
    }
}

/// Failed connections since the last one that served.
#[derive(Debug, Default)]
struct Failures {
    since: Option<Instant>,
    logged: Option<Instant>,
}

impl Failures {
    /// Notes one. Returns whether it is to be logged.
    fn is_due(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_due = now.duration_since(since) >= QUIET
            && self.logged.is_none_or(|logged| now.duration_since(logged) >= LOG);
        if is_due {
            self.logged = Some(now);
        }
        is_due
    }
}

impl Thread {
    fn run(mut self) {
        let mut events = Events::with_capacity(4);
        while !self.shared.has_ended.load(Ordering::Relaxed) {
            let mut pause = None;
            if self.shared.is_wanted() {
                if let Err(error) = self.serve() {
                    match self.failures.is_due(Instant::now()) {
                        true => tracing::warn!(
                            %error,
                            "cluster links: the service has no connection for a minute; trying again. Other clusters \
                             may keep filters that they do not need"
                        ),
                        false => tracing::debug!(%error, "cluster links: the service has no connection"),
                    }
                }
                pause = Some(RETRY);
            }
            // The reason is the waker or the pause; both lead to another look.
            let _ = self.poll.poll(&mut events, pause);
        }
    }

    /// Serves one connection, until it ends or is not needed any more.
    fn serve(&mut self) -> io::Result<()> {
        let stream = self.door.open()?;
        stream.set_nonblocking(true)?;
        let mut stream = mio::net::UnixStream::from_std(stream);
        self.poll.registry().register(&mut stream, SOCKET, Interest::READABLE | Interest::WRITABLE)?;
        let failed = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
        let mut client = Client::new(self.now(), &self.connect()).map_err(|reason| failed(&reason))?;
        let mut buffer = vec![0; READ];
        let mut events = Events::with_capacity(16);
        while self.shared.is_wanted() {
            for Answer { topic, payload } in std::mem::take(&mut *sync::lock(&self.shared.answers)) {
                if client.limits().is_some() {
                    publish(&mut client, &topic, &payload);
                }
            }
            while !client.unsent().is_empty() {
                match stream.write(client.unsent().bytes()) {
                    Ok(count) => client.unsent_mut().consume(count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            match stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    let now = self.now();
                    client.receive(now, &buffer[..count]);
                    self.take_events(&mut client).map_err(|why| failed(&why))?;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn take_events(&mut self, client: &mut Client) -> Result<(), String> {
        loop {
            let now = self.now();
            match client.poll(now).map_err(|reason| reason.to_string())? {
                None => return Ok(()),
                Some((Event::Connected, _)) => {
                    let packet_max = client.limits().map_or(u32::MAX, |limits| limits.packet_size_max);
                    // The rest is for the topic and the header.
                    self.page_max = PAGE_MAX.min(packet_max as usize / 2);
                    let options =
                        SubscriptionOptions { qos: QoS::AtMostOnce, ..SubscriptionOptions::default() };
                    let filters = [format!("{LINK}+{LINK_LIST}"), format!("{LINK}+/+{LINK_LIST}")];
                    client.subscribe(now, &filters.map(|filter| (filter, options)));
                }
                Some((Event::Subscribed(answers), _)) => {
                    if let Some((filter, reason)) = answers.iter().find(|(_, reason)| reason.is_error()) {
                        return Err(format!("the subscription {filter} was refused: {reason}"));
                    }
                    self.failures = Failures::default();
                }
                Some((Event::Packet(Packet::Publish(publish)), _)) => {
                    self.request(publish.topic, publish.payload);
                }
                Some(_) => {}
            }
        }
    }

    /// Begins to answer a request, if this node has the session.
    fn request(&mut self, topic: &str, payload: &[u8]) {
        let Some(session) = topic.strip_suffix(LINK_LIST) else { return };
        let offset = std::str::from_utf8(payload).ok().and_then(|text| text.parse::<usize>().ok());
        let Some(offset) = offset.filter(|_| self.shared.admin.hosts_internal(session)) else { return };
        let now = Instant::now();
        if self.rates.len() >= SESSIONS_MAX && !self.rates.contains_key(session) {
            self.rates.clear();
        }
        let rate = self.rates.entry(session.to_owned());
        if !rate.or_insert(Rate { left: REQUESTS_BURST, at: now }).take(now) {
            return;
        }
        let Some(open) = Open::begin(&self.shared) else { return };
        let (admin, session, page_max) = (self.shared.admin.clone(), session.to_owned(), self.page_max);
        let of = session.clone();
        let counted = move |detail: Option<Box<ClientDetail>>| {
            let Some(detail) = detail else { return };
            let (total, of) = (detail.info.subscriptions, session.clone());
            let listed = move |page: Option<(Vec<SubscriptionInfo>, Option<usize>)>| {
                let Some((subscriptions, _)) = page else { return };
                let filters = subscriptions.iter().map(|subscription| &*subscription.filter);
                open.answer(&session, page_of(&session, (offset, total), filters, page_max));
            };
            admin.client_subscriptions(&of, offset, PAGE_FILTERS, Box::new(listed));
        };
        self.shared.admin.client(&of, Box::new(counted));
    }

    fn connect(&self) -> ConnectOptions {
        ConnectOptions {
            version: Version::V5,
            private: false,
            client_id: self.client_id.clone(),
            username: None,
            password: None,
            clean_start: true,
            session_expiry: 0,
            keep_alive: 0,
            receive_maximum: 1,
            packet_size_max: PACKET_MAX,
            user_properties: Vec::new(),
            will: None,
        }
    }

    fn now(&self) -> Time {
        Time(self.clock.elapsed().as_micros() as u64)
    }
}

/// Text of an answer: the position and the number of all filters, and a line for each filter. It is no longer than
/// `page_max`, unless its first filter is.
fn page_of<'a>(
    session: &str,
    (offset, total): (usize, usize),
    filters: impl Iterator<Item = &'a str>,
    page_max: usize,
) -> Vec<u8> {
    let mut page = format!("{offset} {total}\n");
    let head = page.len();
    for filter in filters {
        // A link subscribes to no filter with a line break. Another line keeps the positions.
        let answers = [session, LINK_FILTERS];
        let line: &[&str] = if filter.contains(['\n', '\r']) { &answers } else { &[filter] };
        let size = line.iter().map(|part| part.len()).sum::<usize>() + 1;
        if page.len() + size > page_max && page.len() > head {
            break;
        }
        page.extend(line.iter().copied());
        page.push('\n');
    }
    page.into_bytes()
}

fn publish(client: &mut Client, topic: &str, payload: &[u8]) {
    let message = Outgoing {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        packet_id: None,
        topic,
        topic_alias: None,
        message_expiry: None,
        subscription_ids: &[],
        properties: &[],
        payload,
    };
    message.encode(Version::V5, client.unsent_mut().buffer());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_logged_after_a_minute_and_not_each_time() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let logged: Vec<u64> = (0..150).filter(|second| failures.is_due(after(*second))).collect();
        assert_eq!(logged, [60, 120]);
    }

    #[test]
    fn a_page_has_positions_and_lines_up_to_its_size() {
        let page = |filters: &[&str]| {
            String::from_utf8(page_of("$link/a", (5, 9), filters.iter().copied(), PAGE_MAX)).expect("text")
        };
        assert_eq!(page(&[]), "5 9\n");
        assert_eq!(page(&["a/#", "b\nc", "+"]), "5 9\na/#\n$link/a/filters\n+\n");
        let long = "x".repeat(20_000);
        let cut = page(&[&long, &long, "y"]);
        assert_eq!(cut.lines().count(), 2, "the filter that exceeds the size is for the next page");
        let longest = "x".repeat(60_000);
        assert_eq!(page(&[&longest, "y"]).lines().count(), 2, "a page has a filter at least");
    }

    #[test]
    fn requests_have_a_rate() {
        let now = Instant::now();
        let mut rate = Rate { left: REQUESTS_BURST, at: now };
        let taken = (0..1000).filter(|_| rate.take(now)).count();
        assert_eq!(taken, 200);
        let later = now + Duration::from_millis(100);
        assert_eq!((0..1000).filter(|_| rate.take(later)).count(), 5);
    }
}
