//! Records and messages that the rule of an action makes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rules::{Context, Value};
use sha2::{Digest as _, Sha256};

use super::{Consumer, Failure, Now};
use crate::incoming::{Incoming, Input};
use crate::plan::{Made, Plan};

impl Consumer {
    /// Evaluates the rule and makes records or messages of its outputs.
    pub(super) fn make(&mut self, now: Now, plan: &Plan, message: &Incoming) -> Result<Vec<Made>, Failure> {
        let random = u128::from(self.random.draw()) << 64 | u128::from(self.random.draw());
        let context = Context { now: now.wall, random };
        // A panic would come again with the message after a restart of the node.
        let evaluated = catch_unwind(AssertUnwindSafe(|| evaluate(plan, message, &context)));
        let internal = |_| {
            let text =
                "an error within the rule engine; please report it with the rule and the message".to_owned();
            Err(Failure { reason: "internal", text })
        };
        let outputs =
            evaluated.unwrap_or_else(internal).inspect_err(|_| self.counters.evaluation_errors += 1)?;
        self.counters.not_selected += u64::from(outputs.is_empty());
        let id = if message.has_origin { message.origin.id } else { random | 1 };
        let (mut all, mut bytes) = (Vec::with_capacity(outputs.len()), 0);
        for output in &outputs {
            let made = make_one(plan, output, id, all.len()).and_then(|made| {
                bytes += size(&made);
                if bytes <= MADE_MAX {
                    return Ok(made);
                }
                let text = format!("the outputs of the message have more than {MADE_MAX} bytes");
                Err(Failure { reason: "too_large", text })
            });
            all.push(made.inspect_err(|_| self.counters.render_errors += 1)?);
        }
        self.counters.records += all.len() as u64;
        Ok(all)
    }
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
