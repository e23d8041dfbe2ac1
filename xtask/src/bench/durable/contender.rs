//! Brokers compared for durable sessions, each with its guarantee.

use crate::bench::broker::{Broker, Kind, Start};
use crate::bench::recipe;
use anyhow::{Result, ensure};
use std::path::Path;

/// A broker with one durability configuration.
#[derive(Clone)]
pub struct Contender {
    pub name: String,
    pub kind: Kind,
    /// Arguments of Meridian.
    arguments: Vec<String>,
    /// True when an acknowledgement means that the message is on disk.
    pub syncs_first: bool,
}

const RECIPES: &str = include_str!("brokers.toml");
/// Recipes that sync before they acknowledge.
const SYNC_FIRST: [&str; 2] = ["nats-always", "rabbitmq"];
/// Recipe that treats QoS 2 as QoS 1.
const WITHOUT_QOS_2: &str = "rabbitmq";
/// Settings of large queues: a full queue drops messages by its rule, which these measurements do not examine.
const ROOM: [&str; 3] =
    ["queue.messages_max=20000000", "queue.bytes_max=16GiB", "limits.memory_queued_max=16GiB"];

impl Contender {
    /// All of them, Meridian first.
    pub fn all() -> Vec<Contender> {
        let ours = |name: &str, durability: &str| {
            let settings = ROOM.into_iter().map(str::to_owned);
            let settings = settings.chain([format!("storage.durability={durability}")]);
            Contender {
                name: name.to_owned(),
                kind: Kind::Meridian,
                arguments: settings.flat_map(|setting| ["--set".to_owned(), setting]).collect(),
                syncs_first: durability == "local-disk",
            }
        };
        let recipes = recipe::parse(RECIPES).expect("a test reads it");
        // They are used until the program ends.
        let others = recipes.into_iter().map(|recipe| Contender {
            name: recipe.name.clone(),
            syncs_first: SYNC_FIRST.contains(&&recipe.name[..]),
            kind: Kind::Peer(Box::leak(Box::new(recipe))),
            arguments: vec![],
        });
        [ours("meridian", "local-disk"), ours("meridian-memory", "memory")]
            .into_iter()
            .chain(others)
            .collect()
    }

    /// Brokers of these names, or all, that are installed or can be. The others are skipped with a line that names
    /// the reason.
    ///
    /// # Errors
    /// An unknown name, and no broker at all.
    pub fn present(names: &[String], may_install: bool) -> Result<Vec<Contender>> {
        let all = Contender::all();
        for name in names {
            let known: Vec<&str> = all.iter().map(|contender| &contender.name[..]).collect();
            ensure!(known.contains(&&name[..]), "no broker is called {name}: there are {}", known.join(", "));
        }
        let mut there = vec![];
        for contender in all {
            if !names.is_empty() && !names.contains(&contender.name) {
                continue;
            }
            let found = match contender.kind {
                Kind::Peer(recipe) => recipe.ensure_there(may_install),
                Kind::Meridian | Kind::Mosquitto => Ok(()),
            };
            match found {
                Ok(()) => there.push(contender),
                Err(error) => eprintln!("skipped: {}: {error:#}", contender.name),
            }
        }
        ensure!(!there.is_empty(), "nothing to measure");
        Ok(there)
    }

    pub fn is_ours(&self) -> bool {
        self.kind == Kind::Meridian
    }

    pub fn speaks(&self, qos: u8) -> bool {
        qos < 2 || self.name != WITHOUT_QOS_2
    }

    /// Returns whether some of its data survives a kill of the process.
    pub fn keeps(&self) -> bool {
        self.name != "meridian-memory"
    }

    /// Starts a new idle broker with its files below `within`; `syncs` is a file for its sync calls.
    pub fn start(&self, within: &Path, syncs: Option<&Path>) -> Result<Broker> {
        Broker::start_as(&Start { kind: self.kind, arguments: &self.arguments, within, syncs })?.settled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meridian_comes_first_and_the_recipes_are_valid() {
        let all = Contender::all();
        let names: Vec<&str> = all.iter().map(|contender| &contender.name[..]).collect();
        assert_eq!(
            names,
            [
                "meridian",
                "meridian-memory",
                "mosquitto-autosave",
                "mosquitto-every-change",
                "nats-always",
                "nats-interval",
                "rabbitmq"
            ]
        );
        let first: Vec<&str> = all.iter().filter(|c| c.syncs_first).map(|c| &c.name[..]).collect();
        assert_eq!(first, ["meridian", "nats-always", "rabbitmq"]);
    }

    #[test]
    fn qos_2_is_not_measured_without_support_for_it() {
        let speak = |qos| Contender::all().into_iter().filter(|c| !c.speaks(qos)).map(|c| c.name).collect();
        let (one, two): (Vec<String>, Vec<String>) = (speak(1), speak(2));
        assert!(one.is_empty());
        assert_eq!(two, ["rabbitmq"]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = Contender::present(&["emqx".to_owned()], false).err().unwrap().to_string();
        assert!(error.contains("there are meridian, meridian-memory, mosquitto-autosave"), "{error}");
    }
}
