//! Subscriptions at the remote broker that change while a relay runs.

mod list;
mod settings;

use std::collections::BTreeMap;
use std::sync::Arc;

use mqtt::{QoS, ReasonCode, RetainHandling, Subscription, SubscriptionOptions};

use crate::counters::Counters;
use crate::cover::cover;
use crate::mutation::{Mutation, mutated};
use crate::time::Time;
use list::{List, Progress};
pub use settings::{InterestError, InterestSettings};

/// The filters that a relay wants at the remote broker, and what is known of the subscriptions of its session there.
///
/// The session of the remote broker is durable. So a relay that knows what is there sends only differences. A relay
/// that does not know it asks for a list first ([`List`]).
///
/// **Invariant:** a filter has one request without an answer at most. What changes meanwhile is done after the answer.
#[derive(Debug)]
pub(crate) struct Interest {
    settings: InterestSettings,
    filters: BTreeMap<Arc<str>, Filter>,
    /// Filters whose subscription is to be made, in the order of the changes.
    to_subscribe: BTreeMap<u64, Arc<str>>,
    /// Filters whose subscription is to end, in the order of the changes.
    to_unsubscribe: BTreeMap<u64, Arc<str>>,
    /// Number of filters that were put into one of the two queues.
    queued: u64,
    /// True when the next packet is an UNSUBSCRIBE, if there is something for one.
    is_turn_of_ends: bool,
    wanted: usize,
    subscribed: usize,
    /// Number of unsettled filters by the number of the request of the owner that they belong to.
    unsettled: BTreeMap<u64, usize>,
    /// Number of the last request of the owner.
    last_number: u64,
    /// Number of times that a filter was settled.
    settles: u64,
    /// True when the owner has said which filters it wants. Before, all subscriptions would look stale.
    has_wanted: bool,
    /// True while the remote broker is connected and takes requests.
    is_attached: bool,
    list: List,
    last_error: Option<String>,
}

/// State of one filter.
#[derive(Clone, Copy, Debug)]
struct Filter {
    is_wanted: bool,
    /// True when only the list of the remote session has it.
    is_stale: bool,
    there: There,
    /// True when the remote broker has confirmed the subscription on this connection.
    is_fresh: bool,
    /// Request that is to be sent, with the key of its queue.
    queued: Option<(Need, u64)>,
    /// Number of the owner's request that is not settled because of this filter.
    since: Option<u64>,
}

/// Knowledge of a subscription of the remote session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Absent,
    Present,
    /// A request had no answer when its connection ended.
    Unknown,
    /// The list of the remote session says whether the subscription is there. Before the list begins, only filters that
    /// are wanted have this state: it will name the others as stale.
    Unlisted,
    /// A SUBSCRIBE has no answer.
    Subscribing,
    /// An UNSUBSCRIBE has no answer.
    Unsubscribing,
    /// The remote broker has refused the subscription on this connection.
    Refused,
}

/// Next step of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Subscribe,
    Unsubscribe,
    /// Nothing is left to be known of it.
    Forget,
    Nothing,
}

/// A packet for the remote broker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Subscribe(Vec<(String, SubscriptionOptions)>),
    Unsubscribe(Vec<String>),
    /// A message of QoS 0 on the topic of the list, with this payload.
    List(String),
}

/// Maximum size of a SUBSCRIBE or UNSUBSCRIBE packet.
const PACKET_MAX: usize = 16 << 10;
/// Number of bytes of such a packet without its filters: fixed header, Packet Identifier and an empty list of
/// properties.
const HEADER: usize = 8;
/// Number of bytes of a filter without its text: length and options.
const EACH: usize = 3;

impl Filter {
    const NEW: Self = Self {
        is_wanted: false,
        is_stale: true,
        there: There::Absent,
        is_fresh: false,
        queued: None,
        since: None,
    };

    fn need(&self) -> Need {
        match (self.there, self.is_wanted) {
            (There::Absent | There::Unknown, true) => Need::Subscribe,
            (There::Present | There::Unknown, false) => Need::Unsubscribe,
            (There::Absent | There::Refused, false) => Need::Forget,
            (There::Present | There::Refused, true)
            | (There::Unlisted | There::Subscribing | There::Unsubscribing, _) => Need::Nothing,
        }
    }

    fn is_subscribed(&self) -> bool {
        self.is_wanted && self.there == There::Present
    }

    fn is_settled(&self) -> bool {
        self.is_wanted && matches!(self.there, There::Present | There::Refused) || self.need() == Need::Forget
    }
}

impl Interest {
    pub(crate) fn new(settings: InterestSettings) -> Self {
        Self {
            settings,
            filters: BTreeMap::new(),
            to_subscribe: BTreeMap::new(),
            to_unsubscribe: BTreeMap::new(),
            queued: 0,
            is_turn_of_ends: false,
            wanted: 0,
            subscribed: 0,
            unsettled: BTreeMap::new(),
            last_number: 0,
            settles: 0,
            has_wanted: false,
            is_attached: false,
            list: List::default(),
            last_error: None,
        }
    }

    /// Continues with the wanted filters of an earlier relay, and with nothing that it knew of the remote session.
    pub(crate) fn continue_from(&mut self, earlier: &Self) {
        (self.last_number, self.has_wanted) = (earlier.last_number, earlier.has_wanted);
        for (name, filter) in earlier.filters.iter().filter(|(_, filter)| filter.is_wanted) {
            let number = filter.since.unwrap_or(earlier.last_number + 1);
            self.set(name, true, self.initial(), number);
        }
    }

    pub(crate) fn settings(&self) -> &InterestSettings {
        &self.settings
    }

    /// Number of filters that are wanted.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Number of filters whose state is stored.
    pub(crate) fn known(&self) -> usize {
        self.filters.len()
    }

    /// Number of wanted filters that the remote broker has confirmed.
    pub(crate) fn subscribed(&self) -> usize {
        self.subscribed
    }

    /// Returns whether the remote broker has answered everything.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled.is_empty() && self.has_wanted
    }

    /// Returns the number of the last request that is settled with all before it.
    pub(crate) fn settled_number(&self) -> u64 {
        let first = self.unsettled.keys().next().map_or(u64::MAX, |number| number.saturating_sub(1));
        first.min(self.last_number)
    }

    /// Returns whether the remote broker has neither confirmed nor refused a filter that is wanted.
    pub(crate) fn is_pending(&self, filter: &str) -> bool {
        self.filters.get(filter).is_some_and(|filter| filter.is_wanted && !filter.is_settled())
    }

    /// Number of times that a filter was settled.
    pub(crate) fn settles(&self) -> u64 {
        self.settles
    }

    /// Returns whether the remote session may have subscriptions that nobody wants, because it was not listed.
    pub(crate) fn may_have_stale(&self) -> bool {
        self.list.is_needed()
    }

    /// Takes the text of the last refusal.
    pub(crate) fn take_error(&mut self) -> Option<String> {
        self.last_error.take()
    }

    /// Handles a change of the wanted filters.
    pub(crate) fn want(
        &mut self,
        counters: &mut Counters,
        number: u64,
        add: &[Box<str>],
        remove: &[Box<str>],
    ) {
        self.has_wanted = true;
        self.last_number = self.last_number.max(number);
        for name in remove {
            self.set_wanted(name, false, number);
        }
        for name in add {
            if let Err(why) = check(name) {
                counters.subscriptions_refused += 1;
                self.last_error = Some(format!("the subscription {:?} was not sent: {why}", start(name)));
                continue;
            }
            self.set_wanted(name, true, number);
        }
    }

    /// Replaces all wanted filters.
    pub(crate) fn want_only(&mut self, counters: &mut Counters, number: u64, filters: &[Box<str>]) {
        let kept: std::collections::BTreeSet<&str> = filters.iter().map(|filter| &**filter).collect();
        let known = self.filters.iter().filter(|(_, filter)| filter.is_wanted);
        let gone: Vec<Box<str>> =
            known.filter(|(name, _)| !kept.contains(&***name)).map(|(name, _)| Box::from(&**name)).collect();
        self.want(counters, number, filters, &gone);
    }

    fn set_wanted(&mut self, name: &str, is_wanted: bool, number: u64) {
        match self.filters.get_key_value(name) {
            Some((known, filter)) => {
                let there = match filter.there {
                    // The list will name it as stale, if it is there.
                    There::Unlisted if !is_wanted && self.list.has_to_begin() => There::Absent,
                    there => there,
                };
                let known = known.clone();
                self.set(&known, is_wanted, there, number);
            }
            None if is_wanted => self.set(&Arc::from(name), true, self.initial(), number),
            None => {}
        }
    }

    /// Returns the knowledge of a filter that is new. A list that has begun does not have it. One that was given up
    /// begins again on the next connection only.
    fn initial(&self) -> There {
        let is_given_up = self.is_attached && !self.list.is_open();
        match self.list.has_to_begin() {
            true if is_given_up => There::Unknown,
            true => There::Unlisted,
            false => There::Absent,
        }
    }

    /// Sets the state of a filter, and all that follows from it.
    fn set(&mut self, name: &Arc<str>, is_wanted: bool, there: There, number: u64) {
        let before = self.filters.get(name).copied().unwrap_or(Filter::NEW);
        let is_stale = before.is_stale && !is_wanted;
        let is_fresh = before.is_fresh && there == There::Present;
        let mut after = Filter { is_wanted, is_stale, there, is_fresh, ..before };
        self.wanted = self.wanted + usize::from(is_wanted) - usize::from(before.is_wanted);
        let subscribed = usize::from(after.is_subscribed());
        self.subscribed = self.subscribed + subscribed - usize::from(before.is_subscribed());
        match (before.since, after.is_settled()) {
            (Some(since), true) => {
                self.release(since);
                self.settles += 1;
                after.since = None;
            }
            (None, false) => {
                *self.unsettled.entry(number).or_default() += 1;
                after.since = Some(number);
            }
            _ => {}
        }
        let need = after.need();
        if before.queued.is_some_and(|(queued, _)| queued != need) {
            self.unqueue(before.queued);
            after.queued = None;
        }
        if after.queued.is_none() && matches!(need, Need::Subscribe | Need::Unsubscribe) {
            self.queued += 1;
            let queue =
                if need == Need::Subscribe { &mut self.to_subscribe } else { &mut self.to_unsubscribe };
            queue.insert(self.queued, name.clone());
            after.queued = Some((need, self.queued));
        }
        if need == Need::Forget {
            self.filters.remove(name);
        } else {
            self.filters.insert(name.clone(), after);
        }
    }

    fn unqueue(&mut self, queued: Option<(Need, u64)>) {
        match queued {
            Some((Need::Subscribe, key)) => drop(self.to_subscribe.remove(&key)),
            Some((_, key)) => drop(self.to_unsubscribe.remove(&key)),
            None => {}
        }
    }

    fn release(&mut self, number: u64) {
        if let Some(count) = self.unsettled.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                self.unsettled.remove(&number);
            }
        }
    }

    /// Changes what is known of a filter, not because of the owner. Requests of the owner that are settled stay so.
    fn learn(&mut self, name: &Arc<str>, there: There) {
        let is_wanted = self.filters.get(name).is_some_and(|filter| filter.is_wanted);
        self.set(name, is_wanted, there, self.last_number + 1);
    }

    /// Changes what is known of all filters.
    fn learn_all(&mut self, next: impl Fn(&Filter) -> There) {
        let changes = self.filters.iter().map(|(name, filter)| (name.clone(), filter.there, next(filter)));
        let changes: Vec<_> = changes.filter(|(_, before, after)| before != after).collect();
        for (name, _, after) in changes {
            self.learn(&name, after);
        }
    }

    /// Notes that the remote session is new: it has no subscriptions.
    pub(crate) fn session_is_new(&mut self) {
        if !mutated(Mutation::IgnoreLostSession) {
            self.list.is_not_needed();
            self.learn_all(|_| There::Absent);
        }
    }

    /// Starts to send requests on a new connection.
    pub(crate) fn attach(&mut self) {
        self.is_attached = true;
        self.list.begin();
        let is_listed = self.list.is_needed();
        self.learn_all(|filter| match filter.there {
            There::Refused => There::Absent,
            // The list has it again. Otherwise each list of a hostile broker could add some.
            _ if is_listed && filter.is_stale => There::Absent,
            there => there,
        });
    }

    /// Ends with a connection: what has no answer is not known.
    pub(crate) fn detach(&mut self) {
        if !std::mem::take(&mut self.is_attached) {
            return;
        }
        self.list.end();
        self.learn_all(|filter| match filter.there {
            There::Subscribing if mutated(Mutation::TrustUnanswered) => There::Present,
            There::Subscribing | There::Unsubscribing => There::Unknown,
            // The next list will name it as stale.
            There::Unlisted if !filter.is_wanted => There::Absent,
            there => there,
        });
        self.filters.values_mut().for_each(|filter| filter.is_fresh = false);
        if self.filters.len() - self.wanted > self.listed_max() {
            // The broker has ended many connections without an answer to UNSUBSCRIBE.
            self.forget_session();
        }
    }

    /// Forgets what is known of the remote session: another client or broker may have changed it.
    pub(crate) fn forget_session(&mut self) {
        self.list = List::default();
        self.learn_all(|filter| if filter.is_wanted { There::Unlisted } else { There::Absent });
    }

    /// Maximum number of filters of a list, and of those that wait for its end to be unsubscribed.
    fn listed_max(&self) -> usize {
        self.settings.filters_max.saturating_mul(4).max(1000)
    }

    /// Returns the next packet for the remote broker, with filters for at most `packet_max` bytes. `requests` is the
    /// number of SUBSCRIBE and UNSUBSCRIBE packets without an answer.
    pub(crate) fn next_request(
        &mut self,
        now: Time,
        counters: &mut Counters,
        requests: usize,
        packet_max: usize,
    ) -> Option<Request> {
        if !self.is_attached {
            return None;
        }
        let may_ask = requests < self.settings.requests_max;
        if self.has_wanted {
            if self.list.is_open() && self.to_unsubscribe.len() > self.listed_max() {
                self.give_up_list(
                    counters,
                    "too many subscriptions end before the remote broker has listed all",
                );
            }
            match self.list.next(now, may_ask) {
                Some(Progress::Subscribe) => return Some(Request::Subscribe(vec![self.answers()])),
                Some(Progress::Ask(offset)) => {
                    counters.lists_asked += 1;
                    return Some(Request::List(offset.to_string()));
                }
                None => {}
            }
        }
        if !may_ask {
            return None;
        }
        let packet_max = packet_max.min(PACKET_MAX);
        let first = self.is_turn_of_ends;
        let request = self.batch(first, packet_max, counters);
        let request = request.or_else(|| self.batch(!first, packet_max, counters))?;
        self.is_turn_of_ends = matches!(request, Request::Subscribe(_));
        Some(request)
    }

    /// Returns a packet of one kind, if there is something for it.
    fn batch(&mut self, is_end: bool, packet_max: usize, counters: &mut Counters) -> Option<Request> {
        // The list has positions, so nothing before a position may go away while it is read.
        if is_end && self.list.is_open() && !mutated(Mutation::EndDuringList) {
            return None;
        }
        let mut names: Vec<Arc<str>> = Vec::new();
        let mut size = HEADER;
        loop {
            let queue = if is_end { &self.to_unsubscribe } else { &self.to_subscribe };
            let Some(name) = queue.values().next().cloned() else { break };
            if HEADER + EACH + name.len() > packet_max && names.is_empty() {
                self.too_large(&name, is_end, counters);
                continue;
            }
            size += EACH + name.len();
            if size > packet_max {
                break;
            }
            self.learn(&name, if is_end { There::Unsubscribing } else { There::Subscribing });
            names.push(name);
        }
        if names.is_empty() {
            return None;
        }
        Some(match is_end {
            true => Request::Unsubscribe(names.iter().map(|name| name.to_string()).collect()),
            false => Request::Subscribe(
                names.iter().map(|name| (name.to_string(), self.options_of(name))).collect(),
            ),
        })
    }

    /// Returns the options of a new subscription. When another one of this connection includes it, the retained
    /// messages of its topics have come here, and their changes come. They would come again to clients that have them.
    /// One of an earlier connection may have missed changes: a session queues no messages of QoS 0.
    fn options_of(&self, name: &str) -> SubscriptionOptions {
        let is_fresh = |other: &str, filter: &Filter| other != name && filter.is_fresh;
        let retain_handling = match cover(name, &self.filters, is_fresh).is_some() {
            true => RetainHandling::DoNotSend,
            false => RetainHandling::SendIfNew,
        };
        SubscriptionOptions { retain_handling, ..options(name, self.settings.qos) }
    }

    /// Gives up a filter that does not fit into a packet that the remote broker accepts.
    fn too_large(&mut self, name: &Arc<str>, is_end: bool, counters: &mut Counters) {
        self.last_error =
            Some(format!("a filter of {} bytes exceeds the packet size of the remote broker", name.len()));
        if is_end {
            counters.ends_refused += 1;
            self.learn(name, There::Absent);
        } else {
            counters.subscriptions_refused += 1;
            self.learn(name, There::Refused);
        }
    }

    /// Subscription of the answers that the list consists of.
    fn answers(&self) -> (String, SubscriptionOptions) {
        let filter = &self.settings.filters_topic;
        let options = options(filter, QoS::AtMostOnce);
        (filter.clone(), SubscriptionOptions { retain_handling: RetainHandling::DoNotSend, ..options })
    }

    /// Handles a SUBACK.
    pub(crate) fn made(&mut self, counters: &mut Counters, answers: Vec<(String, ReasonCode)>) {
        for (filter, reason) in answers {
            if filter == self.settings.filters_topic {
                if reason.is_error() {
                    self.give_up_list(counters, &format!("the list of subscriptions was refused: {reason}"));
                } else {
                    self.list.may_ask();
                }
                continue;
            }
            let Some((name, known)) = self.filters.get_key_value(&*filter) else { continue };
            if known.there != There::Subscribing {
                continue;
            }
            let name = name.clone();
            if reason.is_error() {
                counters.subscriptions_refused += 1;
                let filter = start(&filter);
                self.last_error = Some(format!("the subscription {filter} was refused: {reason}"));
                self.learn(&name, There::Refused);
            } else {
                counters.subscriptions_made += 1;
                let is_wanted = known.is_wanted || mutated(Mutation::ForgetChange);
                self.set(&name, is_wanted, There::Present, self.last_number + 1);
                if let Some(filter) = self.filters.get_mut(&name) {
                    filter.is_fresh = true;
                }
            }
        }
    }

    /// Handles an UNSUBACK. A subscription whose end is refused is forgotten. The next list has it.
    pub(crate) fn ended(&mut self, counters: &mut Counters, answers: Vec<(String, ReasonCode)>) {
        for (filter, reason) in answers {
            let Some((name, known)) = self.filters.get_key_value(&*filter) else { continue };
            if known.there != There::Unsubscribing {
                continue;
            }
            let name = name.clone();
            if reason.is_error() {
                counters.ends_refused += 1;
                let filter = start(&filter);
                self.last_error = Some(format!("the end of the subscription {filter} was refused: {reason}"));
            } else {
                counters.subscriptions_ended += 1;
            }
            self.learn(&name, There::Absent);
        }
    }

    /// Returns the time at which [`Self::timed_out`] is due.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.list.timeout()
    }

    /// Handles a page of the list that did not come in time. While the relay does not read, it waits longer, up to the
    /// maximum time of the list.
    pub(crate) fn timed_out(&mut self, now: Time, counters: &mut Counters, is_reading: bool) {
        if self.list.timeout().is_none_or(|due| due > now) {
            return;
        }
        if self.list.takes_too_long(now) {
            self.give_up_list(counters, "the remote broker takes too long to list the subscriptions");
        } else if !is_reading {
            self.list.wait_again(now);
        } else if !self.list.ask_again() {
            self.give_up_list(counters, "the remote broker did not list the subscriptions in time");
        }
    }

    /// Handles a message on the topic of the answers.
    pub(crate) fn listed(&mut self, counters: &mut Counters, payload: &[u8]) {
        let total_max = self.listed_max();
        let page = match self.list.page(payload, total_max) {
            Ok(Some(page)) => page,
            // It answers a question of another relay, or one that was given up.
            Ok(None) => {
                counters.pages_ignored += 1;
                return;
            }
            Err(why) => {
                counters.lists_invalid += 1;
                self.last_error = Some(format!("the list of subscriptions is not valid: {why}"));
                return self.stop_list();
            }
        };
        for name in page.filters {
            if name == self.settings.filters_topic {
                continue;
            }
            match self.filters.get_key_value(name) {
                Some((known, filter)) if filter.there == There::Unlisted => {
                    let known = known.clone();
                    self.learn(&known, There::Present);
                }
                Some(_) => {}
                None => {
                    counters.stale_filters += 1;
                    if !mutated(Mutation::KeepStale) {
                        self.learn(&Arc::from(name), There::Present);
                    }
                }
            }
        }
        if page.is_last {
            let skips = mutated(Mutation::SkipList);
            self.learn_all(|filter| match filter.there {
                There::Unlisted if skips && filter.is_wanted => There::Present,
                There::Unlisted => There::Absent,
                there => there,
            });
        }
    }

    fn give_up_list(&mut self, counters: &mut Counters, why: &str) {
        self.last_error = Some(why.to_owned());
        counters.lists_unanswered += 1;
        self.stop_list();
    }

    /// Makes all subscriptions that may be missing, without a list. Stale ones remain.
    fn stop_list(&mut self) {
        self.list.end();
        self.learn_all(|filter| match filter.there {
            There::Unlisted => There::Unknown,
            there => there,
        });
    }

    /// Checks the own state.
    pub(crate) fn check_invariants(&self) {
        let count = |test: fn(&Filter) -> bool| self.filters.values().filter(|filter| test(filter)).count();
        assert_eq!(self.wanted, count(|filter| filter.is_wanted), "wanted filters");
        assert_eq!(self.subscribed, count(Filter::is_subscribed), "subscribed filters");
        let unsettled: usize = self.unsettled.values().sum();
        assert_eq!(unsettled, count(|filter| filter.since.is_some()), "unsettled filters");
        assert_eq!(unsettled, count(|filter| !filter.is_settled()), "settled filters");
        let queued = count(|filter| filter.queued.is_some());
        assert_eq!(queued, self.to_subscribe.len() + self.to_unsubscribe.len(), "queued filters");
        let is_listed_later = self.list.has_to_begin();
        for filter in self.filters.values() {
            let is_forgotten = filter.there == There::Unlisted && !filter.is_wanted && is_listed_later;
            assert!(!is_forgotten, "the list will name it: {filter:?}");
            let need = filter.need();
            assert_ne!(need, Need::Forget);
            assert!(!filter.is_fresh || filter.there == There::Present, "{filter:?}");
            let queued = filter.queued.map_or(Need::Nothing, |(queued, _)| queued);
            assert_eq!(queued, need, "{filter:?}");
        }
    }
}

fn options(filter: &str, qos: QoS) -> SubscriptionOptions {
    SubscriptionOptions {
        qos,
        // A shared subscription cannot have it [MQTT-3.8.3-4].
        no_local: !filter.starts_with("$share/"),
        retain_as_published: true,
        retain_handling: RetainHandling::SendIfNew,
    }
}

/// Returns the beginning of a filter, for operators.
fn start(filter: &str) -> &str {
    let end = filter.char_indices().nth(FILTER_SHOWN).map_or(filter.len(), |(end, _)| end);
    &filter[..end]
}

/// Maximum number of characters of a filter that are shown.
const FILTER_SHOWN: usize = 256;

/// Returns why a filter cannot be subscribed to. A line break would make two lines of a list.
fn check(filter: &str) -> Result<(), &'static str> {
    match Subscription::parse(filter) {
        Err(_) => Err("it is no Topic Filter"),
        Ok(parsed) if parsed.filter.as_str().starts_with('$') => {
            Err("topics that begin with `$` stay in their cluster")
        }
        Ok(_) if filter.contains(['\n', '\r']) => Err("it has a line break"),
        Ok(_) => Ok(()),
    }
}
