//! Checks that apply to every admitted client: bans by its final name, mountpoints, certificates, listeners, flapping.

use access::{Admission, ClientCertificate, Principal};
use settings::{Raw, Value as _};

use super::*;
use crate::link::{Attempt, Outcome};
use crate::settings::{CertificateName, ListenerNames, Protection as ProtectionSettings, Template};

/// Link that admits every client with this admission.
struct Always(Admission);

impl Link for Always {
    fn name(&self) -> &'static str {
        "users"
    }

    fn check_immediately(&self, _: Credentials<'_>) -> Option<Outcome> {
        Some(Outcome::Admit(Box::new(self.0.clone())))
    }

    fn work(&self, _: &Attempt) -> Outcome {
        Outcome::NotMine
    }
}

fn always(settings: &Auth, admission: Admission) -> Guard {
    Guard::open_with(settings, &ProtectionSettings::default(), vec![Arc::new(Always(admission))]).unwrap()
}

fn answer(guard: &Guard, credentials: Credentials<'_>) -> AuthResult {
    guard.authenticate(credentials, &mut || AuthReply::new(|_| {})).expect("known at once")
}

fn mountpoint(verdict: &AuthResult) -> Option<&str> {
    let AuthResult::Admit(admission) = verdict else { return None };
    admission.principal.as_ref()?.mountpoint.as_deref()
}

fn template(text: &str) -> Option<Template> {
    Some(Template::from_raw(&Raw::Text(text.to_owned())).unwrap())
}

const CLIENT: Credentials<'_> = Credentials {
    client_id: "c",
    username: Some("alice"),
    password: None,
    peer: None,
    listener: "tls",
    certificate: None,
};

fn ban(guard: &Guard, kind: BanKind, value: &str) {
    let target = BanTarget::parse(kind, value).unwrap();
    let ban = NewBan { target, reason: String::new(), by: String::new(), until: None };
    guard.bans().add(ban, SystemTime::now()).unwrap();
}

#[test]
fn bans_apply_to_the_names_that_a_link_returns() {
    let admission =
        Admission { username: Some("mallory".into()), client_id: Some("m".into()), ..Admission::default() };
    let guard = always(&Auth::default(), admission);
    assert!(matches!(answer(&guard, CLIENT), AuthResult::Admit(_)));
    ban(&guard, BanKind::Username, "mallory");
    assert_eq!(answer(&guard, CLIENT), AuthResult::Deny(ReasonCode::Banned));
    let guard = always(&Auth::default(), Admission { client_id: Some("m".into()), ..Admission::default() });
    ban(&guard, BanKind::ClientId, "m");
    assert_eq!(answer(&guard, CLIENT), AuthResult::Deny(ReasonCode::Banned));
    assert_eq!(guard.figures().accepted, 0);
}

#[test]
fn a_connected_client_that_is_banned_is_disconnected() {
    let guard = always(&Auth::default(), Admission::default());
    let here = Identity { client_id: "c", username: Some("alice"), ..Identity::default() };
    assert_eq!((guard.revoked(here), guard.revocations()), (None, 0));
    ban(&guard, BanKind::ClientId, "d");
    assert_eq!((guard.revoked(here), guard.revocations()), (None, 1));
    ban(&guard, BanKind::Username, "al*");
    assert_eq!((guard.revoked(here), guard.revocations()), (Some(ReasonCode::Banned), 2));
    assert_eq!(guard.figures().banned, 0, "no client was refused");
}

#[test]
fn a_mountpoint_comes_from_the_user_or_from_the_template() {
    let settings = Auth { mountpoint: template("t/${username}/"), ..Auth::default() };
    let verdict = answer(&always(&settings, Admission::default()), CLIENT);
    assert_eq!(mountpoint(&verdict), Some("t/alice/"));

    let own = Principal { mountpoint: Some("acme".into()), superuser: true, ..Principal::default() };
    let guard = always(&settings, Admission { principal: Some(Arc::new(own)), ..Admission::default() });
    let verdict = answer(&guard, CLIENT);
    assert_eq!(mountpoint(&verdict), Some("acme/"), "the missing `/` is added");
    assert!(
        matches!(verdict, AuthResult::Admit(admission) if admission.principal.as_ref().unwrap().superuser),
        "the rest of the principal stays"
    );
    assert_eq!(mountpoint(&answer(&Files::new("mount").open(), CLIENT)), None);
}

#[test]
fn a_client_with_an_invalid_mountpoint_is_refused() {
    let settings = Auth { mountpoint: template("t/${username}/"), ..Auth::default() };
    let guard = always(&settings, Admission::default());
    for username in [None, Some(""), Some("#"), Some("victim/x"), Some("$SYS")] {
        assert_eq!(answer(&guard, Credentials { username, ..CLIENT }), NOT_AUTHORIZED, "{username:?}");
    }
    let own = Principal { mountpoint: Some("a/+/".into()), ..Principal::default() };
    let guard =
        always(&Auth::default(), Admission { principal: Some(Arc::new(own)), ..Admission::default() });
    assert_eq!(answer(&guard, CLIENT), NOT_AUTHORIZED);
    assert_eq!(guard.figures().mountpoint_refused, 1);
}

#[test]
fn a_certificate_is_enough_and_names_user_and_client() {
    let settings = Auth {
        certificate_username: CertificateName::Cn,
        certificate_client_id: CertificateName::Dns,
        ..Auth::default()
    };
    let guard = Guard::open(&settings).unwrap();
    let certificate = Arc::new(ClientCertificate {
        common_name: Some("press".into()),
        dns_names: vec!["press.example".into()],
        ..ClientCertificate::default()
    });
    let shown = Credentials { username: None, certificate: Some(&certificate), ..CLIENT };
    let AuthResult::Admit(admission) = answer(&guard, shown) else { panic!("it is enough") };
    assert_eq!(admission.username.as_deref(), Some("press"));
    assert_eq!(admission.client_id.as_deref(), Some("press.example"));
    assert_eq!(answer(&guard, Credentials { username: Some("admin"), ..shown }), NOT_AUTHORIZED);
    assert_eq!(answer(&guard, Credentials { username: None, ..CLIENT }), NOT_AUTHORIZED);
}

#[test]
fn anonymous_clients_are_admitted_by_some_listeners_only() {
    let settings = Auth { anonymous_listeners: ListenerNames(vec!["lan".into()]), ..Auth::default() };
    let guard = Guard::open(&settings).unwrap();
    let anonymous = Credentials { username: None, ..CLIENT };
    assert_eq!(answer(&guard, Credentials { listener: "lan", ..anonymous }), AuthResult::Allow);
    assert_eq!(answer(&guard, anonymous), NOT_AUTHORIZED);
    assert_eq!(answer(&guard, Credentials { listener: "", ..anonymous }), NOT_AUTHORIZED);
}

#[test]
fn an_address_that_connects_too_often_is_refused_before_any_link_is_asked() {
    let protection = ProtectionSettings { address_connects_per_second: 1, ..ProtectionSettings::default() };
    let link = Arc::new(Always(Admission::default()));
    let guard = Guard::open_with(&Auth::default(), &protection, vec![link]).unwrap();
    let from = Credentials { peer: Some([192, 0, 2, 1].into()), ..CLIENT };
    let verdicts: Vec<AuthResult> = (0..100).map(|_| answer(&guard, from)).collect();
    assert_eq!(verdicts[0], AuthResult::Allow);
    assert!(verdicts.contains(&AuthResult::Deny(ReasonCode::ConnectionRateExceeded)));
    let figures = guard.figures();
    assert_eq!(figures.rate_limited + figures.accepted, 100);
}

#[test]
fn a_flapping_client_is_banned() {
    let protection = ProtectionSettings { flapping_connects_max: 2, ..ProtectionSettings::default() };
    let link = Arc::new(Always(Admission::default()));
    let guard = Guard::open_with(&Auth::default(), &protection, vec![link]).unwrap();
    assert_eq!(
        [(); 3].map(|()| answer(&guard, CLIENT)),
        [AuthResult::Allow, AuthResult::Allow, AuthResult::Deny(ReasonCode::Banned)]
    );
    while guard.bans().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(answer(&guard, CLIENT), AuthResult::Deny(ReasonCode::Banned));
    assert_eq!(guard.figures().banned, 1, "the last one by the ban itself");
    assert_eq!(answer(&guard, Credentials { client_id: "d", ..CLIENT }), AuthResult::Allow);
}

/// No tenant causes the ban of another one's client.
#[test]
fn flapping_clients_of_tenants_count_apart() {
    let settings = Auth { mountpoint: template("t/${username}/"), ..Auth::default() };
    let protection = ProtectionSettings { flapping_connects_max: 2, ..ProtectionSettings::default() };
    let link = Arc::new(Always(Admission::default()));
    let guard = Guard::open_with(&settings, &protection, vec![link]).unwrap();
    let bob = Credentials { username: Some("bob"), ..CLIENT };
    for credentials in [CLIENT, CLIENT, bob, bob] {
        assert!(mountpoint(&answer(&guard, credentials)).is_some());
    }
    assert_eq!(answer(&guard, CLIENT), AuthResult::Deny(ReasonCode::Banned));
    let own = Principal { mountpoint: Some("t/alice/".into()), ..Principal::default() };
    let identity = |client_id, principal| Identity {
        client_id,
        username: None,
        peer: None,
        listener: "tls",
        certificate: None,
        principal,
    };
    guard.flapped(identity("c", Some(&own)));
    guard.flapped(identity("other", None));
    // Bans are created in order, so once this one exists the others would too.
    while guard.bans().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(guard.revoked(identity("other", None)), Some(ReasonCode::Banned));
    assert_eq!(guard.bans().len(), 1);
}
