//! Strict parser for JSON from other parties. RFC 8259 (4), and for tokens RFC 7515 (4) and RFC 7519 (4), do not define
//! the meaning of repeated members. Two readers that choose differently make an attack possible.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses an object, with nothing after it and no repeated member at any depth.
///
/// # Errors
/// Any other input.
pub fn object(bytes: &[u8]) -> Result<Map<String, Value>, serde_json::Error> {
    match serde_json::from_slice::<Strict>(bytes)?.0 {
        Value::Object(members) => Ok(members),
        _ => Err(serde_json::Error::custom("it is not a JSON object")),
    }
}

/// Value without repeated members.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any).map(Self)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((name, Strict(value))) = members.next_entry::<String, Strict>()? {
            if map.insert(name, value).is_some() {
                return Err(A::Error::custom("a member occurs twice"));
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_by_serde_json() {
        let text = r#"{"a":[1,-2,2.5,1e3,"x\u0000",true,null,{"b":{}}],"c":18446744073709551615}"#;
        assert_eq!(
            Value::Object(object(text.as_bytes()).unwrap()),
            serde_json::from_str::<Value>(text).unwrap()
        );
    }

    #[test]
    fn ambiguous_documents_are_refused() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"{"b":{"a":1,"\u0061":2}}"#,
            r#"{"b":[{"a":1,"a":2}]}"#,
            r#"{"a":1}{"#,
            r#"{"a":1} x"#,
            r#"{"a":"\ud800"}"#,
            r#"{"a":NaN}"#,
            r#"{'a':1}"#,
            "[]",
            "null",
            "",
            &deep,
        ] {
            assert!(object(text.as_bytes()).is_err(), "{text:.40}");
        }
        assert!(object(b"{\"a\":\"\xff\"}").is_err());
        assert!(object(b"\xef\xbb\xbf{}").is_err());
    }
}
