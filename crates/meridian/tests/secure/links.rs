//! Certificates of links between nodes, checked by `meridian config check` and a start.

use crate::authority::Authority;
use crate::node::{meridian, stderr, stdout};

/// Checks a node with this certificate and key. Returns whether the configuration is valid, and the output.
fn check(authority: &Authority, certificate: &str, key: &str) -> (bool, String) {
    let secret = authority.write("secret", "sixteen bytes, and some more");
    let config = format!(
        "[cluster]\nsecret_file = {secret:?}\nlisten = \"10.0.0.1:7883\"\ntls_certificate = {:?}\ntls_key = {:?}\ntls_ca = {:?}\n\
         [node]\nname = \"a\"\n",
        authority.path(certificate),
        authority.path(key),
        authority.path("ca.pem"),
    );
    let config = authority.write("m.toml", &config);
    let output = meridian(&["config", "check", "--config", &config]);
    (output.status.success(), stdout(&output) + &stderr(&output))
}

#[test]
fn certificates_that_other_nodes_would_refuse_are_refused_first() {
    let authority = Authority::new();
    for name in ["a", "b"] {
        authority.issue(name, &["a.cluster"]);
    }
    authority.issue_for_servers("server", &["a.cluster"]);
    let stranger = Authority::new();
    stranger.issue("a", &["a.cluster"]);
    for name in ["a.crt", "a.key"] {
        let text = std::fs::read_to_string(stranger.path(name)).unwrap();
        authority.write(&format!("foreign-{name}"), &text);
    }
    let (holds, text) = check(&authority, "a.crt", "a.key");
    assert!(holds && !text.contains("cluster.tls_certificate"), "{text}");
    for (certificate, key, says) in [
        ("server.crt", "server.key", "extendedKeyUsage = serverAuth, clientAuth"),
        ("a.crt", "b.key", "cannot be used together"),
        ("foreign-a.crt", "foreign-a.key", "is not signed by an authority of"),
    ] {
        let (holds, text) = check(&authority, certificate, key);
        assert!(!holds && text.contains("cluster.tls: ") && text.contains(says), "{text}");
    }
    let (config, data) = (authority.path("m.toml"), authority.path("data"));
    let anywhere = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let output = meridian(&[&["start", "--config", &config, "--data-dir", &data], &anywhere[..]].concat());
    assert!(!output.status.success() && stderr(&output).contains("is not signed by"), "{}", stderr(&output));
}

#[test]
fn a_certificate_that_has_expired_or_is_not_valid_yet_causes_a_warning() {
    let authority = Authority::new();
    authority.issue_expired("old", &["a.cluster"]);
    authority.issue_for_later("new", &["a.cluster"]);
    for (name, says) in [("old", "has expired"), ("new", "is valid in")] {
        let (holds, text) = check(&authority, &format!("{name}.crt"), &format!("{name}.key"));
        assert!(holds && text.contains("warning: cluster.tls_certificate") && text.contains(says), "{text}");
    }
}
