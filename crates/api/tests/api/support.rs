//! A node with its server, and a client of HTTP/1.1 that sends the given bytes unchanged.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::settings::HttpSettings;
use api::{
    Author, Bound, Changed, Changes, ConfigView, Configuration, Keys, ListenerFacts, LogLevelView, LogRing,
    NodeFacts, Parts, Refused, Reloaded, Role, Scope, SettingProblem, Timestamp, Version, WatchedFiles,
};
use api::{
    Backup, BackupFile, BackupPart, BackupRefused, Durations, RecoveryView, Storage, StorageCondition,
    StorageView,
};
use api::{DrainOrder, DrainRefused, DrainView, Drains};
use auth::Guard;
use serde_json::Value;
use tls::{Expiry, ExpiryKind};
use tracing_subscriber::layer::SubscriberExt as _;

#[path = "fake_actions.rs"]
mod fake_actions;
#[path = "fake_bridges.rs"]
mod fake_bridges;
#[path = "fake_links.rs"]
mod fake_links;

pub use fake_actions::FakeActions;
pub use fake_bridges::FakeBridges;
pub use fake_links::FakeLinks;

/// Upper bound for every wait; only a hanging test needs so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A node, its server, and its directory; all of it ends on drop.
pub struct Server {
    http: Option<api::Server>,
    node: Option<edge::Node>,
    pub log: LogRing,
    pub address: SocketAddr,
    pub mqtt: SocketAddr,
    pub directory: PathBuf,
    pub actions: Arc<FakeActions>,
    pub links: Arc<FakeLinks>,
    pub bridges: Arc<FakeBridges>,
}

/// A node of this name that is being drained.
struct OneDrain(String);

impl Drains for OneDrain {
    fn view(&self) -> Option<DrainView> {
        Some(DrainView {
            node: self.0.clone(),
            kind: "drain",
            to: vec!["c".to_owned()],
            state: "disconnecting",
            paused_because: None,
            stalled_s: 1,
            clients_before: 9,
            clients_left: 4,
            disconnected: 5,
            shards_led: 2,
            sessions_stay: 0,
            rate: 50.0,
            left_s: Some(1),
            started_at: Timestamp::of_ms(0),
            by: Some("ops".to_owned()),
        })
    }

    fn refuses(&self) -> bool {
        false
    }

    fn order(&self, _: &str, _: &DrainOrder, _: &auth::Authorship) -> Result<(), DrainRefused> {
        Ok(())
    }

    fn rebalance(
        &self,
        nodes: &[(String, u64)],
        _: &DrainOrder,
        _: &auth::Authorship,
    ) -> Result<(), DrainRefused> {
        match nodes.iter().any(|(name, _)| name == "b") {
            true => Err(DrainRefused::Conflict("node `b` is drained".to_owned())),
            false => Ok(()),
        }
    }

    fn cancel(&self, node: &str) -> Result<bool, DrainRefused> {
        Ok(node != "nobody")
    }
}

impl Server {
    /// Starts a server in open mode: every client is an admin.
    pub fn start() -> Self {
        Self::with(|_| ())
    }

    /// Starts a server with changed settings.
    pub fn with(change: impl FnOnce(&mut HttpSettings)) -> Self {
        Self::in_directory(fresh_directory(), None, change)
    }

    /// Starts a server with a key for each role, with the name of the role; see [`Server::token`].
    pub fn with_keys(change: impl FnOnce(&mut HttpSettings)) -> Self {
        let directory = fresh_directory();
        let file = api::KeyFile::in_directory(&directory);
        for role in Role::ALL {
            let new = api::NewKey { name: role.name().to_owned(), role, expires_in: None };
            let (_, token, _) = file.add(&new).unwrap();
            std::fs::write(directory.join(format!("{}.token", role.name())), token).unwrap();
        }
        Self::in_directory(directory, None, change)
    }

    /// Starts a server in open mode on a node of a cluster. `None` is a node that has not started its part in the
    /// cluster.
    pub fn in_cluster(view: Option<api::ClusterView>) -> Self {
        Self::in_silent_cluster(view, Duration::ZERO)
    }

    /// Starts the same server, where the thread that carries the links has been silent for this time.
    pub fn in_silent_cluster(view: Option<api::ClusterView>, silence: Duration) -> Self {
        let part =
            Part { view: Mutex::new(view), next: Mutex::default(), silence, leaves: AtomicBool::new(false) };
        Self::in_directory(fresh_directory(), Some(Arc::new(part)), |_| ())
    }

    /// Starts the same server on a node that has not started: it waits for the state that the cores agree on.
    pub fn starting_in_cluster(view: api::ClusterView) -> Self {
        let part = Part {
            view: Mutex::new(Some(view)),
            next: Mutex::default(),
            silence: Duration::ZERO,
            leaves: AtomicBool::new(false),
        };
        let configuration = Arc::new(Fixed::default());
        Self::starting("test", fresh_directory(), Some(Arc::new(part)), configuration, |_| ())
    }

    /// Starts a server in open mode on one of the nodes of a cluster.
    pub fn member(name: &str, part: Arc<dyn api::Cluster>) -> Self {
        Self::named(name, fresh_directory(), Some(part), |_| ())
    }

    /// Tells the node that the leaders of shards know the connections of ephemeral sessions.
    pub fn keep_ephemeral_sessions(&self) {
        self.node.as_ref().unwrap().admin().node().keep_ephemeral_sessions(true);
    }

    /// Starts a server in open mode with this configuration.
    pub fn configured(configuration: Arc<dyn Configuration>, change: impl FnOnce(&mut HttpSettings)) -> Self {
        Self::of("test", fresh_directory(), None, configuration, change)
    }

    fn in_directory(
        directory: PathBuf,
        cluster: Option<Arc<dyn api::Cluster>>,
        change: impl FnOnce(&mut HttpSettings),
    ) -> Self {
        Self::named("test", directory, cluster, change)
    }

    fn named(
        name: &str,
        directory: PathBuf,
        cluster: Option<Arc<dyn api::Cluster>>,
        change: impl FnOnce(&mut HttpSettings),
    ) -> Self {
        Self::of(name, directory, cluster, Arc::new(Fixed::default()), change)
    }

    fn of(
        name: &str,
        directory: PathBuf,
        cluster: Option<Arc<dyn api::Cluster>>,
        configuration: Arc<dyn Configuration>,
        change: impl FnOnce(&mut HttpSettings),
    ) -> Self {
        let server = Self::starting(name, directory, cluster, configuration, change);
        server.http.as_ref().unwrap().readiness().ready();
        server
    }

    fn starting(
        name: &str,
        directory: PathBuf,
        cluster: Option<Arc<dyn api::Cluster>>,
        configuration: Arc<dyn Configuration>,
        change: impl FnOnce(&mut HttpSettings),
    ) -> Self {
        let mut settings = HttpSettings {
            listen: api::settings::Listen::At("127.0.0.1:0".parse().unwrap()),
            ..HttpSettings::default()
        };
        change(&mut settings);
        let bound = Bound::bind(&settings).unwrap().unwrap();
        let guard =
            Arc::new(Guard::open(&auth::settings::Auth { workers: 1, ..Default::default() }).unwrap());
        let listener = edge::settings::Listener { address: "127.0.0.1:0".into(), ..Default::default() };
        let node = edge::start(edge::Options {
            edge: edge::settings::EdgeSettings {
                workers: 2,
                listeners: vec![listener],
                ..Default::default()
            },
            broker: broker::settings::Settings::default(),
            access: guard.clone(),
            version: "test".to_owned(),
            store: None,
            peers: None,
            spans: None,
            descriptors_reserved: 0,
        })
        .unwrap();
        let listeners = node.listeners().iter().cloned().map(|bound| ListenerFacts {
            name: bound.name.clone(),
            address: bound.address.clone(),
            connections_max: bound.connections_max(),
            connections: Box::new(move || bound.connections()),
        });
        let facts = NodeFacts {
            name: name.to_owned(),
            version: "1.2.3",
            commit: "abcdef",
            data_dir: directory.clone(),
            connections_max: node.connections_max(),
            client_address: Some("n1.example:1883".to_owned()),
            listeners: listeners.collect(),
            expiries: Box::new(expiries),
            watched: Box::new(WatchedFiles::default),
        };
        let log = LogRing::default();
        let actions = Arc::new(FakeActions::on(name));
        let links = Arc::new(FakeLinks::on(name));
        let bridges = Arc::new(FakeBridges::new(name));
        let config_store = Arc::new(configstore::LocalStore::open(&directory).unwrap());
        let parts = Parts {
            admin: node.admin(),
            guard,
            configuration,
            keys: Keys::open(config_store.clone()).unwrap(),
            users: Arc::new(auth::Users::open(config_store.clone(), 50).unwrap()),
            rules: Arc::new(auth::RuleTable::open(config_store).unwrap()),
            log: log.clone(),
            node: facts,
            storage: Some(Arc::new(Disk(directory.clone()))),
            cluster,
            bridges: bridges.clone(),
            actions: actions.clone(),
            links: links.clone(),
            drains: Arc::new(OneDrain(name.to_owned())),
        };
        let mqtt = node.listeners()[0].tcp.unwrap();
        let http = bound.serve(parts).unwrap();
        let address = http.address();
        Self { http: Some(http), node: Some(node), log, address, mqtt, directory, actions, links, bridges }
    }

    /// Returns the token of the key for this role, of a server that was started with keys.
    pub fn token(&self, role: Role) -> String {
        std::fs::read_to_string(self.directory.join(format!("{}.token", role.name()))).unwrap()
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], None)
    }

    /// Sends a POST, PUT, PATCH or DELETE with the required content type.
    pub fn write(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let body = body.map(Value::to_string);
        self.request(method, path, &[("Content-Type", "application/json")], body.as_deref())
    }

    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Answer {
        let mut client = self.ask(method, path, headers, body);
        client.answer(method)
    }

    /// Sends a request, whose answer arrives on this connection.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Client {
        let mut text = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            text.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        text.push_str("Connection: close\r\n\r\n");
        text.push_str(body.unwrap_or_default());
        let mut client = self.connect();
        client.send(text.as_bytes());
        client
    }

    pub fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    /// Runs this with the log going into the server's ring.
    pub fn log(&self, log: impl FnOnce()) {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(self.log.clone()), log);
    }

    /// Ends the server, not the node.
    pub fn stop_http(&mut self) {
        self.http.take().unwrap().stop();
    }

    /// Makes `/health/ready` report that the node stops.
    pub fn stopping(&self) {
        self.http.as_ref().unwrap().stopping();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop(Duration::ZERO);
        }
        if let Some(http) = self.http.take() {
            http.stop();
        }
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

fn fresh_directory() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path: PathBuf =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("api-{}-{number}", std::process::id()));
    drop(std::fs::remove_dir_all(&path));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// One connection.
pub struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends as much as the server still accepts.
    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads the answer to a request with this method.
    pub fn answer(&mut self, method: &str) -> Answer {
        let (status, headers) = self.head();
        let mut answer = Answer { status, headers, body: Vec::new() };
        if method == "HEAD" || status == 204 || status == 304 {
            return answer;
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                answer.body.extend_from_slice(&chunk);
            }
        } else if let Some(length) = answer.header("content-length") {
            answer.body = vec![0; length.parse().unwrap()];
            self.reader.read_exact(&mut answer.body).unwrap();
        }
        answer
    }

    /// Reads status and headers. The rest can be read with [`Client::chunk`] or [`Client::event`].
    pub fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let status = self.line().expect("an answer");
        let code = status.split(' ').nth(1).unwrap_or_else(|| panic!("{status:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line().expect("a whole header");
            let Some((name, value)) = line.split_once(": ") else { return (code, headers) };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }

    /// Reads one chunk of a body; `None` at its end.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(&self.line()?, 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.reader.read_exact(&mut chunk).unwrap();
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    /// Reads the next events of a stream, as far as one chunk contains them: their names and data. Comments are
    /// skipped. `None` at its end.
    pub fn events(&mut self) -> Option<Vec<(String, Value)>> {
        let chunk = String::from_utf8(self.chunk()?).unwrap();
        let blocks = chunk.split("\n\n").filter_map(|block| {
            let (event, data) = block.strip_prefix("event: ")?.split_once("\ndata: ")?;
            Some((event.to_owned(), serde_json::from_str(data).unwrap()))
        });
        Some(blocks.collect())
    }

    /// Reads events until one has this name.
    pub fn event(&mut self, name: &str) -> Value {
        loop {
            let events = self.events().unwrap_or_else(|| panic!("the stream ended before `{name}`"));
            if let Some((_, data)) = events.into_iter().find(|(event, _)| event == name) {
                return data;
            }
        }
    }

    /// Reads a line; `None` when the peer has closed the connection.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }
}

/// An answer of the server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the body of an answer with this status.
    #[track_caller]
    pub fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// Asserts that the answer is a problem document of this kind, and returns its detail.
    #[track_caller]
    pub fn problem(&self, status: u16, slug: &str) -> String {
        let document = self.is(status);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(document["type"], format!("urn:meridian:problem:{slug}"));
        assert_eq!(document["status"], status);
        document["detail"].as_str().unwrap().to_owned()
    }
}

/// A configuration where only the log level changes.
#[derive(Default)]
struct Fixed {
    level: Mutex<(u64, Option<String>)>,
}

impl Configuration for Fixed {
    fn view(&self) -> ConfigView {
        ConfigView { version: 1, settings: Vec::new(), file: None, refused: Vec::new() }
    }

    fn validate(&self, _: Scope, changes: &Changes) -> Vec<SettingProblem> {
        let unknown =
            |name: &String| SettingProblem { name: name.clone(), detail: "there is no such setting".into() };
        changes.keys().map(unknown).collect()
    }

    fn change(&self, scope: Scope, changes: &Changes, _: &Author) -> Result<Changed, Refused> {
        match self.validate(scope, changes) {
            problems if problems.is_empty() => {
                Ok(Changed { version: 1, changed: Vec::new(), overridden: Vec::new() })
            }
            problems => Err(Refused::Settings(problems)),
        }
    }

    fn rollback(&self, version: u64, _: &Author) -> Result<Changed, Refused> {
        match version {
            1 => Ok(Changed { version: 1, changed: Vec::new(), overridden: Vec::new() }),
            other => Err(Refused::NoVersion(other)),
        }
    }

    fn reload(&self, _: &str) -> Result<Reloaded, Refused> {
        Ok(Reloaded { changed: Vec::new(), pending: Vec::new(), files: vec!["m.toml".to_owned()] })
    }

    fn history(&self) -> Vec<Version> {
        Vec::new()
    }

    fn refused(&self) -> usize {
        2
    }

    fn log_level(&self) -> LogLevelView {
        let level = self.level.lock().unwrap().1.clone();
        LogLevelView { level: level.unwrap_or_else(|| "info".to_owned()), until: None }
    }

    fn set_log_level(&self, level: &str, _: Option<Duration>) -> Result<u64, String> {
        if level == "loud" {
            return Err("expected a level".to_owned());
        }
        let mut now = self.level.lock().unwrap();
        *now = (now.0 + 1, Some(level.to_owned()));
        Ok(now.0)
    }

    fn revert_log_level(&self, number: u64) {
        let mut now = self.level.lock().unwrap();
        if now.0 == number {
            now.1 = None;
        }
    }
}

/// Two listeners that use one certificate, and one of them twice.
fn expiries() -> Vec<(String, Expiry)> {
    let expiry = |file: &str, not_after| Expiry { kind: ExpiryKind::Server, file: file.into(), not_after };
    let shown =
        [("a", "a.crt", 1_900_000_000), ("b", "a.crt", 1_900_000_000), ("b", "a.crt", 1), ("b", "b.crt", 5)];
    shown.map(|(listener, file, not_after)| (listener.to_owned(), expiry(file, not_after))).into()
}

/// A node of a cluster. Its cores agree to remove every member but one that is `stuck` or in its ninth incarnation, and
/// to change the leader. The view shows the change a while later. The node can be ordered to leave once.
struct Part {
    view: Mutex<Option<api::ClusterView>>,
    /// The next view, and the number of reads until it is in force.
    next: Mutex<Option<(u8, api::ClusterView)>>,
    silence: Duration,
    leaves: AtomicBool,
}

impl api::Cluster for Part {
    fn view(&self) -> Option<api::ClusterView> {
        let mut next = self.next.lock().unwrap();
        if let Some((looks, view)) = next.take() {
            match looks {
                0 => *self.view.lock().unwrap() = Some(view),
                looks => *next = Some((looks - 1, view)),
            }
        }
        self.view.lock().unwrap().clone()
    }

    fn node_name(&self, _: u64) -> Option<String> {
        None
    }

    fn silence(&self) -> Duration {
        self.silence
    }

    fn ask(&self, _: &str, _: Vec<u8>, callback: api::AnswerCallback) {
        callback(Err("there is nobody".to_owned()));
    }

    fn set_request_handler(&self, _: Arc<dyn api::RequestHandler>) {}

    fn order(&self, order: api::Order, callback: api::OrderCallback) {
        let obeyed = match &order {
            api::Order::Remove { node, .. } if node == "stuck" => {
                Err(api::OrderError::Unknown("nobody leads".to_owned()))
            }
            api::Order::Remove { incarnation, .. } if *incarnation != 9 => {
                Err(api::OrderError::Refused("it has joined again meanwhile, in incarnation 9".to_owned()))
            }
            api::Order::Leave if self.leaves.swap(true, Ordering::Relaxed) => {
                Err(api::OrderError::Unknown("it leaves twice".to_owned()))
            }
            _ => Ok(()),
        };
        let mut view = self.view.lock().unwrap().clone();
        let mut membership = view.as_mut().map(|view| &mut view.membership);
        let is_changed = match (&order, &mut membership) {
            (api::Order::Remove { node, .. }, Some(membership)) => {
                membership.members.retain(|member| member.node != *node);
                true
            }
            (api::Order::Lead(node), Some(membership)) => {
                if let Some(replica) = &mut membership.replica {
                    replica.leader = Some(node.clone());
                }
                true
            }
            _ => false,
        };
        if let Some(view) = view.filter(|_| is_changed && obeyed.is_ok()) {
            *self.next.lock().unwrap() = Some((3, view));
        }
        callback(obeyed);
    }

    fn is_leaving(&self) -> bool {
        self.leaves.load(Ordering::Relaxed)
    }
}

/// A disk that is full while there is a file `full`, and accepts backups except with the name `taken`.
struct Disk(PathBuf);

impl Storage for Disk {
    fn condition(&self) -> StorageCondition {
        if self.0.join("full").exists() { StorageCondition::Full } else { StorageCondition::Good }
    }

    fn view(&self) -> StorageView {
        let durations = Durations {
            count: 3,
            p50_us: 512,
            p99_us: 1024,
            max_us: 999,
            buckets: (vec![0.000_512, 0.001_024], vec![2, 1, 0]),
            sum_s: 0.002,
        };
        StorageView {
            state: self.condition().name(),
            detail: None,
            directory: "/data/storage".to_owned(),
            segments: 4,
            bytes: 4 << 20,
            live_bytes: 1 << 20,
            reserve_bytes: 2 << 20,
            spares: 2,
            vacating: 1,
            freed: 7,
            queue_records: 5,
            queue_bytes: 1000,
            commits: 3,
            records: 30,
            bytes_written: 5000,
            checkpoint_bytes: 700,
            moved_bytes: 90,
            checkpoints: 16,
            full_count: 1,
            sync: durations.clone(),
            commit: durations,
            recovery: RecoveryView {
                segments: 3,
                truncated_bytes: 48,
                read_s: 0.5,
                ..RecoveryView::default()
            },
            backup_dir: Some("/backups".to_owned()),
            backup: None,
        }
    }

    fn backup_files(&self, name: &str) -> Result<Vec<BackupFile>, BackupRefused> {
        match name {
            "one" => Ok(vec![BackupFile { name: "1.seg".to_owned(), bytes: 10 }]),
            _ => Err(BackupRefused::Unknown(format!("/backups/{name}: there is no such backup"))),
        }
    }

    fn read_backup(
        &self,
        name: &str,
        file: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<BackupPart, BackupRefused> {
        self.backup_files(name)?;
        if file != "1.seg" {
            return Err(BackupRefused::Unknown(format!("the backup has no file {file}")));
        }
        let bytes = b"0123456789".iter().skip(offset as usize).take(bytes_max).copied().collect();
        Ok(BackupPart { bytes, zeros: 0, file_bytes: 10 })
    }

    fn remove_backup(&self, name: &str) -> Result<(), BackupRefused> {
        self.backup_files(name).map(drop)
    }

    fn start_backup(&self, name: &str) -> Result<Backup, BackupRefused> {
        if name == "taken" {
            return Err(BackupRefused::Name("/backups/taken is there already".to_owned()));
        }
        Ok(Backup {
            name: name.to_owned(),
            path: format!("/backups/{name}"),
            state: "running",
            segments_done: 0,
            segments: 0,
            bytes: 0,
            started_at: Timestamp::now(),
            ended_at: None,
            error: None,
        })
    }
}
