//! Requests about the whole cluster, to one of its nodes.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::Server;

/// Nodes of a cluster without links: a request to another node is handed over directly, except to nodes that are cut
/// off.
#[derive(Default)]
struct Together {
    request_handlers: Mutex<BTreeMap<String, Arc<dyn api::RequestHandler>>>,
    cut_off: Mutex<Vec<String>>,
    /// True while the nodes have links to each other that are up.
    up: AtomicBool,
    /// Leader of all shards; `None` while each node has its own.
    leader: Mutex<Option<Option<&'static str>>>,
    /// True when the cores have agreed on the nodes as members.
    agreed: AtomicBool,
    /// Answers of nodes instead of their own: the status and the document, in their order.
    answers: Mutex<BTreeMap<&'static str, VecDeque<(u16, Value)>>>,
    /// Targets of the requests that got these answers.
    asked: Mutex<Vec<String>>,
}

struct Member {
    name: String,
    together: Arc<Together>,
}

impl api::Cluster for Member {
    fn view(&self) -> Option<api::ClusterView> {
        let mut view = crate::cluster::view();
        view.node.clone_from(&self.name);
        let link = view.links.remove(0);
        let state = if self.together.up.load(Ordering::Relaxed) { "up" } else { link.state };
        let names = self.together.request_handlers.lock().unwrap().keys().cloned().collect::<Vec<_>>();
        if self.together.agreed.load(Ordering::Relaxed) {
            let member = crate::cluster::agreed().membership.members.remove(0);
            let named = |node: &String| api::MemberView { node: node.clone(), ..member.clone() };
            view.membership.members = names.iter().map(named).collect();
        }
        let others = names.into_iter().filter(|name| *name != self.name);
        view.shards = self.together.leader.lock().unwrap().map(|leader| {
            let replicas: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
            let leader = leader.map(str::to_owned);
            let item = |shard| api::ShardView {
                shard,
                leader: leader.clone(),
                replicas: replicas.clone(),
                joining: None,
                leaving: None,
            };
            let items = (0..broker::SHARDS).map(item).collect();
            api::ShardsView { replicas: 3, index: 9, transfers: 0, transfers_failed: 0, items }
        });
        view.links = others.map(|node| api::LinkView { node, state, ..link.clone() }).collect();
        Some(view)
    }

    fn node_name(&self, _: u64) -> Option<String> {
        None
    }

    fn silence(&self) -> Duration {
        Duration::ZERO
    }

    fn ask(&self, node: &str, question: Vec<u8>, callback: api::AnswerCallback) {
        if self.together.cut_off.lock().unwrap().iter().any(|cut_off| cut_off == node) {
            return callback(Err("the node is silent".to_owned()));
        }
        let prepared = self.together.answers.lock().unwrap().get_mut(node).and_then(VecDeque::pop_front);
        if let Some((status, document)) = prepared {
            let question: Value = serde_json::from_slice(&question).unwrap();
            self.together.asked.lock().unwrap().push(question["target"].as_str().unwrap().to_owned());
            let mut answer = status.to_le_bytes().to_vec();
            answer.extend(document.to_string().into_bytes());
            return callback(Ok(answer));
        }
        let request_handler = self.together.request_handlers.lock().unwrap()[node].clone();
        request_handler.answer(&self.name, &question, Box::new(move |answer| callback(Ok(answer))));
    }

    fn set_request_handler(&self, request_handler: Arc<dyn api::RequestHandler>) {
        self.together.request_handlers.lock().unwrap().insert(self.name.clone(), request_handler);
    }

    fn order(&self, _: api::Order, callback: api::OrderCallback) {
        callback(Err(api::OrderError::Unknown("there is nobody to agree".to_owned())));
    }

    fn is_leaving(&self) -> bool {
        false
    }
}

/// Three nodes, `a`, `b` and `c`.
struct World {
    nodes: [Server; 3],
    together: Arc<Together>,
}

impl World {
    fn start() -> Self {
        let together = Arc::<Together>::default();
        let nodes = ["a", "b", "c"].map(|name| {
            let member = Member { name: name.to_owned(), together: together.clone() };
            Server::member(name, Arc::new(member))
        });
        Self { nodes, together }
    }

    fn a(&self) -> &Server {
        &self.nodes[0]
    }

    /// A client of a node, 3.1.1 with Clean Session, that has subscribed to `t/` and its name.
    fn client(&self, node: usize, name: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.nodes[node].mqtt).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut bytes = vec![0x10, 12 + name.len() as u8, 0, 4];
        bytes.extend(b"MQTT\x04\x02\x00\x00\x00");
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
        bytes.extend([0x82, 7 + name.len() as u8, 0, 1, 0, 2 + name.len() as u8]);
        bytes.extend(b"t/");
        bytes.extend(name.as_bytes());
        bytes.push(0);
        stream.write_all(&bytes).unwrap();
        let mut answers = [0; 9];
        stream.read_exact(&mut answers).unwrap();
        assert_eq!(answers[..4], *b"\x20\x02\x00\x00");
        stream
    }

    fn cut_off(&self, node: &str) {
        self.together.cut_off.lock().unwrap().push(node.to_owned());
    }
}

/// Returns `client_id@node` of all pages.
fn listed(server: &Server, path: &str) -> (Vec<String>, usize) {
    let (mut all, mut pages, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let page = server.get(&format!("{path}{cursor}")).is(200);
        pages += 1;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let items = page["items"].as_array().unwrap();
        all.extend(items.iter().map(|item| format!("{}@{}", text(&item["client_id"]), text(&item["node"]))));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (all, pages),
        }
        assert!(pages < 50, "{all:?}");
    }
}

/// The leader of a shard knows its clients, and no other node does, in a cluster whose nodes share sessions.
#[test]
fn a_client_is_asked_for_at_the_leader_of_its_shard() {
    let world = World::start();
    let _clients = [world.client(0, "x"), world.client(1, "y")];
    *world.together.leader.lock().unwrap() = Some(Some("b"));
    for node in &world.nodes {
        let found = node.get("/api/v1/clients/y").is(200);
        assert_eq!(
            (&found["node"], &found["owner"], &found["session"]),
            (&json!("b"), &Value::Null, &Value::Null)
        );
        assert_eq!(node.get("/api/v1/clients/y/subscriptions").is(200)["items"].as_array().unwrap().len(), 1);
        node.get("/api/v1/clients/nobody").problem(404, "not-found");
    }
    // The connection that the leader names is found by its id, and only for its client.
    let direct =
        |id: &str, client: &str| world.a().get(&format!("/api/v1/clients/{client}?node=a&connection={id}"));
    let workers = world.a().get("/api/v1/node?node=a").is(200)["workers"].as_u64().unwrap();
    let ids =
        (0..workers).flat_map(|worker| (0..4).map(move |generation| format!("{worker}.0.{generation}")));
    let id = ids.into_iter().find(|id| direct(id, "x").status == 200).expect("its connection");
    direct(&id, "y").problem(404, "not-found");
    direct("9999.0.0", "x").problem(404, "not-found");
    for wrong in ["1.2", "a.b.c", "1.2.3.4", "99999.0.0"] {
        direct(wrong, "x").problem(400, "bad-request");
    }
    let kick = |client: &str| {
        world.a().write("DELETE", &format!("/api/v1/clients/{client}?node=a&connection={id}"), None)
    };
    kick("y").problem(404, "not-found");
    assert_eq!(kick("x").is(200)["connection_closed"], true);
    assert_eq!(world.a().write("DELETE", "/api/v1/clients/y", None).is(200)["nodes"], json!(["b"]));
    *world.together.leader.lock().unwrap() = Some(None);
    let detail = world.a().get("/api/v1/clients/y").problem(503, "unavailable");
    assert!(detail.contains("has no leader") && detail.contains("a, b, c"), "{detail}");
}

/// The leaders know all clients of their shards, so no other node is asked for one.
#[test]
fn a_client_that_no_leader_knows_is_not_searched() {
    let world = World::start();
    let _client = world.client(2, "z");
    *world.together.leader.lock().unwrap() = Some(Some("b"));
    for node in &world.nodes {
        node.keep_ephemeral_sessions();
    }
    world.cut_off("a");
    for node in &world.nodes[1..] {
        node.get("/api/v1/clients/nobody").problem(404, "not-found");
        assert_eq!(listed(node, "/api/v1/subscriptions?client_id=nobody").0, [""; 0]);
        node.get("/api/v1/clients/z").problem(404, "not-found");
        node.write("DELETE", "/api/v1/clients/z", None).problem(404, "not-found");
    }
}

/// A new leader of a shard knows no connections of ephemeral sessions, with cores of an earlier version.
#[test]
fn a_client_that_the_leader_of_its_shard_does_not_know_is_searched_on_all_nodes() {
    let world = World::start();
    let _client = world.client(2, "z");
    *world.together.leader.lock().unwrap() = Some(Some("b"));
    for node in &world.nodes {
        assert_eq!(node.get("/api/v1/clients/z").is(200)["node"], "c");
        assert_eq!(node.get("/api/v1/clients/z/queue").is(200)["items"], json!([]));
        assert_eq!(listed(node, "/api/v1/subscriptions?client_id=z").0, ["z@c"]);
        assert_eq!(listed(node, "/api/v1/subscriptions?client_id=z&filter=other").0, [""; 0]);
        assert_eq!(listed(node, "/api/v1/subscriptions?client_id=nobody").0, [""; 0]);
    }
    let of_z = "/api/v1/clients/z/subscriptions";
    world.a().write("POST", of_z, Some(&json!({"filter": "u/#"}))).is(201);
    for list in [of_z, "/api/v1/subscriptions?client_id=z"] {
        let limit = if list == of_z { "?limit=1" } else { "&limit=1" };
        let page = world.a().get(&format!("{list}{limit}")).is(200);
        let next = page["next"].as_str().expect("there is a second one");
        let rest = world.nodes[1].get(&format!("{list}{limit}&cursor={next}")).is(200);
        assert_ne!(rest["items"][0]["filter"], page["items"][0]["filter"], "{rest}");
        assert_eq!(rest["next"], Value::Null);
    }
    world.a().write("DELETE", &format!("{of_z}?filter=u/%23"), None).is(200);
    let unknown = world.a().write("DELETE", &format!("{of_z}?filter=none"), None).is(200);
    assert_eq!(unknown["reason_code"], 0x11, "{unknown}");
    world.a().write("POST", of_z, Some(&json!({"filter": "u/#/x"}))).problem(422, "invalid");
    // It may be on a node that does not answer.
    world.cut_off("a");
    let detail = world.nodes[1].get("/api/v1/clients/nobody").problem(503, "unavailable");
    assert!(detail.contains("no answer from a"), "{detail}");
    world.together.cut_off.lock().unwrap().clear();
    let kicked = world.a().write("DELETE", "/api/v1/clients/z", None).is(200);
    assert_eq!((&kicked["connection_closed"], &kicked["nodes"]), (&json!(true), &json!(["c"])));
    world.a().write("DELETE", "/api/v1/clients/z", None).problem(404, "not-found");
}

/// A leader of a moment ago does not know whether the client exists.
#[test]
fn the_leader_of_a_client_is_looked_up_again_when_it_has_changed() {
    let world = World::start();
    let _client = world.client(1, "y");
    let moved = (421, json!({"type": "urn:meridian:problem:misdirected", "status": 421}));
    let answers = BTreeMap::from([("b", VecDeque::from([moved.clone(), moved.clone()]))]);
    *world.together.answers.lock().unwrap() = answers;
    *world.together.leader.lock().unwrap() = Some(Some("b"));
    assert_eq!(world.a().get("/api/v1/clients/y").is(200)["node"], "b");
    assert_eq!(world.together.asked.lock().unwrap().len(), 2);
    // An election.
    *world.together.leader.lock().unwrap() = Some(None);
    let together = world.together.clone();
    let elects = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        *together.leader.lock().unwrap() = Some(Some("b"));
    });
    assert_eq!(world.a().get("/api/v1/clients/y/subscriptions").is(200)["items"][0]["filter"], "t/y");
    elects.join().unwrap();
    // It goes on and on.
    world.together.answers.lock().unwrap().insert("b", vec![moved; 100].into());
    let detail = world.a().get("/api/v1/clients/y").problem(503, "unavailable");
    assert!(detail.contains("cluster shards"), "{detail}");
    // A change may have been made if its leader does not answer, so it is not sent again.
    world.cut_off("b");
    let detail = world.a().write("DELETE", "/api/v1/clients/y", None).problem(503, "unavailable");
    assert!(detail.contains("no answer from node `b`"), "{detail}");
    let together = world.together.clone();
    let returns = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        together.answers.lock().unwrap().clear();
        together.cut_off.lock().unwrap().clear();
    });
    assert_eq!(world.a().get("/api/v1/clients/y").is(200)["node"], "b");
    returns.join().unwrap();
}

#[test]
fn a_request_about_a_connection_goes_to_its_node() {
    let world = World::start();
    let _client = world.client(2, "z");
    *world.together.leader.lock().unwrap() = Some(Some("b"));
    let workers = world.a().get("/api/v1/node?node=c").is(200)["workers"].as_u64().unwrap();
    let ids =
        (0..workers).flat_map(|worker| (0..4).map(move |generation| format!("{worker}.0.{generation}")));
    let is_it =
        |id: &String| world.a().get(&format!("/api/v1/clients/z?node=c&connection={id}")).status == 200;
    let id = ids.into_iter().find(is_it).expect("its connection");
    let owner = json!({"node": "c", "connection": id});
    let prepare = |answers: Vec<(u16, Value)>| {
        world.together.answers.lock().unwrap().insert("b", answers.into());
    };
    let elsewhere = || (421, json!({"status": 421, "owner": owner.clone()}));
    prepare(vec![elsewhere(); 4]);
    let wanted = json!({"filter": "u/#"});
    world.a().write("POST", "/api/v1/clients/z/subscriptions", Some(&wanted)).is(201);
    let page = world.a().get("/api/v1/clients/z/subscriptions?limit=1").is(200);
    let next = page["next"].as_str().expect("there is a second one");
    let rest = world.nodes[1].get(&format!("/api/v1/clients/z/subscriptions?limit=1&cursor={next}")).is(200);
    assert_ne!(rest["items"][0]["filter"], page["items"][0]["filter"]);
    world.a().write("DELETE", "/api/v1/clients/z/subscriptions?filter=u/%23", None).is(200);
    assert_eq!(world.a().get("/api/v1/clients/z/queue").is(200)["items"], json!([]));
    // It was another connection.
    let other = (421, json!({"status": 421, "owner": {"node": "c", "connection": "9999.0.0"}}));
    prepare(vec![other, elsewhere()]);
    world.a().get("/api/v1/clients/z/queue").is(200);
    prepare(vec![elsewhere(); 2]);
    assert_eq!(listed(world.a(), "/api/v1/subscriptions?client_id=z").0, ["z@c"]);
    let kick = |answers: Vec<(u16, Value)>| {
        prepare(answers);
        world.a().write("DELETE", "/api/v1/clients/z", None)
    };
    let owned = json!({"connection_closed": false, "session_ended": false, "nodes": ["b"], "owner": owner});
    world.cut_off("c");
    let detail = kick(vec![(200, owned.clone())]).problem(503, "unavailable");
    assert!(detail.contains("no answer from node `c`"), "nothing was closed: {detail}");
    world.together.cut_off.lock().unwrap().clear();
    let kicked = kick(vec![(200, owned)]).is(200);
    assert_eq!((&kicked["connection_closed"], &kicked["nodes"]), (&json!(true), &json!(["b", "c"])));
}

#[test]
fn pages_of_all_nodes_hold_every_client_once_however_large_they_are() {
    let world = World::start();
    let mut clients = Vec::new();
    let mut names = Vec::new();
    for (node, count) in [(0, 3), (1, 0), (2, 4)] {
        for number in 0..count {
            let name = format!("{}{number}", ["a", "b", "c"][node]);
            clients.push(world.client(node, &name));
            names.push(format!("{name}@{}", ["a", "b", "c"][node]));
        }
    }
    for path in ["clients?", "subscriptions?"] {
        for limit in 1..9 {
            for server in &world.nodes {
                let list = || listed(server, &format!("/api/v1/{path}limit={limit}"));
                let mut all = list().0;
                all.sort();
                assert_eq!(all, names, "{path}{limit}");
                // A page also ends when it has taken its time on a busy machine.
                assert!(limit < 8 || (0..50).any(|_| list().1 == 1), "no single page of {limit}");
            }
        }
    }
    // A list that began on one node continues on another.
    let first = world.a().get("/api/v1/clients?limit=3").is(200);
    let rest = format!("/api/v1/clients?limit=9&cursor={}", first["next"].as_str().unwrap());
    assert_eq!(world.nodes[2].get(&rest).is(200)["items"].as_array().unwrap().len(), 4);
}

#[test]
fn nodes_that_do_not_answer_are_named_and_the_others_are_listed() {
    let world = World::start();
    let _clients = [world.client(0, "x"), world.client(2, "z")];
    world.cut_off("b");
    let page = |path: &str| world.a().get(path).is(200);
    assert_eq!(page("/api/v1/clients")["missing"], json!(["b"]));
    let first = page("/api/v1/clients?limit=1");
    assert!(first["missing"].is_null(), "nobody else was asked so far: {first}");
    let cursor = first["next"].as_str().unwrap();
    let second = page(&format!("/api/v1/clients?limit=5&cursor={cursor}"));
    assert_eq!((&second["missing"], &second["items"][0]["client_id"]), (&json!(["b"]), &json!("z")));
    assert_eq!(listed(world.a(), "/api/v1/clients?limit=1").0, ["x@a", "z@c"]);
    let page = world.a().get("/api/v1/nodes").is(200);
    let names: Vec<_> = page["items"].as_array().unwrap().iter().map(|node| node["name"].clone()).collect();
    assert_eq!((json!(names), &page["missing"]), (json!(["a", "c"]), &json!(["b"])));
    let receivers = world.a().get("/api/v1/routes/match?topic=t/z").is(200);
    assert_eq!((&receivers["receivers"][0]["node"], &receivers["missing"]), (&json!("c"), &json!(["b"])));
    assert_eq!(receivers["total"], 1);
    let detail = world.a().get("/api/v1/clients?node=b").problem(503, "unavailable");
    assert!(detail.contains("`b`") && detail.contains("the node is silent"), "{detail}");
    let detail = world.a().get("/api/v1/clients/nobody").problem(503, "unavailable");
    assert!(detail.contains("no answer from b"), "it may be there: {detail}");
}

#[test]
fn a_client_is_found_wherever_it_is() {
    let world = World::start();
    let mut client = world.client(2, "z");
    assert_eq!(world.a().get("/api/v1/clients/z").is(200)["node"], "c");
    let subscriptions = world.a().get("/api/v1/clients/z/subscriptions").is(200);
    assert_eq!(subscriptions["items"][0]["filter"], "t/z");
    let wanted = json!({"filter": "u/#"});
    world.a().write("POST", "/api/v1/clients/z/subscriptions", Some(&wanted)).is(201);
    let page = world.a().get("/api/v1/clients/z/subscriptions?limit=1").is(200);
    let next = page["next"].as_str().expect("there is a second one");
    let rest = world.nodes[1].get(&format!("/api/v1/clients/z/subscriptions?limit=1&cursor={next}")).is(200);
    assert_ne!(rest["items"][0]["filter"], page["items"][0]["filter"]);
    let refused = world.a().write("POST", "/api/v1/clients/z/subscriptions", Some(&json!({"filter": ""})));
    refused.problem(422, "invalid");
    world.a().write("DELETE", "/api/v1/clients/z/subscriptions?filter=u/%23", None).is(200);
    world.a().get("/api/v1/clients/nobody").problem(404, "not-found");

    let kicked = world.a().write("DELETE", "/api/v1/clients/z", None).is(200);
    assert_eq!(kicked, json!({"connection_closed": true, "session_ended": false, "nodes": ["c"]}));
    assert_eq!(client.read(&mut [0; 64]).unwrap(), 0, "the connection is closed");
    world.a().write("DELETE", "/api/v1/clients/z", None).problem(404, "not-found");
    // The node that closed the connection has an audit entry with the caller; the nodes without the client have none.
    let by = |server: &Server| server.get("/api/v1/audit").is(200)["items"].as_array().unwrap().len();
    assert_eq!((by(&world.nodes[1]), by(&world.nodes[2])), (0, 3));
    let entry = &world.nodes[2].get("/api/v1/audit").is(200)["items"][0];
    assert_eq!((&entry["by"], &entry["method"]), (&json!("@a"), &json!("DELETE")));
}

#[test]
fn one_node_is_asked_by_way_of_another() {
    let world = World::start();
    let _clients = [world.client(0, "x"), world.client(2, "z")];
    assert_eq!(world.a().get("/api/v1/node?node=c").is(200)["name"], "c");
    assert_eq!(world.a().get("/api/v1/node?node=a").is(200)["name"], "a");
    assert!(world.a().get("/api/v1/stats?node=c").is(200)["connections"].is_u64());
    assert_eq!(listed(world.a(), "/api/v1/clients?node=c").0, ["z@c"]);
    let publish = json!({"topic": "t/z", "payload": "hello"});
    world.a().write("POST", "/api/v1/publish?node=c", Some(&publish)).is(200);
    // The answer has the reason.
    let detail =
        world.a().write("POST", "/api/v1/cluster/leave?node=c", Some(&json!({}))).problem(409, "conflict");
    assert!(detail.contains("no member"), "{detail}");
    let detail = world.a().get("/api/v1/node?node=d").problem(404, "not-found");
    assert!(detail.contains("a, b, c"), "{detail}");
    world.a().get("/api/v1/node?node=a&node=b").problem(400, "bad-request");
    let detail = world.a().get("/api/v1/users?node=b").problem(400, "bad-request");
    assert!(detail.contains("ask that node directly"), "{detail}");
    let alone = Server::start();
    alone.get("/api/v1/node?node=b").problem(404, "not-found");
    assert_eq!(alone.get("/api/v1/node?node=test").is(200)["name"], "test");
}

#[test]
fn an_invalid_request_is_refused_as_by_one_node() {
    let world = World::start();
    for bad in
        ["limit=0", "limit=x", "limit=1001", "cursor=!", "cursor=e30", "version=9", "address=x", "colour=red"]
    {
        world.a().get(&format!("/api/v1/clients?{bad}")).problem(400, "bad-request");
    }
    let cursor = world.a().get("/api/v1/clients?limit=1").is(200)["next"].clone();
    assert!(cursor.is_null(), "{cursor}");
}

#[test]
fn alarms_of_other_nodes_and_silent_nodes_are_listed() {
    let world = World::start();
    world.together.up.store(true, Ordering::Relaxed);
    let texts = |path: &str| {
        let page = world.a().get(path).is(200);
        let items = page["items"].as_array().unwrap().clone();
        items.iter().map(|alarm| alarm["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    std::fs::write(world.nodes[1].directory.join("full"), "").unwrap();
    let all = texts("/api/v1/alarms");
    assert!(all.iter().any(|text| text.starts_with("b: the disk of ")), "{all:#?}");
    assert!(!texts("/api/v1/alarms?node=a").iter().any(|text| text.contains("the disk of ")));
    assert!(texts("/api/v1/alarms?node=b").iter().any(|text| text.starts_with("the disk of ")));
    world.cut_off("c");
    let all = texts("/api/v1/alarms");
    assert!(
        all.iter().any(|text| text.starts_with("c is linked to this node and does not answer")),
        "{all:#?}"
    );
}

#[test]
fn the_history_of_a_cluster_is_a_sum_that_names_present_and_missing_nodes() {
    let world = World::start();
    let _clients = [world.client(0, "x"), world.client(1, "y"), world.client(2, "z")];
    world.together.up.store(true, Ordering::Relaxed);
    let last = |answer: &Value, figure: &str| {
        answer["series"][figure].as_array().and_then(|all| all.last().cloned())
    };
    // Samples are taken every five seconds.
    let ask = |path: &str, connections: f64| {
        for _ in 0..600 {
            let answer = world.a().get(path).is(200);
            if last(&answer, "connections") == Some(json!(connections)) {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{path}: {}", world.a().get(path).text());
    };
    let sum = ask("/api/v1/stats/history?seconds=60", 3.0);
    assert_eq!((&sum["nodes"], &sum["missing"]), (&json!(["a", "b", "c"]), &Value::Null));
    assert_eq!(sum["summed"].as_array().unwrap().last(), Some(&json!(3)));
    assert_eq!(sum["step_s"], 5);
    assert!(last(&sum, "resident_bytes").unwrap().as_f64().unwrap() > 1e6, "{sum}");
    assert!(last(&sum, "packets_received_per_s").unwrap().is_number(), "{sum}");
    let one = ask("/api/v1/stats/history?node=c", 1.0);
    assert_eq!(one["nodes"], json!(["c"]));
    world.cut_off("b");
    let sum = ask("/api/v1/stats/history", 2.0);
    assert_eq!((&sum["nodes"], &sum["missing"]), (&json!(["a", "c"]), &json!(["b"])));
    // A node without a link is not asked.
    world.together.up.store(false, Ordering::Relaxed);
    let alone = ask("/api/v1/stats/history", 1.0);
    assert_eq!((&alone["nodes"], &alone["missing"]), (&json!(["a"]), &json!(["b", "c"])));
    for bad in ["seconds=4", "seconds=3601", "seconds=x", "hours=1"] {
        world.a().get(&format!("/api/v1/stats/history?{bad}")).problem(400, "bad-request");
    }
}

/// The statuses of actions come from the nodes that run them, and all nodes list the same actions.
#[test]
fn an_action_has_the_status_of_the_node_that_runs_it() {
    let world = World::start();
    world.together.up.store(true, Ordering::Relaxed);
    for node in &world.nodes {
        let page = node.get("/api/v1/actions").is(200);
        let shown: Vec<_> = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| (&item["name"], &item["status"]["node"]))
            .collect();
        assert_eq!(shown, [(&json!("alarms"), &json!("b"))]);
        assert_eq!(page["missing"], Value::Null);
        assert_eq!(node.get("/api/v1/actions/alarms").is(200)["status"]["written"], 5);
    }
    assert_eq!(world.a().get("/api/v1/actions/alarms?node=c").is(200)["status"], Value::Null);
    world.a().get("/api/v1/actions/none").problem(404, "not-found");
    world.cut_off("b");
    let page = world.a().get("/api/v1/actions").is(200);
    assert_eq!((&page["items"][0]["status"], &page["missing"]), (&Value::Null, &json!(["b"])));
}

/// A link to another cluster has an entry on each node, and works on several: one takes, another one has the session in
/// which messages wait, and each may refuse a client.
#[test]
fn a_cluster_link_has_what_all_nodes_know() {
    let world = World::start();
    world.together.up.store(true, Ordering::Relaxed);
    for node in &world.nodes {
        let link = node.get("/api/v1/links/external/munich").is(200);
        let nodes = |direction: &str| -> Vec<Value> {
            link[direction].as_array().unwrap().iter().map(|it| it["node"].clone()).collect()
        };
        assert_eq!((nodes("taking"), nodes("giving")), (vec![json!("b")], vec![json!("c")]));
        assert_eq!((&link["refusal"]["node"], &link["refusal"]["count"]), (&json!("b"), &json!(3)));
        assert_eq!(node.get("/api/v1/links/external").is(200)["items"][0], link);
    }
    assert_eq!(world.a().get("/api/v1/links/external/munich?node=a").is(200)["taking"], json!([]));
    world.a().get("/api/v1/links/external/none").problem(404, "not-found");
    world.cut_off("b");
    let page = world.a().get("/api/v1/links/external").is(200);
    assert_eq!((&page["items"][0]["taking"], &page["missing"]), (&json!([]), &json!(["b"])));
}

#[test]
fn a_rebalance_is_computed_from_the_clients_of_all_nodes() {
    let world = World::start();
    world.together.agreed.store(true, Ordering::Relaxed);
    let load = |connections: u64| json!({ "connections": connections, "accepts_clients": true });
    let answers = |b: Vec<(u16, Value)>, c: Vec<(u16, Value)>| {
        let all = [("b", VecDeque::from(b)), ("c", VecDeque::from(c))];
        *world.together.answers.lock().unwrap() = BTreeMap::from(all);
    };
    let rebalance = |body: Value| world.a().write("POST", "/api/v1/rebalance", Some(&body));
    let node = |node: &str, connections: Option<u64>, keep: Option<u64>| {
        let accepts_clients = connections.is_some();
        json!({ "node": node, "connections": connections, "accepts_clients": accepts_clients, "keep": keep })
    };
    // An earlier version does not know the short question.
    let earlier = (404, json!({ "detail": "there is no such path" }));
    answers(vec![earlier, (200, load(9))], vec![(200, load(80))]);
    let expected = |a: Value, b: Value, c: Value, mean: u64, tolerance: Option<u64>| json!({ "mean": mean, "tolerance_percent": tolerance, "nodes": [a, b, c] });
    let (a, b) = (node("a", Some(0), None), node("b", Some(9), None));
    let c = node("c", Some(80), Some(30));
    assert_eq!(rebalance(json!({})).is(200), expected(a.clone(), b, c, 30, Some(10)));
    let questions = ["/api/v1/node/load", "/api/v1/node/load", "/api/v1/node"];
    assert_eq!(*world.together.asked.lock().unwrap(), questions);
    // The first node refuses orders for the second one.
    answers(vec![(200, load(80))], vec![(200, load(10))]);
    rebalance(json!({ "tolerance_percent": 166 })).problem(409, "conflict");
    answers(vec![(200, load(80))], vec![(200, load(10))]);
    let shown = rebalance(json!({ "tolerance_percent": 20, "dry_run": true })).is(200);
    assert_eq!(shown["nodes"][1], node("b", Some(80), Some(30)));
    answers(vec![(200, load(80))], vec![(200, load(10))]);
    assert_eq!(rebalance(json!({ "tolerance_percent": 167 })).is(200)["nodes"][1]["keep"], Value::Null);
    // A silent node does not count, and may be ordered to disconnect clients.
    world.cut_off("c");
    answers(vec![(200, load(4))], vec![]);
    let (b, c) = (node("b", Some(4), None), node("c", None, Some(5)));
    assert_eq!(rebalance(json!({ "keep": { "c": 5 } })).is(200), expected(a, b, c, 2, None));

    let why = rebalance(json!({ "keep": { "c": 5 }, "tolerance_percent": 10 })).problem(422, "invalid");
    assert!(why.contains("either this or `keep`"), "{why}");
    rebalance(json!({ "tolerance_percent": 1001 })).problem(422, "invalid");
    rebalance(json!({ "keep": {} })).problem(422, "invalid");
    let why = rebalance(json!({ "pace": { "to": ["b"] } })).problem(422, "invalid");
    assert!(why.contains("only a drain"), "{why}");
    rebalance(json!({ "keep": { "nobody": 5 } })).problem(404, "not-found");
}

#[test]
fn the_load_of_a_node_is_a_small_answer() {
    let world = World::start();
    let load = world.a().get("/api/v1/node/load").is(200);
    let node = world.a().get("/api/v1/node").is(200);
    let names: Vec<_> = load.as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["connections", "connections_max", "overload", "accepts_clients", "client_address"]);
    for name in &names[..4] {
        assert_eq!(load[name], node[name], "{name}");
    }
    assert_eq!(load["client_address"], "n1.example:1883");
}
