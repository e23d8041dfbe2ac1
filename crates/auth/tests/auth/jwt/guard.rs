//! Tokens in a guard: counters, back-off, and the Authentication Method.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use access::{Access, Credentials, Step};
use auth::settings::{Auth, ChainNames, LinkName, Protection};
use auth::{Guard, LinkFigures};
use mqtt::ReasonCode;
use serde_json::json;

use crate::tokens::{open, token_of, with_secret};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fn guard(protection: &Protection) -> Guard {
    let auth = Auth { chain: Some(ChainNames(vec![LinkName::Jwt])), ..Auth::default() };
    Guard::open_with(&auth, protection, vec![open(&with_secret())]).unwrap()
}

fn step(guard: &Guard, token: &[u8]) -> Step {
    let credentials = Credentials { client_id: "c1", peer: Some(PEER), ..Credentials::default() };
    guard.mechanism("JWT", credentials).expect("the link has it").step(Some(token))
}

fn figures(guard: &Guard) -> LinkFigures {
    guard.link_figures().into_iter().find(|link| link.name == "jwt").unwrap()
}

#[test]
fn the_method_is_counted_as_the_link() {
    let guard = guard(&Protection::default());
    assert!(matches!(step(&guard, token_of(json!({})).as_bytes()), Step::Success(None, _)));
    assert_eq!(
        step(&guard, token_of(json!({"exp": 1})).as_bytes()),
        Step::Failure(ReasonCode::NotAuthorized)
    );
    assert_eq!(step(&guard, &[0xff]), Step::Failure(ReasonCode::ProtocolError));
    let link = figures(&guard);
    assert_eq!((link.accepted, link.refused, link.failed), (1, 2, 0));
    let all = guard.figures();
    assert_eq!((all.accepted, all.refused, all.scram_accepted, all.scram_refused), (1, 2, 0, 0));
    assert_eq!(guard.protection_figures().failures, 1, "an invalid token is not an attempt to log in");
}

/// Wrong tokens make passwords wait. A valid token, which cannot be guessed, never waits.
#[test]
fn wrong_tokens_count_as_wrong_logins_and_valid_ones_are_admitted() {
    let few =
        Protection { failures_max: 3, failures_backoff: Duration::from_secs(60), ..Protection::default() };
    let guard = guard(&few);
    for _ in 0..3 {
        step(&guard, token_of(json!({"exp": 1})).as_bytes());
    }
    let figures = guard.protection_figures();
    assert_eq!((figures.failures, figures.backoffs), (3, 1));
    assert!(matches!(step(&guard, token_of(json!({})).as_bytes()), Step::Success(None, _)));
}
