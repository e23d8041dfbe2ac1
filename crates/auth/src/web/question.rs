//! Question to a service, and the names of its parts in templates.

use std::borrow::Cow;
use std::net::IpAddr;

use access::{Action, ClientCertificate, Credentials, Identity};
use base64ct::{Base64, Encoding};

/// Everything that a request may contain. Not `Debug`: it has the password.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub peer: Option<IpAddr>,
    pub listener: &'a str,
    pub certificate: Option<&'a ClientCertificate>,
    /// `None` for the question who may connect.
    pub requested: Option<RequestedAccess<'a>>,
}

/// Access that a client requests.
#[derive(Clone, Copy)]
pub struct RequestedAccess<'a> {
    pub action: &'static str,
    pub topic: &'a str,
    pub qos: u8,
    pub retain: bool,
}

impl<'a> Question<'a> {
    pub fn for_authentication(credentials: Credentials<'a>) -> Self {
        Self {
            client_id: credentials.client_id,
            username: credentials.username,
            password: credentials.password,
            peer: credentials.peer,
            listener: credentials.listener,
            certificate: credentials.certificate.map(|certificate| &**certificate),
            requested: None,
        }
    }

    /// Returns the question; `None` for actions that no service is asked about.
    pub fn for_authorization(identity: Identity<'a>, action: Action, topic: &'a str) -> Option<Self> {
        let requested = match action {
            Action::Publish { qos, retain } => {
                RequestedAccess { action: "publish", topic, qos: qos as u8, retain }
            }
            Action::Subscribe { qos } => {
                RequestedAccess { action: "subscribe", topic, qos: qos as u8, retain: false }
            }
            Action::Receive => return None,
        };
        Some(Self {
            client_id: identity.client_id,
            username: identity.username,
            password: None,
            peer: identity.peer,
            listener: identity.listener,
            certificate: identity.certificate,
            requested: Some(requested),
        })
    }

    pub fn value(&self, field: Field) -> Value<'a> {
        let text =
            |text: Option<&'a str>| text.map_or(Value::Absent, |text| Value::Text(Cow::Borrowed(text)));
        match field {
            Field::ClientId => text(Some(self.client_id)),
            Field::Username => text(self.username),
            Field::Password => self.password.map_or(Value::Absent, Value::Bytes),
            Field::PasswordBase64 => self
                .password
                .map_or(Value::Absent, |password| Value::Text(Base64::encode_string(password).into())),
            Field::Peer => self.peer.map_or(Value::Absent, |peer| Value::Text(peer.to_string().into())),
            Field::Listener => text(Some(self.listener)),
            Field::CertCn => text(self.certificate.and_then(|found| found.common_name.as_deref())),
            Field::CertSubject => text(self.certificate.map(|found| &*found.subject)),
            Field::Action => text(self.requested.map(|requested| requested.action)),
            Field::Topic => text(self.requested.map(|requested| requested.topic)),
            Field::Qos => self.requested.map_or(Value::Absent, |requested| Value::Number(requested.qos)),
            Field::Retain => self.requested.map_or(Value::Absent, |requested| Value::Flag(requested.retain)),
        }
    }
}

/// One value of a question.
pub enum Value<'a> {
    Absent,
    Text(Cow<'a, str>),
    /// Bytes that are usually text.
    Bytes(&'a [u8]),
    Number(u8),
    Flag(bool),
}

/// Placeholder of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    ClientId,
    Username,
    Password,
    PasswordBase64,
    Peer,
    Listener,
    CertCn,
    CertSubject,
    Action,
    Topic,
    Qos,
    Retain,
}

/// Kind of service that a template is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Authentication,
    Authorisation,
}

impl Kind {
    /// Returns the placeholders that are allowed in its templates.
    pub fn fields(self) -> &'static [Field] {
        use Field::*;
        match self {
            Self::Authentication => {
                &[ClientId, Username, Password, Peer, Listener, CertCn, CertSubject, PasswordBase64]
            }
            Self::Authorisation => {
                &[ClientId, Username, Peer, Listener, CertCn, CertSubject, Action, Topic, Qos, Retain]
            }
        }
    }
}

impl Field {
    pub fn name(self) -> &'static str {
        match self {
            Self::ClientId => "clientid",
            Self::Username => "username",
            Self::Password => "password",
            Self::PasswordBase64 => "password_base64",
            Self::Peer => "peer",
            Self::Listener => "listener",
            Self::CertCn => "cert_cn",
            Self::CertSubject => "cert_subject",
            Self::Action => "action",
            Self::Topic => "topic",
            Self::Qos => "qos",
            Self::Retain => "retain",
        }
    }
}
