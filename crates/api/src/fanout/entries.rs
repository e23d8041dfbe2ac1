//! Merges what nodes know about entries that all of them have: actions and cluster links.

use std::collections::BTreeMap;

use axum::response::Response;
use serde_json::Value;

use super::gather::{GatherRequest, NodeResponse, document, response};
use super::merge::{SHORTLY, linked};
use crate::problem::Problem;

/// Adds to an entry of this node what another node knows about it.
type Merge = fn(&mut Value, Value);

/// Returns the entries of this node, each with what other nodes know about it. Nodes without a link that is up are not
/// asked, and are named as missing in a list.
pub async fn merged(gather: &GatherRequest, merge: Merge) -> Result<Response, Problem> {
    let (up, mut missing) = linked(gather);
    let nodes: Vec<String> = up.into_iter().chain([gather.own().to_owned()]).collect();
    let (mut own, mut others) = (None, Vec::new());
    for NodeResponse { node, answer } in gather.ask_all_within(SHORTLY, &nodes, &gather.query).await {
        match answer {
            Ok(answer) if node == gather.own() && answer.is_success() => {
                own = serde_json::from_slice::<Value>(&answer.body).ok();
            }
            Ok(answer) if node == gather.own() => return Ok(response(answer.status, answer.body)),
            Ok(answer) if answer.is_success() => {
                others.push(serde_json::from_slice(&answer.body).unwrap_or_default());
            }
            // The other node does not know the entry yet, or is of an earlier version.
            Ok(answer) if answer.status == 404 => {}
            Ok(_) | Err(_) => missing.push(node),
        }
    }
    let mut own =
        own.ok_or_else(|| Problem::internal("the answer ended early; the node's log has details"))?;
    let mut known = BTreeMap::<String, Vec<Value>>::new();
    for entry in others.into_iter().flat_map(items) {
        if let Some(name) = entry["name"].as_str().map(str::to_owned) {
            known.entry(name).or_default().push(entry);
        }
    }
    let mut complete = |entry: &mut Value| {
        let name = entry["name"].as_str().unwrap_or_default();
        known.remove(name).into_iter().flatten().for_each(|other| merge(entry, other));
    };
    match own.get_mut("items").and_then(Value::as_array_mut) {
        Some(entries) => {
            entries.iter_mut().for_each(complete);
            if !missing.is_empty() {
                missing.sort();
                own["missing"] = missing.into();
            }
        }
        None => complete(&mut own),
    }
    Ok(document(200, &own))
}

/// Entries of an answer, which is a page or one entry.
fn items(answer: Value) -> Vec<Value> {
    match answer {
        Value::Object(mut page) if page.contains_key("items") => match page["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        },
        one => vec![one],
    }
}

/// Merges the status of an action, which the node has that runs it.
pub fn status(action: &mut Value, mut other: Value) {
    if action["status"].is_null() && other["status"].is_object() {
        action["status"] = other["status"].take();
    }
}

/// Merges what two nodes know about a cluster link.
pub fn link(link: &mut Value, mut other: Value) {
    for direction in ["taking", "giving"] {
        let Value::Array(more) = other[direction].take() else { continue };
        if !link[direction].is_array() {
            link[direction] = Value::Array(Vec::new());
        }
        let Some(all) = link[direction].as_array_mut() else { continue };
        for one in more {
            // While a shard moves, two nodes may have the same session. The one with a connection is right.
            match all.iter_mut().find(|known| known["origin"] == one["origin"]) {
                None => all.push(one),
                Some(known) if known["connected"] != true && one["connected"] == true => *known = one,
                Some(_) => {}
            }
        }
        all.sort_by(|a, b| a["origin"].as_str().cmp(&b["origin"].as_str()));
    }
    let mut refusal = other["refusal"].take();
    if refusal.is_null() {
        return;
    }
    let mut known = link["refusal"].take();
    let count = [&known, &refusal].iter().filter_map(|it| it["count"].as_u64()).fold(0, u64::saturating_add);
    // The format of a timestamp sorts by time.
    if known["at"].as_str() > refusal["at"].as_str() {
        refusal = known.take();
    }
    refusal["count"] = count.into();
    link["refusal"] = refusal;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_link_has_what_each_node_knows() {
        let mut merged = json!({"name": "b", "taking": [], "giving": [{"origin": "a", "connected": false, "node": "n1"}],
            "refusal": {"at": "2026-01-31T12:00:00.000Z", "why": "clock", "count": 2}});
        let other = json!({"name": "b", "taking": [{"origin": "c", "node": "n2"}, {"origin": "b", "node": "n2"}],
            "giving": [{"origin": "a", "connected": true, "node": "n2"}],
            "refusal": {"at": "2026-01-31T11:59:59.999Z", "why": "secret", "count": 3}});
        link(&mut merged, other);
        // An earlier version of the program knows no links.
        link(&mut merged, json!({"name": "b"}));
        let expected = json!({"name": "b", "taking": [{"origin": "b", "node": "n2"}, {"origin": "c", "node": "n2"}],
            "giving": [{"origin": "a", "connected": true, "node": "n2"}],
            "refusal": {"at": "2026-01-31T12:00:00.000Z", "why": "clock", "count": 5}});
        assert_eq!(merged, expected);
    }

    #[test]
    fn the_later_refusal_is_shown() {
        let mut merged = json!({"name": "b", "refusal": null});
        let at = |minute: u8| format!("2026-01-31T12:0{minute}:00.000Z");
        for (next, shown) in [(5, 5), (3, 5), (7, 7)] {
            link(&mut merged, json!({"refusal": {"at": at(next), "count": 1}}));
            assert_eq!(merged["refusal"]["at"], at(shown));
        }
        assert_eq!(merged["refusal"]["count"], 3);
    }
}
