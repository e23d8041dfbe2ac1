//! Who the other nodes are, where the cores agree on it.

use std::collections::BTreeSet;
use std::time::Duration;

use broker::peers::{Copies, NodePlace, Wants};
use bytes::Bytes;
use link::{Event, Lane, NodeId, Time};
use mqtt::ReasonCode;
use registry::{Delivery, Position};
use replog::{Incarnation, WriterId};

use super::Fabric;
use super::routes::{put, source_of};
use crate::config::NodeInfo;
use crate::features::NAMESAKES;
use crate::interest::Interest;
use crate::meta::{Answer, Card, Command, LogNews, Member, Meta, MetaWord, Seen, State, WishId};
use crate::mutation::{Mutation, mutated};
use crate::peer::Peer;
use crate::wire::{Hello, Word};

/// A node that is linked and belongs to no cluster yet, or to one that this node wants to join.
#[derive(Debug)]
pub(super) struct Guest {
    since: Time,
    is_up: bool,
    /// It was a member and was removed, or has left: it is linked until it has read that, and nobody waits for it.
    is_removed: bool,
    /// What it asked for when it was a member, which it says no more, and the last hello to it.
    last: Option<(Hello, u32)>,
    /// What it has said as to a member: it knows earlier than this node that both are. As much as the link gives credit for.
    early: Vec<Event>,
}

/// A guest that becomes no member goes after this, microseconds.
const GUEST_MAX: u64 = 60_000_000;
const GUESTS_MAX: usize = 256;
/// A place that is free is nobody's for so long, microseconds.
const PLACE_RESTS: u64 = 30_000_000;
/// A node that has become a member knows the others after this.
const SETTLED: Duration = Duration::from_secs(5);

impl Fabric {
    /// The other nodes are those that the cores agree on, from now on. Before that there are none.
    pub fn join_cluster(&mut self, now: Time, meta: Meta) {
        debug_assert!(self.peers.is_empty() && self.meta.is_none());
        self.mesh.set_card(now, meta.card().encode().into());
        self.meta = Some(meta);
        self.seek(now);
        self.follow_roster(now);
    }

    /// The log of the node has something to say to this node's replica.
    pub fn log_news(&mut self, news: LogNews) {
        if let Some(meta) = &mut self.meta {
            meta.log_news(news);
        }
    }

    /// An operator wants something to be agreed upon: [`Self::poll_wish`] tells what came of it.
    pub fn wish(&mut self, now: Time, id: WishId, command: &Command) {
        match &mut self.meta {
            Some(meta) => meta.wish(now, id, command),
            None => self.wishes_refused.push_back(id),
        }
    }

    pub fn poll_wish(&mut self) -> Option<(WishId, Result<Answer, String>)> {
        if let Some(id) = self.wishes_refused.pop_front() {
            let why = "the members of this cluster are those of the [[cluster_node]] lists: change these, and restart the nodes";
            return Some((id, Err(why.to_owned())));
        }
        self.meta.as_mut()?.poll_answered()
    }

    /// This node is to be no member any more: [`Self::poll_wish`] tells when it is none. Its clients are gone before.
    pub fn leave(&mut self, now: Time, id: WishId) {
        match &mut self.meta {
            Some(meta) => meta.leave(now, id),
            None => self.wishes_refused.push_back(id),
        }
    }

    /// An operator knows where other nodes are.
    pub fn join_at(&mut self, now: Time, addresses: Vec<Box<str>>) {
        let Some(meta) = &mut self.meta else { return };
        meta.join_at(addresses);
        self.seek(now);
    }

    /// The owner's copy of the records is so far.
    pub fn copied(&mut self, at: Position) {
        if let Some(meta) = &mut self.meta {
            meta.copied(at);
        }
    }

    /// Something for the owner's copy of the records; the next comes when the owner says that this is in it.
    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        self.meta.as_mut()?.poll_delivery()
    }

    /// This node is about to stop: another core leads, if this one did.
    pub fn resign(&mut self, now: Time) {
        if let Some(meta) = &mut self.meta {
            meta.resign(now);
        }
    }

    pub fn meta(&self) -> Option<&Meta> {
        self.meta.as_ref()
    }

    /// Whether nothing stands between this node and its part in the cluster.
    pub(super) fn is_member(&self) -> bool {
        self.meta.as_ref().is_none_or(Meta::is_member)
    }

    pub(super) fn tend_membership(&mut self, now: Time) {
        // Messages do not wait for what has nothing to do.
        let Some(meta) = self.meta.as_mut().filter(|meta| meta.timeout() <= now) else { return };
        let (own, mesh) = (self.grants.as_ref(), &self.mesh);
        let seen = |id: NodeId, is_up: bool| Seen {
            id,
            is_up,
            holds_grant: own.is_some_and(|grants| grants.holds(now, id)),
            features: mesh.peer(id).filter(|_| is_up).map(|peer| peer.features),
        };
        let peers = self.peers.iter().map(|(id, peer)| seen(*id, peer.is_up));
        let guests = self.guests.iter().map(|(id, guest)| seen(*id, guest.is_up));
        let all: Vec<Seen> = peers.chain(guests).collect();
        meta.turn(now, &all);
        self.counters.relayed = meta.handed_on();
        if let Some(leader) = meta.leader() {
            self.journal.leader(now, leader);
        }
        while let Some(frame) = meta.poll_frame() {
            let word = Word::Meta(frame.word.word()).encode();
            // What finds no place is said again: everything here is.
            if self.mesh.send(now, frame.to, Lane::CONTROL, word.into()).is_err() {
                meta.unsent(&frame);
            }
        }
        self.say_turned_away(now);
        self.follow_roster(now);
        self.seek(now);
        self.let_guests_go(now);
    }

    fn say_turned_away(&mut self, now: Time) {
        let reason = "it runs too old a version for its cluster, whose cores do not let it in: update it";
        while let Some(id) = self.meta.as_mut().and_then(Meta::poll_turned_away) {
            // It may have asked by way of another core, which this one reaches and not it.
            let linked = self.mesh.peer(id).map(|peer| (peer.name.to_owned(), peer.address.to_owned()));
            let known = || self.info(id).map(|info| (info.name.to_string(), info.address.to_string()));
            if let Some((name, address)) = linked.or_else(known) {
                self.mesh.complain_of(now, &name, &address, reason);
            }
        }
    }

    /// Looks for other nodes while this one is no member, or hears no core.
    fn seek(&mut self, now: Time) {
        let Some(meta) = &self.meta else { return };
        // Of one that is the only core nobody is to be heard.
        let hears_core = self.is_core() && !self.peers.values().any(Peer::is_core)
            || self.peers.values().any(|peer| peer.is_core() && peer.is_up);
        let wants = !meta.is_leaving() && (!meta.is_member() || !hears_core);
        let wanted: BTreeSet<&str> = if wants { meta.met_at().collect() } else { BTreeSet::new() };
        let others = self.mesh.sought().filter(|address| !wanted.contains(address));
        let others: Vec<Box<str>> = others.map(Into::into).collect();
        others.iter().for_each(|address| self.mesh.seek_no_more(address));
        wanted.iter().for_each(|address| self.mesh.seek(now, address));
        self.mesh.set_card(now, meta.card().encode().into());
    }

    /// Somebody who knows the secret has said who he is.
    pub(super) fn introduced(&mut self, now: Time, name: &str, card: &[u8], address: Option<&str>) {
        if self.meta.is_none() {
            return;
        }
        let said = card;
        let Some(card) = Card::decode(said) else {
            self.counters.malformed += 1;
            return;
        };
        let id = NodeId::of_name(name);
        if id == self.own && card.address != self.config.own.address {
            return self.namesake(now, &card.address);
        }
        if self.is_namesake(now, id, &card) {
            self.mesh.refuse_namesake(now, id, Bytes::copy_from_slice(said), &card.address);
            if self.can(id, NAMESAKES) {
                // One that finds no place is told when the other introduces itself again.
                self.say(now, id, Lane::CONTROL, &Word::Namesake(&card.address));
            }
            return;
        }
        let Some(meta) = &mut self.meta else { return };
        let (is_wanted, ours) = (meta.met(id, &card, address), meta.roster().founded);
        if is_wanted {
            if self.guests.len() < GUESTS_MAX && !self.guests.contains_key(&id) {
                self.mesh.add_peer(now, name, &card.address);
                self.guests.insert(
                    id,
                    Guest { since: now, is_up: false, is_removed: false, last: None, early: Vec::new() },
                );
            } else if let Some(guest) = self.guests.get_mut(&id) {
                // One that was removed wants to join again.
                guest.is_removed = false;
                if !guest.is_up {
                    // It may say another address than before.
                    self.mesh.add_peer(now, name, &card.address);
                }
            }
            self.apart.found(address.unwrap_or_default());
            return;
        }
        if card.founded == 0 || ours == 0 || card.founded == ours {
            self.apart.found(address.unwrap_or_default());
        } else {
            // As `founded` of the API begins.
            let short = |founded: u128| format!("{:08x}", founded >> 96);
            let reason = format!(
                "it belongs to the cluster {}, and this node to the cluster {}: they have the same cluster.id and secret, and two clusters do not mix. \
                 Stop one of the two nodes, remove its data directory and start it again with cluster.join",
                short(card.founded),
                short(ours)
            );
            self.mesh.complain_of(now, name, &card.address, &reason);
        }
        // It has moved. Whoever is there is not replaced by what somebody says.
        if self.peers.get(&id).is_some_and(|peer| !peer.is_up && peer.info.address != card.address) {
            self.mesh.add_peer(now, name, &card.address);
        }
    }

    /// Whether somebody is another process than the one of that name that is linked: that one is alive, and says that it is reached elsewhere.
    fn is_namesake(&self, now: Time, id: NodeId, card: &Card) -> bool {
        let linked = self.mesh.peer(id).filter(|peer| peer.is_up && peer.is_alive(now));
        let linked = linked.and_then(|peer| Card::decode(peer.card));
        linked.is_some_and(|linked| linked.address != card.address)
    }

    /// Another process goes by this node's name.
    pub(super) fn namesake(&mut self, now: Time, address: &str) {
        let own = &self.config.own;
        let reason = format!(
            "another process there has the name of this node, which is at {}: give each node a name of its own (node.name), or stop one of the two",
            own.address
        );
        self.mesh.complain_of(now, &own.name, address, &reason);
    }

    fn let_guests_go(&mut self, now: Time) {
        let meta = &self.meta;
        let is_founded = meta.as_ref().is_some_and(|meta| meta.roster().founded != 0);
        let old = |guest: &Guest| is_founded && now.since(guest.since) > GUEST_MAX;
        let gone: Vec<NodeId> =
            self.guests.iter().filter(|(_, guest)| old(guest)).map(|(id, _)| *id).collect();
        for id in gone {
            self.guests.remove(&id);
            self.mesh.remove_peer(now, id);
        }
    }

    /// A node that left has ended: its link is not tried again, and nobody is told that it is missing.
    pub(super) fn forget_removed(&mut self, now: Time, id: NodeId) -> bool {
        if !self.guests.get(&id).is_some_and(|guest| guest.is_removed) {
            return false;
        }
        self.guests.remove(&id);
        self.mesh.remove_peer(now, id);
        if let Some(meta) = &mut self.meta {
            meta.link_changed(id, false);
        }
        true
    }

    /// Something happened to the link of a node that is no member.
    pub(super) fn guest_event(&mut self, now: Time, id: NodeId, event: Event) {
        if matches!(event, Event::Suspect) && self.forget_removed(now, id) {
            return;
        }
        let Some(guest) = self.guests.get_mut(&id) else { return };
        match event {
            Event::Up | Event::Suspect => {
                guest.is_up = matches!(event, Event::Up);
                let is_up = guest.is_up;
                if let Some(peer) = self.mesh.peer(id).filter(|_| is_up) {
                    self.apart.joined(peer.name, peer.address);
                }
                if let Some(meta) = &mut self.meta {
                    meta.link_changed(id, is_up);
                }
            }
            Event::Received { lane: Lane::CONTROL, frame, credit, .. } => {
                self.mesh.consume(id, credit);
                match crate::wire::decode(&frame) {
                    Some(Word::Meta(word)) => self.meta_word(now, id, &word),
                    // It asks for a lease, and will again.
                    Some(_) => {}
                    None => self.counters.malformed += 1,
                }
            }
            Event::Received { .. } => guest.early.push(event),
            Event::Restarted => {
                guest.early.clear();
                guest.last = None;
                guest.is_removed = false;
            }
            Event::Acknowledged { .. } | Event::GoesOn | Event::Silent { .. } => {}
        }
    }

    pub(super) fn meta_word(&mut self, now: Time, from: NodeId, word: &MetaWord<'_>) {
        let is_word = self.meta.as_mut().is_some_and(|meta| meta.heard(now, from, word));
        self.counters.malformed += u64::from(!is_word);
    }

    /// Makes the other nodes what the roster says.
    fn follow_roster(&mut self, now: Time) {
        let Some(meta) = &self.meta else { return };
        let roster = meta.roster().clone();
        if meta.is_over() && !mutated(Mutation::StayDead) {
            self.begin_anew();
        }
        if roster.index == self.followed {
            return;
        }
        let is_first = std::mem::replace(&mut self.followed, roster.index) == 0;
        let is_member = self.is_member();
        if is_member && !self.was_member {
            // Whoever had removed an earlier life of this node meanwhile has forgotten what it was asked for.
            self.ask_anew();
            self.share_at = Some(now.after(SETTLED));
        }
        self.was_member = is_member;
        for (id, member) in &roster.members {
            if *id != self.own {
                self.journal.member(now, *id, member, !is_first);
                self.follow_member(now, *id, member);
            }
        }
        let gone: Vec<NodeId> =
            self.peers.keys().filter(|id| !roster.members.contains_key(id)).copied().collect();
        for id in gone {
            self.remove_peer(now, id);
        }
        let cores = roster.cores().map(|(id, _)| id).collect();
        self.leases.set_cores(&cores);
        if let Some(grants) = &mut self.grants {
            grants.keep(now, |id| roster.members.contains_key(&id));
        }
        self.node.set_others(self.places.len() as u16);
    }

    fn follow_member(&mut self, now: Time, id: NodeId, member: &Member) {
        let (writer, life) = (WriterId(id.0), member.incarnation);
        // It was removed meanwhile, and has lost its number with its disk.
        let is_smaller = |peer: &Peer| peer.member.is_some_and(|known| known > life);
        if self.peers.get(&id).is_some_and(is_smaller) {
            self.remove_peer(now, id);
        }
        // What was told of a life after this one was of one that never joined, before the node was removed: it may have lost that number, too.
        let is_gone_back = !self.peers.contains_key(&id)
            && member.state != State::Dead
            && !mutated(Mutation::RememberLives)
            && self.replica.void_later(writer, life);
        match self.peers.get_mut(&id) {
            None => self.add_peer(now, id, &member.info),
            Some(peer) if peer.info != member.info => {
                peer.info = member.info.clone();
                self.mesh.add_peer(now, &member.info.name, &member.info.address);
            }
            Some(_) => {}
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let is_other = peer.member.replace(life) != Some(life);
        // It may have been removed before, in this life, and not know of that; or in one with a greater number.
        let is_revived = member.state != State::Dead && self.replica.revive(writer, life);
        let is_purged = matches!(member.state, State::Suspect(_)) && mutated(Mutation::PurgeSuspects);
        let dead = (member.state == State::Dead || is_purged).then_some(life);
        if peer.dead != dead {
            peer.dead = dead;
            peer.dead_since = dead.map(|_| now);
            if let Some(life) = dead {
                self.bury(id, life);
            }
        }
        if is_revived || is_gone_back {
            self.forget_lives(writer);
            // What others have told of it was refused, and they count it as told.
            self.ask_anew();
        } else if is_other {
            // The node may have said itself already which life goes on, before this one heard that it is a member.
            self.believe(id);
            if self.replica.incarnation(writer) > Some(life) {
                // What others have told of it was refused, if that is over of which they had told: see `doubt`.
                self.ask_anew();
            }
        }
    }

    /// The life of another node that is a member, where the cores agree on members.
    pub(super) fn agreed(&self, writer: WriterId) -> Option<Incarnation> {
        self.peers.get(&NodeId(writer.0)).and_then(|peer| peer.member)
    }

    /// What others know of lives of a node that are over counts for nothing.
    pub(super) fn forget_lives(&mut self, writer: WriterId) {
        self.is_forgetting = true;
        let replica = &self.replica;
        if let Some(grants) = self.grants.as_mut().filter(|_| !mutated(Mutation::RememberLives)) {
            grants.forget_lives(writer, |life| replica.is_dead(writer, life));
        }
    }

    fn add_peer(&mut self, now: Time, id: NodeId, info: &NodeInfo) {
        let guest = self.guests.remove(&id);
        self.mesh.add_peer(now, &info.name, &info.address);
        let place = self.new_place(now, id);
        self.node.routes.set_up(place, false);
        let mut peer = Peer::new(info.clone(), place);
        // Hellos of a link are counted on: the first answer is to what was said when the other was a member before.
        if let Some((_, said)) = guest.as_ref().and_then(|guest| guest.last.as_ref()) {
            peer.hello = *said;
        }
        self.peers.insert(id, peer);
        // It may have been a member before, and have lost what it knew then.
        if let Some(grants) = &mut self.grants {
            grants.restarted(id);
        }
        // Others may have told of its routes before this node knew that it is a member.
        for (key, interest) in self.replica.entries(WriterId(id.0)) {
            put(&self.node, place, key, Some(*interest));
        }
        let Some(guest) = guest else { return };
        if guest.is_up {
            self.link_event(now, id, Event::Up);
        }
        if let Some((hello, _)) = guest.last {
            self.hello(id, hello);
        }
        for event in guest.early {
            self.link_event(now, id, event);
        }
        self.expect_restart(WriterId(id.0));
    }

    /// One that nobody has, and nobody had a moment ago: what was on its way to him would be for another.
    fn new_place(&mut self, now: Time, id: NodeId) -> NodePlace {
        let free = self.retired.pop_front_if(|(since, _)| now.since(*since) > PLACE_RESTS);
        let place = free.map_or(NodePlace(self.places.len() as u16), |(_, place)| place);
        match self.places.get_mut(usize::from(place.0)) {
            Some(known) => *known = id,
            None => self.places.push(id),
        }
        place
    }

    /// A node is no member any more: nothing of it is wanted.
    fn remove_peer(&mut self, now: Time, id: NodeId) {
        self.settle_messages(id, true);
        self.forget_behind(id);
        self.lose_asks(id);
        let Some(peer) = self.peers.remove(&id) else { return };
        self.replica.lost(source_of(&peer));
        self.clocks.forget(id);
        self.journal.forget(id);
        // That it could not be reached was so of a member. Now nobody looks for it.
        self.apart.joined(&peer.info.name, &peer.info.address);
        tracing::info!(node = &*peer.info.name, "the node is no member of the cluster any more");
        if let Some(meta) = &mut self.meta {
            meta.link_changed(id, false);
        }
        self.node.routes.set_up(peer.place, false);
        let writer = WriterId(id.0);
        // What is left of earlier lives, too: when it is forgotten, another place may be the node's.
        let of_last = self.replica.entries(writer);
        for (key, _) in of_last.chain(self.replica.remains(writer)) {
            put(&self.node, peer.place, key, None);
        }
        // It may have begun another already, which is no member yet.
        if let Some(life) = peer.member {
            self.replica.declare_dead(writer, life);
            self.forget_lives(writer);
        }
        self.tell_legacy(id);
        if peer.is_up && self.guests.len() < GUESTS_MAX {
            // It hears by this link that it is none.
            let last = peer.last_hello.map(|hello| (hello, peer.hello));
            self.guests
                .insert(id, Guest { since: now, is_up: true, is_removed: true, last, early: Vec::new() });
        } else {
            self.mesh.remove_peer(now, id);
        }
        // Nobody is there. The node has another place when it comes back, and what is for everybody would be for both.
        self.places[usize::from(peer.place.0)] = self.own;
        self.retired.push_back((now, peer.place));
        self.attached.take_if(|attached| *attached == id);
        // Where the others hear from has to be said anew.
        self.told.clear();
    }

    /// A life of a node is over. What its clients that are gone with it wanted, nobody wants; what its durable sessions wanted waits for it.
    fn bury(&mut self, id: NodeId, life: Incarnation) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (place, writer) = (peer.place, WriterId(id.0));
        if self.replica.incarnation(writer).is_none_or(|known| known <= life) {
            // Where it has not told everything, what it had wanted before stands for the rest.
            for (key, interest) in self.replica.remains(writer).chain(self.replica.entries(writer)) {
                put(&self.node, place, key, of_the_dead(*interest));
            }
        }
        if peer.is_up {
            self.settle_messages(id, false);
        }
        self.settle_suspects(self.now);
        self.tell_legacy(id);
    }

    /// What a node had retained and told some others only, nobody tells the rest any more: they hear it from those that they hear all from.
    fn tell_legacy(&mut self, gone: NodeId) {
        if mutated(Mutation::ForgetLegacy) {
            return;
        }
        let copies = Copies::Of(gone.0 as u8);
        let heirs = self.peers.iter().filter(|(id, peer)| **id != gone && peer.copies == Some(Copies::All));
        for place in heirs.map(|(_, peer)| peer.place) {
            self.inbound.iter_mut().for_each(|inbound| inbound.copies.push((place, copies)));
        }
    }

    /// The others have given up this life of this node, or it may not begin: its clients go, and another one begins.
    fn begin_anew(&mut self) {
        let Some(meta) = &mut self.meta else { return };
        let known = meta.roster().members.get(&self.own);
        let is_known = known.is_some_and(|member| member.incarnation == self.config.incarnation);
        let was_member = meta.was_member() || is_known;
        let incarnation = meta.begin_anew();
        self.give_up_unconfirmed();
        if was_member {
            tracing::warn!(
                "the cores had agreed that this node is dead or no member, since none of them heard it: its clients are disconnected, and it joins again"
            );
            if !mutated(Mutation::KeepClients) {
                self.node.close_clients(ReasonCode::ServerBusy);
            }
        }
        self.config.incarnation = incarnation;
        let own = WriterId(self.own.0);
        let entries: Vec<(Box<[u8]>, Interest)> =
            self.replica.entries(own).map(|(key, value)| (key.into(), *value)).collect();
        self.replica.own(own, incarnation);
        for (key, interest) in entries {
            self.replica.set(own, &key, Some(interest));
        }
        // What others knew was of the earlier life.
        self.attached_core_forgets();
        self.asked_settle = replog::Position::default();
        self.leases.forget();
        let last = self.own_position();
        for subacks in [&mut self.for_core, &mut self.for_region, &mut self.for_cluster] {
            subacks.rebase(last);
        }
        for peer in self.peers.values_mut() {
            peer.fed.iter_mut().for_each(|fed| fed.own = None);
            peer.is_copied = false;
        }
        // Where this node was removed, others have forgotten their links to it.
        let away: Vec<NodeId> =
            self.peers.iter().filter(|(_, peer)| !peer.is_up).map(|(id, _)| *id).collect();
        away.into_iter().for_each(|id| self.expect_other_link(id));
        // They hear of the new life, and are fed with what that writes.
        self.was_member = false;
        self.ask_anew();
    }

    /// All peers are told what this node is and asked for what it wants to hear, as if for the first time.
    pub(super) fn ask_anew(&mut self) {
        self.peers.values_mut().for_each(|peer| peer.asked = None);
        self.told.clear();
    }

    pub(super) fn is_core(&self) -> bool {
        self.config.own.role == crate::config::Role::Core
    }

    /// What a member that is dead says of that life counts for nothing.
    pub(super) fn is_of_the_dead(&self, writer: WriterId, life: Incarnation) -> bool {
        self.peers.get(&NodeId(writer.0)).is_some_and(|peer| peer.dead.is_some_and(|dead| life <= dead))
    }

    /// Whether this core may let a node acknowledge.
    pub(super) fn may_be_granted(&self, id: NodeId) -> bool {
        let life = self.peers.get(&id).and_then(|peer| peer.incarnation);
        self.meta.as_ref().is_none_or(|meta| meta.may_grant() && meta.may_be_granted(id, life))
    }
}

/// Of what was wanted on a node that is dead: what sessions on its disk want.
fn of_the_dead(interest: Interest) -> Option<Interest> {
    match interest {
        Interest::Wants(wants) if wants.includes(Wants::STORED) => Some(Interest::Wants(Wants::STORED)),
        Interest::Wants(_) | Interest::Members(_) => None,
    }
}
