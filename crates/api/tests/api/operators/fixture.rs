//! A node, its HTTP server and a data directory, for one test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use api::{
    Author, Bound, Changed, Changes, ConfigView, Configuration, KeyFile, Keys, LogLevelView, LogRing, NewKey,
    NodeFacts, Parts, Refused, Reloaded, Role, Scope, Server, SettingProblem, Version, WatchedFiles,
};
use auth::{Bans, Guard, RuleTable, Users};
use broker::settings::Settings;
use configstore::{ConfigStore, LocalStore, Proposer, ReplicatedStore};
use edge::settings::{EdgeSettings, Listener};
use serde_json::Value;

use super::client::{Client, With};
use super::http::{Answer, Events, Http};

pub struct Fixture {
    node: Option<edge::Node>,
    server: Option<Server>,
    guard: Arc<Guard>,
    data_dir: PathBuf,
    http: Http,
}

impl Fixture {
    pub fn start() -> Fixture {
        Fixture::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> Fixture {
        Fixture::of(change, &[], &local).0
    }

    /// Starts a node whose configuration store is that of a cluster.
    pub fn in_cluster(cores: Arc<dyn Proposer>) -> Fixture {
        Fixture::attached(&|config_store| config_store.attach(cores.clone()))
    }

    /// Starts the same node, where the caller attaches the store to the cores.
    pub fn attached(attach: &dyn Fn(&Arc<ReplicatedStore>)) -> Fixture {
        let agreed = |data_dir: &Path| {
            let config_store = Arc::new(ReplicatedStore::open(data_dir, "node-1", 1).unwrap());
            attach(&config_store);
            config_store as Arc<dyn ConfigStore>
        };
        Fixture::of(|_| {}, &[], &agreed).0
    }

    /// Starts a node with API keys. Returns their tokens in the order of the roles.
    pub fn with_keys(roles: &[Role]) -> (Fixture, Vec<String>) {
        Fixture::of(|_| {}, roles, &local)
    }

    fn of(
        change: impl FnOnce(&mut Settings),
        roles: &[Role],
        open: &dyn Fn(&Path) -> Arc<dyn ConfigStore>,
    ) -> (Fixture, Vec<String>) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let data_dir =
            std::env::temp_dir().join(format!("meridian-operators-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&data_dir).unwrap();
        let file = KeyFile::in_directory(&data_dir);
        let key = |role: &Role| NewKey { name: role.name().to_owned(), role: *role, expires_in: None };
        let tokens = roles.iter().map(|role| file.add(&key(role)).unwrap().1).collect();

        let mut broker = Settings::default();
        broker.sys.interval = Duration::ZERO;
        change(&mut broker);
        let config_store = open(&data_dir);
        let bans = Bans::open(config_store.clone(), 100).unwrap();
        let users = Arc::new(Users::open(config_store.clone(), 50).unwrap());
        let auth = auth::settings::Auth { workers: 1, allow_anonymous: Some(true), ..Default::default() };
        let guard = Guard::open_with(&auth, &Default::default(), vec![users.clone()]).unwrap();
        let guard = Arc::new(guard.with_bans(Arc::new(bans)));
        let rules = Arc::new(RuleTable::open(config_store.clone()).unwrap());
        let decides = Arc::downgrade(&guard);
        rules.on_change(move |rules| {
            if let Some(guard) = decides.upgrade() {
                guard.set_database_rules(rules);
            }
        });
        let listener = Listener { address: "127.0.0.1:0".into(), ..Listener::default() };
        let edge = EdgeSettings { workers: 2, listeners: vec![listener], ..Default::default() };
        let node = edge::start(edge::Options {
            edge,
            broker,
            access: guard.clone(),
            version: "test".into(),
            store: None,
            peers: None,
            spans: None,
            descriptors_reserved: 0,
        })
        .unwrap();

        let settings = api::settings::HttpSettings {
            listen: api::settings::Listen::At(([127, 0, 0, 1], 0).into()),
            refusals_per_second: 100_000,
            ..Default::default()
        };
        let server = Bound::bind(&settings).unwrap().expect("HTTP is on");
        let facts = NodeFacts {
            name: "node-1".into(),
            version: "0",
            commit: "0",
            data_dir: data_dir.clone(),
            connections_max: node.connections_max(),
            client_address: Some("n1.example:1883".to_owned()),
            listeners: Vec::new(),
            expiries: Box::new(Vec::new),
            watched: Box::new(WatchedFiles::default),
        };
        let server = server.serve(Parts {
            admin: node.admin(),
            guard: guard.clone(),
            configuration: Arc::new(Fixed),
            keys: Keys::open(config_store.clone()).unwrap(),
            users,
            rules,
            log: LogRing::default(),
            node: facts,
            storage: None,
            cluster: None,
            bridges: Arc::new(()),
            actions: Arc::new(()),
            links: Arc::new(()),
            drains: Arc::new(()),
        });
        let server = server.unwrap();
        server.readiness().ready();
        let http = Http { address: server.address(), token: None };
        (Fixture { node: Some(node), server: Some(server), guard, data_dir, http }, tokens)
    }

    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    pub fn data_dir(&self) -> &PathBuf {
        &self.data_dir
    }

    fn mqtt(&self) -> SocketAddr {
        self.node.as_ref().expect("it runs").listeners()[0].tcp.expect("a TCP listener")
    }

    pub fn client(&self, name: &str) -> Client {
        self.client_with(name, With::default())
    }

    pub fn client_with(&self, name: &str, with: With) -> Client {
        self.try_client(name, with).unwrap_or_else(|reason| panic!("{name} is refused: {reason}"))
    }

    pub fn try_client(&self, name: &str, with: With) -> Result<Client, mqtt::ReasonCode> {
        Client::connect(self.mqtt(), name, with)
    }

    /// Creates a durable session whose client is not connected.
    pub fn absent(&self, name: &str, filters: &[&str]) {
        let mut client = self.client_with(name, With { expiry: 3600, ..With::default() });
        for filter in filters {
            client.subscribe(filter, mqtt::QoS::ExactlyOnce);
        }
        client.disconnect();
    }

    pub fn http(&self) -> &Http {
        &self.http
    }

    pub fn as_key(&self, token: &str) -> Http {
        Http { token: Some(token.to_owned()), ..self.http.clone() }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.http.request("GET", path, None)
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.http.request("DELETE", path, None)
    }

    pub fn post(&self, path: &str, body: Value) -> Answer {
        self.http.request("POST", path, Some(body))
    }

    pub fn stream(&self, path: &str) -> Events {
        self.http.stream(path)
    }

    /// Returns all items of a listing, page by page.
    pub fn all(&self, path: &str, limit: usize) -> Vec<Value> {
        let sign = if path.contains('?') { '&' } else { '?' };
        let (mut items, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("{path}{sign}limit={limit}{cursor}")).expect(200);
            let found = page["items"].as_array().expect("items");
            assert!(found.len() <= limit);
            items.extend(found.iter().cloned());
            match page["next"].as_str() {
                None => return items,
                Some(next) => cursor = format!("&cursor={next}"),
            }
        }
    }

    pub fn stop_http(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop_http();
        if let Some(node) = self.node.take() {
            node.stop(Duration::from_millis(100));
        }
        // The failure of a test says more than a directory that remains.
        let _ = std::fs::remove_dir_all(&self.data_dir);
    }
}

fn local(data_dir: &Path) -> Arc<dyn ConfigStore> {
    Arc::new(LocalStore::open(data_dir).unwrap())
}

/// A configuration that never changes.
struct Fixed;

impl Configuration for Fixed {
    fn view(&self) -> ConfigView {
        ConfigView { version: 1, settings: Vec::new(), file: None, refused: Vec::new() }
    }

    fn validate(&self, _: Scope, _: &Changes) -> Vec<SettingProblem> {
        Vec::new()
    }

    fn change(&self, _: Scope, _: &Changes, _: &Author) -> Result<Changed, Refused> {
        Err(Refused::Failed("it is fixed".into()))
    }

    fn rollback(&self, version: u64, _: &Author) -> Result<Changed, Refused> {
        Err(Refused::NoVersion(version))
    }

    fn reload(&self, _: &str) -> Result<Reloaded, Refused> {
        Err(Refused::Failed("it is fixed".into()))
    }

    fn history(&self) -> Vec<Version> {
        Vec::new()
    }

    fn refused(&self) -> usize {
        0
    }

    fn log_level(&self) -> LogLevelView {
        LogLevelView { level: "info".into(), until: None }
    }

    fn set_log_level(&self, _: &str, _: Option<Duration>) -> Result<u64, String> {
        Err("it is fixed".into())
    }

    fn revert_log_level(&self, _: u64) {}
}
