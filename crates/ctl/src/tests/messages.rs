//! Commands `publish`, `retained` and `topic-metrics`.

use super::*;

#[test]
fn one_topic_is_deleted_without_a_question() {
    let mock = Mock::always(Reply::json(&json!({"deleted": 1})));
    assert_eq!(ctl(&mock, "retained delete a/b").out(), "1 deleted\n");
    assert_eq!(mock.request().target, "/api/v1/retained?topic=a%2Fb");
}

#[test]
fn every_change_says_that_it_is_json_and_every_request_carries_the_token() {
    let mock = Mock::always(Reply::empty());
    let path = std::env::temp_dir().join(format!("ctl-token-{}", std::process::id()));
    std::fs::write(&path, "\nmrd_secret \n").unwrap();
    let file = path.to_str().unwrap();
    run(&mock.url, &["slow", "clear", "--token-file", file]).out();
    std::fs::remove_file(&path).unwrap();
    let request = mock.request();
    assert_eq!(request.method, "DELETE");
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("authorization"), Some("Bearer mrd_secret"));
    assert_eq!(run(&mock.url, &["status", "--token-file", file]).code(), 1);
}

#[test]
fn a_publish_matches_the_command_line() {
    let mock = Mock::always(Reply::json(&json!({"reason_code": 16, "reason": "no matching subscribers"})));
    assert_eq!(ctl(&mock, "publish -t a/b -m x -q 1 -r").out(), "a/b: no matching subscribers\n");
    let request = mock.request();
    assert_eq!((&request.method[..], request.path()), ("POST", "/api/v1/publish"));
    assert_eq!(request.json(), json!({"topic": "a/b", "qos": 1, "retain": true, "payload": "x"}));
}

#[test]
fn a_publish_that_was_refused_is_a_failure() {
    let mock = Mock::always(Reply::json(&json!({"reason_code": 151, "reason": "quota exceeded"})));
    let outcome = ctl(&mock, "publish -t a -m x");
    assert_eq!(outcome.code(), 1);
    assert!(outcome.error().contains("quota exceeded"));
}

#[test]
fn retained_payloads_are_shown_harmlessly_and_written_exactly() {
    let mock = Mock::always(Reply::json(
        &json!({"topic": "a", "qos": 1, "payload_base64": "aGkbWzJKCv8=", "age_s": 5, "expires_in_s": null, "user_properties": [["k", "v"]]}),
    ));
    let text = ctl(&mock, "retained get a").out();
    assert!(text.contains("hi\\u{1b}[2J\n\\xff\n") && text.contains("k=v"), "{text}");
    assert_eq!(mock.requests()[0].target, "/api/v1/retained/message?topic=a");
    let args = Line::parse_from(["ctl", "--url", &mock.url, "retained", "get", "a", "--raw"]).args;
    let (result, written, _) = args.run_bytes();
    result.unwrap();
    assert_eq!(written, b"hi\x1b[2J\n\xff");
}
