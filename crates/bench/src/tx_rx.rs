//! `meridian bench tx-rx`: one publisher, one subscriber, one topic, measured at the receiver by size and QoS. It
//! runs on one broker, on two nodes of a cluster, or alternately on a second broker.

mod figures;
mod measure;
mod options;
mod table;

pub use options::Options;

use crate::config::SetupError;
use figures::Figures;
use options::Plan;
use serde_json::{Value, json};
use std::io::Write as _;

/// All rounds of one size and QoS.
pub struct Row {
    pub size: usize,
    pub qos: u8,
    pub here: Figures,
    /// Figures of the broker that it is compared with.
    pub against: Option<Figures>,
}

/// Measures and prints. The exit code: 0 success, 1 a loss or a time-out, 2 the run could not start.
///
/// # Errors
/// The run could not start: no such host, impossible sizes.
pub fn run(options: Options) -> Result<i32, SetupError> {
    let plan = options.plan()?;
    let (mut rows, mut problems) = (vec![], vec![]);
    for size in &plan.sizes {
        for qos in &plan.qos {
            match row(&plan, *size, *qos, &mut problems)? {
                Some(row) => rows.push(row),
                None => return Ok(finish(&plan, &rows, &problems, if rows.is_empty() { 2 } else { 1 })),
            }
            if crate::interrupted() {
                problems.push("interrupted".to_owned());
                return Ok(finish(&plan, &rows, &problems, 1));
            }
        }
    }
    let code = i32::from(!problems.is_empty());
    Ok(finish(&plan, &rows, &problems, code))
}

/// Measures a row. The order of the brokers alternates from round to round. `None` when a broker could not be used at
/// all.
fn row(plan: &Plan, size: usize, qos: u8, problems: &mut Vec<String>) -> Result<Option<Row>, SetupError> {
    let mut runs = [vec![], vec![]];
    let brokers: Vec<usize> = if plan.against.is_some() { vec![0, 1] } else { vec![0] };
    for round in 0..plan.rounds {
        let mut order = brokers.clone();
        order.rotate_left(round % brokers.len());
        for broker in order {
            let ends = if broker == 0 { &plan.ends } else { plan.against.as_ref().unwrap_or(&plan.ends) };
            match measure::run(plan, ends, size, qos)? {
                Ok(figures) => {
                    problems.extend(figures.problems(ends, size, qos));
                    runs[broker].push(figures);
                }
                Err(error) => {
                    problems.push(format!("{ends}: {error}"));
                    return Ok(None);
                }
            }
        }
    }
    let [here, against] = runs;
    let against = if against.is_empty() { None } else { Some(Figures::median(&against)) };
    Ok(Some(Row { size, qos, here: Figures::median(&here), against }))
}

fn finish(plan: &Plan, rows: &[Row], problems: &[String], code: i32) -> i32 {
    let text = if plan.json {
        format!("{}\n", report(plan, rows, problems))
    } else {
        table::text(plan, rows, problems)
    };
    // A closed standard output does not change the result, which is also the exit code.
    let _ = std::io::stdout().write_all(text.as_bytes());
    code
}

fn report(plan: &Plan, rows: &[Row], problems: &[String]) -> Value {
    let rows = rows.iter().map(|row| {
        let mut json = json!({ "size": row.size, "qos": row.qos, "messages": plan.messages(row.size), "here": row.here.json() });
        if let (Some(against), Some(object)) = (&row.against, json.as_object_mut()) {
            object.insert("against".into(), against.json());
            object.insert("difference_percent".into(), row.here.difference(against));
        }
        json
    });
    json!({
        "command": "tx-rx", "here": plan.ends.to_string(), "against": plan.against.as_ref().map(ToString::to_string),
        "version": plan.version.number(), "rate_asked": plan.rate, "window": plan.window,
        "rounds": plan.rounds, "rows": rows.collect::<Vec<_>>(), "problems": problems,
    })
}
