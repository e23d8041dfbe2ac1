//! Enhanced authentication (4.12): AUTH packets before CONNACK, and later for re-authentication.

use mqtt::{Auth, Connect, Packet, PropertiesBuf, Property, ReasonCode};

use super::Worker;
use crate::access::{AuthResult, Step};
use crate::connection::{Enhanced, Phase};

impl Worker {
    /// Starts the exchange if CONNECT names an Authentication Method [MQTT-4.12.0-1].
    pub(super) fn start_exchange(&mut self, slot: u32, method: &str, connect: &Connect<'_>) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let credentials = connection.credentials(connect.password, &self.node);
        let mechanism = self.node.access.mechanism(method, credentials);
        let version = connection.version;
        let Some(mut mechanism) = mechanism else {
            return self.refuse_connect(slot, version, ReasonCode::BadAuthenticationMethod);
        };
        connection.phase = Phase::Exchanging;
        let step = mechanism.step(connect.properties.authentication_data());
        connection.extra().enhanced = Some(Enhanced { method: method.into(), run: Some(mechanism) });
        self.exchange_step(slot, step);
    }

    /// Handles AUTH before CONNACK.
    pub(super) fn continue_exchange(&mut self, slot: u32, auth: &Auth<'_>) -> Result<(), ReasonCode> {
        if auth.reason != ReasonCode::ContinueAuthentication {
            return Err(ReasonCode::ProtocolError); // [MQTT-4.12.0-3]
        }
        self.next_step(slot, auth)
    }

    /// Handles AUTH of an accepted client: the start of a re-authentication, or a step of it [MQTT-4.12.1-1].
    pub(super) fn re_authenticate(&mut self, slot: u32, auth: &Auth<'_>) -> Result<(), ReasonCode> {
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        let running =
            connection.extra.as_ref().and_then(|extra| extra.enhanced.as_ref()?.run.as_ref()).is_some();
        match (auth.reason, running) {
            (ReasonCode::ContinueAuthentication, true) => {}
            (ReasonCode::ReAuthenticate, false) => {
                let method = auth.properties.authentication_method().unwrap_or_default();
                let credentials = connection.credentials(None, &self.node);
                let run = self.node.access.mechanism(method, credentials);
                let Some(enhanced) = connection.extra.as_mut().and_then(|extra| extra.enhanced.as_mut())
                else {
                    return Err(ReasonCode::ProtocolError); // [MQTT-4.12.0-7]
                };
                enhanced.run = run;
            }
            _ => return Err(ReasonCode::ProtocolError),
        }
        self.next_step(slot, auth)
    }

    fn next_step(&mut self, slot: u32, auth: &Auth<'_>) -> Result<(), ReasonCode> {
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        let enhanced = connection.extra.as_mut().and_then(|extra| extra.enhanced.as_mut());
        let Some(Enhanced { method, run: Some(run) }) = enhanced else {
            return Err(ReasonCode::ProtocolError);
        };
        // The method must be the one that CONNECT named [MQTT-4.12.0-5].
        if auth.properties.authentication_method() != Some(&**method) {
            return Err(ReasonCode::BadAuthenticationMethod);
        }
        let step = run.step(auth.properties.authentication_data());
        self.exchange_step(slot, step);
        Ok(())
    }

    fn exchange_step(&mut self, slot: u32, step: Step) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let (id, phase, version) = (connection.id, connection.phase, connection.version);
        match step {
            Step::Continue(data) => self.send_auth(slot, ReasonCode::ContinueAuthentication, Some(&data)),
            Step::Success(data, admission) => {
                self.end_exchange(slot);
                if phase == Phase::Open {
                    return match self.readmit(slot, *admission) {
                        Ok(()) => self.send_auth(slot, ReasonCode::Success, data.as_deref()),
                        Err(reason) => self.close(slot, reason),
                    };
                }
                let Some(connection) = self.connections.occupant(slot) else { return };
                connection.phase = Phase::Authenticating;
                if let Some(connecting) = connection.connecting.as_mut() {
                    connecting.authentication_data = data;
                }
                self.authenticated(id, AuthResult::Admit(admission));
            }
            Step::Failure(reason) => {
                self.note_authentication(slot, Some(reason));
                match phase {
                    Phase::Open => self.close(slot, reason), // [MQTT-4.12.1-2]
                    _ => self.refuse_connect(slot, version, reason),
                }
            }
        }
    }

    fn end_exchange(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        if let Some(enhanced) = connection.extra.as_mut().and_then(|extra| extra.enhanced.as_mut()) {
            enhanced.run = None;
        }
    }

    fn send_auth(&mut self, slot: u32, reason: ReasonCode, data: Option<&[u8]>) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let enhanced = connection.extra.as_ref().and_then(|extra| extra.enhanced.as_ref());
        let Some(Enhanced { method, .. }) = enhanced else { return };
        let mut properties = PropertiesBuf::default();
        properties.push(Property::AuthenticationMethod(method));
        if let Some(data) = data {
            properties.push(Property::AuthenticationData(data));
        }
        self.send(slot, &Packet::Auth(Auth { reason, properties: properties.as_properties() }));
    }
}
