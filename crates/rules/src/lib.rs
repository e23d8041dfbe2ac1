//! The language of the rule engine: rules, their evaluation, and templates for outputs.
//!
//! [`Rule::parse`] turns a text into a [`Rule`], and [`Rule::evaluate`] turns a [`Message`] into outputs.
//! [`Template::parse`] and [`Template::render`] turn an output into bytes. `docs/rules-language.md` describes the
//! language for users.
//!
//! Constants of a rule have atomic reference counts. A host with several reactors parses the text once for each of
//! them, so that they share no counters and no caches of regular expressions.
//!
//! **Invariant:** no text, message or payload causes a panic. **Invariant:** equal inputs give equal results: time and
//! randomness are in [`Context`]. **Invariant:** each loop over a text or a value counts steps or bytes of
//! [`Limits`], and each recursion is over something with a maximum depth.

#![forbid(unsafe_code)]

mod error;
mod evaluate;
mod expression;
mod functions;
#[cfg(feature = "jq")]
mod jq;
mod json;
mod limits;
mod message;
mod meter;
mod operators;
mod parser;
mod path_text;
mod print;
mod rule;
mod source;
mod template;
mod value;

pub use error::{EvalError, RegexError};
pub use functions::function_names;
pub use json::{JsonError, JsonFault};
pub use limits::{JSON_DEPTH_MAX, Limits, NESTING_MAX, VALUE_DEPTH_MAX};
pub use message::{Message, Sample};
pub use meter::Context;
pub use parser::{ParseError, ParseFault};
pub use rule::Rule;
pub use source::{Event, Field, Source};
pub use template::{RenderError, Template, TemplateError, TemplateFault, TemplatePart};
pub use value::{Array, Extent, Kind, Object, Value};
