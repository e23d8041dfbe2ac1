//! Bridges of a node that only remembers them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use api::{BridgeEntry, BridgeView, Bridges, EntryRefused, EntrySource, Timestamp, WaitingMessages};
use auth::Authorship;
use serde_json::{Map, Value, json};

/// The bridges of a node of this name. It runs the bridge `plant` of its configuration file.
pub struct FakeBridges {
    node: String,
    bridges: Mutex<BTreeMap<String, BridgeEntry>>,
    /// Bridges whose sessions were ended.
    pub ended: Mutex<Vec<String>>,
}

impl FakeBridges {
    pub fn new(node: &str) -> Self {
        let settings = json!({"address": "a:1883", "topics": "a/# out 1"});
        let plant = entry("plant", settings.as_object().unwrap(), None);
        let bridges = Mutex::new(BTreeMap::from([("plant".to_owned(), plant)]));
        Self { node: node.to_owned(), bridges, ended: Mutex::default() }
    }
}

fn entry(name: &str, settings: &Map<String, Value>, by: Option<&Authorship>) -> BridgeEntry {
    BridgeEntry {
        name: name.to_owned(),
        enabled: settings.get("enabled") != Some(&json!(false)),
        source: if by.is_some() { EntrySource::Store } else { EntrySource::File },
        settings: settings.clone(),
        author: by.map(|by| by.author.clone()).unwrap_or_default(),
        changed_at: by.map(|by| Timestamp::of_ms(by.now_ms)),
        fault: None,
    }
}

impl Bridges for FakeBridges {
    fn views(&self) -> Vec<BridgeView> {
        vec![BridgeView {
            name: "plant".to_owned(),
            node: self.node.clone(),
            configured: true,
            source: Some(EntrySource::File),
            enabled: true,
            connected: true,
            state: "connected to a:1883".to_owned(),
            messages_out: 7,
            messages_in: 5,
            queued_messages: 3,
            ..BridgeView::default()
        }]
    }

    fn bridge(&self, name: &str) -> Option<BridgeEntry> {
        self.bridges.lock().unwrap().get(name).cloned()
    }

    fn put_bridge(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused> {
        if name == "plant" {
            let why = "the bridge `plant` is in the configuration file of the node";
            return Err(EntryRefused::Conflict(why.to_owned()));
        }
        if !settings.contains_key("address") {
            let (setting, why) = ("address".to_owned(), "the other broker has no address".to_owned());
            return Err(EntryRefused::Setting { setting, why });
        }
        let new = entry(name, settings, Some(by));
        Ok(self.bridges.lock().unwrap().insert(name.to_owned(), new).is_none())
    }

    fn remove_bridge(&self, name: &str, waiting: WaitingMessages) -> Result<(), EntryRefused> {
        let removed = self.bridges.lock().unwrap().remove(name);
        if waiting == WaitingMessages::Delete {
            self.ended.lock().unwrap().push(name.to_owned());
            return Ok(());
        }
        removed.map(drop).ok_or_else(|| EntryRefused::NotFound(format!("there is no bridge `{name}`")))
    }
}
