//! Control over the messages between workers and the session store: late, out of order between sessions, or failing.

use broker::{
    Batch, Completion, ConnectionId, GroupAnswer, GroupAppend, GroupRequest, Request, ShardId, Token,
    WorkerCommand,
};
use mqtt::ReasonCode;

use random::Random;

/// Messages that can be held back or made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Claim,
    Release,
    Subscribe,
    Unsubscribe,
    Withdraw,
    Append,
    Retain,
    DeleteRetained,
    Enqueue,
    Acknowledge,
    Receive,
    Released,
    Forget,
    ForgetIdentity,
    ForgetOrigin,
    Join,
    Leave,
    Bounce,
    Accepted,
    WillDispatched,
    Claimed,
    ClaimRefused,
    Revoke,
    Subscribed,
    Unsubscribed,
    Deliver,
    PubRel,
    PubComp,
    RoomForPage,
    Joined,
    Left,
    /// Completes a PUBLISH, or one receiver's part of it.
    Acknowledged,
}

/// Filter between the workers and the store. **Invariant:** requests of one worker to one shard, and completions for
/// one connection, stay in order; that is all that the store guarantees.
#[derive(Default)]
pub struct Store {
    holding: Vec<Kind>,
    failing: Vec<(Kind, ReasonCode)>,
    held: Vec<Held>,
    late: Option<(Random, usize)>,
    flaky: Option<(Random, usize)>,
}

struct Held {
    from: usize,
    to: usize,
    order: Order,
    what: What,
}

enum What {
    WorkerCommand(WorkerCommand),
    Acknowledged(Token, ReasonCode),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Shard(usize, ShardId),
    Groups(usize, ShardId),
    Connection(ConnectionId),
    None,
}

/// A batch on its way: sender, receiver, batch.
pub type Parcel = (usize, usize, Batch);

impl Store {
    /// Holds these back from now on.
    pub fn hold(&mut self, kinds: &[Kind]) {
        self.holding = kinds.into();
    }

    /// Answers these with `reason` from now on, without doing anything.
    pub fn fail(&mut self, kind: Kind, reason: ReasonCode) {
        self.failing.push((kind, reason));
    }

    pub fn heal(&mut self) {
        self.failing.clear();
        self.flaky = None;
    }

    /// Makes `percent` of all that can fail do so from now on.
    pub fn flaky(&mut self, seed: u64, percent: usize) {
        self.flaky = Some((Random::new(seed), percent));
    }

    /// Makes `percent` of everything late from now on, until [`Self::some`] releases it.
    pub fn late(&mut self, seed: u64, percent: usize) {
        self.late = Some((Random::new(seed), percent));
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Removes what is held back and what fails from a batch; adds the answers to the latter to `parcels`.
    pub fn pass(&mut self, from: usize, to: usize, batch: &mut Batch, parcels: &mut Vec<Parcel>) {
        let mut passed = Vec::new();
        for command in batch.commands.drain(..) {
            let (kind, order) = match &command {
                WorkerCommand::Request(shard, request) => (of_request(request), Order::Shard(from, *shard)),
                WorkerCommand::Group(shard, request) => {
                    (of_group_request(request), Order::Groups(from, *shard))
                }
                WorkerCommand::Completion(completion) => {
                    (of_completion(completion), Order::Connection(completion.connection()))
                }
                WorkerCommand::GroupAnswer(answer) => {
                    let kind = match answer {
                        GroupAnswer::Joined { .. } => Kind::Joined,
                        GroupAnswer::Left { .. } => Kind::Left,
                    };
                    (kind, Order::Connection(answer.connection()))
                }
                _ => {
                    passed.push(command);
                    continue;
                }
            };
            let reason = self.fails(kind);
            if let (Some(reason), WorkerCommand::Group(_, GroupRequest::Append(GroupAppend { token, .. }))) =
                (reason, &command)
            {
                parcels.extend(token.and_then(|token| acknowledged(to, token, reason)));
            } else if let Some(reason) = reason
                && let WorkerCommand::Request(_, request) = command
            {
                parcels.extend(failed(to, request, reason).and_then(|parcel| self.behind(parcel)));
            } else if self.keeps(kind, order) {
                self.held.push(Held { from, to, order, what: What::WorkerCommand(command) });
            } else {
                passed.push(command);
            }
        }
        batch.commands = passed;
        let mut passed = Vec::new();
        for (token, reason) in batch.acknowledged.drain(..) {
            if self.keeps(Kind::Acknowledged, Order::None) {
                let what = What::Acknowledged(token, reason);
                self.held.push(Held { from, to, order: Order::None, what });
            } else {
                passed.push((token, reason));
            }
        }
        batch.acknowledged = passed;
    }

    fn fails(&mut self, kind: Kind) -> Option<ReasonCode> {
        if let Some((_, reason)) = self.failing.iter().find(|(failing, _)| *failing == kind) {
            return Some(*reason);
        }
        let (random, percent) = self.flaky.as_mut()?;
        let can =
            [Kind::Claim, Kind::Subscribe, Kind::Unsubscribe, Kind::Append, Kind::Receive].contains(&kind);
        (can && random.percent(*percent)).then_some(ReasonCode::UnspecifiedError)
    }

    /// Keeps a completion back while another one for the same connection is held; the rest may pass.
    fn behind(&mut self, (from, to, mut batch): Parcel) -> Option<Parcel> {
        if let Some(WorkerCommand::Completion(completion)) = batch.commands.first() {
            let order = Order::Connection(completion.connection());
            if self.held.iter().any(|held| held.order == order) {
                let held = batch.commands.drain(..);
                self.held.extend(held.map(|command| Held {
                    from,
                    to,
                    order,
                    what: What::WorkerCommand(command),
                }));
                return None;
            }
        }
        Some((from, to, batch))
    }

    fn keeps(&mut self, kind: Kind, order: Order) -> bool {
        let behind = order != Order::None && self.held.iter().any(|held| held.order == order);
        let late = self.late.as_mut().is_some_and(|(random, percent)| random.percent(*percent));
        behind || late || self.holding.contains(&kind)
    }

    /// Releases everything, in order, and holds nothing back any more.
    pub fn all(&mut self) -> Vec<Parcel> {
        self.holding.clear();
        self.late = None;
        self.held.drain(..).map(Held::parcel).collect()
    }

    /// Releases everything that is held, the last session first.
    pub fn last_first(&mut self) -> Vec<Parcel> {
        self.holding.clear();
        let mut parcels = Vec::new();
        while let Some(last) = self.held.last() {
            let order = last.order;
            let same = |held: &mut Held| held.order == order && order != Order::None;
            let mut together: Vec<_> = self.held.extract_if(.., same).collect();
            if together.is_empty() {
                together.extend(self.held.pop());
            }
            parcels.extend(together.into_iter().map(Held::parcel));
        }
        parcels
    }

    /// Releases one message that no other one of the same session has to precede.
    pub fn some(&mut self, random: &mut Random) -> Option<Parcel> {
        if self.held.is_empty() {
            return None;
        }
        let mut at = random.below(self.held.len());
        let order = self.held[at].order;
        if order != Order::None {
            at = self.held.iter().position(|held| held.order == order)?;
        }
        Some(self.held.remove(at).parcel())
    }
}

impl Held {
    fn parcel(self) -> Parcel {
        let mut batch = Batch::default();
        match self.what {
            What::WorkerCommand(command) => batch.commands.push(command),
            What::Acknowledged(token, reason) => batch.acknowledged.push((token, reason)),
        }
        (self.from, self.to, batch)
    }
}

/// Answer of a store that cannot do what it was asked for.
fn failed(host: usize, request: Request, reason: ReasonCode) -> Option<Parcel> {
    let completion = match request {
        Request::Claim(claim) => Completion::ClaimRefused { connection: claim.connection, reason },
        Request::Subscribe { connection, ticket, filters, .. } => {
            let results = filters.iter().map(|_| (reason, false)).collect();
            Completion::Subscribed { connection, ticket, results }
        }
        Request::Unsubscribe { connection, ticket, filters, .. } => {
            let results = filters.iter().map(|_| reason).collect();
            Completion::Unsubscribed { connection, ticket, results }
        }
        Request::Append { token, .. } | Request::Retain { token, .. } => {
            return acknowledged(host, token?, reason);
        }
        Request::Receive { token, .. } => return acknowledged(host, token, reason),
        Request::AskRoomToRetain { connection, .. } => {
            Completion::RoomToRetain { connection, is_there: false }
        }
        // It is not answered, as after a crash.
        Request::ForgetIdentity { .. } => return None,
        other => panic!("no failure is known for {other:?}"),
    };
    let to = completion.connection().worker.index();
    Some((host, to, Batch::of(WorkerCommand::Completion(completion))))
}

fn acknowledged(host: usize, token: Token, reason: ReasonCode) -> Option<Parcel> {
    let to = match token {
        Token::Publish { connection, .. } => connection.worker.index(),
        Token::Operator { worker, .. }
        | Token::Forwarded { worker, .. }
        | Token::Copy { worker, .. }
        | Token::Requested { lane: worker, .. } => worker.index(),
        // Any worker passes it on to the shard.
        Token::Append { .. } | Token::Offered { .. } | Token::Groups { .. } => host,
    };
    let mut batch = Batch::default();
    batch.acknowledged.push((token, reason));
    Some((host, to, batch))
}

fn of_request(request: &Request) -> Kind {
    match request {
        Request::Claim(_) | Request::Attach(_) => Kind::Claim,
        Request::Release(_) => Kind::Release,
        Request::Subscribe { .. } => Kind::Subscribe,
        Request::Unsubscribe { .. } => Kind::Unsubscribe,
        Request::Withdraw { .. } => Kind::Withdraw,
        Request::Append { .. } => Kind::Append,
        Request::Retain { .. } | Request::AskRoomToRetain { .. } => Kind::Retain,
        Request::DeleteRetained { .. } => Kind::DeleteRetained,
        Request::Enqueue { .. }
        | Request::EnqueueToGroup(_)
        | Request::AskRoomForPage { .. }
        | Request::EndWalk { .. } => Kind::Enqueue,
        Request::Acknowledge { .. } => Kind::Acknowledge,
        Request::Receive { .. } => Kind::Receive,
        Request::Released { .. } => Kind::Released,
        Request::Forget { .. } => Kind::Forget,
        Request::ForgetIdentity { .. } | Request::ForgetBelow { .. } => Kind::ForgetIdentity,
        Request::ForgetOrigin { .. } => Kind::ForgetOrigin,
        Request::FindIdentity { .. } | Request::FindOrphans { .. } | Request::OrphansKnown { .. } => {
            Kind::Bounce
        }
        Request::Accepted { .. } | Request::AcceptedBy { .. } => Kind::Accepted,
        Request::WillDispatched { .. } => Kind::WillDispatched,
    }
}

fn of_group_request(request: &GroupRequest) -> Kind {
    match request {
        GroupRequest::Join(_) => Kind::Join,
        GroupRequest::Leave { .. } | GroupRequest::JoinNode { .. } => Kind::Leave,
        GroupRequest::Append(_) => Kind::Append,
        GroupRequest::Bounce { .. }
        | GroupRequest::DeliverOrphan { .. }
        | GroupRequest::DeliverLocally { .. } => Kind::Bounce,
        GroupRequest::Offered { .. } | GroupRequest::Accepted { .. } => Kind::Accepted,
    }
}

fn of_completion(completion: &Completion) -> Kind {
    match completion {
        Completion::Claimed(_) => Kind::Claimed,
        Completion::ClaimRefused { .. } => Kind::ClaimRefused,
        Completion::Revoke { .. } | Completion::QueueFull { .. } => Kind::Revoke,
        Completion::Subscribed { .. } => Kind::Subscribed,
        Completion::Unsubscribed { .. } => Kind::Unsubscribed,
        Completion::Deliver { .. } => Kind::Deliver,
        Completion::Release { .. } => Kind::PubRel,
        Completion::Complete { .. } | Completion::WrongAcknowledgement { .. } => Kind::PubComp,
        Completion::RoomForPage { .. } | Completion::RoomToRetain { .. } => Kind::RoomForPage,
    }
}
