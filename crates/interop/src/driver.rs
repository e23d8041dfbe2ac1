//! A driver of `tests/interop`: commands from the standard input, events to the standard output.
//!
//! It knows the commands and fields that scenarios of several nodes use, and answers others with an `error` event.

use std::collections::HashMap;
use std::io::Write as _;

// tidy: allow(anyhow): scenarios are tests; their errors are read by people only.
use anyhow::{Context, Result, bail};
use rumqttc::QoS;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::client::{Broker, ClientVersion, ConnectOptions, Requests, start};
use crate::event::{Ended, Event, Message};

/// Runs commands until the standard input ends. All nodes have the same port.
///
/// # Errors
/// The standard input cannot be read, or a line is no command.
pub async fn drive(port: u16) -> Result<()> {
    let mut lines = standard_input();
    let mut clients: HashMap<String, mpsc::Sender<Value>> = HashMap::new();
    while let Some(line) = lines.recv().await {
        let command: Value = serde_json::from_str(&line?)?;
        let name = text(&command, "client")?.to_owned();
        let done = match text(&command, "do")? {
            "connect" => {
                connect(port, &name, &command).map(|client| drop(clients.insert(name.clone(), client)))
            }
            _ => match clients.get(&name).context("no client of this name") {
                // If the client has ended, its `closed` event is the answer.
                Ok(client) => client.send(command).await.or(Ok(())),
                Err(error) => Err(error),
            },
        };
        if let Err(error) = done {
            emit("error", &name, json!({ "text": format!("{error:#}") }));
        }
    }
    Ok(())
}

/// Lines of the standard input, which one thread reads.
fn standard_input() -> mpsc::Receiver<std::io::Result<String>> {
    let (sender, lines) = mpsc::channel(COMMANDS_MAX);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn connect(port: u16, name: &str, command: &Value) -> Result<mpsc::Sender<Value>> {
    let version = match command["version"].as_u64() {
        Some(4) => ClientVersion::V4,
        Some(5) => ClientVersion::V5,
        other => bail!("rumqttc has no version {other:?}"),
    };
    if !command["will"].is_null() {
        bail!("this driver has no Will");
    }
    let options = ConnectOptions {
        client_id: text(command, "id")?.to_owned(),
        clean: command["clean"].as_bool().context("clean")?,
        expiry: command["expiry"].as_u64().map(u32::try_from).transpose()?,
        will: None,
    };
    let broker = Broker { host: text(command, "host")?.to_owned(), port };
    let (requests, events, connection) = start(&broker, version, &options);
    let (sender, commands) = mpsc::channel(COMMANDS_MAX);
    tokio::spawn(run(name.to_owned(), requests, events, connection, commands));
    Ok(sender)
}

/// Runs one client until its connection ends.
async fn run(
    name: String,
    requests: Requests,
    mut events: mpsc::Receiver<Event>,
    connection: JoinHandle<Ended>,
    mut commands: mpsc::Receiver<Value>,
) {
    let mut unacknowledged = 0;
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => report(&name, event, &mut unacknowledged),
                None => break,
            },
            Some(command) = commands.recv() => {
                if let Err(error) = obey(&command, &requests, &connection, &mut unacknowledged).await {
                    emit("error", &name, json!({ "text": format!("{error:#}") }));
                }
            }
        }
    }
    let reason = match connection.await {
        Ok(Ended::ByReason(reason)) => Some(reason),
        // `abort` has cancelled the task, or the broker has sent no DISCONNECT.
        Ok(Ended::Otherwise(_)) | Err(_) => None,
    };
    emit("closed", &name, json!({ "reason": reason }));
}

async fn obey(
    command: &Value,
    requests: &Requests,
    connection: &JoinHandle<Ended>,
    unacknowledged: &mut usize,
) -> Result<()> {
    match text(command, "do")? {
        "subscribe" => requests.subscribe(text(command, "filter")?, qos(command)?).await,
        "publish" => {
            if !command["properties"].is_null() {
                bail!("this driver publishes without properties");
            }
            let payloads = command["payloads"].as_array().context("payloads")?;
            *unacknowledged += payloads.len();
            let retain = command["retain"].as_bool().context("retain")?;
            for payload in payloads {
                let payload = payload.as_str().context("payload")?;
                requests.publish(text(command, "topic")?, payload, qos(command)?, retain).await?;
            }
            Ok(())
        }
        "disconnect" => requests.disconnect().await,
        "abort" => {
            connection.abort();
            Ok(())
        }
        other => bail!("unknown command {other}"),
    }
}

fn report(name: &str, event: Event, unacknowledged: &mut usize) {
    match event {
        Event::Connected { session_present } => {
            emit("connected", name, json!({ "session_present": session_present }));
        }
        Event::Subscribed { granted } => {
            let reasons: Vec<u8> = granted.into_iter().map(|qos| qos as u8).collect();
            emit("subscribed", name, json!({ "reasons": reasons }));
        }
        Event::Published => {
            *unacknowledged -= 1;
            if *unacknowledged == 0 {
                emit("published", name, json!({}));
            }
        }
        Event::Message(Message { topic, payload, qos, retain, .. }) => {
            let fields = json!({
                "topic": topic, "payload": payload, "qos": qos as u8, "retain": retain, "properties": {},
            });
            emit("message", name, fields);
        }
    }
}

fn emit(event: &str, client: &str, mut fields: Value) {
    fields["event"] = event.into();
    fields["client"] = client.into();
    // A runner that has ended reads no more events.
    let _ = writeln!(std::io::stdout(), "{fields}");
}

fn text<'a>(command: &'a Value, field: &str) -> Result<&'a str> {
    command[field].as_str().with_context(|| format!("no {field} in {command}"))
}

fn qos(command: &Value) -> Result<QoS> {
    Ok(match command["qos"].as_u64() {
        Some(0) => QoS::AtMostOnce,
        Some(1) => QoS::AtLeastOnce,
        Some(2) => QoS::ExactlyOnce,
        other => bail!("QoS {other:?}"),
    })
}

/// Maximum number of commands that wait, of all clients and of one.
const COMMANDS_MAX: usize = 64;
