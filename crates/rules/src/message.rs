//! Messages and events as the host offers them to rules.

use std::sync::Arc;

use crate::error::EvalError;
use crate::json::{self, Wanted};
use crate::limits::Limits;
use crate::meter::{Context, Meter};
use crate::source::{Event, Field};
use crate::value::{Object, Value};

/// A message or an event. The evaluator asks for a field only if the rule names it or has `*`, and then once.
pub trait Message {
    fn event(&self) -> Event;

    /// Value of a field of the event, except [`Field::Event`] and [`Field::Payload`]. Null when it has none.
    fn field(&self, field: Field) -> Value;

    /// Payload; empty for events without one.
    fn payload(&self) -> &[u8];
}

/// A message or an event made from a JSON object with its fields. Used to test rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    event: Event,
    fields: Arc<Object>,
    payload: Box<[u8]>,
}

impl Sample {
    /// Creates a sample. A `payload` that is not a string becomes its JSON text.
    ///
    /// # Errors
    /// The text is not JSON, or not within the limits.
    pub fn parse(event: Event, json: &str, limits: &Limits) -> Result<Self, EvalError> {
        let mut meter = Meter::new(limits, &Context::default());
        let fields = match json::decode(&mut meter, "sample", json.as_bytes(), &Wanted::All)? {
            Value::Object(fields) => fields,
            other => {
                let (operation, expected) = ("sample", "a JSON object");
                return Err(EvalError::WrongType { operation, at: 1, expected, found: other.kind() });
            }
        };
        let payload = match fields.get(Field::Payload.name()) {
            None | Some(Value::Null) => Box::default(),
            Some(Value::Text(text)) => text.as_bytes().into(),
            Some(other) => {
                let mut text = Vec::new();
                json::encode(other, &mut text, usize::MAX).map_err(|_| EvalError::BytesInJson)?;
                text.into()
            }
        };
        Ok(Self { event, fields, payload })
    }

    /// Replaces a field that is not the payload.
    #[must_use]
    pub fn with_field(mut self, field: Field, value: Value) -> Self {
        Arc::make_mut(&mut self.fields).insert(field.name().into(), value);
        self
    }

    /// Replaces the payload, which may be any bytes.
    #[must_use]
    pub fn with_payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.into();
        self
    }
}

impl Message for Sample {
    fn event(&self) -> Event {
        self.event
    }

    fn field(&self, field: Field) -> Value {
        self.fields.get(field.name()).cloned().unwrap_or_default()
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }
}
