//! The function `jq`, by the interpreter `jaq`. Only with the feature `jq`.
//!
//! Its program is a constant of at most [`PROGRAM_MAX`] bytes. Inputs and outputs are accounted as those of other
//! functions. **The time and the memory between two outputs are not bounded:** the interpreter cannot be interrupted,
//! and `jq('def f: f; f', 1)` never ends. So use this feature only if everyone who may write rules is trusted. The
//! program has no access to files, the environment, the clock and the process.

use std::sync::Arc;

use jaq_core::load::{Arena, File, Loader};
use jaq_core::{Compiler, Ctx, Vars, data};
use jaq_json::{Num, Val};

use crate::error::{EvalError, shown};
use crate::functions::Arguments;
use crate::json::{self, Wanted};
use crate::limits::VALUE_DEPTH_MAX;
use crate::meter::Meter;
use crate::value::{Object, Value};

/// Maximum size of a program in bytes.
pub const PROGRAM_MAX: usize = 4_096;

/// A compiled program.
#[derive(Clone)]
pub struct Program {
    text: Arc<str>,
    filter: Arc<jaq_core::Filter<data::JustLut<Val>>>,
}

/// Compares the texts.
impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.text.fmt(f)
    }
}

/// Compiles a program; `None` when it is wrong.
pub fn compile(text: &str) -> Option<Program> {
    if text.len() > PROGRAM_MAX || nesting(text) > NESTING_MAX {
        return None;
    }
    let own = |name: &str| !MISSING.contains(&name);
    let definitions = jaq_core::defs()
        .chain(jaq_std::defs().filter(|definition| {
            own(definition.name) && !(definition.name == "split" && definition.args.len() == 2)
        }))
        .chain(jaq_json::defs());
    let functions = jaq_core::funs().chain(jaq_std::base_funs()).chain(jaq_json::funs());
    let functions = functions.filter(|(name, ..)| own(name));
    let arena = Arena::default();
    let modules = Loader::new(definitions).load(&arena, File { code: text, path: () }).ok()?;
    let filter = Compiler::default().with_funs(functions).compile(modules).ok()?;
    Some(Program { text: text.into(), filter: Arc::new(filter) })
}

/// An upper bound of the nesting of a program, whose parser is recursive.
fn nesting(text: &str) -> usize {
    let opens = |byte: &u8| matches!(byte, b'(' | b'[' | b'{' | b'-' | b'|' | b',' | b'?' | b'/');
    let words = ["if ", "def ", "reduce ", "foreach ", "try ", "label ", "as "];
    text.bytes().filter(opens).count() + words.iter().map(|word| text.matches(word).count()).sum::<usize>()
}

/// Maximum result of [`nesting`].
const NESTING_MAX: usize = 256;

/// `jq(program, x)`: all outputs as an array. A string is decoded as JSON.
pub fn run(meter: &mut Meter, program: &Program, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let input = match it.value(1) {
        Value::Text(text) => json::decode(meter, it.function, text.as_bytes(), &Wanted::All)?,
        other => other.clone(),
    };
    let input = to_jaq(meter, &input)?;
    let context = Ctx::<data::JustLut<Val>>::new(&program.filter.lut, Vars::new([]));
    let mut outputs = Vec::new();
    for output in program.filter.id.run((context, input)) {
        let output = output.map_err(|exception| EvalError::Jq {
            message: match exception.get_err() {
                Ok(error) => shown(&error.to_string()),
                Err(_) => "the program stopped without a value".into(),
            },
        })?;
        let max = meter.limits.outputs;
        if outputs.len() >= max {
            return Err(EvalError::OutputLimit { max });
        }
        outputs.push(of_jaq(meter, &output, 1)?);
    }
    meter.array(outputs)
}

fn to_jaq(meter: &mut Meter, value: &Value) -> Result<Val, EvalError> {
    meter.step(1)?;
    Ok(match value {
        Value::Null => Val::Null,
        Value::Bool(is) => Val::Bool(*is),
        Value::Int(number) => Val::Num(Num::from_integral(*number)),
        Value::Float(number) => Val::from(*number),
        Value::Text(text) => {
            meter.produce(text.len())?;
            Val::from(text.to_string())
        }
        Value::Bytes(_) => return Err(EvalError::BytesInJson),
        Value::Array(array) => {
            meter.produce_elements(array.elements().len())?;
            let elements: Result<Vec<Val>, EvalError> =
                array.elements().iter().map(|element| to_jaq(meter, element)).collect();
            Val::Arr(elements?.into())
        }
        Value::Object(object) => {
            meter.produce_elements(object.len())?;
            let members: Result<jaq_json::Map, EvalError> = object
                .iter()
                .map(|(name, member)| Ok((Val::from(name.to_string()), to_jaq(meter, member)?)))
                .collect();
            Val::Obj(members?.into())
        }
    })
}

fn of_jaq(meter: &mut Meter, value: &Val, depth: usize) -> Result<Value, EvalError> {
    if depth >= VALUE_DEPTH_MAX {
        return Err(EvalError::DepthLimit { max: VALUE_DEPTH_MAX });
    }
    meter.step(1)?;
    Ok(match value {
        Val::Null => Value::Null,
        Val::Bool(is) => Value::Bool(*is),
        // Numbers of any size have a text.
        Val::Num(number) => {
            let text = number.to_string();
            meter.read(text.len())?;
            crate::value::number(&text).ok_or(EvalError::NotFinite { operation: "jq" })?
        }
        Val::BStr(bytes) | Val::TStr(bytes) => meter.of_bytes(bytes)?,
        Val::Arr(elements) => {
            let mut array = Vec::new();
            for element in elements.iter() {
                array.push(of_jaq(meter, element, depth + 1)?);
            }
            meter.array(array)?
        }
        Val::Obj(members) => {
            let mut object = Vec::new();
            for (name, member) in members.iter() {
                let name = match name {
                    Val::TStr(name) => String::from_utf8_lossy(name).into_owned(),
                    other => other.to_string(),
                };
                meter.produce(name.len())?;
                meter.produce_elements(1)?;
                object.push((name.into(), of_jaq(meter, member, depth + 1)?));
            }
            Value::Object(Arc::new(Object::from_iter(object)))
        }
    })
}

/// Functions that end the process or write to its error output, and definitions that need parts of `jaq-std` that are
/// not built: mathematics, regular expressions, times and formats.
const MISSING: &[&str] = &[
    "halt",
    "halt_error",
    "stderr",
    "debug",
    "logb",
    "significand",
    "pow10",
    "drem",
    "nexttoward",
    "scalb",
    "gamma",
    "test",
    "scan_",
    "scan",
    "match",
    "capture",
    "splits",
    "sub",
    "gsub",
    "todate",
    "fromdate",
    "@html",
    "@htmld",
    "@uri",
    "@urid",
    "@base64",
    "@base64d",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Event, Limits, Rule, Sample};

    fn evaluate(expression: &str) -> Result<String, String> {
        let limits = Limits { outputs: 50, ..Limits::default() };
        let rule = Rule::parse(&format!("SELECT {expression} AS r FROM \"a\""), &limits);
        let rule = rule.map_err(|error| error.to_string())?;
        assert_eq!(Rule::parse(&rule.to_string(), &limits).as_ref(), Ok(&rule));
        let sample = r#"{"payload": {"a": [1, 2.5, "x", null], "o": {"k": true}}}"#;
        let sample = Sample::parse(Event::Publish, sample, &limits).expect("a sample");
        let outputs =
            rule.evaluate(&sample, &Context::default(), &limits).map_err(|error| error.to_string())?;
        let mut text = Vec::new();
        json::encode(outputs[0].member("r").expect("the column"), &mut text, 1_000).expect("JSON");
        Ok(String::from_utf8(text).expect("UTF-8"))
    }

    #[test]
    fn programs_have_their_outputs() {
        for (expression, expected) in [
            ("jq('.a[]', payload)", r#"[1,2.5,"x",null]"#),
            ("jq('.o', payload)", r#"[{"k":true}]"#),
            ("jq('map(numbers) | add', payload.a)", "[3.5]"),
            ("jq('{n: (.a | length), keys: keys}', payload)", r#"[{"n":4,"keys":["a","o"]}]"#),
            ("jq('[.[] | select(. != null) | tostring] | join(\"-\")', payload.a)", r#"["1-2.5-x"]"#),
            ("jq('to_entries', payload.o)", r#"[[{"key":"k","value":true}]]"#),
            ("jq('empty', payload)", "[]"),
            ("jq('. * 1000', 9007199254740993)", "[9007199254740993000]"),
            ("jq('.', payload.missing)", "null"),
        ] {
            assert_eq!(evaluate(expression).as_deref(), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn wrong_programs_and_failures_are_errors() {
        for (expression, expected) in [
            ("jq('.a |', payload)", "argument 1 of `jq` must be a constant program"),
            ("jq('nothing', payload)", "argument 1 of `jq` must be a constant program"),
            ("jq(clientid, payload)", "argument 1 of `jq` must be a constant program"),
            ("jq('halt', payload)", "argument 1 of `jq` must be a constant program"),
            ("jq('env', payload)", "argument 1 of `jq` must be a constant program"),
            ("jq('now', payload)", "argument 1 of `jq` must be a constant program"),
            ("jq('input', payload)", "argument 1 of `jq` must be a constant program"),
            ("jq('stderr', payload)", "argument 1 of `jq` must be a constant program"),
            ("jq('import \"a\" as a; .', payload)", "argument 1 of `jq` must be a constant program"),
            ("jq('.a.b', payload)", "jq: "),
            ("jq('error(\"no\")', payload)", "jq: \"no\""),
            ("jq('range(100)', payload)", "FOREACH has more than 50 outputs"),
            ("jq('1 / 0', payload)", "jq: the result is not a finite number"),
            ("jq('.', 'no JSON')", "jq: the text is not JSON"),
            ("jq('reduce range(500) as $i (0; [.])', payload)", "nested deeper than 128 levels"),
        ] {
            let error = evaluate(expression).expect_err(expression);
            assert!(error.contains(expected), "{expression}: {error}");
        }
        let nested = format!("jq('{}', 1)", "[".repeat(3_000));
        assert!(evaluate(&nested).is_err());
    }
}
