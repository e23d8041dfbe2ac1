//! HTTPS, and `ctl` and `top` over it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::authority::{Authority, Secure};
use crate::node::{Node, meridian, stderr, stdout};

const HTTPS: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
                     tls_certificate = \"server.crt\"\ntls_key = \"server.key\"\n";

fn ctl(node: &Node, host: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let url = node.http.replace("127.0.0.1", host);
    let url = format!("https://{url}");
    let output = meridian(&[&["ctl", "--url", &url], arguments].concat());
    (output.status.code(), stdout(&output), stderr(&output))
}

/// Sends a request on a connection that stays open, and reads the head of the answer.
fn ask(stream: &mut Secure) -> String {
    stream.write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    let head = String::from_utf8(answer).unwrap();
    let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
    stream.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
    head
}

#[test]
fn ctl_and_top_use_https_and_check_the_certificate() {
    let authority = Authority::new();
    authority.issue("server", &["localhost", "127.0.0.1"]);
    let node = Node::start(&authority, HTTPS, &[]);
    let ca = authority.path("ca.pem");

    for host in ["localhost", "127.0.0.1"] {
        let (code, out, err) = ctl(&node, host, &["status", "--ca", &ca]);
        assert!(code == Some(0) && out.contains("ready") && !err.contains("WARNING"), "{out}{err}");
    }
    let url = format!("https://{}", node.http);
    let top = meridian(&["top", "--once", "--interval", "500ms", "--url", &url, "--ca", &ca]);
    assert!(top.status.success(), "{}", stderr(&top));
    let top = meridian(&["top", "--once", "--url", &url]);
    assert!(top.status.code() == Some(3) && stderr(&top).contains("--ca FILE"), "{}", stderr(&top));

    let other = Authority::new();
    let (code, _, err) = ctl(&node, "localhost", &["status", "--ca", &other.path("ca.pem")]);
    assert!(code == Some(3) && err.contains("not known here") && err.contains("--ca FILE"), "{err}");
    let (code, out, err) = ctl(&node, "localhost", &["status", "--insecure"]);
    assert!(code == Some(0) && out.contains("ready") && err.contains("WARNING: --insecure"), "{out}{err}");
    let (code, _, err) = ctl(&node, "localhost", &["status", "--ca", "/nonexistent/ca.pem"]);
    assert!(code == Some(1) && err.contains("/nonexistent/ca.pem"), "{err}");
    let (code, _, err) = ctl(&node, "localhost", &["status", "--ca", &authority.path("server.key")]);
    assert!(code == Some(1) && err.contains("no certificate in it"), "{err}");

    // The URL has http instead of https.
    let output = meridian(&["ctl", "--url", &format!("http://{}", node.http), "status"]);
    assert!(stderr(&output).contains("use https://"), "{}", stderr(&output));
}

#[test]
fn a_wrong_name_an_expired_certificate_and_a_plain_port_have_their_own_errors() {
    let authority = Authority::new();
    let ca = authority.path("ca.pem");
    authority.issue("server", &["broker.example"]);
    let node = Node::start(&authority, HTTPS, &[]);
    let (code, _, err) = ctl(&node, "localhost", &["status", "--ca", &ca]);
    assert!(code == Some(3) && err.contains("not for localhost") && err.contains("broker.example"), "{err}");
    drop(node);
    authority.issue_expired("server", &["localhost"]);
    let node = Node::start(&authority, HTTPS, &[]);
    let (code, _, err) = ctl(&node, "localhost", &["status", "--ca", &ca]);
    assert!(code == Some(3) && err.contains("has expired"), "{err}");
    drop(node);
    let plain = "[[listener]]\naddress = \"127.0.0.1:0\"\n[http]\nlisten = \"127.0.0.1:0\"\n";
    let node = Node::start(&authority, plain, &[]);
    let (code, _, err) = ctl(&node, "localhost", &["status", "--ca", &ca]);
    assert!(code == Some(3) && err.contains("does not speak TLS"), "{err}");
}

#[test]
fn ctl_presents_a_client_certificate_on_request() {
    let authority = Authority::new();
    let ca = authority.path("ca.pem");
    authority.issue("server", &["localhost"]);
    authority.issue("me", &["me"]);
    let node = Node::start(&authority, &format!("{HTTPS}tls_client_ca = \"ca.pem\"\n"), &[]);
    let (code, _, err) = ctl(&node, "localhost", &["status", "--ca", &ca]);
    assert!(code == Some(3) && err.contains("--cert FILE"), "{err}");
    let own =
        ["status", "--ca", &ca, "--cert", &authority.path("me.crt"), "--key", &authority.path("me.key")];
    let (code, out, err) = ctl(&node, "localhost", &own);
    assert!(code == Some(0) && out.contains("ready"), "{err}");
    let stranger = Authority::new();
    stranger.issue("me", &["me"]);
    let own = ["status", "--ca", &ca, "--cert", &stranger.path("me.crt"), "--key", &stranger.path("me.key")];
    let (code, _, err) = ctl(&node, "localhost", &own);
    assert!(code == Some(3) && err.contains("does not accept the client's certificate"), "{err}");
    let unfit =
        ["status", "--ca", &ca, "--cert", &authority.path("me.crt"), "--key", &stranger.path("me.key")];
    let (code, _, err) = ctl(&node, "localhost", &unfit);
    assert!(code == Some(1) && err.contains("cannot be used together"), "{err}");
}

#[test]
fn a_reload_renews_the_certificate_and_closes_no_connection() {
    let authority = Authority::new();
    authority.issue_expired("server", &["localhost"]);
    let mut node = Node::start(&authority, HTTPS, &[]);
    let ca = authority.path("ca.pem");
    assert!(ctl(&node, "localhost", &["status", "--ca", &ca]).2.contains("has expired"));

    authority.issue("server", &["localhost"]);
    node.reload();
    node.wait_for("reloaded");
    let mut before = authority.connect(&node.http);
    let head = ask(&mut before);
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("strict-transport-security: max-age=31536000"));
    assert_eq!(before.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(before.conn.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));

    // The next certificate has another name; existing connections stay open.
    authority.issue("server", &["elsewhere"]);
    node.reload();
    node.wait_for("reloaded");
    assert!(ask(&mut before).starts_with("HTTP/1.1 200"));
    assert!(ctl(&node, "localhost", &["status", "--ca", &ca]).2.contains("not for localhost"));

    // Files that do not match change nothing.
    let other = Authority::new();
    other.issue("server", &["elsewhere"]);
    std::fs::copy(other.path("server.key"), authority.path("server.key")).unwrap();
    node.reload();
    let line = node.wait_for("not reloaded");
    assert!(line.contains("http.tls_certificate") && line.contains("cannot be used together"), "{line}");
    assert!(ask(&mut before).starts_with("HTTP/1.1 200"));
}

/// Expiry is in metrics and in the log, for listeners and for the API. A reload updates it.
#[test]
fn certificates_that_expire_are_reported_in_time() {
    let authority = Authority::new();
    authority.issue_expired("server", &["localhost"]);
    authority.issue("listener", &["localhost"]);
    let config = format!(
        "[[listener]]\nname = \"secure\"\naddress = \"127.0.0.1:0\"\ntls_certificate = \"listener.crt\"\n\
         tls_key = \"listener.key\"\ntls_client_ca = \"ca.pem\"\n{HTTPS}"
    );
    let mut node = Node::start(&authority, &config, &[]);
    let line = node.wait_for("the certificate has expired");
    assert!(line.contains("listener=\"http\"") && line.contains("server.crt"), "{line}");

    let series = |node: &Node| {
        let mut stream = authority.connect(&node.http);
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("meridian_certificate_not_after"));
        lines.map(|line| line.split_once('{').unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    authority.issue("server", &["localhost"]);
    node.reload();
    node.wait_for("reloaded");
    // The tests' certificates expire in the year 4096.
    let expected = [
        "listener=\"secure\",kind=\"server\",certificate=\"listener.crt\"} 67090118400",
        "listener=\"secure\",kind=\"client_ca\",certificate=\"ca.pem\"} 67090118400",
        "listener=\"http\",kind=\"server\",certificate=\"server.crt\"} 67090118400",
    ];
    assert_eq!(series(&node), expected);
    authority.issue_expired("listener", &["localhost"]);
    node.reload();
    let line = node.wait_for("the certificate has expired");
    assert!(line.contains("listener=\"secure\"") && line.contains("listener.crt"), "{line}");
}

/// A reload reads the certificates of links again, reports their expiry and refuses bad ones, as for listeners.
#[test]
fn a_reload_renews_the_certificates_of_links() {
    let authority = Authority::new();
    authority.issue_expired("link", &["a.cluster"]);
    authority.write("cluster.secret", "a secret that is long enough");
    let config = "[[listener]]\naddress = \"127.0.0.1:0\"\n[http]\nlisten = \"127.0.0.1:0\"\n[node]\nname = \"a\"\n\
                  [cluster]\nsecret_file = \"cluster.secret\"\nlisten = \"127.83.11.1:7883\"\ntls_certificate = \"link.crt\"\n\
                  tls_key = \"link.key\"\ntls_ca = \"ca.pem\"\n";
    let mut node = Node::start(&authority, config, &[]);
    node.reload();
    let line = node.wait_for("the certificate has expired");
    assert!(line.contains("listener=\"cluster\"") && line.contains("link.crt"), "{line}");
    node.wait_for("reloaded");
    let series = |node: &Node| {
        let mut stream = std::net::TcpStream::connect(&node.http).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find(|line| line.contains("certificate=\"link.crt\"")).map(str::to_owned);
        line.unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(series(&node), "978307200");
    authority.issue("link", &["a.cluster"]);
    node.reload();
    let line = node.wait_for("reloaded");
    assert!(line.contains("link.crt, link.key, ca.pem") && !line.contains("cluster.secret"), "{line}");
    assert_eq!(series(&node), "67090118400");
    let other = Authority::new();
    other.issue("link", &["a.cluster"]);
    std::fs::copy(other.path("link.key"), authority.path("link.key")).unwrap();
    node.reload();
    let line = node.wait_for("not reloaded");
    assert!(line.contains("cluster.tls") && line.contains("cannot be used together"), "{line}");
    assert_eq!(series(&node), "67090118400");
}

#[test]
fn an_open_address_needs_tls_for_the_api_or_an_explicit_setting() {
    let authority = Authority::new();
    authority.issue("server", &["localhost"]);
    let data = authority.path("data");
    let made = meridian(&["key", "add", "ops", "--role", "admin", "--data-dir", &data]);
    assert!(made.status.success(), "{}", stderr(&made));
    let start = |extra: &[&str]| {
        let fixed = ["config", "check", "--http", "0.0.0.0:0", "--data-dir", &data];
        let output = meridian(&[&fixed[..], extra].concat());
        (output.status.success(), stderr(&output) + &stdout(&output))
    };
    let (holds, text) = start(&[]);
    assert!(!holds && text.contains("http.tls_certificate") && text.contains("plain_text_allowed"), "{text}");
    let certificate = format!("http.tls_certificate={}", authority.path("server.crt"));
    let key = format!("http.tls_key={}", authority.path("server.key"));
    let (holds, text) = start(&["--set", &certificate, "--set", &key]);
    assert!(holds, "{text}");
    let (holds, text) = start(&["--set", &certificate]);
    assert!(!holds && text.contains("http.tls_key is not"), "{text}");
    let (holds, text) = start(&["--set", "http.plain_text_allowed=true"]);
    assert!(holds, "{text}");
}

/// The start of a container makes it each time.
#[test]
fn a_key_with_a_token_from_a_file_is_made_once() {
    let authority = Authority::new();
    let (data, file) = (authority.path("data"), authority.path("token"));
    std::fs::write(&file, "0123456789abcdef0123456789abcdef\n").unwrap();
    let add = |name: &str, more: &[&str]| {
        let fixed = ["key", "add", name, "--role", "admin", "--token-file", &file, "--data-dir", &data];
        let output = meridian(&[&fixed[..], more].concat());
        (output.status.success(), stdout(&output), stderr(&output))
    };
    for _ in 0..2 {
        let (is_done, printed, text) = add("ops", &["--if-absent"]);
        assert!(is_done && printed.is_empty() && !text.contains("0123456789"), "{text}");
    }
    let (is_done, _, text) = add("ops", &[]);
    assert!(!is_done && text.contains("already"), "{text}");
    std::fs::write(&file, "guessable").unwrap();
    let (is_done, _, text) = add("other", &[]);
    assert!(!is_done && text.contains("32") && text.contains("openssl rand -hex 32"), "{text}");
}

/// An unfinished handshake uses a slot for a limited time only, and delays no other client.
#[test]
fn slow_handshakes_delay_no_other_client() {
    let authority = Authority::new();
    authority.issue("server", &["localhost"]);
    let config = format!("{HTTPS}tls_handshake_timeout = \"200ms\"\ntls_handshakes_max = 2\n");
    let node = Node::start(&authority, &config, &[]);
    let slow: Vec<TcpStream> = (0..16)
        .map(|number| {
            let mut stream = TcpStream::connect(&node.http).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            if number % 2 == 0 {
                stream.write_all(&[22, 3, 1]).unwrap();
            }
            stream
        })
        .collect();
    for mut stream in slow {
        // Closed by the server, not by the timeout of this test.
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        assert!(ended.is_ok() || ended.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
    }
    let mut good = authority.connect(&node.http);
    assert!(ask(&mut good).starts_with("HTTP/1.1 200"));
    let metrics = meridian(&[
        "ctl",
        "--url",
        &format!("https://localhost:{}", node.http.rsplit(':').next().unwrap()),
        "--ca",
        &authority.path("ca.pem"),
        "metrics",
    ]);
    let line = stdout(&metrics);
    assert!(line.contains("http_rejected_total") && line.contains("tls"), "{line}");
}
