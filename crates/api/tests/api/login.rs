//! Accounts, logins and sessions.

use std::time::Duration;

use api::{KeyError, KeyFile, Outcome, Role};
use serde_json::{Value, json};

use crate::support::{Answer, Server};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const PASSWORD: &str = "correct horse";

/// Starts a server with an admin's account.
fn server() -> Server {
    server_with(|_| ())
}

fn server_with(change: impl FnOnce(&mut api::settings::HttpSettings)) -> Server {
    let server = Server::with(change);
    let ann = json!({ "name": "ann", "role": "admin", "password": PASSWORD });
    server.write("POST", "/api/v1/accounts", Some(&ann)).is(201);
    server
}

fn login(server: &Server, name: &str, password: &str) -> Answer {
    server.write("POST", "/api/v1/login", Some(&json!({ "name": name, "password": password })))
}

/// Returns the cookie of an answer, as a browser sends it.
fn cookie(answer: &Answer) -> String {
    let header = answer.header("set-cookie").unwrap_or_else(|| panic!("{answer:?}"));
    header.split(';').next().unwrap().to_owned()
}

fn session(server: &Server, name: &str) -> String {
    let answer = login(server, name, PASSWORD);
    answer.is(200);
    cookie(&answer)
}

/// Sends a request as a page of this server does.
fn as_page(server: &Server, cookie: &str, method: &str, path: &str, body: Option<Value>) -> Answer {
    let origin = format!("http://{}", server.address);
    let body = body.map(|body| body.to_string());
    server.request(method, path, &[("Cookie", cookie), ("Origin", &origin), JSON], body.as_deref())
}

fn get(server: &Server, cookie: &str, path: &str) -> Answer {
    server.request("GET", path, &[("Cookie", cookie)], None)
}

#[test]
fn a_login_begins_a_session_that_only_this_server_and_no_script_can_use() {
    let server = server();
    server.get("/api/v1/node").problem(401, "unauthorized");
    let answer = login(&server, "ann", PASSWORD);
    let session = answer.is(200);
    assert_eq!((&session["name"], &session["role"]), (&"ann".into(), &"admin".into()));
    assert!(session["ends_at"].is_string());
    let header = answer.header("set-cookie").unwrap();
    assert!(
        header.starts_with("meridian_session=") && header.ends_with("; Path=/; HttpOnly; SameSite=Strict")
    );
    assert_eq!(answer.header("cache-control"), Some("no-store"));

    let cookie = cookie(&answer);
    let who = get(&server, &cookie, "/api/v1/whoami").is(200);
    assert_eq!(who, json!({ "name": "ann", "role": "admin", "open": false, "session": true }));
    let file = std::fs::read_to_string(server.directory.join("registry.log")).unwrap();
    let secret = cookie.split(['=', '.']).nth(1).unwrap();
    assert!(!file.contains(PASSWORD) && !file.contains(secret), "the file has neither password nor secret");

    let ended = as_page(&server, &cookie, "POST", "/api/v1/logout", None);
    assert_eq!(ended.status, 204);
    assert!(ended.header("set-cookie").unwrap().starts_with("meridian_session=; Max-Age=0"));
    let detail = get(&server, &cookie, "/api/v1/whoami").problem(401, "unauthorized");
    assert!(detail.contains("log in again"), "{detail}");
}

#[test]
fn a_proxy_on_this_machine_says_that_the_cookie_is_for_https_only() {
    let server = server();
    let body = json!({ "name": "ann", "password": PASSWORD }).to_string();
    let headers = [JSON, ("X-Forwarded-Proto", "https")];
    let answer = server.request("POST", "/api/v1/login", &headers, Some(&body));
    answer.is(200);
    let header = answer.header("set-cookie").unwrap();
    assert!(header.starts_with("__Host-meridian_session=") && header.ends_with("; Secure"), "{header}");
    get(&server, &cookie(&answer), "/api/v1/whoami").is(200);
}

/// A browser adds a cookie to every request to this host, whatever page makes it.
#[test]
fn pages_of_other_origins_and_programs_change_nothing_with_a_session() {
    let server = server();
    let cookie = session(&server, "ann");
    let own = format!("http://{}", server.address);
    let change = |headers: &[(&str, &str)]| {
        let body = json!({ "level": "debug" }).to_string();
        let headers = [&[("Cookie", cookie.as_str()), JSON], headers].concat();
        server.request("PUT", "/api/v1/log/level", &headers, Some(&body))
    };
    change(&[("Origin", &own)]).is(200);
    change(&[("Sec-Fetch-Site", "same-origin")]).is(200);
    change(&[]).problem(403, "forbidden");
    change(&[("Origin", "http://evil.example")]).problem(403, "forbidden");
    // Another port of this host is another origin of the same site, and gets the cookie too.
    change(&[("Origin", "http://127.0.0.1:1")]).problem(403, "forbidden");
    change(&[("Origin", &own), ("Sec-Fetch-Site", "same-site")]).problem(403, "forbidden");
    change(&[("Origin", "null")]).problem(403, "forbidden");
    let read = |headers: &[(&str, &str)]| {
        server.request("GET", "/api/v1/node", &[&[("Cookie", cookie.as_str())], headers].concat(), None)
    };
    read(&[]).is(200);
    read(&[("Sec-Fetch-Site", "none")]).is(200);
    read(&[("Sec-Fetch-Site", "same-site")]).problem(403, "forbidden");
    read(&[("Origin", "http://127.0.0.1:1")]).problem(403, "forbidden");
    // A token is not sent by itself, so it needs no page; and it counts before a cookie.
    read(&[("Authorization", "Bearer nothing")]).problem(401, "unauthorized");
}

#[test]
fn a_wrong_login_does_not_say_whether_the_account_exists_and_is_audited() {
    let server = server();
    let answers = [("ann", "wrong password"), ("bob", "wrong password"), ("no such\nname", ""), ("", "")]
        .map(|(name, password)| login(&server, name, password));
    for answer in &answers {
        answer.problem(401, "unauthorized");
        assert_eq!(answer.body, answers[0].body);
        assert_eq!(answer.header("set-cookie"), None);
    }
    login(&server, "ann", &"x".repeat(100_000)).problem(401, "unauthorized");
    let cookie = session(&server, "ann");
    let audit = get(&server, &cookie, "/api/v1/audit?limit=10").is(200);
    let rows: Vec<_> = audit["items"].as_array().unwrap().iter().collect();
    let done = rows.iter().find(|row| row["path"] == "/api/v1/login" && row["status"] == 200).unwrap();
    assert_eq!((&done["by"], &done["role"]), (&"ann".into(), &"admin".into()));
    let refused: Vec<_> = rows.iter().filter(|row| row["status"] == 401).collect();
    assert_eq!(refused.len(), 5, "{rows:?}");
    let detail = refused.last().unwrap()["detail"].as_str().unwrap();
    assert_eq!(detail, "login of \"ann\": wrong name or password");
    assert!(refused.iter().all(|row| row["by"].is_null()), "a name that is claimed is no author");
    let text = server.get("/metrics").status;
    assert_eq!(text, 401, "metrics need a role too");
    let metrics = get(&server, &cookie, "/metrics");
    assert!(metrics.text().contains("meridian_http_logins_total{result=\"wrong\"} 5"));
    assert!(metrics.text().contains("meridian_http_logins_total{result=\"accepted\"} 1"));
    assert!(metrics.text().contains("\nmeridian_http_sessions 1"));
}

/// The address backs off for this name and then refuses even the right password.
#[test]
fn too_many_wrong_logins_are_refused_for_a_while() {
    let server = server();
    let cookie = session(&server, "ann");
    for _ in 0..10 {
        login(&server, "ann", "wrong password").problem(401, "unauthorized");
    }
    let answer = login(&server, "ann", PASSWORD);
    answer.problem(429, "too-many-requests");
    assert!(answer.header("retry-after").is_some() && answer.header("set-cookie").is_none());
    get(&server, &cookie, "/api/v1/whoami").is(200);
    // Neither can a stolen session guess the password.
    let guess = json!({ "current": PASSWORD, "new": "another password" });
    as_page(&server, &cookie, "POST", "/api/v1/password", Some(guess)).problem(429, "too-many-requests");
    // Another name of the same address is not affected.
    login(&server, "bob", PASSWORD).problem(401, "unauthorized");
}

#[test]
fn a_session_has_the_role_of_its_account_until_the_account_changes() {
    let server = server();
    let ann = session(&server, "ann");
    let bob = json!({ "name": "bob", "role": "viewer", "password": PASSWORD });
    as_page(&server, &ann, "POST", "/api/v1/accounts", Some(bob.clone())).is(201);
    as_page(&server, &ann, "POST", "/api/v1/accounts", Some(bob)).problem(409, "conflict");
    let of_bob = session(&server, "bob");
    get(&server, &of_bob, "/api/v1/node").is(200);
    let detail = get(&server, &of_bob, "/api/v1/accounts").problem(403, "forbidden");
    assert!(detail.contains("admin"), "{detail}");
    let list = get(&server, &ann, "/api/v1/accounts").is(200);
    let row = |at: usize| {
        let one = &list["items"][at];
        (one["name"].as_str().unwrap(), one["role"].as_str().unwrap(), one["sessions"].as_u64().unwrap())
    };
    assert_eq!((row(0), row(1)), (("ann", "admin", 1), ("bob", "viewer", 1)));
    assert!(list["items"][0].get("hash").is_none());

    let role = json!({ "role": "operator" });
    as_page(&server, &ann, "PATCH", "/api/v1/accounts/bob", Some(role)).is(200);
    get(&server, &of_bob, "/api/v1/node").problem(401, "unauthorized");
    let of_bob = session(&server, "bob");
    let password = json!({ "password": "another password" });
    as_page(&server, &ann, "PATCH", "/api/v1/accounts/bob", Some(password)).is(200);
    get(&server, &of_bob, "/api/v1/node").problem(401, "unauthorized");
    login(&server, "bob", PASSWORD).problem(401, "unauthorized");
    let answer = login(&server, "bob", "another password");
    answer.is(200);
    assert_eq!(as_page(&server, &ann, "DELETE", "/api/v1/accounts/bob", None).status, 204);
    get(&server, &cookie(&answer), "/api/v1/node").problem(401, "unauthorized");
    as_page(&server, &ann, "DELETE", "/api/v1/accounts/bob", None).problem(404, "not-found");
    as_page(&server, &ann, "PATCH", "/api/v1/accounts/bob", Some(json!({}))).problem(404, "not-found");

    let demoted = json!({ "role": "viewer" });
    as_page(&server, &ann, "PATCH", "/api/v1/accounts/ann", Some(demoted)).problem(409, "conflict");
    // The last of all may go, and the server is open again.
    assert_eq!(as_page(&server, &ann, "DELETE", "/api/v1/accounts/ann", None).status, 204);
    server.get("/api/v1/node").is(200);
}

#[test]
fn a_person_changes_the_own_password_and_stays_logged_in_here_only() {
    let server = server();
    let (here, there) = (session(&server, "ann"), session(&server, "ann"));
    let change = |cookie: &str, current: &str, new: &str| {
        let body = json!({ "current": current, "new": new });
        as_page(&server, cookie, "POST", "/api/v1/password", Some(body))
    };
    change(&here, "wrong password", "another password").problem(422, "invalid");
    change(&here, PASSWORD, "short").problem(422, "invalid");
    get(&server, &there, "/api/v1/node").is(200);
    let answer = change(&here, PASSWORD, "another password");
    answer.is(200);
    for old in [&here, &there] {
        get(&server, old, "/api/v1/node").problem(401, "unauthorized");
    }
    get(&server, &cookie(&answer), "/api/v1/node").is(200);
    login(&server, "ann", PASSWORD).problem(401, "unauthorized");
    login(&server, "ann", "another password").is(200);
}

#[test]
fn a_token_has_no_session_to_end_and_no_password() {
    let server = Server::with_keys(|_| ());
    let token = format!("Bearer {}", server.token(Role::Admin));
    let headers = [("Authorization", token.as_str()), JSON];
    server.request("POST", "/api/v1/logout", &headers, None).problem(409, "conflict");
    let body = json!({ "current": PASSWORD, "new": PASSWORD }).to_string();
    server.request("POST", "/api/v1/password", &headers, Some(&body)).problem(409, "conflict");
    let who = server.request("GET", "/api/v1/whoami", &headers, None).is(200);
    assert_eq!(who["session"], false);
}

/// The passwords of all these logins would take seconds. They wait for their turn, but not all of them.
#[test]
fn logins_beyond_the_limit_are_refused_and_sessions_are_answered() {
    let server = server();
    let cookie = session(&server, "ann");
    let body = |number: usize| json!({ "name": format!("n{number}"), "password": PASSWORD }).to_string();
    let mut logins: Vec<_> =
        (0..200).map(|number| server.ask("POST", "/api/v1/login", &[JSON], Some(&body(number)))).collect();
    get(&server, &cookie, "/api/v1/whoami").is(200);
    let codes: Vec<u16> = logins.iter_mut().map(|login| login.answer("POST").status).collect();
    assert!(codes.contains(&401) && codes.contains(&503), "{codes:?}");
    assert!(codes.iter().all(|code| [401, 429, 503].contains(code)), "{codes:?}");
}

#[test]
fn an_open_stream_ends_with_its_session() {
    let server = server();
    let (one, other) = (session(&server, "ann"), session(&server, "ann"));
    let open = |cookie: &str| {
        let mut stream = server.ask("GET", "/api/v1/log/stream", &[("Cookie", cookie)], None);
        assert_eq!(stream.head().0, 200);
        stream
    };
    let (mut stream, mut stays) = (open(&one), open(&other));
    assert_eq!(as_page(&server, &one, "POST", "/api/v1/logout", None).status, 204);
    while stream.chunk().is_some() {}
    server.log(|| tracing::info!("still here"));
    assert_eq!(stays.event("log")["message"], "still here");
}

#[test]
fn an_idle_session_ends() {
    let server = server_with(|http| http.session_idle = Duration::ZERO);
    let cookie = session(&server, "ann");
    // A session may be used in the second of its login only.
    loop {
        let answer = get(&server, &cookie, "/api/v1/whoami");
        if answer.status == 401 {
            break;
        }
        answer.is(200);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_used_session_gets_a_cookie_with_a_new_time() {
    let server = server_with(|http| http.session_idle = Duration::from_secs(16));
    let cookie = session(&server, "ann");
    let refreshed = loop {
        let answer = get(&server, &cookie, "/api/v1/whoami");
        answer.is(200);
        if let Some(header) = answer.header("set-cookie") {
            break header.split(';').next().unwrap().to_owned();
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_ne!(refreshed, cookie);
    get(&server, &refreshed, "/api/v1/whoami").is(200);
}

#[test]
fn a_bad_account_is_refused_with_what_to_do() {
    let server = Server::start();
    let add = |body| server.write("POST", "/api/v1/accounts", Some(&body));
    for name in ["", "a b", "ä", &"x".repeat(65), "../x"] {
        add(json!({ "name": name, "role": "admin", "password": PASSWORD })).problem(422, "invalid");
    }
    for password in ["", "short", &"x".repeat(257), "administrator"] {
        let detail = add(json!({ "name": "administrator", "role": "admin", "password": password }));
        let detail = detail.problem(422, "invalid");
        assert!(detail.contains("at least 8 characters"), "{detail}");
    }
    let detail = add(json!({ "name": "a", "role": "admin", "password": 12_345_678 })).problem(422, "invalid");
    assert!(!detail.contains("12345678"), "a password is in the answer: {detail}");
    let detail = add(json!({ "name": "v", "role": "viewer", "password": PASSWORD })).problem(409, "conflict");
    assert!(detail.contains("admin"), "{detail}");
    server.get("/api/v1/node").is(200);
}

/// `meridian account` on the machine of the node, while the node runs.
#[test]
fn accounts_of_the_data_directory_are_made_by_the_node_that_runs_there() {
    let server = Server::start();
    let file = KeyFile::in_directory(&server.directory);
    let again = |password| file.set_password("ann", password);
    assert!(matches!(again(PASSWORD), Err(KeyError::UnknownAccount(_))));
    assert_eq!(file.add_account("ann", Role::Admin, PASSWORD).unwrap(), Outcome::Done);
    assert!(matches!(file.add_account("ann", Role::Admin, PASSWORD), Err(KeyError::AccountExists(_))));
    assert!(matches!(file.add_account("bob", Role::Admin, "short"), Err(KeyError::BadPassword)));
    let cookie = session(&server, "ann");
    assert_eq!(again("another password").unwrap(), Outcome::Done);
    get(&server, &cookie, "/api/v1/node").problem(401, "unauthorized");
    login(&server, "ann", "another password").is(200);
    assert_eq!(file.accounts().unwrap().len(), 1);
    assert_eq!(file.remove_account("ann").unwrap(), Outcome::Done);
    server.get("/api/v1/node").is(200);
    let audit = server.get("/api/v1/audit?limit=20").is(200);
    let by_command = audit["items"].as_array().unwrap().iter().filter(|row| row["by"] == "meridian key");
    let paths: Vec<_> = by_command.map(|row| row["path"].as_str().unwrap().to_owned()).collect();
    assert_eq!(paths, ["/api/v1/accounts/ann", "/api/v1/accounts/ann", "/api/v1/accounts"]);
}

#[test]
fn accounts_of_a_data_directory_without_a_node_are_made_at_once() {
    let server = Server::start();
    let directory = server.directory.join("elsewhere");
    std::fs::create_dir(&directory).unwrap();
    let file = KeyFile::in_directory(&directory);
    assert_eq!(file.add_account("ann", Role::Operator, PASSWORD).unwrap(), Outcome::Done);
    assert_eq!(file.set_password("ann", "another password").unwrap(), Outcome::Done);
    let accounts = file.accounts().unwrap();
    assert_eq!((accounts.len(), accounts[0].role), (1, Role::Operator));
    assert!(accounts[0].matches("another password"));
    assert_eq!(file.remove_account("ann").unwrap(), Outcome::Done);
    assert!(file.accounts().unwrap().is_empty());
}

/// The address of a client behind a trusted proxy is that of the proxy's header.
#[test]
fn wrong_logins_count_for_the_client_and_not_for_its_proxy() {
    let server = server_with(|http| http.proxy_networks = "127.0.0.0/8".to_owned());
    let login = |client: &str, password: &str| {
        let body = json!({ "name": "ann", "password": password }).to_string();
        server.request("POST", "/api/v1/login", &[JSON, ("X-Forwarded-For", client)], Some(&body))
    };
    for _ in 0..10 {
        login("192.0.2.1", "wrong password").problem(401, "unauthorized");
    }
    login("192.0.2.1", PASSWORD).problem(429, "too-many-requests");
    // The name has too many wrong logins, so this one is delayed, and then checked.
    let answer = login("192.0.2.2", PASSWORD);
    answer.is(200);
    let audit = get(&server, &cookie(&answer), "/api/v1/audit?limit=1").is(200);
    assert_eq!(audit["items"][0]["address"], "192.0.2.2:0");
}
