//! Rights of each role.

use api::Role;

use crate::document::{document, operations};
use crate::support::{Answer, Server};

/// Returns the status of an answer, whose body may never end.
fn status(server: &Server, method: &str, target: &str, token: Option<&str>) -> u16 {
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    let mut client = server.connect();
    client.send(
        format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 0\r\n{token}\r\n",
            server.address
        )
        .as_bytes(),
    );
    client.head().0
}

#[test]
fn each_role_has_exactly_the_rights_in_the_document() {
    let server = Server::with_keys(|settings| settings.refusals_per_second = 100_000);
    let tokens = Role::ALL.map(|role| (role, server.token(role)));
    for operation in operations(&document()) {
        let (method, target) = (operation.method.as_str(), operation.target());
        let ask = |token| status(&server, method, &target, token);
        let Some(needs) = operation.role() else {
            assert!(![401, 403].contains(&ask(None)), "{method} {target}");
            continue;
        };
        assert_eq!(ask(None), 401, "{method} {target}");
        assert_eq!(ask(Some("mrd_wrong")), 401, "{method} {target}");
        for (role, token) in &tokens {
            let status = ask(Some(token));
            match *role >= needs {
                true => {
                    assert!(![401, 403, 415].contains(&status), "{method} {target} as {role:?}: {status}")
                }
                false => assert_eq!(status, 403, "{method} {target} as {role:?}"),
            }
        }
    }
    // The loop has changed the node; these requests do not depend on that.
    assert_eq!(status(&server, "GET", "/", None), 200);
    assert_eq!(status(&server, "GET", "/api/v1/no-such", None), 401);
    assert_eq!(status(&server, "GET", "/api/v1/no-such", Some(&tokens[0].1)), 404);
}

fn with(server: &Server, headers: &[(&str, &str)]) -> Answer {
    server.request("GET", "/api/v1/whoami", headers, None)
}

#[test]
fn a_token_is_read_as_bearer_tokens_are() {
    let server = Server::with_keys(|_| ());
    let token = server.token(Role::Operator);
    let good = format!("bEARER  {token}");
    let who = with(&server, &[("Authorization", &good)]).is(200);
    assert_eq!(
        who,
        serde_json::json!({ "name": "operator", "role": "operator", "open": false, "session": false })
    );
    let basic = format!("Basic {token}");
    for bad in [basic.as_str(), "Bearer", "Bearer ", &token, "Bearer \u{e9}"] {
        let answer = with(&server, &[("Authorization", bad)]);
        answer.problem(401, "unauthorized");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    let twice = [("Authorization", good.as_str()), ("Authorization", good.as_str())];
    with(&server, &twice).problem(401, "unauthorized");
}

#[test]
fn without_a_key_everybody_on_this_machine_is_an_admin() {
    let server = Server::start();
    let open = serde_json::json!({ "name": null, "role": "admin", "open": true, "session": false });
    assert_eq!(with(&server, &[]).is(200), open);
    assert_eq!(with(&server, &[("Authorization", "Bearer whatever")]).is(200), open);
}

#[test]
fn many_unauthenticated_requests_get_short_refusals_and_valid_ones_do_not() {
    let server = Server::with_keys(|settings| settings.refusals_per_second = 5);
    let token = format!("Bearer {}", server.token(Role::Admin));
    // More than five in any second: at least one of so many in a row gets the other answer.
    let answers: Vec<u16> =
        (0..200).map(|_| with(&server, &[("Authorization", "Bearer guess")]).status).collect();
    assert!(answers.contains(&401) && answers.contains(&429), "{answers:?}");
    assert!(answers.iter().all(|status| [401, 429].contains(status)));
    with(&server, &[("Authorization", &token)]).is(200);
    let metrics = server.request("GET", "/metrics", &[("Authorization", &token)], None);
    let refused = answers.iter().filter(|status| **status == 429).count();
    assert!(metrics.text().contains(&format!("meridian_http_rejected_total{{reason=\"rate\"}} {refused}\n")));
    assert!(metrics.text().contains("meridian_http_rejected_total{reason=\"token\"} 200\n"));
}
