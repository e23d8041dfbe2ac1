//! The links to other clusters for the API.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use api::{
    ClusterLink, EntryRefused, LinkGiving, LinkRefusal, LinkStatus, LinkTaking, TakingDrops, Timestamp,
    WaitingMessages,
};
use auth::Authorship;
use bridge::{Dropped, Side};
use definitions::{Definition, settings_to_json};
use linking::{Engine, Giving, LinkSettings, LinkView, Refusal, Taking};
use serde_json::{Map, Value};

use crate::cluster::Cluster;
use crate::entry_views::{authorship, entry_refused, remove_messages, source};

/// Advice on finding out which links exist.
const LIST: &str = "`GET /api/v1/links/external` lists the cluster links";

/// The links of a node with its name.
pub struct LinkViews {
    pub engine: Arc<Engine>,
    pub node: String,
    pub cluster: Option<Arc<Cluster>>,
}

impl api::Links for LinkViews {
    fn links(&self, after: Option<&str>, limit: usize) -> Vec<ClusterLink> {
        let all = self.engine.registry().definitions();
        let behind = |name: &str| after.is_none_or(|after| name > after);
        let entries = all.iter().filter(|(name, _)| behind(name)).take(limit);
        entries.map(|(_, entry)| self.link_of(entry)).collect()
    }

    fn link(&self, name: &str) -> Option<ClusterLink> {
        self.engine.registry().definitions().get(name).map(|entry| self.link_of(entry))
    }

    fn put_link(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused> {
        let registry = self.engine.registry();
        registry.put(name, settings, &authorship(by)).map_err(|error| entry_refused(error, LIST))
    }

    fn remove_link(&self, name: &str, waiting: WaitingMessages) -> Result<(), EntryRefused> {
        let origins = self.engine.origins();
        let removed = self.engine.registry().remove(name).map_err(|error| entry_refused(error, LIST));
        let is_name = definitions::check_name(name).is_ok();
        remove_messages(removed, waiting, is_name, || self.engine.remove_sessions(name, &origins))
    }

    fn views(&self) -> Vec<LinkStatus> {
        let views = self.engine.views().into_iter();
        let known =
            views.filter(|view| !view.taking.is_empty() || !view.giving.is_empty() || view.refusal.is_some());
        known.map(|view| self.status(view)).collect()
    }
}

impl LinkViews {
    fn link_of(&self, entry: &Definition<LinkSettings>) -> ClusterLink {
        let settings = &entry.settings;
        let own_name = settings.own(self.engine.registry().own());
        ClusterLink {
            name: settings.name.clone(),
            enabled: settings.enabled,
            source: source(entry.source),
            own_name: own_name.map(str::to_owned).unwrap_or_else(|_| settings.own_name.clone()),
            address: settings.address.as_ref().map(ToString::to_string).unwrap_or_default(),
            topics: settings.topics.iter().map(str::to_owned).collect(),
            export: settings.export.iter().map(str::to_owned).collect(),
            settings: settings_to_json(settings),
            author: entry.author.clone(),
            changed_at: entry.changed_ms.map(Timestamp::of_ms),
            fault: entry.fault.clone(),
            taking: Vec::new(),
            giving: Vec::new(),
            refusal: None,
        }
    }

    fn status(&self, view: LinkView) -> LinkStatus {
        LinkStatus {
            taking: view.taking.into_iter().map(|taking| self.taking(taking)).collect(),
            giving: view.giving.into_iter().map(|giving| self.giving(giving)).collect(),
            refusal: view.refusal.map(|refusal| self.refusal(refusal)),
            name: view.name,
        }
    }

    fn taking(&self, taking: Taking) -> LinkTaking {
        let Taking { origin, session, relay, filters_wanted, filters_broader, broader } = taking;
        let counters = &relay.counters;
        let messages = counters.messages.of(Side::Remote);
        let dropped = |cause: Dropped| counters.dropped(Side::Remote, cause);
        LinkTaking {
            origin,
            node: self.node.clone(),
            connected: relay.connected_s.is_some(),
            failing: relay.is_failing,
            connected_s: relay.connected_s,
            address: relay.address,
            session,
            filters_wanted,
            filters_subscribed: relay.filters_subscribed,
            filters_refused: counters.subscriptions_refused,
            filters_broader,
            broader,
            stale_filters: counters.lists_unanswered + counters.lists_invalid,
            messages: messages.iter().map(|traffic| traffic.messages).sum(),
            bytes: messages.iter().map(|traffic| traffic.bytes).sum(),
            in_flight: relay.in_flight_in,
            refused: counters.refused.of(Side::Remote).values().sum(),
            postponed: *counters.postponed.of(Side::Remote),
            dropped: TakingDrops {
                too_large: dropped(Dropped::TooLarge),
                no_room: dropped(Dropped::BufferFull),
                too_many_hops: dropped(Dropped::HopLimit),
                looped: dropped(Dropped::OwnLoop) + dropped(Dropped::OwnOrigin),
                unwanted: counters.unmatched.of(Side::Remote)
                    + dropped(Dropped::NotMapped)
                    + dropped(Dropped::OtherOrigin),
                not_ready: dropped(Dropped::NotReady),
            },
            reconnects: counters.reconnects,
            failed_attempts: counters.failed_attempts,
            remote_sessions_lost: counters.remote_sessions_lost,
            restores: counters.remote_restores,
            state: relay.state,
            last_error: relay.last_error,
        }
    }

    fn giving(&self, giving: Giving) -> LinkGiving {
        let connection_node = match giving.elsewhere {
            Some(number) => {
                let cluster = self.cluster.as_deref();
                cluster.and_then(|cluster| api::Cluster::node_name(cluster, number))
            }
            None => giving.is_connected.then(|| self.node.clone()),
        };
        LinkGiving {
            origin: giving.origin,
            node: self.node.clone(),
            session: giving.session,
            connected: giving.is_connected,
            connection_node,
            address: giving.address.map(|address| address.to_string()),
            filters: giving.filters,
            queued_messages: giving.queued_messages,
            queued_bytes: giving.queued_bytes,
            oldest_s: giving.oldest_s,
            in_flight: giving.in_flight,
            dropped: giving.dropped,
        }
    }

    fn refusal(&self, refusal: Refusal) -> LinkRefusal {
        let since_1970 = refusal.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        LinkRefusal {
            node: self.node.clone(),
            at: Timestamp::of_ms(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)),
            address: refusal.address.map(|address| address.to_string()),
            why: refusal.why,
            count: refusal.count,
        }
    }
}
