//! Requests to other replicas, and their answers. A frame may be lost: the caller times out, and `openraft` asks again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::Stream;
use link::NodeId;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use openraft::{AsyncRuntime, Instant as _, OptionalSend};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::mutation::{Mutation, mutated};
use crate::pipeline::{Pipeline, failed};
use crate::raft_log::{SnapshotData, SnapshotReader, Store, TRANSFER_STALL};
use crate::raft_types::{LogGroup, LogId, Member, ReplicaId, Snapshot, Types, Vote};
use crate::runtime::{Instant, Runtime};
use crate::wire::{Appended, Body, Message, SnapshotForm, SnapshotPiece, encode};

/// Time after which a replica that installs a snapshot is asked again, if it could not be asked.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Frame for another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    pub to: NodeId,
    pub frame: Vec<u8>,
    /// True for a heartbeat and for its answer: it has no entries, and its order among other frames does not matter.
    pub is_heartbeat: bool,
}

/// A request of another replica.
pub(crate) struct Question {
    pub node: NodeId,
    pub replica: ReplicaId,
    pub call: u32,
    pub is_heartbeat: bool,
}

/// Requests that a replica has made, and frames to send.
pub(crate) struct Calls {
    group: LogGroup,
    own: ReplicaId,
    prefix: &'static [u8],
    count: u32,
    piece_bytes: usize,
    copy_rate: NonZeroU64,
    /// Replicas that vote, as far as this one knows.
    voters: BTreeSet<ReplicaId>,
    sends_ahead: bool,
    waiting: BTreeMap<u32, (NodeId, oneshot::Sender<Body>)>,
    out: VecDeque<Transmit>,
    /// Highest index that each replica has confirmed to this leader, and the vote by which it leads.
    confirmed: BTreeMap<ReplicaId, (Vote, u64)>,
    /// Last report of each replica about what it has in memory.
    held: BTreeMap<ReplicaId, HeldReport>,
    /// Replicas that lack entries that they had confirmed.
    regressed: VecDeque<ReplicaId>,
    /// True if nodes of earlier versions can read the snapshots of this group.
    is_stream: bool,
    /// Nodes that read snapshots in parts.
    part_readers: BTreeSet<NodeId>,
}

/// Report of a replica that it has the entries of a leader in memory. The process that sent it may lose them when it
/// ends.
struct HeldReport {
    node: NodeId,
    /// Vote of the leader.
    vote: Vote,
    /// Index of the last entry.
    last: u64,
}

/// Network of one replica, shared by all tasks that `openraft` runs for it, and the store that snapshots are read from.
#[derive(Clone)]
pub(crate) struct Network(Arc<Mutex<Calls>>, Store);

/// Client for one other replica.
pub(crate) struct Client {
    network: Network,
    to: ReplicaId,
    node: NodeId,
}

/// Removes a request when nobody waits for its answer.
struct Waiting<'a>(&'a Network, u32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        sync::lock(&self.0.0).waiting.remove(&self.1);
    }
}

impl Network {
    /// Makes the network of a replica. Requests are numbered from a random number on, because answers to the previous
    /// incarnation may be on their way.
    pub fn new(config: &Config, store: Store, is_stream: bool) -> Self {
        Self(Arc::new(Mutex::new(Calls::new(config, is_stream))), store)
    }

    pub fn set_part_readers(&self, nodes: BTreeSet<NodeId>) {
        sync::lock(&self.0).part_readers = nodes;
    }

    pub fn set_voters(&self, voters: BTreeSet<ReplicaId>) {
        sync::lock(&self.0).voters = voters;
    }

    /// Form in which a node reads snapshots.
    fn snapshot_form(&self, node: NodeId) -> SnapshotForm {
        let calls = sync::lock(&self.0);
        let reads_parts = !calls.is_stream || calls.part_readers.contains(&node);
        if reads_parts { SnapshotForm::Parts } else { SnapshotForm::Whole }
    }

    pub fn poll_regressed(&self) -> Option<ReplicaId> {
        sync::lock(&self.0).regressed.pop_front()
    }

    pub fn poll_transmit(&self) -> Option<Transmit> {
        sync::lock(&self.0).out.pop_front()
    }

    fn send(&self, node: NodeId, to: ReplicaId, call: u32, body: Body, is_heartbeat: bool) {
        let mut calls = sync::lock(&self.0);
        let message = Message { group: calls.group, to, from: calls.own, call, body };
        let frame = encode(calls.prefix, &message);
        calls.out.push_back(Transmit { to: node, frame, is_heartbeat });
    }

    pub fn answer(&self, question: &Question, body: Body) {
        self.send(question.node, question.replica, question.call, body, question.is_heartbeat);
    }

    /// Handles an answer. A late one, or one from another node, is dropped.
    pub fn answered(&self, node: NodeId, call: u32, body: Body) {
        let mut calls = sync::lock(&self.0);
        if calls.waiting.get(&call).is_some_and(|(asked, _)| *asked == node)
            && let Some((_, sender)) = calls.waiting.remove(&call)
        {
            // The caller may have timed out.
            let _ = sender.send(body);
        }
    }

    /// Drops requests and frames of a node that is cut off, and its reports: its process may have ended, with what it
    /// had in memory.
    pub fn lost(&self, node: NodeId) {
        let mut calls = sync::lock(&self.0);
        calls.held.retain(|_, report| report.node != node);
        calls.waiting.retain(|_, (asked, _)| *asked != node);
        calls.out.retain(|transmit| transmit.to != node);
    }

    /// Reports to a leader that this replica has its entries up to this one in memory.
    pub fn report_held(&self, (node, to): (NodeId, ReplicaId), vote: Vote, last: LogId) {
        self.send(node, to, 0, Body::Held { vote, last }, false);
    }

    /// Handles such a report of a member to this leader, whose log has that entry.
    pub fn note_held(&self, (node, from): (NodeId, ReplicaId), vote: Vote, last: u64) {
        sync::lock(&self.0).held.insert(from, HeldReport { node, vote, last });
    }

    /// Highest index that a replica is known to have, in memory or on disk, to the leader with this vote.
    pub fn held(&self, replica: ReplicaId, vote: Vote) -> Option<u64> {
        let calls = sync::lock(&self.0);
        let held = calls.held.get(&replica).filter(|report| report.vote == vote).map(|report| report.last);
        held.max(calls.confirmed(replica, vote))
    }

    /// Sends a request, and returns the answer.
    async fn exchange(
        &self,
        node: NodeId,
        to: ReplicaId,
        body: Body,
        limit: Duration,
    ) -> Result<Body, RpcError> {
        within(limit, self.ask(node, to, body, false)).await
    }

    /// Sends a request, and waits for the answer without a limit.
    async fn ask(
        &self,
        node: NodeId,
        to: ReplicaId,
        body: Body,
        is_heartbeat: bool,
    ) -> Result<Body, RpcError> {
        let (receiver, waiting) = {
            let mut calls = sync::lock(&self.0);
            calls.count = calls.count.wrapping_add(1);
            let (sender, receiver) = oneshot::channel();
            let call = calls.count;
            calls.waiting.insert(call, (node, sender));
            (receiver, Waiting(self, call))
        };
        self.send(node, to, waiting.1, body, is_heartbeat);
        receiver.await.map_err(|_| unreachable("the node is cut off"))
    }
}

/// Last entry that a replica has when it has confirmed the request.
pub(crate) fn last_entry(request: &AppendEntriesRequest<Types>) -> Option<LogId> {
    request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id)
}

pub(crate) type RpcError = RPCError<Types>;

/// Answers to a stream of requests.
type AppendStream<'a> = Result<BoxStream<'a, Result<StreamAppendResult<Types>, RpcError>>, RpcError>;

/// Waits for an answer for a limited time.
async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, RpcError>> + OptionalSend,
) -> Result<T, RpcError> {
    let timed_out = |error: &dyn ToString| RPCError::Network(NetworkError::from_string(error.to_string()));
    Runtime::timeout(limit, answer).await.unwrap_or_else(|elapsed| Err(timed_out(&elapsed)))
}

fn unreachable(why: &str) -> RpcError {
    RPCError::Unreachable(Unreachable::from_string(why))
}

fn refused() -> RpcError {
    unreachable("the replica has stopped, or does not install the snapshot")
}

fn unexpected(body: &Body) -> RpcError {
    unreachable(&format!("an answer to another request: {body:?}"))
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: ReplicaId, node: &Member) -> Client {
        Client { network: self.clone(), to: target, node: node.node }
    }
}

impl Calls {
    fn new(config: &Config, is_stream: bool) -> Self {
        Self {
            group: config.group,
            own: config.id,
            prefix: config.frame_prefix,
            count: config.seed as u32,
            piece_bytes: config.snapshot_piece_bytes.max(1),
            copy_rate: config.copy_rate,
            voters: BTreeSet::new(),
            sends_ahead: config.sends_ahead,
            waiting: BTreeMap::new(),
            out: VecDeque::new(),
            confirmed: BTreeMap::new(),
            held: BTreeMap::new(),
            regressed: VecDeque::new(),
            is_stream,
            part_readers: BTreeSet::new(),
        }
    }

    fn confirmed(&self, to: ReplicaId, vote: Vote) -> Option<u64> {
        self.confirmed.get(&to).filter(|(of, _)| *of == vote).map(|(_, index)| *index)
    }

    fn note_confirmed(&mut self, to: ReplicaId, vote: Vote, last: Option<u64>) {
        let before = self.confirmed(to, vote);
        if let Some(last) = last.max(before) {
            self.confirmed.insert(to, (vote, last));
        }
    }

    /// Returns whether a replica is a voter, and another one without a vote has confirmed this entry in its term.
    fn is_at_learner(&self, voter: ReplicaId, last: &LogId) -> bool {
        let has = |(id, (vote, index)): (&ReplicaId, &(Vote, u64))| {
            !self.voters.contains(id) && vote.leader_id.term == last.leader_id.term && *index >= last.index
        };
        self.voters.contains(&voter) && self.confirmed.iter().any(has)
    }

    /// Handles a conflict: the replica lacks the entry before those that it was sent. If it had confirmed that entry,
    /// it has lost it. What it had in memory may be lost with its process.
    fn note_conflict(&mut self, to: ReplicaId, previous: Option<u64>, confirmed: Option<u64>) {
        self.held.remove(&to);
        if previous.is_some() && previous <= confirmed {
            self.confirmed.remove(&to);
            if !self.regressed.contains(&to) {
                self.regressed.push_back(to);
            }
        }
    }
}

impl Client {
    async fn exchange(&self, body: Body, limit: Duration) -> Result<Body, RpcError> {
        self.network.exchange(self.node, self.to, body, limit).await
    }

    async fn call(&self, body: Body, limit: Duration) -> Result<Body, RpcError> {
        match self.exchange(body, limit).await? {
            Body::Refused => Err(refused()),
            body => Ok(body),
        }
    }

    /// Returns the last entry of the log if the replica has no vote, so that the group does not wait for it.
    pub(crate) fn copied_until(&self) -> Option<u64> {
        let is_voter = sync::lock(&self.network.0).voters.contains(&self.to);
        if is_voter { None } else { self.network.1.lock().last().map(|last| last.index) }
    }

    /// Time that the copy of so many bytes takes.
    pub(crate) fn copy_time(&self, bytes: usize) -> Duration {
        Config::copy_time(sync::lock(&self.network.0).copy_rate, bytes as u64)
    }

    /// Sends entries, and waits for the answer without a limit. `is_ahead`: earlier requests are on their way, so that
    /// the replica may not have what comes before.
    pub(crate) async fn append(
        &self,
        request: AppendEntriesRequest<Types>,
        is_ahead: bool,
    ) -> Result<AppendEntriesResponse<Types>, RpcError> {
        let index = |log_id: &LogId| log_id.index;
        let (vote, previous) = (request.vote, request.prev_log_id.as_ref().map(index));
        let last = last_entry(&request).as_ref().map(index);
        let confirmed = sync::lock(&self.network.0).confirmed(self.to, vote);
        // A heartbeat names an entry that the replica has confirmed. So does a request without entries, unless it is
        // ahead.
        let is_heartbeat = request.entries.is_empty() && !is_ahead;
        match self.network.ask(self.node, self.to, Body::Append(request.into()), is_heartbeat).await? {
            Body::Refused => Err(refused()),
            Body::Appended(appended) => {
                let mut calls = sync::lock(&self.network.0);
                match &appended {
                    Appended::All => calls.note_confirmed(self.to, vote, last),
                    Appended::Some(last) => calls.note_confirmed(self.to, vote, last.as_ref().map(index)),
                    Appended::Conflict if is_ahead => {}
                    Appended::Conflict => calls.note_conflict(self.to, previous, confirmed),
                    Appended::HigherVote(_) => {}
                }
                Ok(appended.into())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Result of a request without an answer in time: an error. `last` is the last entry that the request would have
    /// confirmed, for a [`Mutation`].
    pub(crate) fn unanswered(&self, last: Option<LogId>) -> Result<AppendEntriesResponse<Types>, RpcError> {
        let is_at_learner =
            last.is_some_and(|last| sync::lock(&self.network.0).is_at_learner(self.to, &last));
        if is_at_learner && mutated(Mutation::CountLearner) {
            return Ok(AppendEntriesResponse::Success);
        }
        Err(failed("no answer in time"))
    }

    async fn ask_vote(
        &self,
        request: VoteRequest<Types>,
        is_pre_vote: bool,
        option: &RPCOption,
    ) -> Result<VoteResponse<Types>, RpcError> {
        let VoteRequest { vote, last_log_id, leadership_transfer } = request;
        let body = Body::Vote { vote, last: last_log_id, is_pre_vote, is_transfer: leadership_transfer };
        match self.call(body, option.soft_ttl()).await? {
            Body::Voted { vote, last, granted } => Ok(VoteResponse::new(vote, last, granted)),
            other => Err(unexpected(&other)),
        }
    }

    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: Snapshot,
        option: &RPCOption,
    ) -> Result<SnapshotResponse<Types>, RpcError> {
        let failed = |error: std::io::Error| RPCError::Network(NetworkError::from_string(error.to_string()));
        let Snapshot { meta, snapshot: SnapshotData::Stored(stored) } = snapshot else {
            return Err(unreachable("the snapshot is not in the log"));
        };
        let (store, form) = (&self.network.1, self.network.snapshot_form(self.node));
        let mut reader = SnapshotReader::new(store.clone(), &stored, form);
        let size = reader.size();
        let piece_bytes = sync::lock(&self.network.0).piece_bytes;
        let last = meta.last_log_id.map_or(0, |last| last.index);
        // Time of the last answer that the replica installs the snapshot.
        let mut installing = None;
        let mut at = 0;
        loop {
            if installing.is_none() {
                store.lock().snapshot_received(self.to, stored.checkpoint, at, Instant::now().0);
            }
            // A replica that installs the snapshot is asked without bytes. Another one may have replaced it here.
            let bytes = reader.read(at, piece_bytes).await.map_err(failed)?;
            let end = at + bytes.len() as u64;
            let ready = Instant::now() + self.copy_time(bytes.len());
            let piece = SnapshotPiece { form, vote, meta: meta.clone(), size, offset: at, bytes };
            let answer = match self.exchange(Body::Snapshot(piece), option.soft_ttl()).await {
                Ok(Body::Refused) => return Err(refused()),
                Ok(answer) => answer,
                Err(error) => match installing {
                    Some(heard) if Instant::now() < heard + TRANSFER_STALL => {
                        Runtime::sleep(ASK_AGAIN).await;
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            if installing.is_some() || matches!(answer, Body::Installing { .. }) {
                store.lock().snapshot_installing(self.to, last, Instant::now().0);
            }
            match answer {
                Body::Installing { vote: seen } if seen == vote => {
                    (installing, at) = (Some(Instant::now()), size);
                }
                Body::Received { vote: seen, .. } if seen > vote => {
                    store.lock().snapshot_sent(self.to);
                    return Ok(SnapshotResponse::new(seen));
                }
                Body::Received { vote: seen, offset } if end == size && offset == size => {
                    store.lock().snapshot_sent(self.to);
                    return Ok(SnapshotResponse::new(seen));
                }
                // The replica may ask for the start again.
                Body::Received { offset, .. } if offset <= size => {
                    (installing, at) = (None, offset);
                    if Instant::now() < ready {
                        Runtime::sleep_until(ready).await;
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }
}

impl RaftNetworkV2<Types> for Client {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RpcError> {
        let last = last_entry(&request);
        match within(option.soft_ttl(), self.append(request, false)).await {
            Err(RPCError::Network(_)) => self.unanswered(last),
            answer => answer,
        }
    }

    fn stream_append<'s, S>(&'s mut self, input: S, option: RPCOption) -> BoxFuture<'s, AppendStream<'s>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        if !sync::lock(&self.network.0).sends_ahead {
            return stream_append_sequential(self, input, option);
        }
        let answers: BoxStream<'s, _> = Box::pin(Pipeline::new(self, input, option.soft_ttl()));
        Box::pin(std::future::ready(Ok(answers)))
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RpcError> {
        self.ask_vote(request, false, &option).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RpcError> {
        self.ask_vote(request, true, &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let sent = self.send_snapshot(vote, snapshot, &option);
        match Runtime::select2(cancel, sent).await {
            openraft::rt::Select2::First(closed) => Err(StreamingError::Closed(closed)),
            openraft::rt::Select2::Second(sent) => sent.map_err(StreamingError::from),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<openraft::raft::TransferLeaderResponse<Types>, RpcError> {
        let (vote, to) = (*request.from_leader(), *request.to_node_id());
        let last: Option<LogId> = request.last_log_id().copied();
        match self.call(Body::Transfer { vote, to, last }, option.soft_ttl()).await? {
            Body::Transferred { done: true } => Ok(Ok(())),
            Body::Transferred { done: false } => {
                Err(RPCError::Network(NetworkError::from_string("the replica cannot lead yet")))
            }
            other => Err(unexpected(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use openraft::impls::leader_id_std::LeaderId;
    use openraft::vote::RaftLeaderId as _;

    use super::*;

    /// A process may have ended, whether the disk of its replica had confirmed these entries before or not.
    #[test]
    fn a_report_counts_until_its_replica_lacks_an_entry() {
        let (own, other, node) = (ReplicaId(1), ReplicaId(2), NodeId(2));
        let vote = Vote { leader_id: LeaderId::new(1, own), committed: true };
        let config = Config::new(LogGroup(3), own, Member { node: NodeId(1) }, 1);
        let mut calls = Calls::new(&config, false);
        for (confirmed, regressed) in [(None, 0), (Some(4), 0), (Some(5), 1)] {
            calls.held.insert(other, HeldReport { node, vote, last: 7 });
            calls.note_conflict(other, Some(5), confirmed);
            assert!(calls.held.is_empty(), "{confirmed:?}");
            assert_eq!(calls.regressed.len(), regressed);
        }
    }
}
