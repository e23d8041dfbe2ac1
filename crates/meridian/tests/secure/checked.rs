//! `meridian config check` and `meridian start` accept the same configurations.

use std::process::{Command, Output};

use crate::authority::Authority;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(arguments).env("MERIDIAN__STORAGE__DURABILITY", "memory").output().unwrap()
}

#[test]
fn config_check_refuses_every_file_that_start_refuses() {
    let authority = Authority::new();
    authority.issue("one", &["localhost"]);
    authority.issue("other", &["localhost"]);
    let file = |name: &str| authority.directory.join(name).to_str().unwrap().to_owned();
    let (certificate, key, other) = (file("one.crt"), file("one.key"), file("other.key"));
    let good = [
        format!("listener.0.tls_certificate={certificate}"),
        format!("listener.0.tls_key={key}"),
        format!("listener.0.tls_client_ca={}", file("ca.pem")),
    ];
    let cases: &[(&[&str], &str)] = &[
        (&["listener.0.tls_certificate=/nonexistent/a.crt"], "/nonexistent/a.crt"),
        (&["listener.0.tls_key=OTHER"], "cannot be used together"),
        (&["listener.0.tls_key=CERTIFICATE"], "there is no private key in it"),
        (&["listener.0.tls_names=/nonexistent/names"], "/nonexistent/names"),
        (&["listener.0.tls_client_ca=/nonexistent/ca"], "/nonexistent/ca"),
        (&["listener.0.tls_client_crl=/nonexistent/crl"], "/nonexistent/crl"),
        (&["listener.0.proxy_networks=everywhere"], "\"everywhere\" is not a network"),
        (&["http.tls_certificate=CERTIFICATE", "http.tls_key=OTHER"], "cannot be used together"),
        (&["auth.password_file=/nonexistent/users"], "/nonexistent/users"),
        (&["auth.acl_file=/nonexistent/acl"], "/nonexistent/acl"),
        (&["auth.rules_file=/nonexistent/rules"], "/nonexistent/rules"),
        (&["auth.chain=jwt"], "jwt"),
        (&["jwt.secret_file=/nonexistent/secret"], "/nonexistent/secret"),
        (&["jwt.public_key_file=/nonexistent/key"], "/nonexistent/key"),
        (&["jwt.jwks_file=/nonexistent/set"], "/nonexistent/set"),
        (
            &["http_auth.url=http://127.0.0.1:1/", "http_auth.headers_file=/nonexistent/headers"],
            "/nonexistent/headers",
        ),
        (
            &["http_acl.url=http://127.0.0.1:1/", "http_acl.headers_file=/nonexistent/headers"],
            "/nonexistent/headers",
        ),
    ];
    let data = file("data");
    let arguments = |command: &[&str], settings: &[&str]| {
        let mut all: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        all.extend(
            ["--data-dir", &data, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"].map(str::to_owned),
        );
        for setting in good.iter().map(String::as_str).chain(settings.iter().copied()) {
            let setting = setting.replace("OTHER", &other).replace("CERTIFICATE", &certificate);
            all.extend(["--set".to_owned(), setting]);
        }
        all
    };
    let check = |settings: &[&str]| {
        let all = arguments(&["config", "check"], settings);
        run(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let output = check(&[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (settings, says) in cases {
        let all = arguments(&["start"], settings);
        for output in [check(settings), run(&all.iter().map(String::as_str).collect::<Vec<_>>())] {
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{settings:?}: {text}");
            assert!(text.contains(says), "{settings:?}: {text}");
        }
    }
}

#[test]
fn config_check_names_every_bad_file_at_once() {
    let bad = [
        "listener.0.tls_certificate=/nonexistent/a.crt",
        "listener.0.tls_key=/nonexistent/a.key",
        "jwt.secret_file=/nonexistent/secret",
        "auth.password_file=/nonexistent/users",
        "auth.rules_file=/nonexistent/rules",
    ];
    let settings = bad.iter().flat_map(|setting| ["--set", setting]);
    let output = run(&["config", "check", "--data-dir", "/nonexistent"]
        .into_iter()
        .chain(settings)
        .collect::<Vec<_>>());
    let text = String::from_utf8_lossy(&output.stderr);
    for name in ["a.crt", "secret", "users", "rules"] {
        assert_eq!(text.matches(&format!("/nonexistent/{name}")).count(), 1, "{name}: {text}");
    }
}
