//! Alarms: what is wrong with the node or its cluster, as the node says it. The node has the only list of them.

use serde_json::Value;

use crate::client::Client;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::query::Query;

const ALARMS: &str = "/api/v1/alarms";

/// The node's alarms, errors first. A node of an earlier version has no such list: then there are none.
///
/// # Errors
/// Those of the client.
pub fn ask(client: &Client) -> Result<Value, Failure> {
    match client.get(ALARMS, &Query::new()) {
        Err(Failure::Refused(problem)) if problem.status == 404 => Ok(Value::Null),
        other => other,
    }
}

/// Prints the alarms that `is_wanted`, a line each, below what was printed so far.
///
/// # Errors
/// Those of the client and of standard output.
pub fn note(console: &mut Console, is_wanted: impl Fn(&Value) -> bool) -> Result<(), Failure> {
    let alarms = ask(&console.client)?;
    console.flush()?;
    for alarm in alarms.list("items").iter().filter(|alarm| is_wanted(alarm)) {
        console.note(&format!("! {}", alarm.text("text")));
    }
    Ok(())
}

/// Whether it is more than a remark about what could be better.
pub fn is_trouble(alarm: &Value) -> bool {
    alarm.text("severity") != "notice"
}
