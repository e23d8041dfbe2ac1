//! The part of JSON Schema that the OpenAPI document uses; an unknown keyword fails.

use serde_json::Value;

/// Checks `value` against a schema.
///
/// # Errors
/// The first location that does not match.
pub fn check(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let Some(schema) = schema.as_object() else { return Err(format!("{at}: {schema} is no schema")) };
    for (keyword, rule) in schema {
        match keyword.as_str() {
            "$ref" => {
                let name = rule.as_str().and_then(|path| path.strip_prefix("#/components/schemas/"));
                let schema = &document["components"]["schemas"][name.unwrap_or_default()];
                check(document, schema, value, at)?;
            }
            "type" => {
                let types = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                if !types.iter().any(|name| is(name.as_str().unwrap_or_default(), value)) {
                    return Err(format!("{at}: expected {rule}, found {value}"));
                }
            }
            "properties" => {
                for (name, schema) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        check(document, schema, value, &format!("{at}.{name}"))?;
                    }
                }
                // An answer contains no undocumented field, unless parts of the schema are elsewhere.
                if !schema.contains_key("additionalProperties")
                    && let Some(value) = value.as_object()
                {
                    let unknown = value.keys().find(|name| rule.get(name.as_str()).is_none());
                    if let (Some(unknown), false) = (unknown, at.ends_with('&')) {
                        return Err(format!("{at}.{unknown}: not in the document"));
                    }
                }
            }
            "required" => {
                let missing =
                    rule.as_array().unwrap().iter().find(|name| value.get(name.as_str().unwrap()).is_none());
                if let Some(missing) = missing {
                    return Err(format!("{at}.{missing}: missing"));
                }
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(document, rule, item, &format!("{at}.{index}"))?;
                }
            }
            "additionalProperties" if rule.is_object() => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    check(document, rule, value, &format!("{at}.{name}"))?;
                }
            }
            "oneOf" | "anyOf" => {
                let tried: Vec<_> =
                    rule.as_array().unwrap().iter().map(|one| check(document, one, value, at)).collect();
                if !tried.iter().any(Result::is_ok) {
                    return Err(format!("{at}: {value} fits none: {tried:?}"));
                }
            }
            "allOf" => {
                for one in rule.as_array().unwrap() {
                    check(document, one, value, &format!("{at}&"))?;
                }
            }
            "enum" => {
                if !rule.as_array().unwrap().contains(value) {
                    return Err(format!("{at}: {value} is not one of {rule}"));
                }
            }
            "minimum" => {
                if value.is_number() && value.as_f64() < rule.as_f64() {
                    return Err(format!("{at}: {value} is less than {rule}"));
                }
            }
            "description"
            | "format"
            | "example"
            | "examples"
            | "title"
            | "default"
            | "additionalProperties"
            | "propertyNames"
            | "maxItems"
            | "minItems"
            | "prefixItems" => {}
            other => return Err(format!("{at}: this test does not know `{other}`")),
        }
    }
    Ok(())
}

fn is(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}
