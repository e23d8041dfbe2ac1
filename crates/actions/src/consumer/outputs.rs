//! Records and messages that the rule of an action makes.

use rules::{Context, Value};
use sha2::{Digest as _, Sha256};

use super::{Consumer, Failure, Now};
use crate::incoming::{Incoming, Input};
use crate::plan::{Made, Plan, guarded};

impl Consumer {
    /// Evaluates the rule and makes records or messages of its outputs.
    pub(super) fn make(&mut self, now: Now, plan: &Plan, message: &Incoming) -> Result<Vec<Made>, Failure> {
        let random = u128::from(self.random.draw()) << 64 | u128::from(self.random.draw());
        let context = Context { now: now.wall, random };
        let guarded = guarded(|| {
            let outputs = evaluate(plan, message, &context).map_err(Fault::Evaluation)?;
            make_all(plan, message, &outputs, random).map_err(Fault::Rendering)
        });
        let internal =
            |text: &str| Err(Fault::Evaluation(Failure { reason: "internal", text: text.to_owned() }));
        match guarded.unwrap_or_else(internal) {
            Ok(all) => {
                self.counters.not_selected += u64::from(all.is_empty());
                self.counters.records += all.len() as u64;
                Ok(all)
            }
            Err(Fault::Evaluation(failure)) => {
                self.counters.evaluation_errors += 1;
                Err(failure)
            }
            Err(Fault::Rendering(failure)) => {
                self.counters.render_errors += 1;
                Err(failure)
            }
        }
    }
}

/// Step that failed for a message.
enum Fault {
    Evaluation(Failure),
    Rendering(Failure),
}

/// Makes records or messages of all outputs.
fn make_all(plan: &Plan, message: &Incoming, outputs: &[Value], random: u128) -> Result<Vec<Made>, Failure> {
    let id = if message.has_origin { message.origin.id } else { random | 1 };
    let (mut all, mut bytes) = (Vec::with_capacity(outputs.len()), 0);
    for output in outputs {
        let made = make_one(plan, output, id, all.len())?;
        bytes += size(&made);
        if bytes > MADE_MAX {
            let text = format!("the outputs of the message have more than {MADE_MAX} bytes");
            return Err(Failure { reason: "too_large", text });
        }
        all.push(made);
    }
    Ok(all)
}

/// Evaluates the rule.
fn evaluate(plan: &Plan, message: &Incoming, context: &Context) -> Result<Vec<Value>, Failure> {
    let input = Input::of(message, &plan.limits, &plan.namespace)
        .map_err(|text| Failure { reason: "not_an_event", text })?;
    let outputs = plan.rule.evaluate(input.as_message(), context, &plan.limits);
    outputs.map_err(|error| Failure { reason: error.reason(), text: error.to_string() })
}

/// Makes a message or record of an output. `id` is the number of the message that the rule was evaluated for.
fn make_one(plan: &Plan, output: &Value, id: u128, at: usize) -> Result<Made, Failure> {
    let mut made =
        plan.make(output).map_err(|error| Failure { reason: error.reason(), text: error.to_string() })?;
    if let Made::Record(record) = &mut made {
        record.id = record_id(id, &plan.settings.name, at);
    }
    Ok(made)
}

pub(super) fn size(made: &Made) -> usize {
    match made {
        Made::Record(record) => record.bytes(),
        Made::Message(message) => message.topic.len() + message.payload.len(),
    }
}

/// Number of a record that is the same each time its message comes: a hash of the number of the message, the action and
/// the position of the output.
fn record_id(id: u128, action: &str, at: usize) -> u128 {
    let mut hasher = Sha256::new();
    hasher.update(id.to_le_bytes());
    hasher.update((at as u64).to_le_bytes());
    hasher.update(action.as_bytes());
    let hash = hasher.finalize();
    let first = hash.first_chunk::<16>().copied().unwrap_or_default();
    u128::from_le_bytes(first)
}

/// Maximum number of bytes of all outputs of one message.
const MADE_MAX: usize = 4 << 20;
