//! Tokens from another implementation, and attacks that are not accepted.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use access::{Action, Identity, Step};
use auth::settings::{Jwt, SecretEncoding, TokenField};
use auth::{Attempt, JwtError, JwtLink, Link, Outcome};
use mqtt::{QoS, ReasonCode};
use serde_json::json;

use crate::tokens::{
    FAR, Scratch, Signer, admission, ask, attempt, file, golden, hs256, jwks, open, part, token_of,
    with_secret,
};

const BAD: Outcome = Outcome::Refuse(ReasonCode::BadUserNameOrPassword);
const NOT_AUTHORIZED: Outcome = Outcome::Refuse(ReasonCode::NotAuthorized);

fn with_jwks() -> Jwt {
    Jwt { jwks_file: Some(file("jwks.json")), ..Jwt::default() }
}

fn with_pem(name: &str) -> Jwt {
    Jwt { public_key_file: Some(file(name)), ..Jwt::default() }
}

fn with(username: Option<&str>, password: Option<Box<[u8]>>) -> Attempt {
    let mut attempt = attempt(username, "");
    attempt.password = password;
    attempt
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn error(settings: &Jwt) -> String {
    match JwtLink::open(settings) {
        Ok(_) => panic!("it opened"),
        Err(error @ (JwtError::Settings(_) | JwtError::File { .. } | JwtError::System(_))) => {
            error.to_string()
        }
    }
}

#[test]
fn a_key_file_that_cannot_be_used_is_named_with_its_setting() {
    let missing = || Some("/nonexistent/key".into());
    let why = error(&Jwt { secret_file: missing(), ..Jwt::default() });
    assert!(why.starts_with("jwt.secret_file: /nonexistent/key: "), "{why}");
    let why = error(&Jwt { public_key_file: missing(), ..Jwt::default() });
    assert!(why.starts_with("jwt.public_key_file: /nonexistent/key: "), "{why}");
}

#[test]
fn tokens_of_another_implementation_are_accepted() {
    let secret = open(&with_secret());
    let set = open(&with_jwks());
    for name in ["HS256", "HS384", "HS512"] {
        assert_eq!(admission(&secret, &golden(name)).username.as_deref(), Some("alice"), "{name}");
        assert_eq!(ask(&set, &golden(name)), BAD, "{name}: the set has no secret");
    }
    for (pem, names) in [
        ("rsa.pem", &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"][..]),
        ("p256.pem", &["ES256"]),
        ("p384.pem", &["ES384"]),
        ("ed25519.pem", &["EdDSA"]),
    ] {
        let key = open(&with_pem(pem));
        for name in names {
            assert_eq!(admission(&key, &golden(name)).username.as_deref(), Some("alice"), "{pem} {name}");
            assert_eq!(admission(&set, &golden(name)).username.as_deref(), Some("alice"), "{name}");
            assert_eq!(ask(&secret, &golden(name)), BAD, "{name}: there is a secret only");
        }
    }
}

#[test]
fn a_change_of_any_byte_of_a_token_is_detected() {
    let set = open(&with_jwks());
    let secret = open(&with_secret());
    for (link, name) in [
        (&secret, "HS256"),
        (&set, "RS256"),
        (&set, "PS256"),
        (&set, "ES256"),
        (&set, "ES384"),
        (&set, "EdDSA"),
    ] {
        let token = golden(name);
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let outcome = ask(link, std::str::from_utf8(&changed).unwrap());
            assert!(!matches!(outcome, Outcome::Admit(_)), "{name} {at}: {outcome:?}");
        }
        for (from, to) in [(0, token.len() - 1), (1, token.len())] {
            assert!(!matches!(ask(link, &token[from..to]), Outcome::Admit(_)), "{name}");
        }
    }
}

#[test]
fn the_algorithm_none_is_refused() {
    for settings in [with_secret(), with_jwks()] {
        let link = open(&settings);
        for alg in ["none", "None", "NONE", "nOnE", ""] {
            let signed = format!(
                "{}.{}",
                part(json!({"alg": alg}).to_string()),
                part(r#"{"sub":"alice","exp":4102444800}"#)
            );
            for signature in ["", "AA", "bm9uZQ"] {
                assert_eq!(ask(&link, &format!("{signed}.{signature}")), BAD, "{alg} {signature}");
            }
        }
    }
    assert!(error(&Jwt { algorithms: "HS256, none".to_owned(), ..with_secret() }).contains("`none`"));
}

/// The public key is known to everyone and must not serve as a secret.
#[test]
fn a_public_key_is_never_a_secret() {
    for settings in [with_pem("rsa.pem"), with_jwks()] {
        let link = open(&settings);
        for name in ["confused-pem", "confused-pem-trimmed", "confused-der", "confused-n", "confused-empty"] {
            assert_eq!(ask(&link, &golden(name)), BAD, "{name}");
        }
        let figures = link.figures();
        assert_eq!((figures.algorithm, figures.accepted), (5, 0));
    }
    for settings in [with_pem("rsa.pem"), with_jwks()] {
        let why = error(&Jwt { algorithms: "RS256,HS256".to_owned(), ..settings });
        assert!(why.contains("HS256, which needs jwt.secret_file"), "{why}");
    }
    let why = error(&Jwt { algorithms: "HS256,RS256".to_owned(), ..with_secret() });
    assert!(why.contains("RS256, which needs a public key"), "{why}");
    let why = error(&Jwt { secret_file: Some(file("rsa.pem")), ..Jwt::default() });
    assert!(why.contains("PEM"), "{why}");
    let why = error(&Jwt { jwks_file: Some(file("jwks.json")), ..with_secret() });
    assert!(why.contains("jwt.secret_file and jwt.jwks_file are set"), "{why}");
    // A secret in a set of public keys is ignored.
    let set = Scratch::new(
        json!({"keys": [{"kty": "oct", "kid": "s", "k": part(std::fs::read(file("secret")).unwrap())}]})
            .to_string()
            .as_bytes(),
    );
    let link = open(&Jwt { jwks_file: Some(set.0.clone()), ..Jwt::default() });
    assert_eq!(ask(&link, &golden("HS256")), BAD);
}

#[test]
fn algorithms_that_are_not_allowed_are_refused_though_the_key_fits() {
    let link = open(&Jwt { algorithms: "PS256, RS384".to_owned(), ..with_jwks() });
    for name in ["PS256", "RS384"] {
        admission(&link, &golden(name));
    }
    for name in ["RS256", "PS384", "ES256", "EdDSA"] {
        assert_eq!(ask(&link, &golden(name)), BAD, "{name}");
    }
    assert_eq!(link.figures().algorithm, 4);
}

#[test]
fn a_key_serves_only_its_declared_use() {
    let signer = Signer::new("k");
    for (change, good) in [
        (json!({}), true),
        (json!({"use": "sig", "alg": "ES256", "key_ops": ["verify"]}), true),
        (json!({"use": "enc"}), false),
        (json!({"alg": "ES384"}), false),
        (json!({"alg": "HS256"}), false),
        (json!({"alg": 5}), false),
        (json!({"key_ops": ["sign"]}), false),
        (json!({"kty": "RSA"}), false),
        (json!({"kty": "oct"}), false),
        (json!({"crv": "P-384"}), false),
        (json!({"kid": "other"}), false),
        (json!({"x": part([1; 32])}), false),
        (json!({"x": part([1; 31])}), false),
        (json!({"x": part([1; 33])}), false),
        (json!({"kid": ["k"]}), false),
    ] {
        let mut jwk = signer.jwk();
        for (name, value) in change.as_object().unwrap() {
            jwk[name] = value.clone();
        }
        let set = Scratch::new(json!({"keys": [jwk]}).to_string().as_bytes());
        let link = open(&Jwt { jwks_file: Some(set.0.clone()), ..Jwt::default() });
        assert_eq!(matches!(ask(&link, &signer.token()), Outcome::Admit(_)), good, "{change}");
    }
}

/// References to keys in a token are ignored.
#[test]
fn a_token_cannot_supply_its_own_key() {
    let (ours, theirs) = (Signer::new("ours"), Signer::new("theirs"));
    let set = Scratch::new(jwks(&[&ours]).as_bytes());
    let link = open(&Jwt { jwks_file: Some(set.0.clone()), ..Jwt::default() });
    let claims = json!({"sub": "admin", "exp": FAR});
    for (name, value) in [
        ("jwk", theirs.jwk()),
        ("jku", json!("http://127.0.0.1:1/jwks.json")),
        ("x5u", json!("http://127.0.0.1:1/cert.pem")),
        ("x5c", json!(["MIIB"])),
        ("typ", json!("JWT")),
    ] {
        for kid in ["ours", "theirs"] {
            let header = |kid: &str| json!({"alg": "ES256", "kid": kid, name: value});
            assert!(!matches!(ask(&link, &theirs.sign(header(kid), &claims)), Outcome::Admit(_)), "{name}");
            admission(&link, &ours.sign(header("ours"), &claims));
        }
    }
}

#[test]
fn a_kid_is_only_a_name() {
    let signer = Signer::new("k");
    let set = Scratch::new(jwks(&[&signer]).as_bytes());
    let link = open(&Jwt { jwks_file: Some(set.0.clone()), ..Jwt::default() });
    for kid in [
        "../../../dev/null",
        "/dev/null",
        "k\u{0}",
        "k' OR '1'='1",
        "K",
        " k",
        "",
        "k|id",
        "http://127.0.0.1/k",
    ] {
        let token = signer.sign(json!({"alg": "ES256", "kid": kid}), &json!({"sub": "alice", "exp": FAR}));
        assert_eq!(ask(&link, &token), BAD, "{kid}");
    }
    // Without a name, fitting keys are tried.
    admission(&link, &signer.sign(json!({"alg": "ES256"}), &json!({"sub": "alice", "exp": FAR})));
}

/// Foreign tokens without `kid` cost a node no more than a few verifications.
#[test]
fn with_many_keys_a_token_has_to_name_one() {
    let signers: Vec<Signer> = (0..5).map(|number| Signer::new(&format!("k{number}"))).collect();
    let all: Vec<&Signer> = signers.iter().collect();
    for (count, good) in [(4, true), (5, false)] {
        let set = Scratch::new(jwks(&all[..count]).as_bytes());
        let link = open(&Jwt { jwks_file: Some(set.0.clone()), ..Jwt::default() });
        admission(&link, &signers[3].token());
        let nameless = signers[3].sign(json!({"alg": "ES256"}), &json!({"sub": "alice", "exp": FAR}));
        assert_eq!(matches!(ask(&link, &nameless), Outcome::Admit(_)), good, "{count}");
    }
}

#[test]
fn signatures_in_other_forms_are_refused() {
    let link = open(&with_jwks());
    for name in ["ES256-der", "ES256-zero", "ES512", "RS256-sha1", "RS256-weak"] {
        assert_eq!(ask(&link, &golden(name)), BAD, "{name}");
    }
    // RFC 7518 (3.5) requires a salt as long as the hash.
    assert_eq!(ask(&link, &golden("PS256-no-salt")), BAD);
    // Anyone can derive a second valid ECDSA signature from the first. It has the same meaning and the same result.
    assert_eq!(admission(&link, &golden("ES256-other-s")).username.as_deref(), Some("alice"));
    let (signed, _) = golden("ES256").rsplit_once('.').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    for signature in ["", "AA", &part([0xff; 64]), &part([1; 63]), &part([1; 65])] {
        assert_eq!(ask(&link, &format!("{signed}.{signature}")), BAD, "{signature}");
    }
}

#[test]
fn headers_that_ask_for_more_are_refused() {
    let link = open(&with_secret());
    let claims = json!({"sub": "alice", "exp": FAR}).to_string();
    admission(&link, &hs256(r#"{"alg":"HS256"}"#, &claims));
    for header in [
        r#"{"alg":"HS256","crit":["exp"]}"#,
        r#"{"alg":"HS256","crit":["b64"],"b64":false}"#,
        r#"{"alg":"HS256","alg":"HS256"}"#,
        r#"{"alg":"none","alg":"HS256"}"#,
        r#"{"alg":"HS256","kid":"a","kid":"b"}"#,
    ] {
        assert_eq!(ask(&link, &hs256(header, &claims)), BAD, "{header}");
    }
}

#[test]
fn payloads_that_can_be_read_in_two_ways_are_refused() {
    let link = open(&with_secret());
    for claims in [
        r#"{"sub":"alice","sub":"admin","exp":4102444800}"#,
        r#"{"sub":"alice","exp":1,"exp":4102444800}"#,
        r#"{"sub":"alice","\u0073ub":"admin","exp":4102444800}"#,
        r#"{"sub":"alice","exp":4102444800,"acl":{"all":[],"all":["\u0023"]}}"#,
        r#"["sub"]"#,
        "",
        "null",
        r#"{"sub":"alice","exp":4102444800} {}"#,
    ] {
        assert_eq!(ask(&link, &hs256(r#"{"alg":"HS256"}"#, claims)), BAD, "{claims}");
    }
}

#[test]
fn times_are_compared_with_the_clock() {
    let link = open(&with_secret());
    let at = now();
    for (claims, good) in [
        (json!({"exp": at + 60}), true),
        (json!({"exp": at - 10}), true),
        (json!({"exp": at - 31}), false),
        (json!({"exp": 1}), false),
        (json!({"exp": 0}), false),
        (json!({"exp": -5}), false),
        (json!({"exp": FAR.to_string()}), false),
        (json!({"exp": 1e300}), false),
        (json!({"exp": FAR * 1000}), false),
        (json!({"exp": true}), false),
        (json!({"exp": at as f64 + 60.5}), true),
        (json!({"exp": null}), false),
        (json!({"nbf": at - 5, "iat": at - 5}), true),
        (json!({"nbf": at + 10, "iat": at + 10}), true),
        (json!({"nbf": at + 3600}), false),
        (json!({"iat": at + 3600}), false),
        (json!({"nbf": "0"}), false),
        (json!({"iat": []}), false),
    ] {
        let outcome = ask(&link, &token_of(claims.clone()));
        assert_eq!(matches!(outcome, Outcome::Admit(_)), good, "{claims}: {outcome:?}");
    }
    let link = open(&Jwt { leeway: Duration::ZERO, require_expiry: false, ..with_secret() });
    assert_eq!(ask(&link, &token_of(json!({"exp": at - 1}))), BAD);
    assert_eq!(admission(&link, &token_of(json!({"exp": null}))).lifetime, None);
}

#[test]
fn a_client_stays_until_its_token_expires() {
    let link = open(&with_secret());
    let left = admission(&link, &token_of(json!({"exp": now() + 600}))).lifetime.unwrap();
    assert!(left > Duration::from_secs(500) && left <= Duration::from_secs(600), "{left:?}");
    let left = admission(&link, &token_of(json!({"exp": now() - 10}))).lifetime;
    assert_eq!(left, Some(Duration::ZERO), "the leeway admits a client, and adds no time");
    let left = admission(&link, &token_of(json!({"exp": 253_402_300_799u64}))).lifetime.unwrap();
    assert_eq!(left, Duration::from_secs(3650 * 86_400), "an end that every clock can represent");
}

#[test]
fn issuer_and_audience_are_exact() {
    let settings =
        Jwt { issuer: "https://id.example".to_owned(), audience: "mqtt".to_owned(), ..with_secret() };
    let link = open(&settings);
    let iss = "https://id.example";
    for (claims, good) in [
        (json!({"iss": iss, "aud": "mqtt"}), true),
        (json!({"iss": iss, "aud": ["web", "mqtt"]}), true),
        (json!({"iss": iss, "aud": ["web"]}), false),
        (json!({"iss": iss, "aud": []}), false),
        (json!({"iss": iss, "aud": ["mqtt", 5]}), false),
        (json!({"iss": iss, "aud": "MQTT"}), false),
        (json!({"iss": iss, "aud": "mqtt "}), false),
        (json!({"iss": iss, "aud": {"mqtt": true}}), false),
        (json!({"iss": iss}), false),
        (json!({"aud": "mqtt"}), false),
        (json!({"iss": "https://id.example/", "aud": "mqtt"}), false),
        (json!({"iss": "https://id.example.com", "aud": "mqtt"}), false),
        (json!({"iss": [iss], "aud": "mqtt"}), false),
    ] {
        assert_eq!(matches!(ask(&link, &token_of(claims.clone())), Outcome::Admit(_)), good, "{claims}");
    }
    let link = open(&with_secret());
    admission(&link, &token_of(json!({"iss": "anybody"})));
    assert_eq!(ask(&link, &token_of(json!({"aud": "web"}))), BAD, "it is for another audience");
}

#[test]
fn the_user_name_is_that_of_the_token() {
    let link = open(&with_secret());
    let token = token_of(json!({}));
    let with_name = |name: Option<&str>| link.work(&attempt(name, &token));
    assert!(
        matches!(with_name(Some("alice")), Outcome::Admit(admission) if admission.username.as_deref() == Some("alice"))
    );
    assert!(
        matches!(with_name(None), Outcome::Admit(admission) if admission.username.as_deref() == Some("alice"))
    );
    for name in ["bob", "Alice", "alice ", ""] {
        assert_eq!(with_name(Some(name)), NOT_AUTHORIZED, "{name}");
    }
    for sub in [
        json!(null),
        json!(""),
        json!(5),
        json!(["alice"]),
        json!("a\u{0}b"),
        json!("a\nb"),
        json!("x".repeat(70_000)),
    ] {
        let outcome = ask(&link, &token_of(json!({"sub": sub})));
        assert_eq!(outcome, BAD, "{sub:.20}");
    }
    let link = open(&Jwt { username_claim: "/device/name".to_owned(), ..with_secret() });
    let token = token_of(json!({"device": {"name": "d7"}}));
    assert_eq!(admission(&link, &token).username.as_deref(), Some("d7"));
    assert_eq!(ask(&link, &token_of(json!({"device": "d7"}))), BAD);
    assert!(error(&Jwt { username_claim: " ".to_owned(), ..with_secret() }).contains("jwt.username_claim"));
}

#[test]
fn a_token_may_be_the_user_name() {
    let link = open(&Jwt { from: TokenField::Username, ..with_secret() });
    let token = token_of(json!({}));
    let attempt = with(Some(&token), None);
    assert_eq!(link.check_immediately(attempt.credentials()), None);
    match link.work(&attempt) {
        Outcome::Admit(admission) => assert_eq!(admission.username.as_deref(), Some("alice")),
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(ask(&link, &token), Outcome::NotMine, "the password is not looked at");
}

#[test]
fn a_token_may_be_for_one_client_only() {
    let link = open(&Jwt { client_id_claim: "cid".to_owned(), ..with_secret() });
    admission(&link, &token_of(json!({"cid": "c1"})));
    assert_eq!(ask(&link, &token_of(json!({"cid": "c2"}))), NOT_AUTHORIZED);
    for claims in [json!({}), json!({"cid": ["c1"]}), json!({"cid": "c1\u{0}"})] {
        assert_eq!(ask(&link, &token_of(claims.clone())), BAD, "{claims}");
    }
}

#[test]
fn a_tenant_cannot_leave_its_mountpoint() {
    let link = open(&Jwt { tenant_claim: "tenant".to_owned(), ..with_secret() });
    let principal = admission(&link, &token_of(json!({"tenant": "acme"}))).principal.unwrap();
    assert_eq!(principal.mountpoint.as_deref(), Some("acme/"));
    for tenant in ["", "a/b", "/", "+", "#", "a#", "$SYS", "a\u{0}", "a\n", &"x".repeat(256)] {
        assert_eq!(ask(&link, &token_of(json!({"tenant": tenant}))), BAD, "{tenant}");
    }
    assert_eq!(ask(&link, &token_of(json!({}))), BAD, "without a tenant it would have no mountpoint");
}

#[test]
fn claims_become_attributes_and_rules() {
    let settings = Jwt {
        attribute_claims: "team, level,/realm_access/roles,missing".to_owned(),
        superuser_claim: "root".to_owned(),
        ..with_secret()
    };
    let link = open(&settings);
    assert_eq!(admission(&link, &token_of(json!({}))).principal, None);
    let claims = json!({
        "team": "red", "level": 7, "realm_access": {"roles": ["a", "b"]}, "root": false,
        "acl": {"publish": ["up/${username}/${clientid}"]},
    });
    let principal = admission(&link, &token_of(claims)).principal.unwrap();
    let attributes: Vec<(&str, &str)> =
        principal.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(attributes, [("team", "red"), ("level", "7"), ("roles", "a"), ("roles", "b")]);
    assert!(!principal.superuser);
    let identity = Identity { client_id: "c1", username: Some("alice"), ..Identity::default() };
    let publish = |topic: &str| {
        let action = Action::Publish { qos: QoS::AtMostOnce, retain: false };
        principal.grants.as_ref().unwrap().decide(identity, action, topic)
    };
    assert_eq!((publish("up/alice/c1"), publish("up/alice/c2")), (Some(true), None));

    assert!(admission(&link, &token_of(json!({"root": true}))).principal.unwrap().superuser);
    for claims in [
        json!({"root": "true"}),
        json!({"root": 1}),
        json!({"acl": "all"}),
        json!({"acl": [{"permission": "allow"}]}),
        json!({"acl": {"all": vec!["a"; 1001]}}),
        json!({"team": {"name": "red"}}),
        json!({"team": vec!["x"; 65]}),
        json!({"team": "x".repeat(1025)}),
    ] {
        assert_eq!(ask(&link, &token_of(claims.clone())), BAD, "{claims:.60}");
    }
    assert_eq!(link.figures().claims, 8);
}

#[test]
fn other_passwords_are_left_to_the_next_link() {
    let link = open(&with_secret());
    for password in [
        "",
        "wonderland",
        "a.b.c",
        "eyJ.x",
        "eyJ.x.y.z",
        "eyJhbGciOiJIUzI1NiJ9.e30.A A",
        "eyJhbGciOiJIUzI1NiJ9.e30.\u{fc}",
    ] {
        assert_eq!(ask(&link, password), Outcome::NotMine, "{password}");
        assert_eq!(link.work(&attempt(None, password)), Outcome::NotMine, "{password}");
    }
    let without = with(Some("alice"), None);
    assert_eq!(link.check_immediately(without.credentials()), Some(Outcome::NotMine));
    let bytes = with(None, Some(b"ey\xff..".as_slice().into()));
    assert_eq!(link.check_immediately(bytes.credentials()), Some(Outcome::NotMine));
    assert!(JwtLink::open(&Jwt::default()).unwrap().is_none(), "without keys there is no link");
}

#[test]
fn a_token_that_is_too_long_is_refused_without_work() {
    let link = open(&with_secret());
    let long = token_of(json!({"more": "x".repeat(20_000)}));
    let attempt = attempt(None, &long);
    assert_eq!(link.check_immediately(attempt.credentials()), Some(BAD));
    assert_eq!(link.work(&attempt), BAD);
    assert_eq!(link.figures().malformed, 2);
}

#[test]
fn short_secrets_are_refused_and_never_shown() {
    let with = |content: &[u8], encoding| {
        let file = Scratch::new(content);
        let settings = Jwt { secret_file: Some(file.0.clone()), secret_encoding: encoding, ..Jwt::default() };
        JwtLink::open(&settings).map(|link| format!("{link:?}")).map_err(|error| error.to_string())
    };
    let raw = |content: &[u8]| with(content, SecretEncoding::Raw);
    let why = raw(b"topsecret-topsecret\n").unwrap_err();
    assert!(why.contains("19 bytes") && !why.contains("topsecret"), "{why}");
    assert!(raw(&[b's'; 31]).is_err() && raw(b"").is_err());
    let shown = raw(b"topsecret-topsecret-topsecret-topsecret\n").unwrap();
    assert!(!shown.contains("topsecret") && !shown.contains("116, 111"), "{shown}");
    let base64 = |content: &[u8]| with(content, SecretEncoding::Base64);
    assert!(base64(b"AAAA").unwrap_err().contains("3 bytes"));
    assert!(base64(b"not base64 at all!").unwrap_err().contains("not base64"));
    // The length of the secret limits the algorithms.
    let file = Scratch::new(&[7; 40]);
    let short = Jwt { secret_file: Some(file.0.clone()), ..Jwt::default() };
    let why = error(&Jwt { algorithms: "HS512".to_owned(), ..short });
    assert!(why.contains("at least 64 bytes"), "{why}");
}

#[test]
fn a_secret_may_be_written_in_base64() {
    let secret = std::fs::read(file("secret")).unwrap();
    let url = part(&secret);
    let padded = format!("{}==\n", url.replace('-', "+").replace('_', "/"));
    for text in [url, padded] {
        let file = Scratch::new(text.as_bytes());
        let settings = Jwt {
            secret_file: Some(file.0.clone()),
            secret_encoding: SecretEncoding::Base64,
            ..Jwt::default()
        };
        admission(&open(&settings), &golden("HS512"));
    }
}

#[test]
fn errors_for_files_without_a_public_key_say_what_to_do() {
    let private = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let broken = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
    for (content, says) in [
        (private, "openssl pkey -in FILE -pubout"),
        (certificate, "openssl x509 -in FILE -noout -pubkey"),
        (broken, "not a SubjectPublicKeyInfo"),
        ("hello", "no public key"),
        ("", "no public key"),
    ] {
        let file = Scratch::new(content.as_bytes());
        let why = error(&Jwt { public_key_file: Some(file.0.clone()), ..Jwt::default() });
        assert!(why.contains(says), "{why}");
    }
    assert!(error(&with_pem("weak.pem")).contains("2048"));
    assert!(error(&with_pem("p521.pem")).contains("only RSA, P-256"));
    assert!(error(&with_pem("missing.pem")).contains("missing.pem"));
    assert!(error(&Jwt { algorithms: "ES256".to_owned(), ..with_pem("rsa.pem") }).contains("ES256"));
    assert!(error(&Jwt { algorithms: "RSA".to_owned(), ..with_pem("rsa.pem") }).contains("known are HS256"));
}

#[test]
fn all_public_keys_of_a_file_count_during_a_key_change() {
    let read = |name: &str| std::fs::read(file(name)).unwrap();
    let both = Scratch::new(&[read("p256.pem"), read("rsa.pem")].concat());
    let settings = Jwt { public_key_file: Some(both.0.clone()), ..Jwt::default() };
    let link = open(&settings);
    admission(&link, &golden("ES256"));
    admission(&link, &golden("RS256"));
    std::fs::write(&both.0, read("p256.pem")).unwrap();
    admission(&link, &golden("RS256"));
    let change = link.read(&settings).unwrap();
    admission(&link, &golden("RS256"));
    change.apply();
    admission(&link, &golden("ES256"));
    assert_eq!(ask(&link, &golden("RS256")), BAD);
    std::fs::write(&both.0, "nothing").unwrap();
    assert!(link.read(&settings).is_err());
    admission(&link, &golden("ES256"));
}

/// Settings and keys are read together and take effect together.
#[test]
fn a_reload_applies_secret_and_settings() {
    let secret = Scratch::new(&std::fs::read(file("secret")).unwrap());
    let settings = Jwt { secret_file: Some(secret.0.clone()), ..Jwt::default() };
    let link = open(&settings);
    let (plain, for_us) = (token_of(json!({})), token_of(json!({"aud": "mqtt", "name": "bob"})));
    assert_eq!((admission(&link, &plain).username.as_deref(), ask(&link, &for_us)), (Some("alice"), BAD));
    let other = Jwt {
        audience: "mqtt".to_owned(),
        username_claim: "name".to_owned(),
        from: TokenField::Password,
        ..settings.clone()
    };
    link.read(&other).unwrap().apply();
    assert_eq!((ask(&link, &plain), admission(&link, &for_us).username.as_deref()), (BAD, Some("bob")));
    let in_username = Jwt { from: TokenField::Username, ..other.clone() };
    link.read(&in_username).unwrap().apply();
    assert_eq!(ask(&link, &for_us), Outcome::NotMine);
    link.read(&other).unwrap().apply();

    for (settings, says) in [
        (Jwt { algorithms: "RS256".to_owned(), ..other.clone() }, "needs a public key"),
        (Jwt { secret_encoding: SecretEncoding::Base64, ..other.clone() }, "not base64"),
        (Jwt { secret_file: None, ..other.clone() }, "jwt.secret_file"),
    ] {
        let error = link.read(&settings).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    // This was read, and is not in force.
    drop(link.read(&Jwt { audience: "others".to_owned(), ..other.clone() }).unwrap());
    admission(&link, &for_us);

    std::fs::write(&secret.0, [7; 48]).unwrap();
    admission(&link, &for_us);
    link.read(&other).unwrap().apply();
    assert_eq!(ask(&link, &for_us), BAD);
    let figures = link.figures();
    assert_eq!((figures.accepted, figures.signature), (4, 1), "counters continue");
}

/// A client renews its token on its connection, and keeps its identity.
#[test]
fn the_authentication_method_jwt_takes_a_token_as_its_data() {
    let link = open(&with_secret());
    let step = |username: Option<&str>, data: Option<&[u8]>| {
        let attempt = with(username, None);
        link.clone().mechanism("JWT", attempt.credentials()).unwrap().step(data)
    };
    let token = token_of(json!({"exp": now() + 600}));
    match step(Some("alice"), Some(token.as_bytes())) {
        Step::Success(None, admission) => {
            assert_eq!(admission.username.as_deref(), Some("alice"));
            assert!(admission.lifetime.unwrap() > Duration::from_secs(500));
        }
        step => panic!("{step:?}"),
    }
    assert!(matches!(step(None, Some(token.as_bytes())), Step::Success(..)));
    let failure = Step::Failure(ReasonCode::NotAuthorized);
    assert_eq!(step(Some("bob"), Some(token.as_bytes())), failure);
    assert_eq!(step(None, Some(token_of(json!({"exp": 1})).as_bytes())), failure);
    assert_eq!(step(None, Some(b"no token")), failure);
    assert_eq!(step(None, Some(&[0xff])), Step::Failure(ReasonCode::ProtocolError));
    assert_eq!(step(None, None), Step::Failure(ReasonCode::ProtocolError));
    let attempt = attempt(None, "");
    assert!(link.clone().mechanism("SCRAM-SHA-256", attempt.credentials()).is_none());
}

#[test]
fn tokens_are_counted_by_their_result() {
    let link = open(&with_secret());
    for token in [
        token_of(json!({})),
        token_of(json!({"exp": 1})),
        token_of(json!({"sub": 1})),
        format!("{}A", token_of(json!({"x": "signature"}))),
        hs256(r#"{"alg":"none"}"#, "{}"),
        hs256(r#"{"alg":"HS256","crit":[]}"#, "{}"),
    ] {
        ask(&link, &token);
    }
    let wrong_key = json!({"sub": "alice", "exp": FAR});
    let signed = format!("{}.{}", part(r#"{"alg":"HS256"}"#), part(wrong_key.to_string()));
    ask(&link, &format!("{signed}.{}", part([7; 32])));
    let figures = link.figures();
    assert_eq!((figures.accepted, figures.time, figures.claims), (1, 1, 1));
    assert_eq!((figures.algorithm, figures.signature + figures.malformed), (1, 3));
    assert_eq!((figures.key, figures.unavailable, figures.jwks), (0, 0, None));
}
