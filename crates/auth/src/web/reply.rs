//! Parser of a service's answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use access::{Admission, Grants, Principal, Rates};
use mqtt::ReasonCode;
use serde::Deserialize;

use crate::grants::ClientGrants;
use crate::json;
use crate::link::Outcome;
use crate::opinion::Opinion;
use crate::web::client::Reply;
use crate::web::service::Fault;

/// Answer to an authentication request, in the form that is cached.
#[derive(Clone, Debug)]
pub enum AuthenticationAnswer {
    Admit(Arc<AdmittedClient>),
    Refuse(ReasonCode),
    NotMine,
    Failed(Fault),
}

/// Admission of a client.
#[derive(Debug, Default)]
pub struct AdmittedClient {
    client_id: Option<Arc<str>>,
    username: Option<Box<str>>,
    expire_at: Option<Duration>,
    principal: Option<Arc<Principal>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ServiceDecision {
    Allow,
    Deny,
    Ignore,
}

/// Answer document. Unknown members are ignored, because a service may send more than this version reads.
#[derive(Deserialize)]
struct Document {
    result: ServiceDecision,
    #[serde(default)]
    is_superuser: bool,
    username: Option<String>,
    client_id: Option<String>,
    attributes: Option<BTreeMap<String, serde_json::Value>>,
    tenant: Option<String>,
    /// End of the admission, in seconds since 1970.
    expire_at: Option<u64>,
    acl: Option<serde_json::Value>,
    rates: Option<RatesDocument>,
}

/// Rates. Every member must be known, because a misspelt rate would be no limit.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct RatesDocument {
    messages_per_second: u32,
    messages_burst: u32,
    bytes_per_second: u64,
    bytes_burst: u64,
}

impl AuthenticationAnswer {
    /// # Errors
    /// The fault of the answer.
    pub fn read(reply: Reply) -> Result<Self, Fault> {
        match reply.status {
            200 => {}
            204 => return Ok(Self::Admit(Arc::default())),
            401 => return Ok(Self::Refuse(ReasonCode::BadUserNameOrPassword)),
            403 => return Ok(Self::Refuse(ReasonCode::NotAuthorized)),
            404 => return Ok(Self::NotMine),
            status => return Err(Fault::Status(status)),
        }
        let mut document: Document = read(&reply.body)?;
        match document.result {
            ServiceDecision::Deny => Ok(Self::Refuse(ReasonCode::NotAuthorized)),
            ServiceDecision::Ignore => Ok(Self::NotMine),
            ServiceDecision::Allow => {
                let acl = document.acl.take();
                let grants = acl.map(|acl| ClientGrants::parse(&acl)).transpose().map_err(Fault::Rules)?;
                Ok(Self::Admit(Arc::new(AdmittedClient::of(document, grants).map_err(Fault::Body)?)))
            }
        }
    }

    /// Returns the outcome for the chain at this time.
    pub fn outcome(&self, now: SystemTime) -> Outcome {
        match self {
            Self::Admit(client) => match client.admission(now) {
                Some(admission) => Outcome::Admit(Box::new(admission)),
                None => Outcome::Refuse(ReasonCode::NotAuthorized),
            },
            Self::Refuse(code) => Outcome::Refuse(*code),
            Self::NotMine => Outcome::NotMine,
            Self::Failed(fault) => Outcome::Failed(fault.to_string()),
        }
    }
}

impl AdmittedClient {
    fn of(document: Document, grants: Option<ClientGrants>) -> Result<Self, &'static str> {
        let client_id = document.client_id.map(name).transpose()?;
        let username = document.username.map(name).transpose()?;
        let principal = Principal {
            superuser: document.is_superuser,
            mountpoint: document.tenant.map(mountpoint).transpose()?,
            attributes: attributes(document.attributes.unwrap_or_default())?,
            grants: grants.map(|grants| Box::new(grants) as Box<dyn Grants>),
            link: None,
            rates: document.rates.map(|rates| Rates {
                messages_per_second: rates.messages_per_second,
                messages_burst: rates.messages_burst,
                bytes_per_second: rates.bytes_per_second,
                bytes_burst: rates.bytes_burst,
            }),
        };
        let is_default = !principal.superuser
            && principal.mountpoint.is_none()
            && principal.attributes.is_empty()
            && principal.grants.is_none()
            && principal.rates.is_none();
        Ok(Self {
            client_id: client_id.map(Into::into),
            username: username.map(Into::into),
            expire_at: document.expire_at.map(Duration::from_secs),
            principal: (!is_default).then(|| Arc::new(principal)),
        })
    }

    /// Returns the admission; `None` when its time is over.
    fn admission(&self, now: SystemTime) -> Option<Admission> {
        let lifetime = match self.expire_at {
            None => None,
            Some(end) => {
                let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let left = end.checked_sub(now).filter(|left| !left.is_zero())?;
                Some(left.min(LIFETIME_MAX))
            }
        };
        let Self { client_id, username, principal, .. } = self;
        Some(Admission {
            client_id: client_id.clone(),
            username: username.clone(),
            lifetime,
            principal: principal.clone(),
            validity: None,
        })
    }
}

fn name(text: String) -> Result<String, &'static str> {
    if text.is_empty() || text.len() > NAME_MAX || text.contains(char::is_control) {
        return Err("username or client_id is empty, too long, or has control characters");
    }
    Ok(text)
}

/// Returns a mountpoint of one level, which no value can widen.
fn mountpoint(tenant: String) -> Result<Box<str>, &'static str> {
    let tenant = name(tenant)?;
    if tenant.len() > TENANT_MAX || tenant.contains(['+', '#', '/']) || tenant.starts_with('$') {
        return Err("tenant is too long, has one of + # /, or begins with $");
    }
    Ok(format!("{tenant}/").into())
}

/// Attributes in the form of a [`Principal`].
type Attributes = Vec<(Box<str>, Box<str>)>;

/// Returns the attributes. Each entry of a list is a value; `null` counts as missing.
fn attributes(members: BTreeMap<String, serde_json::Value>) -> Result<Attributes, &'static str> {
    use serde_json::Value;
    let mut found = Vec::new();
    for (name, value) in members {
        let values = match value {
            Value::Null => continue,
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            let text = match value {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                Value::Bool(boolean) => boolean.to_string(),
                _ => return Err("an attribute is not a string, number or boolean, nor a list of them"),
            };
            if name.len() > ATTRIBUTE_MAX || text.len() > ATTRIBUTE_MAX || found.len() == ATTRIBUTES_MAX {
                return Err("there are more than 64 attributes, or one is longer than 1024 bytes");
            }
            found.push((name.as_str().into(), text.into()));
        }
    }
    Ok(found)
}

/// Returns the opinion of a service about a topic.
///
/// # Errors
/// The fault of the answer.
pub fn opinion(reply: Reply) -> Result<Opinion, Fault> {
    #[derive(Deserialize)]
    struct Document {
        result: ServiceDecision,
    }
    let word = match reply.status {
        200 => read::<Document>(&reply.body)?.result,
        204 => ServiceDecision::Allow,
        403 => ServiceDecision::Deny,
        404 => ServiceDecision::Ignore,
        status => return Err(Fault::Status(status)),
    };
    Ok(match word {
        ServiceDecision::Allow => Opinion::Allow,
        ServiceDecision::Deny => Opinion::Deny,
        ServiceDecision::Ignore => Opinion::None,
    })
}

/// Parses an object without repeated members, at any depth.
fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    let members = json::object(body).map_err(|_| NO_DOCUMENT)?;
    serde_json::from_value(members.into()).map_err(|_| NO_DOCUMENT)
}

const NO_DOCUMENT: Fault = Fault::Body(
    "it is not a JSON object with a result of allow, deny or ignore, or has a member twice or of a wrong type",
);
/// Maximum size of an MQTT user name in bytes.
const NAME_MAX: usize = u16::MAX as usize;
const TENANT_MAX: usize = 255;
const ATTRIBUTES_MAX: usize = 64;
const ATTRIBUTE_MAX: usize = 1024;
/// Ten years. A longer time makes no difference to a connection, and every clock can add this one.
const LIFETIME_MAX: Duration = Duration::from_secs(3650 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    fn outcome(body: &str) -> Result<Outcome, Fault> {
        let reply = Reply { status: 200, body: body.as_bytes().to_vec() };
        Ok(AuthenticationAnswer::read(reply)?.outcome(SystemTime::UNIX_EPOCH + NOW))
    }

    fn admitted(body: &str) -> Admission {
        match outcome(body) {
            Ok(Outcome::Admit(admission)) => *admission,
            other => panic!("{body}: {other:?}"),
        }
    }

    #[test]
    fn an_answer_may_contain_the_admission_of_a_client() {
        assert_eq!(admitted(r#"{"result":"allow","whatever":1}"#), Admission::default());
        let admission = admitted(
            r#"{"result":"allow","is_superuser":true,"username":"alice","client_id":"c-7","attributes":{"floor":3,"group":["a","b"],"x":null},
            "tenant":"acme","expire_at":1000060,"rates":{"messages_per_second":5,"bytes_burst":9}}"#,
        );
        assert_eq!(
            (admission.username.as_deref(), admission.client_id.as_deref()),
            (Some("alice"), Some("c-7"))
        );
        assert_eq!(admission.lifetime, Some(Duration::from_secs(60)));
        let principal = admission.principal.unwrap();
        let attributes: Vec<_> =
            principal.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(attributes, [("floor", "3"), ("group", "a"), ("group", "b")]);
        assert_eq!((principal.superuser, principal.mountpoint.as_deref()), (true, Some("acme/")));
        let rates = Rates { messages_per_second: 5, bytes_burst: 9, ..Rates::default() };
        assert_eq!(principal.rates, Some(rates));
    }

    #[test]
    fn an_answer_may_contain_rules() {
        use access::{Action, Identity};
        let admission = admitted(
            r#"{"result":"allow","acl":[{"permission":"allow","action":"publish","topic":"up/${clientid}"}]}"#,
        );
        let principal = admission.principal.unwrap();
        let grants = principal.grants.as_ref().unwrap();
        let identity = Identity { client_id: "c1", ..Identity::default() };
        let action = Action::Publish { qos: mqtt::QoS::AtMostOnce, retain: false };
        assert_eq!(grants.decide(identity, action, "up/c1"), Some(true));
        assert_eq!(grants.decide(identity, action, "up/c2"), None);
    }

    #[test]
    fn an_expired_admission_is_refused() {
        for at in [0, 999_999, 1_000_000] {
            let body = format!(r#"{{"result":"allow","expire_at":{at}}}"#);
            assert_eq!(outcome(&body), Ok(Outcome::Refuse(ReasonCode::NotAuthorized)));
        }
        let far = admitted(&format!(r#"{{"result":"allow","expire_at":{}}}"#, u64::MAX));
        assert_eq!(far.lifetime, Some(LIFETIME_MAX));
    }

    #[test]
    fn an_unclear_answer_is_a_failure() {
        for body in [
            "",
            "null",
            "allow",
            "{}",
            r#""allow""#,
            r#"{"result":"ALLOW"}"#,
            r#"{"result":true}"#,
            r#"{"result":"allow"} x"#,
            r#"{"result":"deny","result":"allow"}"#,
            r#"{"result":"allow","attributes":{"group":"a","group":"b"}}"#,
            r#"{"result":"allow","acl":[{"permission":"deny","action":"all","topic":"a","permission":"allow"}]}"#,
            r#"{"result":"allow","is_superuser":"yes"}"#,
            r#"{"result":"allow","username":""}"#,
            r#"{"result":"allow","client_id":"a\u0000b"}"#,
            r#"{"result":"allow","tenant":"a/b"}"#,
            r#"{"result":"allow","tenant":"+"}"#,
            r#"{"result":"allow","tenant":"$SYS"}"#,
            r#"{"result":"allow","expire_at":-1}"#,
            r#"{"result":"allow","expire_at":"soon"}"#,
            r#"{"result":"allow","rates":{"mesages_per_second":5}}"#,
            r#"{"result":"allow","rates":{"messages_per_second":-5}}"#,
            r#"{"result":"allow","attributes":{"a":{}}}"#,
            r#"{"result":"allow","attributes":["a"]}"#,
            r#"{"result":"allow","acl":"all"}"#,
            r#"{"result":"allow","acl":[{"permission":"allow"}]}"#,
            r##"{"result":"allow","acl":[{"permission":"deny","action":"publish","topic":"#","ip":"10.0.0.1"}]}"##,
        ] {
            assert!(outcome(body).is_err(), "{body}");
        }
    }

    #[test]
    fn a_status_without_a_body_is_an_answer() {
        let answer = |status| {
            AuthenticationAnswer::read(Reply { status, body: Vec::new() })
                .map(|e| e.outcome(SystemTime::now()))
        };
        assert_eq!(answer(204), Ok(Outcome::Admit(Box::default())));
        assert_eq!(answer(401), Ok(Outcome::Refuse(ReasonCode::BadUserNameOrPassword)));
        assert_eq!(answer(403), Ok(Outcome::Refuse(ReasonCode::NotAuthorized)));
        assert_eq!(answer(404), Ok(Outcome::NotMine));
        assert!(answer(200).is_err());
        assert_eq!(answer(500), Err(Fault::Status(500)));
        let opinion = |status| opinion(Reply { status, body: Vec::new() });
        assert_eq!(opinion(204), Ok(Opinion::Allow));
        assert_eq!(opinion(403), Ok(Opinion::Deny));
        assert_eq!(opinion(404), Ok(Opinion::None));
        assert!(opinion(200).is_err());
        assert_eq!(opinion(401), Err(Fault::Status(401)), "it is about the broker, not about a topic");
    }
}
