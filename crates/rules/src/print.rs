//! Canonical text of a rule.

use std::fmt::{self, Display as _, Write as _};
use std::sync::Arc;

use crate::expression::{Arithmetic, Expr, Part, Path, Root};
use crate::parser::lexer::{is_keyword, is_of_name};
use crate::rule::{Column, Kind, Rule};
use crate::source::Source;
use crate::value::Value;

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self;
        match &self.kind {
            Kind::Select => f.write_str("SELECT ")?,
            Kind::Foreach { over, name, incase: _ } => {
                write!(f, "FOREACH {}", Shown { rule, expr: over, tight: 0 })?;
                if let Some(name) = name {
                    f.write_str(" AS ")?;
                    write_name(f, name, true)?;
                }
                f.write_str(if self.columns.is_empty() { "" } else { " DO " })?;
            }
        }
        for (index, column) in self.columns.iter().enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            match column {
                Column::All => f.write_char('*')?,
                Column::Expr { expr, name, is_alias } => {
                    write!(f, "{}", Shown { rule, expr, tight: 0 })?;
                    if *is_alias {
                        f.write_str(" AS ")?;
                        write_names(f, name)?;
                    }
                }
            }
        }
        if let Kind::Foreach { incase: Some(condition), .. } = &self.kind {
            write!(f, " INCASE {}", Shown { rule, expr: condition, tight: 0 })?;
        }
        f.write_str(" FROM ")?;
        for (index, source) in self.sources.iter().enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            let text = match source {
                Source::Filter(filter) => filter,
                Source::Event(event) => event.name(),
            };
            write!(f, "\"{}\"", text.replace('"', "\"\""))?;
        }
        if let Some(condition) = &self.condition {
            write!(f, " WHERE {}", Shown { rule, expr: condition, tight: 0 })?;
        }
        Ok(())
    }
}

/// Writes a name: without quotation marks if possible. The first name of a path must not be a keyword.
fn write_name(f: &mut fmt::Formatter<'_>, name: &str, is_first: bool) -> fmt::Result {
    let plain = name.starts_with(|c: char| is_of_name(c) && !c.is_ascii_digit())
        && name.chars().all(is_of_name)
        && !(is_first && is_keyword(name));
    if plain { f.write_str(name) } else { write_string(f, name) }
}

fn write_names(f: &mut fmt::Formatter<'_>, names: &[Arc<str>]) -> fmt::Result {
    for (index, name) in names.iter().enumerate() {
        f.write_str(if index > 0 { "." } else { "" })?;
        write_name(f, name, index == 0)?;
    }
    Ok(())
}

fn write_string(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    write!(f, "'{}'", text.replace('\'', "''"))
}

fn write_parts(f: &mut fmt::Formatter<'_>, parts: &[Part]) -> fmt::Result {
    for part in parts {
        match part {
            Part::Name(name) => {
                f.write_char('.')?;
                write_name(f, name, false)?;
            }
            Part::Index(index) => write!(f, "[{index}]")?,
        }
    }
    Ok(())
}

/// Strength with which an operator binds its operands. A weaker operand needs parentheses.
pub mod strength {
    pub const OR: u8 = 1;
    pub const AND: u8 = 2;
    pub const NOT: u8 = 3;
    pub const COMPARE: u8 = 4;
    pub const ADD: u8 = 5;
    pub const MULTIPLY: u8 = 6;
    pub const NEGATE: u8 = 7;
    pub const PRIMARY: u8 = 8;
}

impl Arithmetic {
    pub fn strength(self) -> u8 {
        match self {
            Self::Add | Self::Subtract => strength::ADD,
            Self::Multiply | Self::Divide | Self::Div | Self::Mod => strength::MULTIPLY,
        }
    }
}

fn strength_of(expr: &Expr) -> u8 {
    match expr {
        Expr::Or(_) => strength::OR,
        Expr::And(_) => strength::AND,
        Expr::Not(_) => strength::NOT,
        Expr::Compare(..) | Expr::Matches(..) | Expr::In { .. } | Expr::IsNull { .. } => strength::COMPARE,
        Expr::Arithmetic(operator, ..) => operator.strength(),
        Expr::Negate(_) => strength::NEGATE,
        Expr::Literal(Value::Int(number)) if *number < 0 => strength::NEGATE,
        Expr::Literal(Value::Float(number)) if number.is_sign_negative() => strength::NEGATE,
        Expr::Literal(_) | Expr::Path(_) | Expr::Access(..) | Expr::Case { .. } | Expr::Call { .. } => {
            strength::PRIMARY
        }
    }
}

/// An expression to write. It gets parentheses if it binds less than `tight`.
struct Shown<'a> {
    rule: &'a Rule,
    expr: &'a Expr,
    tight: u8,
}

impl Shown<'_> {
    /// Writes a part of this expression.
    fn inner(&self, f: &mut fmt::Formatter<'_>, expr: &Expr, tight: u8) -> fmt::Result {
        Shown { rule: self.rule, expr, tight }.fmt(f)
    }

    fn list(&self, f: &mut fmt::Formatter<'_>, list: &[Expr], between: &str, tight: u8) -> fmt::Result {
        for (index, expr) in list.iter().enumerate() {
            f.write_str(if index > 0 { between } else { "" })?;
            self.inner(f, expr, tight)?;
        }
        Ok(())
    }

    fn path(&self, f: &mut fmt::Formatter<'_>, path: &Path) -> fmt::Result {
        match path.root {
            Root::Field { field, .. } => f.write_str(field.name())?,
            Root::Item => write_name(f, self.rule.item_name(), true)?,
            Root::Alias(column) => {
                if let Some(Column::Expr { name, .. }) = self.rule.columns.get(column) {
                    write_names(f, name)?;
                }
            }
        }
        write_parts(f, &path.parts)
    }

    fn literal(f: &mut fmt::Formatter<'_>, value: &Value) -> fmt::Result {
        match value {
            Value::Bool(is) => write!(f, "{is}"),
            Value::Int(number) => write!(f, "{number}"),
            Value::Float(number) => write!(f, "{number:?}"),
            Value::Text(text) => write_string(f, text),
            // The parser makes no other literals.
            Value::Null | Value::Bytes(_) | Value::Array(_) | Value::Object(_) => f.write_str("NULL"),
        }
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = strength_of(self.expr);
        if own < self.tight {
            f.write_char('(')?;
            self.inner(f, self.expr, 0)?;
            return f.write_char(')');
        }
        match self.expr {
            Expr::Literal(value) => Self::literal(f, value),
            Expr::Path(path) => self.path(f, path),
            Expr::Access(expr, parts) => {
                // A constant has no path without parentheses.
                let is_constant = matches!(**expr, Expr::Literal(_));
                self.inner(f, expr, strength::PRIMARY + u8::from(is_constant))?;
                write_parts(f, parts)
            }
            Expr::Negate(expr) => {
                f.write_char('-')?;
                self.inner(f, expr, strength::PRIMARY)
            }
            Expr::Not(expr) => {
                f.write_str("NOT ")?;
                self.inner(f, expr, own)
            }
            Expr::And(list) => self.list(f, list, " AND ", own + 1),
            Expr::Or(list) => self.list(f, list, " OR ", own + 1),
            Expr::Arithmetic(operator, left, right) => {
                self.inner(f, left, own)?;
                write!(f, " {} ", operator.symbol())?;
                self.inner(f, right, own + 1)
            }
            Expr::Compare(comparison, left, right) => {
                self.inner(f, left, own + 1)?;
                write!(f, " {} ", comparison.symbol())?;
                self.inner(f, right, own + 1)
            }
            Expr::Matches(left, right) => {
                self.inner(f, left, own + 1)?;
                f.write_str(" =~ ")?;
                self.inner(f, right, own + 1)
            }
            Expr::In { value, list, negated } => {
                self.inner(f, value, own + 1)?;
                f.write_str(if *negated { " NOT IN (" } else { " IN (" })?;
                self.list(f, list, ", ", 0)?;
                f.write_char(')')
            }
            Expr::IsNull { value, negated } => {
                self.inner(f, value, own + 1)?;
                f.write_str(if *negated { " IS NOT NULL" } else { " IS NULL" })
            }
            Expr::Case { subject, arms, otherwise } => {
                f.write_str("CASE")?;
                if let Some(subject) = subject {
                    f.write_char(' ')?;
                    self.inner(f, subject, 0)?;
                }
                for (when, then) in arms {
                    f.write_str(" WHEN ")?;
                    self.inner(f, when, 0)?;
                    f.write_str(" THEN ")?;
                    self.inner(f, then, 0)?;
                }
                if let Some(otherwise) = otherwise {
                    f.write_str(" ELSE ")?;
                    self.inner(f, otherwise, 0)?;
                }
                f.write_str(" END")
            }
            Expr::Call { function, arguments, .. } => {
                write!(f, "{}(", function.name)?;
                self.list(f, arguments, ", ", 0)?;
                f.write_char(')')
            }
        }
    }
}
