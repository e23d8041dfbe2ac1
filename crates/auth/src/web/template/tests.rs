use proptest::prelude::*;

use super::*;
use crate::web::question::RequestedAccess;

const WHO: Question<'static> = Question {
    client_id: "c1",
    username: Some("alice"),
    password: Some(b"s3cret"),
    peer: None,
    listener: "tls",
    certificate: None,
    requested: None,
};

fn template(url: &str, body: Option<&str>) -> Template {
    Template::parse(Kind::Authentication, url, body).unwrap()
}

fn rendered(url: &str, body: Option<&str>, question: &Question<'_>) -> (String, String) {
    let Ok(rendered) = template(url, body).render(question) else { panic!("it can be asked") };
    (rendered.url.clone(), String::from_utf8(rendered.body.clone().unwrap_or_default()).unwrap())
}

fn refused(kind: Kind, url: &str, body: Option<&str>) -> String {
    let (setting, error) = Template::parse(kind, url, body).unwrap_err();
    format!("{setting}: {error}")
}

const HERE: &str = "http://127.0.0.1:1/";

#[test]
fn the_default_body_has_all_values_and_null_for_missing_ones() {
    let body = Template::default_body(Kind::Authentication);
    assert_eq!(
        rendered(HERE, Some(&body), &WHO).1,
        r#"{"clientid":"c1","username":"alice","password":"s3cret","peer":null,"listener":"tls","cert_cn":null,"cert_subject":null}"#
    );
    let requested = RequestedAccess { action: "publish", topic: "a/b", qos: 1, retain: true };
    let question =
        Question { password: None, peer: Some([10, 0, 0, 1].into()), requested: Some(requested), ..WHO };
    let body = Template::default_body(Kind::Authorisation);
    let template = Template::parse(Kind::Authorisation, HERE, Some(&body)).unwrap();
    let body = template.render(&question).unwrap_or_else(|_| panic!("it can be asked")).body.clone().unwrap();
    assert_eq!(
        String::from_utf8(body).unwrap(),
        r#"{"clientid":"c1","username":"alice","peer":"10.0.0.1","listener":"tls","cert_cn":null,"cert_subject":null,"action":"publish","topic":"a/b","qos":1,"retain":true}"#
    );
}

#[test]
fn a_body_keeps_its_shape_around_the_values() {
    let body = r#"{"who": ["${username}@${listener}", 1, null, {}], "n": {"id": "${clientid}"}, "b": "${password_base64}", "d": "$x$"}"#;
    assert_eq!(
        rendered(HERE, Some(body), &WHO).1,
        r#"{"who":["alice@tls",1,null,{}],"n":{"id":"c1"},"b":"czNjcmV0","d":"$x$"}"#
    );
}

/// Values of an attacker: none of them ends its own part, and none is expanded.
#[test]
fn a_value_cannot_end_its_own_part() {
    let evil = "x\",\"is_admin\":true,\"y\":\"\r\nHost: evil\\${password}&admin=1#/../?";
    let question = Question { client_id: evil, ..WHO };
    let (url, body) =
        rendered("https://h/a?id=${clientid}&u=${username}", Some(r#"{"id":"${clientid}"}"#), &question);
    let parsed: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(parsed, serde_json::json!({ "id": evil }));
    assert!(!body.contains("s3cret") && !url.contains("s3cret"));
    assert_eq!(
        url,
        "https://h/a?id=x%22%2C%22is_admin%22%3Atrue%2C%22y%22%3A%22%0D%0AHost%3A%20evil%5C%24%7Bpassword%7D%26admin%3D1%23%2F..%2F%3F&u=alice"
    );
}

#[test]
fn a_path_keeps_its_segments() {
    let path = "https://h/users/${username}/x";
    assert_eq!(
        rendered(path, None, &Question { username: Some("a b%"), ..WHO }).0,
        "https://h/users/a%20b%25/x"
    );
    for username in [None, Some(""), Some("."), Some(".."), Some("a/b"), Some("..\\x"), Some("a\0")] {
        let question = Question { username, ..WHO };
        assert!(template(path, None).render(&question).is_err(), "{username:?}");
    }
    let dots = Question { username: Some("."), client_id: ".", ..WHO };
    assert!(template("https://h/${username}${clientid}/", None).render(&dots).is_err());
    assert!(template("https://h/?u=${username}", None).render(&dots).is_ok());
}

#[test]
fn a_password_of_any_bytes_is_sent_exactly_or_not_at_all() {
    let question = Question { password: Some(b"\xff\x00"), ..WHO };
    assert!(template(HERE, Some(r#"["${password}"]"#)).render(&question).is_err());
    assert!(template(HERE, Some(r#"["p=${password}"]"#)).render(&question).is_err());
    assert_eq!(rendered(HERE, Some(r#"["${password_base64}"]"#), &question).1, r#"["/wA="]"#);
    assert_eq!(rendered("https://h/?p=${password}", None, &question).0, "https://h/?p=%FF%00");
}

#[test]
fn errors_of_templates_name_the_fault() {
    use Kind::{Authentication, Authorisation};
    for (kind, url, body, says) in [
        (Authentication, "h/x", None, "url: it must begin with https://"),
        (Authentication, "ftp://h", None, "`ftp` is not supported"),
        (Authentication, "http://10.0.0.1/", None, "plain text"),
        (Authentication, "http://localhost.example.com/", None, "plain text"),
        (Authentication, "https://${username}.example.com/", None, "not in the host"),
        (Authentication, "https://h:${listener}/", None, "not in the host"),
        (Authentication, "https://u:p@h/", None, "headers_file"),
        (Authentication, "https:///x", None, "is not a host"),
        (Authentication, "https://h/#${clientid}", None, "fragment"),
        (Authentication, "https://h/a b", None, "%20"),
        (Authentication, "https://h/a/../b", None, "`..`"),
        (Authentication, "https://h/${user}", None, "known are ${clientid}"),
        (Authentication, "https://h/${username", None, "no `}`"),
        (Authentication, "https://h/?t=${topic}", None, "no placeholder `${topic}` here"),
        (Authorisation, "https://h/?p=${password}", None, "no placeholder `${password}` here"),
        (Authorisation, "https://h/${topic}", None, "into the query"),
        (Authentication, HERE, Some(r#"{"a": ${qos}}"#), "body: this is not JSON"),
        (Authentication, HERE, Some(r#"{"${username}": 1}"#), "not the name of a member"),
        (Authentication, HERE, Some(r#"["${retain}"]"#), "no placeholder"),
    ] {
        let error = refused(kind, url, body);
        assert!(error.contains(says), "{url} {body:?}: {error}");
    }
}

#[test]
fn plain_http_is_allowed_on_loopback_only() {
    for url in
        ["http://127.0.0.1:8080/a", "http://[::1]/a", "http://localhost/a", "https://h", "https://h?x=1"]
    {
        template(url, None);
    }
    assert_eq!(rendered("https://h?u=${username}", None, &WHO).0, "https://h/?u=alice");
}

proptest! {
    /// A body is JSON of the shape of its template with unchanged values, whatever the values of a client are.
    #[test]
    fn a_rendered_body_is_json_of_the_same_shape(client_id in any::<String>(), username in any::<Option<String>>(), listener in any::<String>()) {
        let question = Question { client_id: &client_id, username: username.as_deref(), listener: &listener, ..WHO };
        let (_, body) = rendered(HERE, Some(r#"{"a":"${clientid}","b":["${username}","<${listener}|${clientid}>"]}"#), &question);
        let parsed: serde_json::Value = serde_json::from_str(&body).unwrap();
        prop_assert_eq!(parsed, serde_json::json!({ "a": client_id, "b": [username, format!("<{listener}|{client_id}>")] }));
        prop_assert!(!body.contains(|c: char| c.is_ascii_control()));
    }

    /// The request goes to the same host, with the same number of segments and parameters, whatever the values are.
    #[test]
    fn a_rendered_url_keeps_its_parts(client_id in any::<String>(), username in any::<Option<String>>(), password in any::<Vec<u8>>()) {
        let question = Question { client_id: &client_id, username: username.as_deref(), password: Some(&password), ..WHO };
        let template = template("https://auth.example.com:8443/v1/${clientid}/check?u=${username}&p=${password}&end=1", None);
        let Ok(rendered) = template.render(&question) else {
            prop_assert!(client_id.is_empty() || client_id.contains(['/', '\\', '\0']) || client_id == "." || client_id == "..");
            return Ok(());
        };
        let uri = Uri::try_from(&rendered.url).unwrap();
        prop_assert_eq!(uri.authority().unwrap().as_str(), "auth.example.com:8443");
        let segments: Vec<_> = uri.path().split('/').collect();
        prop_assert_eq!((segments.len(), segments[1], segments[3]), (4, "v1", "check"));
        let parameters: Vec<_> = uri.query().unwrap().split('&').map(|parameter| parameter.split('=').collect::<Vec<_>>()).collect();
        let names: Vec<_> = parameters.iter().map(|parameter| (parameter.len(), parameter[0])).collect();
        prop_assert_eq!(names, [(2, "u"), (2, "p"), (2, "end")]);
        let encoded: String = percent(&password);
        prop_assert_eq!(parameters[1][1], encoded);
    }
}

fn percent(bytes: &[u8]) -> String {
    let mut out = String::new();
    push_percent(&mut out, bytes);
    out
}
