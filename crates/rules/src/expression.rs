//! Expressions after names are resolved: the tree that is evaluated and printed.

use std::sync::Arc;

use crate::functions::{Function, Pattern};
use crate::source::Field;
use crate::value::Value;

/// An expression. The parser bounds its nesting, so recursion over it is safe.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A constant: null, a boolean, a number or a string.
    Literal(Value),
    Path(Path),
    /// Members and elements of the value of an expression that is not a path.
    Access(Box<Expr>, Box<[Part]>),
    Negate(Box<Expr>),
    Not(Box<Expr>),
    /// Two or more conditions that must all hold.
    And(Box<[Expr]>),
    /// Two or more conditions. One must hold.
    Or(Box<[Expr]>),
    Arithmetic(Arithmetic, Box<Expr>, Box<Expr>),
    Compare(Comparison, Box<Expr>, Box<Expr>),
    /// `topic =~ filter`.
    Matches(Box<Expr>, Box<Expr>),
    In {
        value: Box<Expr>,
        list: Box<[Expr]>,
        negated: bool,
    },
    IsNull {
        value: Box<Expr>,
        negated: bool,
    },
    Case {
        /// Value that the `when`s are compared with. Without it, they are conditions.
        subject: Option<Box<Expr>>,
        /// Each `when` with its `then`.
        arms: Box<[(Expr, Expr)]>,
        otherwise: Option<Box<Expr>>,
    },
    Call {
        function: &'static Function,
        arguments: Box<[Expr]>,
        prepared: Prepared,
    },
}

/// A constant argument that is compiled once.
#[derive(Clone, Debug)]
pub enum Prepared {
    Nothing,
    Regex(Pattern),
    #[cfg(feature = "jq")]
    Jq(crate::jq::Program),
}

/// Compares the texts that were compiled, which the arguments of a call have too.
impl PartialEq for Prepared {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) => true,
            (Self::Regex(a), Self::Regex(b)) => a == b,
            #[cfg(feature = "jq")]
            (Self::Jq(a), Self::Jq(b)) => a == b,
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    /// Division of integers without a remainder.
    Div,
    Mod,
}

impl Arithmetic {
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Div => "div",
            Self::Mod => "mod",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }
}

/// A field, an alias or the element of FOREACH, and members and elements within it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub root: Root,
    pub parts: Box<[Part]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    Field {
        field: Field,
        /// Index of the field in the fields of the rule.
        slot: usize,
    },
    /// Index of the column that has the alias.
    Alias(usize),
    /// The element of FOREACH.
    Item,
}

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A member of an object.
    Name(Arc<str>),
    /// An element of an array. Counts from 1, or from -1 at the end.
    Index(i64),
}

impl Part {
    pub fn name(&self) -> Option<&Arc<str>> {
        match self {
            Self::Name(name) => Some(name),
            Self::Index(_) => None,
        }
    }
}

/// The value at the end of a path; `None` when a step leads nowhere.
pub fn descend<'a>(value: &'a Value, parts: &[Part]) -> Option<&'a Value> {
    parts.iter().try_fold(value, |value, part| match part {
        Part::Name(name) => value.member(name),
        Part::Index(index) => value.element(*index),
    })
}
