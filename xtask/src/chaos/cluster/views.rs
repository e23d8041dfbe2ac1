//! Views of the cluster from several nodes, compared with each other.

use crate::cluster::nodes::{is_joined, view};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Views by the node's index; `None` for nodes that did not answer.
pub struct Views(Vec<(usize, bool, Option<Value>)>);

pub fn of(http: SocketAddr) -> Option<Value> {
    view(http).ok()
}

impl Views {
    pub fn new(views: Vec<(usize, bool, Option<Value>)>) -> Self {
        Self(views)
    }

    fn all(&self) -> impl Iterator<Item = Option<&Value>> {
        self.0.iter().map(|(_, _, view)| view.as_ref())
    }

    /// Leader that all queried cores agree on, as long as each of them has a quorum.
    pub fn leader(&self) -> Option<String> {
        let cores = self.0.iter().filter(|(_, is_core, _)| *is_core);
        let said: Option<Vec<&str>> = cores
            .map(|(_, _, view)| {
                let replica = &view.as_ref()?["membership"]["replica"];
                replica["leader"].as_str().filter(|_| replica["quorum"] == true)
            })
            .collect();
        let said = said?;
        let first = *said.first()?;
        said.iter().all(|name| *name == first).then(|| first.to_owned())
    }

    /// Term of the leader, if all queried cores agree on it.
    pub fn term(&self) -> Option<u64> {
        let cores = self.0.iter().filter(|(_, is_core, _)| *is_core);
        let said: Option<Vec<u64>> =
            cores.map(|(_, _, view)| view.as_ref()?["membership"]["replica"]["term"].as_u64()).collect();
        let said = said?;
        let first = *said.first()?;
        said.iter().all(|term| *term == first).then_some(first)
    }

    /// Number of replicants attached to each core.
    pub fn replicants_per_core(&self) -> BTreeMap<String, usize> {
        let mut replicants_per_core: BTreeMap<String, usize> = BTreeMap::new();
        for view in self.all().flatten() {
            if view["role"] == "core" {
                replicants_per_core.entry(view["node"].as_str().unwrap_or_default().to_owned()).or_default();
            } else {
                *replicants_per_core
                    .entry(view["attached_to"].as_str().unwrap_or("nobody").to_owned())
                    .or_default() += 1;
            }
        }
        replicants_per_core
    }

    /// Returns whether all queried nodes report that state of a node.
    pub fn agree(&self, node: &str, state: &str) -> bool {
        self.all().all(|view| view.is_some_and(|view| state_of(view, node) == Some(state)))
    }

    /// Returns whether any queried node reports that state of a node.
    pub fn any_says(&self, node: &str, state: &str) -> bool {
        self.all().flatten().any(|view| state_of(view, node) == Some(state))
    }

    /// Returns whether all queried nodes know the same of each node's routes.
    pub fn know_the_same(&self) -> bool {
        let of = |view: &Value| -> Vec<(String, Value)> {
            let routes = view["routes"].as_array().cloned().unwrap_or_default();
            let known = routes.iter().map(|it| (it["node"].to_string(), it["digest"].clone()));
            let mut known: Vec<_> = known.collect();
            known.sort_by(|one, other| one.0.cmp(&other.0));
            known
        };
        let mut known = self.all().map(|view| view.map(of));
        let Some(Some(first)) = known.next() else { return false };
        known.all(|it| it.as_ref() == Some(&first))
    }

    /// Returns whether this is a complete cluster of so many nodes.
    pub fn are_whole(&self, nodes: usize) -> bool {
        self.leader().is_some() && self.missing(nodes).is_empty() && self.know_the_same()
    }

    /// Names of nodes with problems, for people.
    pub fn missing(&self, nodes: usize) -> String {
        let lacks = |view: Option<&Value>| {
            let Some(view) = view else { return true };
            let members = view["membership"]["members"].as_array().map_or(&[][..], Vec::as_slice);
            let alive = members.iter().filter(|member| member["state"] == "alive").count();
            alive != nodes || !is_joined(view, nodes - 1)
        };
        let lacking = self.0.iter().filter(|(_, _, view)| lacks(view.as_ref()));
        lacking.map(|(at, _, _)| format!("n{}", at + 1)).collect::<Vec<_>>().join(", ")
    }
}

fn state_of<'a>(view: &'a Value, node: &str) -> Option<&'a str> {
    let members = view["membership"]["members"].as_array()?;
    members.iter().find(|member| member["node"] == node)?["state"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(leader: &str, state: &str, digest: &str) -> Option<Value> {
        Some(json!({
            "membership": { "replica": { "leader": leader, "quorum": true }, "members": [{ "node": "n3", "state": state }] },
            "routes": [{ "node": "n3", "digest": digest }],
        }))
    }

    #[test]
    fn replicants_are_counted_at_the_cores_they_are_attached_to() {
        let replicant = |core: Value| Some(json!({ "node": "n9", "role": "replicant", "attached_to": core }));
        let core = |name: &str| {
            Some(json!({ "node": name, "role": "core", "membership": { "replica": { "term": 4 } } }))
        };
        let views = Views::new(vec![
            (0, true, core("n1")),
            (1, true, core("n2")),
            (2, false, replicant(json!("n2"))),
            (3, false, replicant(Value::Null)),
        ]);
        let replicants_per_core: Vec<(String, usize)> = views.replicants_per_core().into_iter().collect();
        assert_eq!(replicants_per_core, [("n1".into(), 0), ("n2".into(), 1), ("nobody".into(), 1)]);
        assert_eq!(views.term(), Some(4));
    }

    #[test]
    fn a_fact_holds_when_all_nodes_report_it() {
        let views = |two: Option<Value>| Views::new(vec![(0, true, said("n1", "dead", "a")), (1, true, two)]);
        let same = views(said("n1", "dead", "a"));
        assert_eq!(same.leader().as_deref(), Some("n1"));
        assert!(same.agree("n3", "dead") && same.know_the_same());
        let other = views(said("n2", "suspect", "b"));
        assert_eq!(other.leader(), None);
        assert!(!other.agree("n3", "dead") && other.any_says("n3", "dead") && !other.know_the_same());
        let silent = views(None);
        assert!(silent.leader().is_none() && !silent.agree("n3", "dead") && !silent.know_the_same());
    }
}
