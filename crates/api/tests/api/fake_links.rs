//! Cluster links of a node that only remembers them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use api::{
    ClusterLink, EntryRefused, EntrySource, LinkGiving, LinkRefusal, LinkStatus, LinkTaking, Links,
    TakingDrops, Timestamp, WaitingMessages,
};
use auth::Authorship;
use serde_json::{Map, Value, json};

use super::fake_actions::page;

/// The links of a node of this name. It has the link `munich` of its configuration file.
/// Nodes with other names than `a` and `c` take by `munich`, `c` gives, and each has refused one client.
pub struct FakeLinks {
    node: String,
    links: Mutex<BTreeMap<String, ClusterLink>>,
    /// Links whose sessions were ended.
    pub ended: Mutex<Vec<String>>,
}

fn link(name: &str, settings: &Map<String, Value>, by: Option<&Authorship>) -> ClusterLink {
    let text = |key: &str| settings.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let lines = |key: &str| text(key).lines().map(str::to_owned).collect();
    ClusterLink {
        name: name.to_owned(),
        enabled: settings.get("enabled") != Some(&json!(false)),
        source: if by.is_some() { EntrySource::Store } else { EntrySource::File },
        own_name: text("own_name"),
        address: text("address"),
        topics: lines("topics"),
        export: lines("export"),
        settings: settings.clone(),
        author: by.map_or_else(String::new, |by| by.author.clone()),
        changed_at: by.map(|by| Timestamp::of_ms(by.now_ms)),
        fault: None,
        taking: Vec::new(),
        giving: Vec::new(),
        refusal: None,
    }
}

impl FakeLinks {
    pub fn on(node: &str) -> Self {
        let settings = json!({"own_name": "berlin", "address": "h:1883", "topics": "a/#\nb/+",
            "secret_file": "/etc/meridian/munich"});
        let munich = link("munich", settings.as_object().unwrap(), None);
        let links = Mutex::new([("munich".to_owned(), munich)].into());
        Self { node: node.to_owned(), links, ended: Mutex::default() }
    }
}

impl Links for FakeLinks {
    fn links(&self, after: Option<&str>, limit: usize) -> Vec<ClusterLink> {
        page(&self.links.lock().unwrap(), after, limit)
    }

    fn link(&self, name: &str) -> Option<ClusterLink> {
        self.links.lock().unwrap().get(name).cloned()
    }

    fn put_link(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused> {
        if name == "munich" {
            let why = "`munich` is in the configuration file of the node".to_owned();
            return Err(EntryRefused::Conflict(why));
        }
        if !settings.contains_key("secret_file") {
            let (setting, why) = ("secret_file".to_owned(), "the link has no secret".to_owned());
            return Err(EntryRefused::Setting { setting, why });
        }
        let new = link(name, settings, Some(by));
        Ok(self.links.lock().unwrap().insert(name.to_owned(), new).is_none())
    }

    fn remove_link(&self, name: &str, waiting: WaitingMessages) -> Result<(), EntryRefused> {
        let removed = self.links.lock().unwrap().remove(name);
        if waiting == WaitingMessages::Delete {
            self.ended.lock().unwrap().push(name.to_owned());
            return Ok(());
        }
        removed.map(drop).ok_or_else(|| EntryRefused::NotFound(format!("there is no link `{name}`")))
    }

    fn views(&self) -> Vec<LinkStatus> {
        let minute: u64 = if self.node == "b" { 2 } else { 1 };
        let taking = LinkTaking {
            origin: "munich".to_owned(),
            node: self.node.clone(),
            state: "connected to h:1883".to_owned(),
            connected: true,
            connected_s: Some(7),
            filters_wanted: 3,
            filters_subscribed: 2,
            messages: 5,
            postponed: 3,
            dropped: TakingDrops { too_many_hops: 4, ..TakingDrops::default() },
            ..LinkTaking::default()
        };
        let giving = LinkGiving {
            origin: "berlin".to_owned(),
            node: self.node.clone(),
            session: "$link/munich".to_owned(),
            queued_messages: 9,
            dropped: 6,
            ..LinkGiving::default()
        };
        let refusal = LinkRefusal {
            node: self.node.clone(),
            at: Timestamp::of_ms(minute * 60_000),
            address: None,
            why: "the clock differs by 900 s".to_owned(),
            count: 1,
        };
        let takes = !["a", "c"].contains(&self.node.as_str());
        let gives = !["a", "b"].contains(&self.node.as_str());
        vec![LinkStatus {
            name: "munich".to_owned(),
            taking: takes.then_some(taking).into_iter().collect(),
            giving: gives.then_some(giving).into_iter().collect(),
            refusal: Some(refusal),
        }]
    }
}
