//! Fuzzing of rules and tokens. Any rules file results in rules or in an error with a position in the line, and a
//! written rule is read as the same. Only a signed token admits a client.

mod tokens;

use std::sync::{Arc, LazyLock};

use access::{Action, Credentials, Identity, Step};
use auth::settings::Jwt;
use auth::{JwtLink, Link, Outcome, RuleSet};
use mqtt::QoS;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};
use tokens::{FAR, ask, file, golden, hs256, open, part, with_secret};

const WORDS: &[&str] = &[
    "allow",
    "deny",
    "everyone",
    "anonymous",
    "user",
    "users",
    "client",
    "cert",
    "cn=a*",
    "fingerprint=00",
    "address",
    "10.0.0.0/8",
    "::1",
    "attribute",
    "role=x",
    "listener",
    "and",
    "not",
    "publish",
    "subscribe",
    "all",
    "eq",
    "qos",
    "0..1",
    "2",
    "retain",
    "yes",
    "no",
    "a/+/#",
    "#",
    "$SYS/#",
    "$share/g/#",
    "${clientid}",
    "${",
    "${attribute.a}",
    ",",
    "\"",
    "\"a b\"",
    "\\",
    "\\*",
    "*",
    "##",
    "\u{0}",
    "\u{1f99c}",
];

/// Generates a possible name, including keywords of rules and special characters.
fn name() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        select(vec!["a", "b", " ", ",", "\"", "\\", "*", "\\*", "#", "+", "/", "=", "ü", "and", "qos", "##"]),
        1..6,
    )
    .prop_map(|parts| parts.concat())
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"").replace("\\\\*", "\\*"))
}

fn condition() -> impl Strategy<Value = String> {
    let kind = select(vec!["user", "client", "listener", "cert cn=", "cert subject=", "attribute role="]);
    let named = (kind, proptest::collection::vec(name(), 1..3)).prop_map(|(kind, names)| {
        let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
        format!("{kind}{}{}", if kind.ends_with('=') { "" } else { " " }, names.join(", "))
    });
    let fixed =
        select(vec!["anonymous", "address 10.0.0.0/8, ::1", "cert fingerprint=00:11"]).prop_map(|text| {
            match text.strip_suffix("00:11") {
                Some(before) => format!("{before}{}", "aB:".repeat(32)),
                None => text.to_owned(),
            }
        });
    (any::<bool>(), prop_oneof![4 => named, 1 => fixed])
        .prop_map(|(not, condition)| format!("{}{condition}", if not { "not " } else { "" }))
}

fn rule() -> impl Strategy<Value = String> {
    let who = prop_oneof![
        1 => Just("everyone".to_owned()),
        4 => proptest::collection::vec(condition(), 1..3).prop_map(|all| all.join(" and ")),
    ];
    let topic = select(vec![
        "a/b",
        "a/+/#",
        "eq a",
        "\"a b\"",
        "\"and\"",
        "\"x,y\"",
        "${clientid}/x${attribute.a}",
        "\"##\"",
        "$SYS/x",
    ]);
    let topics = prop_oneof![
        1 => Just("#".to_owned()),
        5 => proptest::collection::vec(topic, 1..4).prop_map(|topics| topics.join(" ")),
    ];
    let tail = select(vec!["", " qos 0..1", " retain yes", " retain no qos 1,2", " ## said"]);
    (select(vec!["allow", "deny"]), who, select(vec!["publish", "subscribe", "all"]), topics, tail)
        .prop_map(|(effect, who, action, topics, tail)| format!("{effect} {who} {action} {topics}{tail}"))
}

fn read(line: &str) -> Result<(), TestCaseError> {
    match RuleSet::parse_line(line) {
        Ok(None) => {}
        Ok(Some(rule)) => {
            let written = rule.to_string();
            let again = RuleSet::parse_line(&written);
            prop_assert_eq!(again.as_ref(), Ok(&Some(rule)), "{} became {}", line, written);
        }
        Err(error) => {
            let columns = line.chars().count() as u32 + 1;
            prop_assert!((1..=columns).contains(&error.column), "{} at {}", line, error.column);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn words_in_any_order_are_a_rule_or_an_error(words in proptest::collection::vec(select(WORDS), 0..14)) {
        read(&words.join(" "))?;
        read(&words.concat())?;
    }

    #[test]
    fn any_text_is_rules_or_an_error(text in "\\PC{0,60}", file in "(allow |deny |user |[ -~\n]){0,40}") {
        read(&text)?;
        let lines = file.lines().count() as u32;
        if let Err((line, _)) = RuleSet::parse(&file) {
            prop_assert!((1..=lines).contains(&line));
        }
    }

    #[test]
    fn a_written_rule_is_read_as_the_same(line in rule()) {
        read(&line)?;
    }

    #[test]
    fn any_question_has_an_answer(
        lines in proptest::collection::vec(rule(), 0..8),
        client_id in ".{0,8}",
        username in proptest::option::of(".{0,8}"),
        topic in "[a+#/$ü]{0,12}",
    ) {
        let kept: Vec<&str> = lines.iter().map(|line| &**line).filter(|line| RuleSet::parse_line(line).is_ok()).collect();
        let rules = RuleSet::parse(&kept.join("\n")).expect("each of them is a rule");
        let who = Identity { client_id: &client_id, username: username.as_deref(), ..Default::default() };
        let qos = QoS::AtLeastOnce;
        for action in [Action::Publish { qos, retain: true }, Action::Subscribe { qos }, Action::Receive] {
            if let Some(ruling) = rules.ruling(who, action, &topic) {
                prop_assert!(kept.len() >= rules.len() && !ruling.rule.to_string().is_empty());
            }
        }
    }
}

/// The generator must produce rules, not only errors.
#[test]
fn most_generated_lines_are_rules() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let good = (0..200).filter(|_| {
        let line = rule().new_tree(&mut runner).expect("a rule").current();
        RuleSet::parse_line(&line).is_ok()
    });
    assert!(good.count() > 120);
}

/// Links with a secret, with public keys of all kinds, and with a secret and all requirements on claims.
static LINKS: LazyLock<[Arc<JwtLink>; 3]> = LazyLock::new(|| {
    let set = Jwt { jwks_file: Some(file("jwks.json")), ..Jwt::default() };
    let everything = Jwt {
        tenant_claim: "/t/name".to_owned(),
        attribute_claims: "role, /t/list".to_owned(),
        superuser_claim: "admin".to_owned(),
        ..with_secret()
    };
    [open(&with_secret()), open(&set), open(&everything)]
});

static GOOD: LazyLock<Vec<String>> = LazyLock::new(|| {
    let names = ["HS256", "HS384", "HS512", "RS256", "PS256", "PS512", "ES256", "ES384", "EdDSA"];
    names.map(golden).to_vec()
});

/// Returns whether the token admits a client, by CONNECT or by the Authentication Method, which checks any bytes.
fn let_in(token: &[u8]) -> bool {
    LINKS.iter().any(|link| {
        let credentials = Credentials { client_id: "c1", password: Some(token), ..Credentials::default() };
        let attempt = auth::Attempt::of(credentials);
        let outcome = link.check_immediately(credentials).unwrap_or_else(|| link.work(&attempt));
        let step =
            link.clone().mechanism("JWT", credentials).expect("the link has the method").step(Some(token));
        matches!(outcome, Outcome::Admit(_)) || matches!(step, Step::Success(..))
    })
}

/// Change of a token.
#[derive(Clone, Debug)]
enum Change {
    Byte(Index, u8),
    Insert(Index, Vec<u8>),
    Cut(Index, usize),
    /// Replaces the part of this number by that of another token.
    Part(usize, Index),
    Header(Value),
    Claims(Value),
}

fn change() -> impl Strategy<Value = Change> {
    let characters = "[A-Za-z0-9_.=+/ -]{1,4}".prop_map(String::into_bytes);
    prop_oneof![
        4 => (any::<Index>(), prop_oneof![any::<u8>(), select(b"AQgw_-.=".to_vec())])
            .prop_map(|(at, byte)| Change::Byte(at, byte)),
        2 => (any::<Index>(), characters).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        2 => (any::<Index>(), 1usize..5).prop_map(|(at, len)| Change::Cut(at, len)),
        2 => (0usize..3, any::<Index>()).prop_map(|(part, of)| Change::Part(part, of)),
        1 => header().prop_map(Change::Header),
        1 => claims().prop_map(Change::Claims),
    ]
}

fn changed(token: &[u8], change: &Change) -> Vec<u8> {
    let mut bytes = token.to_vec();
    let replaced = |number: usize, with: &[u8]| {
        let mut parts: Vec<&[u8]> = token.split(|byte| *byte == b'.').collect();
        if let Some(part) = parts.get_mut(number) {
            *part = with;
        }
        parts.join(&b'.')
    };
    match change {
        Change::Byte(at, byte) if !bytes.is_empty() => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Change::Byte(..) => {}
        Change::Insert(at, inserted) => {
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..at, inserted.iter().copied());
        }
        Change::Cut(at, len) => {
            let at = at.index(bytes.len() + 1);
            bytes.drain(at..(at + len).min(token.len()));
        }
        Change::Part(number, of) => {
            let other = &GOOD[of.index(GOOD.len())];
            return replaced(
                *number,
                other.split('.').nth(*number).expect("a token has three parts").as_bytes(),
            );
        }
        Change::Header(header) => return replaced(0, part(header.to_string()).as_bytes()),
        Change::Claims(claims) => return replaced(1, part(claims.to_string()).as_bytes()),
    }
    bytes
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!(FAR)),
        "[a-z+#/$\\PC]{0,8}".prop_map(Value::from),
        select(vec!["alice", "allow", "deny", "publish", "all", "a/${clientid}/#", "eq a", "${", "a/#/b"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        let names = select(vec![
            "publish",
            "subscribe",
            "all",
            "permission",
            "action",
            "topic",
            "qos",
            "name",
            "list",
        ]);
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((names, inner), 0..5).prop_map(|members| {
                Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
            }),
        ]
    })
}

fn object(names: &'static [&'static str]) -> impl Strategy<Value = Value> {
    proptest::collection::vec((select(names), any_json()), 0..6).prop_map(|members| {
        Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    })
}

fn header() -> impl Strategy<Value = Value> {
    let algorithm = select(vec!["none", "HS256", "HS512", "RS256", "ES256", "EdDSA", "ES512", "hs256"]);
    (algorithm, object(&["alg", "kid", "crit", "jwk", "jku", "typ", "b64"])).prop_map(
        |(algorithm, mut header)| {
            if header.get("alg").is_none() {
                header["alg"] = algorithm.into();
            }
            header
        },
    )
}

fn claims() -> impl Strategy<Value = Value> {
    object(&["sub", "exp", "nbf", "iat", "iss", "aud", "acl", "t", "role", "admin"])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn random_bytes_as_a_token_admit_no_client(
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
        text in "eyJ[A-Za-z0-9_-]{0,40}[.][A-Za-z0-9_-]{0,40}[.][A-Za-z0-9_-]{0,40}",
        header in header(),
        claims in any_json(),
        signature in proptest::collection::vec(any::<u8>(), 0..70),
    ) {
        prop_assert!(!let_in(&bytes));
        prop_assert!(!let_in(text.as_bytes()));
        let unsigned = format!("{}.{}.{}", part(header.to_string()), part(claims.to_string()), part(signature));
        prop_assert!(!let_in(unsigned.as_bytes()));
    }

    #[test]
    fn a_changed_token_admits_no_client(of in any::<Index>(), changes in proptest::collection::vec(change(), 1..4)) {
        let token = GOOD[of.index(GOOD.len())].clone().into_bytes();
        let after = changes.iter().fold(token, |token, change| changed(&token, change));
        let is_good = GOOD.iter().any(|good| good.as_bytes() == after);
        prop_assert!(is_good || !let_in(&after), "{}", String::from_utf8_lossy(&after));
    }

    /// An issuer may sign wrong claims.
    #[test]
    fn signed_claims_admit_their_user_or_no_client(claims in claims(), far in any::<bool>()) {
        let mut claims = claims;
        if far {
            claims["exp"] = FAR.into();
            claims["t"] = json!({"name": "t1"});
        }
        if let Outcome::Admit(admission) = ask(&LINKS[2], &hs256(r#"{"alg":"HS256"}"#, &claims.to_string())) {
            prop_assert_eq!(admission.username.as_deref(), claims["sub"].as_str());
            prop_assert!(admission.lifetime.is_some() && claims["exp"].is_number());
            let principal = admission.principal.expect("the token has a tenant");
            prop_assert_eq!(principal.superuser, claims["admin"] == true);
            let tenant = format!("{}/", claims["t"]["name"].as_str().unwrap_or_default());
            prop_assert_eq!(principal.mountpoint.as_deref(), Some(&*tenant));
        }
    }
}

/// Shows that the test of changed tokens is meaningful.
#[test]
fn unchanged_tokens_admit_their_user() {
    for token in GOOD.iter() {
        assert!(let_in(token.as_bytes()), "{token}");
    }
}
