//! Authentication Method `JWT`: a client renews its token without reconnecting.

use std::sync::Arc;

use access::{Credentials, Mechanism, Step};
use mqtt::ReasonCode;

use super::claims::Bearer;
use super::link::JwtLink;
use super::refusal::RefusalKind;

/// Name in CONNECT and AUTH. Their Authentication Data is the token, and the first answer of the server is the last.
pub const METHOD: &str = "JWT";

/// One token of one client. Verification takes well below a millisecond and never waits, so it runs on the reactor.
#[derive(Debug)]
pub struct TokenMechanism {
    link: Arc<JwtLink>,
    client_id: Box<str>,
    username: Option<Box<str>>,
}

impl TokenMechanism {
    pub fn of(link: &Arc<JwtLink>, method: &str, credentials: Credentials<'_>) -> Option<Box<dyn Mechanism>> {
        (method == METHOD).then(|| {
            let mechanism = Self {
                link: link.clone(),
                client_id: credentials.client_id.into(),
                username: credentials.username.map(Into::into),
            };
            Box::new(mechanism) as Box<dyn Mechanism>
        })
    }
}

impl Mechanism for TokenMechanism {
    fn step(&mut self, data: Option<&[u8]>) -> Step {
        let Some(token) = data.and_then(|data| std::str::from_utf8(data).ok()) else {
            return Step::Failure(ReasonCode::ProtocolError);
        };
        // A new token must not change the client's identity.
        let bearer = Bearer { client_id: &self.client_id, username: self.username.as_deref() };
        match self.link.admit_immediately(token, bearer) {
            Ok(admission) => Step::Success(None, Box::new(admission)),
            // DISCONNECT has neither Server unavailable (0x88) nor 0x86.
            Err(refusal) if refusal.kind() == RefusalKind::Unavailable => {
                Step::Failure(ReasonCode::ServerBusy)
            }
            Err(_) => Step::Failure(ReasonCode::NotAuthorized),
        }
    }
}
