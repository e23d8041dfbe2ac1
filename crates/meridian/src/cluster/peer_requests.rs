//! Requests between nodes, of operators and about links: the queue between the API, the links and the cluster router.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use api::RequestHandler;
use cluster::{
    ANSWER_MAX, Asker, ClusterRouter, QUESTION_MAX, Question, ReceivedQuestion, RouterCommand, Unanswered,
};
use linking::Answerer;
use transport::Sender;

/// Takes the answer of another node.
pub type AnswerCallback = Box<dyn FnOnce(Result<Vec<u8>, NoAnswer>) + Send>;

/// Reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// This node takes no part in the cluster now.
    NoPart,
    /// The cluster router gives this reason.
    Of(Unanswered),
}

/// Waiting requests of this node, and the handlers for those of others.
#[derive(Default)]
pub struct PeerRequests {
    keys: AtomicU64,
    waiting: Mutex<BTreeMap<u64, AnswerCallback>>,
    request_handler: OnceLock<Arc<dyn RequestHandler>>,
    links: OnceLock<Answerer>,
}

impl PeerRequests {
    /// Sets the handler for requests of other nodes. Later calls have no effect.
    pub fn set_request_handler(&self, request_handler: Arc<dyn RequestHandler>) {
        let _ = self.request_handler.set(request_handler);
    }

    /// Sets the handler for questions about links. Later calls have no effect.
    pub fn set_links(&self, links: Answerer) {
        let _ = self.links.set(links);
    }

    /// Sends a request to `node`. The cluster router bounds the number of waiting requests and their time.
    pub fn ask(
        &self,
        sender: Option<&Sender<RouterCommand>>,
        node: &str,
        question: Vec<u8>,
        within: Duration,
        callback: AnswerCallback,
    ) {
        let key = self.keys.fetch_add(1, Relaxed);
        self.lock().insert(key, callback);
        let question = Question { key, to: node.into(), bytes: question.into(), within };
        let is_sent = sender.is_some_and(|sender| sender.send(RouterCommand::Ask(question)).is_ok());
        if is_sent {
            return;
        }
        if let Some(callback) = self.take(key) {
            callback(Err(NoAnswer::NoPart));
        }
    }

    /// Handles answers and requests that the cluster router received. Called after each of its turns.
    pub fn poll(&self, router: &mut ClusterRouter, sender: Option<&Sender<RouterCommand>>) {
        while let Some((key, answer)) = router.poll_answered() {
            if let Some(callback) = self.take(key) {
                callback(answer.map(Vec::from).map_err(NoAnswer::Of));
            }
        }
        // Requests that arrive before the node can answer stay in the router.
        let Some(sender) = sender else { return };
        while let Some(ReceivedQuestion { asker, name, bytes }) = router.poll_question() {
            let reply = PendingReply { sender: sender.clone(), asker, is_done: false };
            self.answer(&name, &bytes, Box::new(move |answer| reply.reply(answer)));
        }
    }

    /// Answers a request of another node. The reply is dropped if no handler answers, which sends a refusal.
    fn answer(&self, node: &str, bytes: &[u8], reply: Box<dyn FnOnce(Vec<u8>) + Send>) {
        if Answerer::is_for(bytes) {
            match self.links.get() {
                Some(links) => links.answer(bytes, reply),
                // A refusal would mean that the version of this node does not know the question. The other node asks
                // again for what is not in the answer.
                None => reply(Vec::new()),
            }
        } else if let Some(request_handler) = self.request_handler.get() {
            request_handler.answer(node, bytes, reply);
        }
    }

    /// Removes the callback that waits for an answer. No foreign code is called while the lock is held.
    fn take(&self, key: u64) -> Option<AnswerCallback> {
        self.lock().remove(&key)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, AnswerCallback>> {
        sync::lock(&self.waiting)
    }
}

/// A reply that another node waits for. Dropped without an answer, it sends a refusal.
struct PendingReply {
    sender: Sender<RouterCommand>,
    asker: Asker,
    is_done: bool,
}

impl PendingReply {
    fn reply(mut self, answer: Vec<u8>) {
        self.is_done = true;
        // After the end of the router's thread nobody waits.
        let _ = self.sender.send(RouterCommand::Answer(self.asker, Some(answer.into())));
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if !self.is_done {
            // After the end of the router's thread nobody waits.
            let _ = self.sender.send(RouterCommand::Answer(self.asker, None));
        }
    }
}

/// Returns the reason for an operator.
pub fn explain(why: NoAnswer) -> String {
    let why = match why {
        NoAnswer::NoPart => return "this node takes no part in the cluster at present".to_owned(),
        NoAnswer::Of(why) => why,
    };
    match why {
        Unanswered::Unknown => "it is no member of the cluster".to_owned(),
        Unanswered::Down => "it is silent".to_owned(),
        Unanswered::Old => "its version does not answer other nodes".to_owned(),
        Unanswered::Busy => "there are too many requests to other nodes already".to_owned(),
        Unanswered::Large => format!(
            "the request or the answer is larger than one that is passed on ({} KiB, {} KiB): ask for less at once, or that node itself",
            QUESTION_MAX >> 10,
            ANSWER_MAX >> 10
        ),
        Unanswered::Declined => "its API is off (http.listen), or did not answer".to_owned(),
        Unanswered::Late => "it did not answer in time (cluster.request_timeout)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{TryRecvError, channel};

    use super::*;

    /// A refusal would make nobody wait for the links of this node.
    #[test]
    fn a_question_about_links_that_do_not_run_yet_has_an_empty_answer() {
        let requests = PeerRequests::default();
        for (bytes, expected) in
            [(&b"link-filters 1\n"[..], Ok(Vec::new())), (b"{}", Err(TryRecvError::Disconnected))]
        {
            let (sender, answer) = channel();
            requests.answer(
                "other",
                bytes,
                Box::new(move |bytes| sender.send(bytes).expect("the test waits")),
            );
            assert_eq!(answer.try_recv(), expected);
        }
    }
}
