//! The end of a session of the process, such as that of a bridge or an action that was removed.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use bridge::{Client, ConnectOptions, Event, Time};
use edge::Door;
use mqtt::{ReasonCode, Version};

/// Maximum size of a packet from the broker.
const PACKET_MAX: u32 = 1 << 20;

/// Ends a session that belongs to the process, with the messages that wait in it. Returns false when there is none. It
/// blocks.
///
/// # Errors
/// The session stays.
pub fn end_session(door: &Door, client_id: &str, within: Duration) -> Result<bool, String> {
    let brief = ConnectOptions {
        version: Version::V5,
        private: false,
        client_id: client_id.to_owned(),
        username: None,
        password: None,
        clean_start: true,
        session_expiry: 0,
        keep_alive: 0,
        receive_maximum: 1,
        packet_size_max: PACKET_MAX,
        user_properties: Vec::new(),
        will: None,
    };
    // A connection that begins a new session does not learn whether there was one.
    let look = ConnectOptions { clean_start: false, session_expiry: u32::MAX, ..brief.clone() };
    let is_present = connect_once(door, &look, within)?;
    // The new session ends with its connection [MQTT-3.1.2-4].
    connect_once(door, &brief, within)?;
    Ok(is_present)
}

/// Connects and disconnects. Returns whether the broker had a session.
fn connect_once(door: &Door, options: &ConnectOptions, within: Duration) -> Result<bool, String> {
    let failed = |error: std::io::Error| error.to_string();
    let began = Instant::now();
    let now = || Time(began.elapsed().as_micros() as u64);
    let mut client = Client::new(now(), options).map_err(|reason| reason.to_string())?;
    let mut stream = door.open().map_err(failed)?;
    stream.set_read_timeout(Some(within)).map_err(failed)?;
    let connect = client.unsent().bytes().to_vec();
    stream.write_all(&connect).map_err(failed)?;
    client.unsent_mut().consume(connect.len());
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            return Err("the broker closed the connection".to_owned());
        }
        client.receive(now(), &buffer[..count]);
        let event = client.poll(now()).map_err(|reason| reason.to_string())?;
        if let Some((Event::Connected, _)) = event {
            break;
        }
    }
    let is_present = client.limits().is_some_and(|limits| limits.session_present);
    client.disconnect(ReasonCode::Success);
    stream.write_all(client.unsent().bytes()).map_err(failed)?;
    Ok(is_present)
}
