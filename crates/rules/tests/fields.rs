//! Fields are made only when a rule needs them, and then once.

use std::cell::RefCell;

use rules::{Context, Event, Field, Limits, Message, Rule, Value};

/// A message that records which fields are asked for.
struct Recording {
    asked: RefCell<Vec<Field>>,
    payload: &'static [u8],
}

impl Message for Recording {
    fn event(&self) -> Event {
        Event::Publish
    }

    fn field(&self, field: Field) -> Value {
        self.asked.borrow_mut().push(field);
        match field {
            Field::QoS => 1.into(),
            _ => field.name().into(),
        }
    }

    fn payload(&self) -> &[u8] {
        self.payload
    }
}

/// Fields that a rule asks for, and its number of outputs.
fn asked(rule: &str) -> (Vec<Field>, usize) {
    let message = Recording { asked: RefCell::default(), payload: br#"{"list": [1, 2, 3], "x": 5}"# };
    let limits = Limits::default();
    let rule = Rule::parse(rule, &limits).expect(rule);
    let outputs = rule.evaluate(&message, &Context::default(), &limits).expect("a result").len();
    (message.asked.into_inner(), outputs)
}

#[test]
fn a_field_that_no_expression_needs_is_not_made() {
    for (rule, fields, outputs) in [
        ("SELECT 1 FROM \"#\"", vec![], 1),
        ("SELECT clientid, topic FROM \"#\"", vec![Field::ClientId, Field::Topic], 1),
        ("SELECT clientid, topic FROM \"#\" WHERE qos = 2", vec![Field::QoS], 0),
        ("SELECT clientid FROM \"#\" WHERE payload.x = 5 or topic = 'a'", vec![Field::ClientId], 1),
        ("SELECT username AS u, clientid FROM \"#\" WHERE u = 'other'", vec![Field::Username], 0),
        ("SELECT CASE WHEN qos = 1 THEN node ELSE tenant END FROM \"#\"", vec![Field::QoS, Field::Node], 1),
    ] {
        assert_eq!(asked(rule), (fields, outputs), "{rule}");
    }
}

#[test]
fn a_field_is_made_once() {
    let (fields, _) =
        asked("SELECT topic, topic() AS t, topic(1) AS l, topic + topic AS d FROM \"#\" WHERE topic != ''");
    assert_eq!(fields, [Field::Topic]);
    let (fields, outputs) = asked("FOREACH payload.list DO item, clientid FROM \"#\"");
    assert_eq!((fields, outputs), (vec![Field::ClientId], 3));
    for all in
        ["SELECT *, clientid AS c FROM \"#\" WHERE qos = 1", "FOREACH payload.list FROM \"#\" WHERE qos = 1"]
    {
        let (mut fields, _) = asked(all);
        let count = fields.len();
        fields.sort_by_key(|field| field.name());
        fields.dedup();
        // The event and the payload are not asked for as fields.
        let expected = Event::Publish.fields().count() - 2;
        assert_eq!((fields.len(), count), (expected, expected), "{all}");
    }
}
