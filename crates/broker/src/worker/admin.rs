//! Answers to requests of operators; see [`crate::admin`].

use mqtt::{QoS, ReasonCode, TopicName};

use super::Worker;
use super::lanes::Reader;
use crate::admin::{
    AdminRequest, ClientActionError, ClientDetail, ClientFilter, ClientInfo, ClientLocation, ClientPage,
    ConnectionDetail, Cursor, GroupWalk, Kicked, Matches, QueuePage, QueueState, Queued, Receiver,
    ReceiverSearch, RemoteConnection, Reply, SubscriptionFilter, SubscriptionInfo, SubscriptionPage, Tracing,
    Whereabouts, queued,
};
use crate::connection::{Connection, Phase};
use crate::groups::Member;
use crate::ids::{ConnectionId, ShardId, Time, WorkerId};
use crate::route::RouteKind;
use crate::store::{SHARDS, SUBSCRIPTIONS_AT_ONCE, ShardHost};

/// Maximum number of connections that one step of a listing examines.
const CONNECTIONS_AT_ONCE: u32 = 512;
/// Maximum number of shared groups that one step of a search examines. A turn has several steps.
const GROUPS_AT_ONCE: usize = 256;

impl Worker {
    pub(super) fn admin_request(&mut self, request: AdminRequest) {
        match request {
            AdminRequest::Clients { from, limit, filter, reply } => {
                let page = self.clients_page(from, limit, &filter);
                self.fill_in_sessions(page, filter, reply);
            }
            AdminRequest::ClientSessions { page, filter, reply } => {
                self.fill_in_sessions(page, filter, reply)
            }
            AdminRequest::Client { shard, client_id, reply } => self.client(shard, &client_id, reply),
            AdminRequest::Locate { shard, client_id, reply } => reply(self.whereabouts(shard, &client_id)),
            AdminRequest::FindConnection { client_id, from, reply } => {
                self.find_connection(client_id, from, reply);
            }
            AdminRequest::ClientConnection { connection, session, reply } => {
                reply(self.client_connection(connection, session));
            }
            AdminRequest::ClientSubscriptions { shard, client_id, from, limit, reply } => {
                match self.locate(shard, &client_id) {
                    Some(ClientLocation { session: Some(session), .. }) => {
                        reply(
                            self.shard(shard).and_then(|shard| shard.subscriptions_of(session, from, limit)),
                        );
                    }
                    Some(ClientLocation { owner: Some(connection), session: None }) => {
                        let Ok(connection) = self.on_this_node(connection) else { return reply(None) };
                        let request =
                            AdminRequest::ConnectionSubscriptions { connection, from, limit, reply };
                        self.outbox.post(connection.worker, request.into());
                    }
                    _ => reply(None),
                }
            }
            AdminRequest::ConnectionSubscriptions { connection, from, limit, reply } => {
                reply(self.subscriptions_of(connection, from, limit));
            }
            AdminRequest::Queue { shard, client_id, limit, payload, reply } => match self
                .locate(shard, &client_id)
            {
                Some(ClientLocation { session: Some(session), .. }) => match self.shards.get_mut(shard) {
                    Some(shard) => shard.read_queue_page(self.clock.now(), session, limit, payload, reply),
                    None => reply(None),
                },
                Some(ClientLocation { owner: Some(connection), session: None }) => {
                    let Ok(connection) = self.on_this_node(connection) else { return reply(None) };
                    let request = AdminRequest::ConnectionQueue { connection, limit, payload, reply };
                    self.outbox.post(connection.worker, request.into());
                }
                _ => reply(None),
            },
            AdminRequest::ConnectionQueue { connection, limit, payload, reply } => {
                reply(self.queue_of(connection, limit, payload));
            }
            AdminRequest::Kick { shard, client_id, end_session, reply } => {
                self.kick(shard, &client_id, end_session, reply)
            }
            AdminRequest::KickConnection { connection, client_id: Some(client_id), reply, .. }
                if !self.has_client(connection, &client_id) =>
            {
                reply(None);
            }
            AdminRequest::KickConnection { connection, end_session, durable, reply, .. } => {
                let connection_closed =
                    self.kick_connection(connection, ReasonCode::AdministrativeAction, end_session);
                let session_ended = connection_closed && end_session && durable;
                reply(Some(Kicked { connection_closed, session_ended, elsewhere: None }));
            }
            AdminRequest::KickAll { from, reason, reply } => reply(self.kick_all(from, reason)),
            AdminRequest::Drain { step, reply } => reply(self.drain_some(&step)),
            AdminRequest::Subscriptions { from, limit, filter, reply } => {
                reply(self.subscriptions_page(from, limit, &filter));
            }
            AdminRequest::Subscribe { shard, client_id, subscription, reply } => {
                match self.owner(shard, &client_id) {
                    Ok(connection) => {
                        let request = AdminRequest::SubscribeConnection { connection, subscription, reply };
                        self.outbox.post(connection.worker, request.into());
                    }
                    Err(unable) => reply(Err(unable)),
                }
            }
            AdminRequest::SubscribeConnection { connection, subscription, reply } => {
                self.subscribe_for_operator(connection, &subscription, reply);
            }
            AdminRequest::Unsubscribe { shard, client_id, filter, reply } => {
                match self.owner(shard, &client_id) {
                    Ok(connection) => {
                        let request = AdminRequest::UnsubscribeConnection { connection, filter, reply };
                        self.outbox.post(connection.worker, request.into());
                    }
                    Err(unable) => reply(Err(unable)),
                }
            }
            AdminRequest::UnsubscribeConnection { connection, filter, reply } => {
                self.unsubscribe_for_operator(connection, &filter, reply);
            }
            AdminRequest::Publish { message, reply } => self.publish_for_operator(&message, reply),
            AdminRequest::Retained { shard, last, filter, after, limit, reply } => {
                if self.has_cluster_shards() {
                    return self.read_retained(Reader::List { shard, last, filter, after, limit, reply });
                }
                reply(self.retained_list((shard, last), &filter, after.as_deref(), limit));
            }
            AdminRequest::RetainedMessage { topic, reply } => {
                if self.has_cluster_shards() {
                    return self.read_retained(Reader::Message { topic, reply });
                }
                reply(self.retained_message(&topic).map(Box::new))
            }
            AdminRequest::DeleteRetained { topics, reply } => self.delete_for_operator(topics, reply),
            AdminRequest::FindReceivers(search) => self.find_receivers(search),
            AdminRequest::NameMembers(search) => self.name_members(search),
            AdminRequest::Watches(list) => self.monitor.set_watches(list),
            AdminRequest::Traces(list) => self.monitor.set_traces(Tracing::of(&list)),
            AdminRequest::Settings(settings) => {
                self.shards.set_settings(self.clock.now(), &settings);
                self.apply_output();
                if self.id == WorkerId(0) {
                    if self.settings.sys != settings.sys {
                        self.sys.set_interval(self.clock.now(), settings.sys.interval);
                    }
                    self.node.set_settings(settings.clone());
                }
                self.monitor.events.set_rate_max(settings.limits.events_per_second);
                self.settings = settings;
            }
            AdminRequest::AlarmChanged(alarm) => self.alarm_changed(&alarm),
            AdminRequest::Slow { reply } => reply(self.monitor.slow.list(self.clock.now())),
            AdminRequest::ForgetSlow => self.monitor.slow.clear(),
            AdminRequest::Top { reply } => reply(self.monitor.sampler.last()),
            AdminRequest::SessionCount { reply } => reply(self.shards.sum(ShardHost::sessions)),
        }
    }

    pub(super) fn shard(&self, id: ShardId) -> Option<&ShardHost> {
        self.shards.get(id)
    }

    fn locate(&self, shard: ShardId, client_id: &str) -> Option<ClientLocation> {
        self.shard(shard)?.locate(client_id)
    }

    fn owner(&self, shard: ShardId, client_id: &str) -> Result<ConnectionId, ClientActionError> {
        match self.locate(shard, client_id) {
            None => Err(ClientActionError::Unknown),
            Some(ClientLocation { owner: None, .. }) if self.awaits_owner(shard, client_id) => {
                Err(ClientActionError::Elsewhere)
            }
            Some(ClientLocation { owner: None, .. }) => Err(ClientActionError::NotConnected),
            Some(ClientLocation { owner: Some(connection), .. }) => {
                self.on_this_node(connection).map_err(|_| ClientActionError::Elsewhere)
            }
        }
    }

    /// Returns the id of a connection on this node that a shard knows by a lane.
    ///
    /// # Errors
    /// The connection is on another node, or its lane has ended: `None`.
    fn on_this_node(&self, owner: ConnectionId) -> Result<ConnectionId, Option<RemoteConnection>> {
        if owner.worker.0 < self.node.workers {
            return Ok(owner);
        }
        let lanes = self.lanes.as_ref().ok_or(None)?;
        let producer = lanes.producer(owner.worker).ok_or(None)?;
        let id = ConnectionId { worker: WorkerId(producer.lane), ..owner };
        let node = producer.owner.node;
        if lanes.own().node == node { Ok(id) } else { Err(Some(RemoteConnection { node, id })) }
    }

    /// Returns what this worker knows about a client of one of its shards.
    fn whereabouts(&self, shard: ShardId, client_id: &str) -> Whereabouts {
        if self.shard(shard).is_none() {
            return Whereabouts::NotLed;
        }
        let Some(ClientLocation { owner, .. }) = self.locate(shard, client_id) else {
            return Whereabouts::Unknown;
        };
        match owner.map(|owner| self.on_this_node(owner)) {
            Some(Err(Some(connection))) => Whereabouts::Elsewhere(connection),
            Some(Err(None)) => Whereabouts::Unreported,
            None if self.awaits_owner(shard, client_id) => Whereabouts::Unreported,
            None | Some(Ok(_)) => Whereabouts::Here,
        }
    }

    fn awaits_owner(&self, shard: ShardId, client_id: &str) -> bool {
        self.shard(shard).is_some_and(|shard| shard.may_have_unreported_owner(client_id))
    }

    /// Looks for the connection of a client. There may be very many connections, so this takes several steps.
    fn find_connection(&mut self, client_id: Box<str>, from: u32, reply: Reply<Option<ConnectionId>>) {
        let until = from.saturating_add(CONNECTIONS_AT_ONCE).min(self.connections.slots());
        let open = (from..until).filter_map(|slot| self.connections.occupant_ref(slot));
        let mut open = open.filter(|connection| connection.phase == Phase::Open);
        if let Some(connection) = open.find(|connection| *connection.client_id == *client_id) {
            return reply(Some(connection.id));
        }
        let (worker, from) =
            if until < self.connections.slots() { (self.id, until) } else { (WorkerId(self.id.0 + 1), 0) };
        if worker.0 >= self.node.workers {
            return reply(None);
        }
        self.outbox.post(worker, AdminRequest::FindConnection { client_id, from, reply }.into());
    }

    fn has_client(&self, id: ConnectionId, client_id: &str) -> bool {
        let connection = self.connections.get(id.slot, id.generation);
        connection.is_some_and(|connection| *connection.client_id == *client_id)
    }

    /// Returns the shard of a stage, if the stage is about a shard and not about a worker.
    fn stage_shard(&self, stage: u32) -> Option<ShardId> {
        Some(ShardId(stage.checked_sub(u32::from(self.node.workers))? as u16))
    }

    /// Returns the start of the next stage, if there is one.
    fn next_stage(&self, stage: u32) -> Option<Cursor> {
        self.node.stage_host(stage + 1)?;
        Some(Cursor { stage: stage + 1, slot: 0, within: 0 })
    }

    fn clients_page(&self, from: Cursor, limit: usize, filter: &ClientFilter) -> ClientPage {
        let (items, next) = match self.stage_shard(from.stage) {
            None => self.connected_clients(from.slot, limit, filter),
            Some(shard) => self
                .shard(shard)
                .map(|shard| shard.absent_clients(from.slot, limit, filter))
                .unwrap_or_default(),
        };
        let next = match next {
            Some(slot) => Some(Cursor { slot, ..from }),
            None => self.next_stage(from.stage),
        };
        ClientPage { items, next }
    }

    fn connected_clients(
        &self,
        from: u32,
        limit: usize,
        filter: &ClientFilter,
    ) -> (Vec<ClientInfo>, Option<u32>) {
        let mut found = Vec::new();
        let until = from.saturating_add(CONNECTIONS_AT_ONCE).min(self.connections.slots());
        for slot in from..until {
            if found.len() >= limit {
                return (found, Some(slot));
            }
            let Some(connection) = self.connections.occupant_ref(slot) else { continue };
            if connection.phase != Phase::Open {
                continue;
            }
            let address = connection.peer().map(|peer| peer.ip());
            let who = (connection.username(), address, connection.version);
            if !filter.wants(&connection.client_id, Some(who)) {
                continue;
            }
            let info = info(connection);
            // The shards of durable sessions add the rest of the queue figures later.
            if connection.session.is_some() || filter.wants_queue(&info) {
                found.push(info);
            }
        }
        (found, (until < self.connections.slots()).then_some(until))
    }

    /// Adds the figures of this worker's shards and sends the page to the next worker that has some. The last worker
    /// replies.
    fn fill_in_sessions(
        &mut self,
        mut page: ClientPage,
        filter: std::sync::Arc<ClientFilter>,
        reply: Reply<ClientPage>,
    ) {
        let mut elsewhere = None;
        for item in page.items.iter_mut().filter(|item| item.connected) {
            let Some(session) = item.session else { continue };
            match self.shard(session.shard) {
                Some(shard) => {
                    item.session = None;
                    if let Some(figures) = shard.session_figures(session) {
                        item.add(figures);
                    }
                }
                None => elsewhere = Some(self.node.shard_host(session.shard)),
            }
        }
        if let Some(host) = elsewhere {
            let request = AdminRequest::ClientSessions { page, filter, reply };
            return self.outbox.post(host, request.into());
        }
        page.items.retain(|item| filter.wants_queue(item));
        reply(page);
    }

    fn client(&mut self, shard: ShardId, client_id: &str, reply: Reply<Option<Box<ClientDetail>>>) {
        let Some(ClientLocation { owner, session }) = self.locate(shard, client_id) else {
            return reply(None);
        };
        let now = self.clock.now();
        let session = session.and_then(|id| self.shard(shard)?.client_detail(now, id)).map(Box::new);
        match owner.map(|owner| self.on_this_node(owner)) {
            Some(Ok(connection)) => {
                let request = AdminRequest::ClientConnection { connection, session, reply };
                self.outbox.post(connection.worker, request.into());
            }
            Some(Err(elsewhere)) => {
                let info = || ClientInfo::elsewhere(client_id);
                let alone =
                    || Box::new(ClientDetail { info: info(), connection: None, session: None, elsewhere });
                let detail = session.map(|detail| Box::new(ClientDetail { elsewhere, ..*detail }));
                reply(Some(detail.unwrap_or_else(alone)));
            }
            None => reply(session),
        }
    }

    fn client_connection(
        &self,
        id: ConnectionId,
        session: Option<Box<ClientDetail>>,
    ) -> Option<Box<ClientDetail>> {
        let open = |connection: &&Connection| connection.phase == Phase::Open;
        // The connection has ended in the meantime, so only the session remains.
        let Some(connection) = self.connections.get(id.slot, id.generation).filter(open) else {
            return session.map(|mut detail| {
                detail.info.connected = false;
                detail
            });
        };
        let mut info = info(connection);
        info.session = None;
        if let Some(detail) = &session {
            info.inflight = detail.info.inflight;
            info.queued_messages = detail.info.queued_messages;
            info.queued_bytes = detail.info.queued_bytes;
        }
        let flow = connection.flow.as_deref();
        let probe = flow.filter(|flow| flow.probe.packet_id.is_some());
        let listener = self.node.listener_name(connection.listener);
        let payers = connection.extra.as_ref().map(|extra| &extra.payers);
        let principal = connection.extra.as_ref().and_then(|extra| extra.principal.as_deref());
        let detail = ConnectionDetail {
            id,
            listener: (!listener.is_empty()).then(|| listener.into()),
            receive_maximum: connection.window,
            packet_size_max: (connection.packet_size_max != u32::MAX).then_some(connection.packet_size_max),
            topic_alias_max: connection.alias_max,
            silent: self.clock.now().since(connection.last_packet),
            unsent_bytes: connection.out.len(),
            session_bytes: connection.session_bytes(),
            user_usage: payers.and_then(|payers| payers.user()).map(|user| user.holdings()),
            mountpoint_usage: payers.and_then(|payers| payers.mountpoint()).map(|all| all.holdings()),
            publisher_blocked: flow.is_some_and(|flow| flow.blocked.is_some()),
            has_will: connection.extra.as_ref().is_some_and(|extra| extra.will.is_some()),
            oldest_unacknowledged: probe.map(|flow| self.clock.now().since(flow.probe.since)),
            attributes: principal.map(|principal| principal.attributes.clone()).unwrap_or_default(),
        };
        let session = session.and_then(|detail| detail.session);
        Some(Box::new(ClientDetail { info, connection: Some(detail), session, elsewhere: None }))
    }

    fn subscriptions_of(
        &self,
        id: ConnectionId,
        from: usize,
        limit: usize,
    ) -> Option<(Vec<SubscriptionInfo>, Option<usize>)> {
        let connection = self.connections.get(id.slot, id.generation)?;
        let some = connection.subscriptions.iter().skip(from).take(limit);
        let some = some.map(|(filter, options, number)| {
            SubscriptionInfo::new(&connection.client_id, true, filter, options, number)
        });
        let next = from.saturating_add(limit);
        Some((some.collect(), (next < connection.subscriptions.len()).then_some(next)))
    }

    fn subscriptions_page(
        &self,
        from: Cursor,
        limit: usize,
        filter: &SubscriptionFilter,
    ) -> SubscriptionPage {
        let start = (from.slot, from.within);
        let (items, next) = match self.stage_shard(from.stage) {
            None => self.connected_subscriptions(start, limit, filter),
            Some(shard) => self
                .shard(shard)
                .map(|shard| shard.absent_subscriptions(start, limit, filter))
                .unwrap_or_default(),
        };
        let next = match next {
            Some((slot, within)) => Some(Cursor { slot, within, ..from }),
            None => self.next_stage(from.stage),
        };
        SubscriptionPage { items, next }
    }

    fn connected_subscriptions(
        &self,
        (from, mut within): (u32, u32),
        limit: usize,
        filter: &SubscriptionFilter,
    ) -> (Vec<SubscriptionInfo>, Option<(u32, u32)>) {
        let mut found = Vec::new();
        let mut examined = 0;
        for slot in from..self.connections.slots() {
            if examined >= SUBSCRIPTIONS_AT_ONCE || slot - from >= CONNECTIONS_AT_ONCE {
                return (found, Some((slot, 0)));
            }
            let skip = std::mem::take(&mut within) as usize;
            let Some(connection) = self.connections.occupant_ref(slot) else { continue };
            if connection.phase != Phase::Open {
                continue;
            }
            for (index, (text, options, id)) in connection.subscriptions.iter().enumerate().skip(skip) {
                if found.len() >= limit || examined >= SUBSCRIPTIONS_AT_ONCE {
                    return (found, Some((slot, index as u32)));
                }
                examined += 1;
                if filter.wants(text) {
                    found.push(SubscriptionInfo::new(&connection.client_id, true, text, options, id));
                }
            }
        }
        (found, None)
    }

    /// Returns the queue of an ephemeral session. Messages in flight are kept only if another client may get them.
    fn queue_of(&self, id: ConnectionId, limit: usize, payload: usize) -> Option<QueuePage> {
        let connection = self.connections.get(id.slot, id.generation)?;
        let Some(flow) = connection.flow.as_deref() else {
            return Some(QueuePage { items: Vec::new(), truncated: false });
        };
        let inflight = flow.deliveries.inflight_payloads().map(|entry| (QueueState::Inflight, entry.clone()));
        let waiting = flow.queue.iter().map(|(is_over, entry)| {
            (if is_over { QueueState::Overflow } else { QueueState::Waiting }, entry)
        });
        let mut all = inflight.chain(waiting);
        let some = all.by_ref().take(limit);
        let items: Vec<Queued> =
            some.map(|(state, entry)| queued(self.clock.now(), state, &entry, payload)).collect();
        Some(QueuePage { items, truncated: all.next().is_some() })
    }

    fn kick(&mut self, shard: ShardId, client_id: &str, end_session: bool, reply: Reply<Option<Kicked>>) {
        let Some(ClientLocation { owner, session }) = self.locate(shard, client_id) else {
            return reply(None);
        };
        if let Some(owner) = owner {
            let durable = session.is_some();
            let connection = match self.on_this_node(owner) {
                Ok(connection) => connection,
                Err(None) => return reply(None),
                Err(elsewhere) => return reply(Some(Kicked { elsewhere, ..Kicked::default() })),
            };
            let request =
                AdminRequest::KickConnection { connection, client_id: None, end_session, durable, reply };
            return self.outbox.post(connection.worker, request.into());
        }
        if self.awaits_owner(shard, client_id) {
            return reply(None);
        }
        let session = session.filter(|_| end_session);
        let session_ended =
            session.is_some_and(|session| self.shards.kick_session(self.clock.now(), shard, session));
        self.apply_output();
        reply(Some(Kicked { session_ended, ..Kicked::default() }));
    }

    /// Adds the receivers of this worker: its connections, and the sessions and groups that it hosts. Then it passes
    /// the search to the next worker. There may be very many groups of sessions, so this takes several steps.
    fn find_receivers(&mut self, mut search: Box<ReceiverSearch>) {
        let ReceiverSearch { topic, limit, walk, matches, .. } = &mut *search;
        if let Ok(name) = TopicName::parse(topic) {
            let from = walk.take();
            if from.is_none() {
                self.find_connections(name, *limit, matches);
                for shard in self.shards.iter_mut() {
                    shard.find_receivers(name, *limit, matches);
                }
                for groups in self.shards.groups_mut() {
                    groups.find_receivers(name, *limit, matches);
                }
            }
            *walk = self.find_members(name, *limit, from, matches);
        }
        if search.walk.is_some() {
            return self.outbox.post(self.id, AdminRequest::FindReceivers(search).into());
        }
        let next = self.id.0 + 1;
        if next < self.node.workers {
            return self.outbox.post(WorkerId(next), AdminRequest::FindReceivers(search).into());
        }
        self.name_members(search);
    }

    /// Adds the durable sessions in shared groups, from [`GROUPS_AT_ONCE`] groups. Returns where to continue.
    fn find_members(
        &self,
        topic: TopicName<'_>,
        limit: usize,
        from: Option<GroupWalk>,
        matches: &mut Matches,
    ) -> Option<GroupWalk> {
        let mut left = GROUPS_AT_ONCE;
        let (first, mut after) = from.map_or((ShardId(0), None), |from| (from.shard, from.after));
        for shard in (first.0..SHARDS).map(ShardId) {
            let after = after.take();
            let Some(host) = self.shards.get(shard) else { continue };
            if left == 0 {
                return Some(GroupWalk { shard, after: None });
            }
            let last = host.find_members(topic, limit, (after.as_deref(), &mut left), matches);
            if last.is_some() {
                return Some(GroupWalk { shard, after: last });
            }
        }
        None
    }

    fn find_connections(&mut self, topic: TopicName<'_>, limit: usize, matches: &mut Matches) {
        let mut routes = std::mem::take(&mut self.scratch.routes);
        routes.clear();
        self.dispatcher.reader.matches(topic, &mut routes);
        routes.retain(|route| route.kind == RouteKind::Connection && route.index == self.id.0);
        routes.sort_unstable_by_key(|route| (route.slot, route.generation));
        routes.dedup_by_key(|route| (route.slot, route.generation));
        for route in &routes {
            let Some(connection) = self.connections.get(route.slot, route.generation) else { continue };
            matches.total += 1;
            if matches.receivers.len() < limit {
                matches.receivers.push(receiver(connection, topic));
            }
        }
        self.scratch.routes = routes;
    }

    /// Names the members of shared groups that belong to this worker, and sends the list to a worker that knows others.
    /// The last worker replies.
    fn name_members(&mut self, mut search: Box<ReceiverSearch>) {
        let mut elsewhere = None;
        for receiver in &mut search.matches.receivers {
            let name = match receiver.unnamed {
                None => continue,
                Some(Member::Connection(id)) if id.worker == self.id => self
                    .connections
                    .get(id.slot, id.generation)
                    .map(|connection| connection.client_id.clone()),
                // Only that node knows the Client Identifier.
                Some(Member::Node(_)) => Some("(on another node)".into()),
                Some(Member::Connection(id)) => {
                    elsewhere = Some(id.worker);
                    continue;
                }
            };
            receiver.unnamed = None;
            if let Some(name) = name {
                receiver.client_id = name;
            }
        }
        if let Some(worker) = elsewhere {
            return self.outbox.post(worker, AdminRequest::NameMembers(search).into());
        }
        // A receiver without a name no longer exists.
        search.matches.receivers.retain(|receiver| !receiver.client_id.is_empty());
        (search.reply)(search.matches);
    }
}

fn info(connection: &Connection) -> ClientInfo {
    let flow = connection.flow.as_deref();
    let (_, overflow_bytes) = flow.map_or((0, 0), |flow| flow.queue.sizes());
    ClientInfo {
        client_id: connection.client_id.clone(),
        connected: true,
        address: connection.peer(),
        username: connection.username().map(Into::into),
        version: Some(connection.version),
        connected_at: Some(Time(u64::from(connection.connected_at) * 1000)),
        keep_alive: connection.keep_alive,
        durable: connection.session.is_some(),
        subscriptions: connection.subscriptions.len(),
        inflight: flow.map_or(0, |flow| flow.deliveries.inflight()),
        queued_messages: flow.map_or(0, |flow| flow.queue.len()),
        queued_bytes: flow.map_or(0, |flow| flow.held_bytes + overflow_bytes) as u64,
        messages_received: connection.messages_received,
        messages_sent: connection.messages_sent,
        session: connection.session,
    }
}

fn receiver(connection: &Connection, topic: TopicName<'_>) -> Receiver {
    let mut qos = QoS::AtMostOnce;
    let mut filters = Vec::new();
    for (text, options, _) in connection.subscriptions.iter().take(SUBSCRIPTIONS_AT_ONCE) {
        let Ok(subscription) = mqtt::Subscription::parse(text) else { continue };
        if subscription.share.is_none() && subscription.filter.matches(topic) {
            qos = qos.max(options.qos());
            filters.push(text.into());
        }
    }
    let client_id = connection.client_id.clone();
    Receiver { client_id, connected: true, durable: false, filters, qos, share: None, unnamed: None }
}
