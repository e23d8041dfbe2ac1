//! Account of one evaluation: what it may still do, and its inputs other than the message.

use std::time::Duration;

use crate::error::EvalError;
use crate::limits::{Limits, VALUE_DEPTH_MAX};
use crate::value::Value;

/// Inputs of an evaluation that its message does not have. Equal inputs give equal outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Time since 1970-01-01T00:00:00Z.
    pub now: Duration,
    /// Random number for `uuid_v4`. Each evaluation needs another one.
    pub random: u128,
}

/// Steps and bytes that an evaluation has left.
#[derive(Debug)]
pub struct Meter {
    pub limits: Limits,
    pub context: Context,
    steps_left: u64,
    bytes_left: u64,
    uuids: u64,
}

impl Meter {
    pub fn new(limits: &Limits, context: &Context) -> Self {
        Self {
            limits: *limits,
            context: *context,
            steps_left: limits.steps,
            bytes_left: limits.bytes,
            uuids: 0,
        }
    }

    /// Accounts for nodes that are evaluated and elements that are touched.
    #[inline]
    pub fn step(&mut self, count: usize) -> Result<(), EvalError> {
        match self.steps_left.checked_sub(count as u64) {
            Some(left) => {
                self.steps_left = left;
                Ok(())
            }
            None => {
                self.steps_left = 0;
                Err(EvalError::StepLimit { max: self.limits.steps })
            }
        }
    }

    /// Accounts for a text that is read: one step for each [`TEXT_STEP`] bytes.
    #[inline]
    pub fn read(&mut self, len: usize) -> Result<(), EvalError> {
        self.step(len / TEXT_STEP)
    }

    /// Accounts for bytes that are about to be produced.
    #[inline]
    pub fn produce(&mut self, len: usize) -> Result<(), EvalError> {
        self.read(len)?;
        match self.bytes_left.checked_sub(len as u64) {
            Some(left) => {
                self.bytes_left = left;
                Ok(())
            }
            None => {
                self.bytes_left = 0;
                Err(EvalError::ByteLimit { max: self.limits.bytes })
            }
        }
    }

    /// Accounts for the elements of an array or object that is about to be produced.
    pub fn produce_elements(&mut self, count: usize) -> Result<(), EvalError> {
        self.step(count)?;
        self.produce(count.saturating_mul(ELEMENT_BYTES))
    }

    /// Bytes that may still be produced.
    pub fn bytes_left(&self) -> u64 {
        self.bytes_left
    }

    pub fn text(&mut self, text: &str) -> Result<Value, EvalError> {
        self.produce(text.len())?;
        Ok(Value::from(text))
    }

    /// A string, or bytes when they are not UTF-8.
    pub fn of_bytes(&mut self, bytes: &[u8]) -> Result<Value, EvalError> {
        self.produce(bytes.len())?;
        Ok(Value::of_bytes(bytes))
    }

    pub fn array(&mut self, elements: Vec<Value>) -> Result<Value, EvalError> {
        self.produce_elements(elements.len())?;
        self.checked(Value::array(elements))
    }

    /// Refuses a value that is nested too deeply, or that has more parts than an evaluation has steps.
    pub fn checked(&self, value: Value) -> Result<Value, EvalError> {
        let extent = value.extent();
        if usize::from(extent.depth) > VALUE_DEPTH_MAX {
            return Err(EvalError::DepthLimit { max: VALUE_DEPTH_MAX });
        }
        if u64::from(extent.size) > self.limits.steps {
            return Err(EvalError::StepLimit { max: self.limits.steps });
        }
        Ok(value)
    }

    /// Number of UUIDs that this evaluation made before.
    pub fn next_uuid(&mut self) -> u64 {
        self.uuids += 1;
        self.uuids - 1
    }
}

/// Bytes of a text that are read in one step.
const TEXT_STEP: usize = 64;

/// Bytes that an element of an array or object costs, in addition to its own.
const ELEMENT_BYTES: usize = size_of::<Value>();
