//! Alarms of the node and its cluster. The node makes the list; this module only shows it.

use serde_json::Value;

use crate::client::Client;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::query::Query;

const ALARMS: &str = "/api/v1/alarms";

/// Returns the node's alarms, errors first. A node of an earlier version has no such list: then there are none.
///
/// # Errors
/// Those of the client.
pub fn ask(client: &Client) -> Result<Value, Failure> {
    match client.get(ALARMS, &Query::new()) {
        Err(Failure::Refused(problem)) if problem.status == 404 => Ok(Value::Null),
        other => other,
    }
}

/// Prints the alarms that `is_wanted` selects, one per line, below the present output.
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

/// Returns whether an alarm is more than a notice.
pub fn is_trouble(alarm: &Value) -> bool {
    alarm.text("severity") != "notice"
}
