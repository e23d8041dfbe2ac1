//! Questions and answers about changes of the members. The dashboard shows the same sentences, from the same file.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

/// Contents of `sentences.json`; `{node}` is replaced by the name of the node.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sentences {
    pub remove: Remove,
    pub leave: Leave,
    pub transfer: Transfer,
    pub drain: Drain,
    pub rebalance: Rebalance,
    pub balance: Balance,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    pub question: String,
    pub done: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    pub question: String,
    /// Consequence when a core leaves, by the number of cores before it leaves.
    pub cores_before: BTreeMap<String, String>,
    pub discard_sessions: String,
    pub done: String,
    pub see: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    pub about: String,
    pub effect: String,
    pub done: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    pub begun: String,
    pub cancelled: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rebalance {
    pub done: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    pub about: String,
    pub effect: String,
    pub done: String,
    pub see: String,
}

pub static SENTENCES: LazyLock<Sentences> = LazyLock::new(|| {
    serde_json::from_str(include_str!("sentences.json")).expect("sentences.json has every sentence")
});

/// Returns the sentence with the node's name in it.
pub fn of(sentence: &str, node: &str) -> String {
    sentence.replace("{node}", node)
}

impl Leave {
    /// Returns the question whether `node` is to leave. `cores` is the number of cores if the node is one of them.
    pub fn asked(&self, node: &str, cores: Option<usize>) -> String {
        let question = of(&self.question, node);
        match cores.and_then(|cores| self.cores_before.get(&cores.to_string())) {
            Some(meaning) => format!("{question} {meaning}"),
            None => question,
        }
    }
}
