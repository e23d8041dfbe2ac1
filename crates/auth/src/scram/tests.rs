use proptest::prelude::*;

use super::*;
use crate::password_hash::PasswordHash;

/// Keys of RFC 7677, 3: user `user`, password `pencil`.
const STORED: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
const FIRST: &[u8] = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const SERVER_FIRST: &str =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

fn user(known: bool) -> ScramUser {
    ScramUser { keys: PasswordHash::parse(STORED).unwrap().scram().unwrap(), known }
}

fn challenge(known: bool) -> Challenge {
    Challenge::new(&ClientFirst::parse(FIRST).unwrap(), user(known), SERVER_NONCE).0
}

fn first(text: &str) -> Result<String, Failure> {
    ClientFirst::parse(text.as_bytes()).map(|first| first.username)
}

#[test]
fn the_example_of_rfc_7677_is_reproduced() {
    let parsed = ClientFirst::parse(FIRST).unwrap();
    assert_eq!(parsed.username, "user");
    let (challenge, message) = Challenge::new(&parsed, user(true), SERVER_NONCE);
    assert_eq!(String::from_utf8(message).unwrap(), SERVER_FIRST);
    let last = challenge.finish(FINAL.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(last).unwrap(), SERVER_FINAL);
}

#[test]
fn any_difference_in_a_message_is_refused() {
    for (from, to) in [
        ("p=dHzb", "p=dHzc"),
        ("k0,p=", "k1,p="),
        ("r=rOp", "r=rOq"),
        ("c=biws", "c=eSws"), // `y,,`, which differs from the client's first message.
        ("c=biws", "c="),
        (",p=", ",x=1,p="),
    ] {
        let message = FINAL.replacen(from, to, 1);
        assert_ne!(message, FINAL);
        assert_eq!(challenge(true).finish(message.as_bytes()), Err(Failure::Wrong), "{message}");
    }
    assert_eq!(challenge(false).finish(FINAL.as_bytes()), Err(Failure::Wrong), "a made-up user");
}

/// RFC 5802, 5.1 and 7.
#[test]
fn names_are_unescaped_and_prepared() {
    assert_eq!(first("n,,n=a=2Cb=3Dc,r=x").as_deref(), Ok("a,b=c"));
    assert_eq!(first("y,,n=user,r=x,e=1").as_deref(), Ok("user"));
    assert_eq!(first("n,,n=I\u{AD}X,r=x").as_deref(), Ok("IX"));
    for malformed in ["n,,n=a=2c,r=x", "n,,n=a=,r=x", "n,,n=a=3,r=x", "n,,n=a=\u{e9}\u{e9},r=x"] {
        assert_eq!(first(malformed), Err(Failure::Malformed), "{malformed}");
    }
}

#[test]
fn unsupported_options_are_refused() {
    for message in [
        "p=tls-unique,,n=user,r=x",
        "p=tls-exporter,,n=user,r=x",
        "n,a=admin,n=user,r=x",
        "n,,m=1,n=user,r=x",
        "n,,n=us\u{7}er,r=x",
    ] {
        assert_eq!(first(message), Err(Failure::Unsupported), "{message:?}");
    }
}

#[test]
fn invalid_messages_are_malformed() {
    let long = format!("n,,n=user,r={}", "x".repeat(NONCE_MAX + 1));
    let huge = format!("n,,n={},r=x", "u".repeat(MESSAGE_MAX));
    for message in [
        "",
        "n",
        "n,",
        "n,,",
        "n,,n=user",
        "n,,r=x,n=user",
        "n,,n=user,r=",
        "n,,n=user,r=\u{e9}",
        "n,,n=,r=x",
        "x,,n=user,r=x",
        "n,b=c,n=user,r=x",
        "n,,n=user,r=x,",
        "n,,n=user,r=x,1=2",
        "n,,n=user,r=x,e=",
        &long,
        &huge,
    ] {
        assert_eq!(first(message), Err(Failure::Malformed), "{message:?}");
    }
    assert_eq!(ClientFirst::parse(b"n,,n=\xff,r=x"), Err(Failure::Malformed));
    for message in [
        "",
        "c=biws",
        "c=biws,r=x",
        "c=biws,r=x,p=",
        "c=biws,r=x,p=AAAA",
        "c=!,r=x,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "r=x,c=biws,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    ] {
        assert_eq!(challenge(true).finish(message.as_bytes()), Err(Failure::Malformed), "{message:?}");
    }
    let mut trailing = FINAL.to_owned();
    trailing.push_str(",x=y");
    assert_eq!(challenge(true).finish(trailing.as_bytes()), Err(Failure::Malformed));
}

proptest! {
    #[test]
    fn no_message_panics_or_is_accepted(parts in prop::collection::vec("n|y|,|=|2C|3D|n=|r=|c=biws|p=|a=|[a-z+/]{1,4}|\\PC", 0..12)) {
        let message = parts.concat();
        if let Ok(first) = ClientFirst::parse(message.as_bytes()) {
            prop_assert!(message.starts_with(first.gs2_header) && message.ends_with(first.bare));
        }
        prop_assert!(challenge(true).finish(message.as_bytes()).is_err());
    }
}
