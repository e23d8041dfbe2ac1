//! A parsed rule.

use std::sync::Arc;

use crate::expression::Expr;
use crate::json::Wanted;
use crate::limits::Limits;
use crate::parser::{self, ParseError};
use crate::source::{Event, Field, Source};

/// A rule that was parsed and checked. `Display` writes its canonical text, which is parsed as an equal rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub(crate) kind: Kind,
    /// Columns of SELECT or DO.
    pub(crate) columns: Box<[Column]>,
    pub(crate) sources: Box<[Source]>,
    pub(crate) condition: Option<Expr>,
    pub(crate) plan: Plan,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Select,
    Foreach {
        over: Expr,
        /// Name of the element; `item` when there is none.
        name: Option<Arc<str>>,
        incase: Option<Expr>,
    },
}

/// A column of the output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Column {
    /// All fields: `*`.
    All,
    Expr {
        expr: Expr,
        /// Path of the value in the output, at least one name.
        name: Box<[Arc<str>]>,
        /// True when the text of the rule has the name.
        is_alias: bool,
    },
}

/// Facts about a rule that make its evaluation cheap.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Fields that the rule names.
    pub fields: Vec<Field>,
    /// Columns that WHERE needs, in growing order, which is that of their evaluation.
    pub early: Vec<usize>,
    /// True when an expression uses an alias.
    pub uses_aliases: bool,
    /// Members of the payload that paths use.
    pub wanted: Wanted,
}

impl Rule {
    /// Parses and checks a rule.
    ///
    /// # Errors
    /// The text is not a rule, or reaches a limit.
    pub fn parse(text: &str, limits: &Limits) -> Result<Self, ParseError> {
        parser::parse(text, limits)
    }

    /// Sources in the order of the text, at least one.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Topic Filters among the sources.
    pub fn filters(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().filter_map(|source| match source {
            Source::Filter(filter) => Some(&**filter),
            Source::Event(_) => None,
        })
    }

    /// Events among the sources.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.sources.iter().filter_map(|source| match source {
            Source::Filter(_) => None,
            Source::Event(event) => Some(*event),
        })
    }

    /// Name of the element of FOREACH.
    pub(crate) fn item_name(&self) -> &str {
        match &self.kind {
            Kind::Foreach { name: Some(name), .. } => name,
            _ => ITEM,
        }
    }
}

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Rule>();
};

/// Name of the element of FOREACH without AS.
pub(crate) const ITEM: &str = "item";
