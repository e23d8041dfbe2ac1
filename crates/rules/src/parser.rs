//! Parser of rules. It resolves names, checks arguments and bounds the nesting, so that evaluation need not.

mod expressions;
mod fault;
pub mod lexer;
mod names;

use std::sync::Arc;

use mqtt::TopicFilter;

pub use fault::{ParseError, ParseFault};

use crate::expression::Expr;
use crate::json::Wanted;
use crate::limits::{Limits, NESTING_MAX};
use crate::rule::{Column, ITEM, Kind, Plan, Rule};
use crate::source::{EVENTS, Event, Source};
use lexer::{Spanned, Token, is_keyword};

/// Parses a rule.
pub fn parse(text: &str, limits: &Limits) -> Result<Rule, ParseError> {
    if text.len() > limits.text_bytes {
        let fault = ParseFault::TooLong { size: text.len(), max: limits.text_bytes };
        return Err(ParseError::at(text, text.len(), fault));
    }
    let tokens = lexer::split(text)?;
    Parser::new(text, &tokens, limits).rule()
}

/// State of the parser of one rule.
struct Parser<'a> {
    text: &'a str,
    tokens: &'a [Spanned<'a>],
    /// Index of the next token.
    next: usize,
    limits: &'a Limits,
    nesting_max: usize,
    /// Number of expressions around the current one.
    nesting: usize,
    /// Events of the sources.
    events: Vec<Event>,
    columns: Vec<Column>,
    /// Aliases that each column uses.
    uses: Vec<Vec<usize>>,
    /// Aliases that the current expression uses.
    used: Vec<usize>,
    /// Number of columns whose aliases the current expression may use.
    visible: usize,
    /// Name of the element of FOREACH, where it may be used.
    item: Option<Arc<str>>,
    /// Number of constant arguments that were compiled.
    compiled: usize,
    plan: Plan,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, tokens: &'a [Spanned<'a>], limits: &'a Limits) -> Self {
        let plan = Plan {
            fields: Vec::new(),
            early: Vec::new(),
            uses_aliases: false,
            wanted: Wanted::Members(Vec::new()),
        };
        Self {
            text,
            tokens,
            next: 0,
            limits,
            nesting_max: limits.nesting.min(NESTING_MAX),
            nesting: 0,
            events: Vec::new(),
            columns: Vec::new(),
            uses: Vec::new(),
            used: Vec::new(),
            visible: 0,
            item: None,
            compiled: 0,
            plan,
        }
    }

    /// Error at a token, or at the end.
    fn error_at(&self, token: usize, fault: ParseFault) -> ParseError {
        let offset = self.tokens.get(token).map_or(self.text.len(), |token| token.at);
        ParseError::at(self.text, offset, fault)
    }

    /// Error at the next token.
    fn error(&self, fault: ParseFault) -> ParseError {
        self.error_at(self.next, fault)
    }

    fn expected(&self, expected: &'static str) -> ParseError {
        match self.peek() {
            Some(Token::Word(word)) if is_keyword(word) => {
                self.error(ParseFault::Keyword { word: (*word).into(), expected })
            }
            _ => self.error(ParseFault::Expected { expected }),
        }
    }

    fn peek(&self) -> Option<&'a Token<'a>> {
        self.tokens.get(self.next).map(|spanned| &spanned.token)
    }

    fn is_word(&self, at: usize, word: &str) -> bool {
        let token = self.tokens.get(at).map(|spanned| &spanned.token);
        matches!(token, Some(Token::Word(found)) if found.eq_ignore_ascii_case(word))
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), Some(Token::Symbol(found)) if *found == symbol)
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let is = self.is_word(self.next, word);
        self.next += usize::from(is);
        is
    }

    fn accept(&mut self, symbol: &str) -> bool {
        let is = self.is_symbol(symbol);
        self.next += usize::from(is);
        is
    }

    fn expect(&mut self, symbol: &str, expected: &'static str) -> Result<(), ParseError> {
        if self.accept(symbol) { Ok(()) } else { Err(self.expected(expected)) }
    }

    /// Parses the whole rule. FROM is parsed first, because it decides which fields exist.
    fn rule(mut self) -> Result<Rule, ParseError> {
        if !self.is_word(0, "select") && !self.is_word(0, "foreach") {
            return Err(self.error(ParseFault::NoSelect));
        }
        let from = (1..self.tokens.len())
            .find(|at| {
                let after_dot = matches!(self.tokens[at - 1].token, Token::Symbol("."));
                self.is_word(*at, "from") && !after_dot
            })
            .ok_or_else(|| self.error_at(self.tokens.len(), ParseFault::NoFrom))?;
        self.next = from + 1;
        let sources = self.sources()?;
        let after_sources = self.next;

        self.next = 0;
        let kind = if self.accept_word("select") {
            self.columns()?;
            Kind::Select
        } else {
            self.next += 1;
            self.foreach()?
        };
        if self.next != from {
            return Err(self.expected("`,` or FROM"));
        }

        self.next = after_sources;
        let mut condition = None;
        if self.accept_word("where") {
            self.item = None;
            self.visible = if matches!(kind, Kind::Select) { self.columns.len() } else { 0 };
            condition = Some(self.expression()?);
            self.plan.early = self.transitive_uses();
        }
        if self.next < self.tokens.len() {
            let is_last = condition.is_some();
            return Err(self.expected(if is_last {
                "an operator or the end"
            } else {
                "`,`, WHERE or the end"
            }));
        }
        Ok(Rule { kind, columns: self.columns.into(), sources: sources.into(), condition, plan: self.plan })
    }

    /// Columns that the current expression needs, and all columns that these need, in their order.
    fn transitive_uses(&self) -> Vec<usize> {
        let mut is_needed = vec![false; self.columns.len()];
        for column in &self.used {
            is_needed[*column] = true;
        }
        // A column uses earlier columns only.
        for column in (0..self.columns.len()).rev() {
            if is_needed[column] {
                for used in &self.uses[column] {
                    is_needed[*used] = true;
                }
            }
        }
        (0..self.columns.len()).filter(|column| is_needed[*column]).collect()
    }

    fn foreach(&mut self) -> Result<Kind, ParseError> {
        let over = self.expression()?;
        let mut name = None;
        if self.accept_word("as") {
            name = Some(Arc::from(self.plain_name("the name of an element")?));
            if self.is_symbol(".") || self.is_symbol("[") {
                return Err(
                    self.expected("DO, INCASE or FROM after the name of the element, which is one name")
                );
            }
        }
        self.item = Some(name.clone().unwrap_or_else(|| ITEM.into()));
        if self.accept_word("do") {
            self.columns()?;
        }
        let mut incase = None;
        if self.accept_word("incase") {
            self.visible = 0;
            incase = Some(self.expression()?);
        }
        Ok(Kind::Foreach { over, name, incase })
    }

    /// Parses a name that is no keyword.
    fn plain_name(&mut self, expected: &'static str) -> Result<&'a str, ParseError> {
        match self.peek() {
            Some(Token::Word(word)) if !is_keyword(word) => {
                self.next += 1;
                Ok(word)
            }
            _ => Err(self.expected(expected)),
        }
    }

    fn columns(&mut self) -> Result<(), ParseError> {
        loop {
            let begin = self.next;
            let max = self.limits.columns;
            if self.columns.len() >= max {
                return Err(self.error(ParseFault::TooManyColumns { max }));
            }
            if self.accept("*") {
                self.columns.push(Column::All);
                self.uses.push(Vec::new());
            } else {
                self.column(begin)?;
            }
            self.visible = self.columns.len();
            if !self.accept(",") {
                return Ok(());
            }
        }
    }

    fn column(&mut self, begin: usize) -> Result<(), ParseError> {
        let expr = self.expression()?;
        let uses = std::mem::take(&mut self.used);
        let mut is_alias = false;
        let name = if self.accept_word("as") {
            is_alias = true;
            self.alias()?
        } else {
            self.name_of(&expr)
        };
        let is_repeated = self.columns.iter().any(|column| match column {
            Column::Expr { name: other, .. } => **other == *name,
            Column::All => false,
        });
        if is_repeated {
            let name = name.join(".").into();
            return Err(self.error_at(begin, ParseFault::ColumnRepeated { name }));
        }
        self.columns.push(Column::Expr { expr, name: name.into(), is_alias });
        self.uses.push(uses);
        Ok(())
    }

    /// Parses names with dots between them.
    fn alias(&mut self) -> Result<Vec<Arc<str>>, ParseError> {
        let mut names: Vec<Arc<str>> = Vec::new();
        loop {
            match self.peek() {
                Some(Token::Text(name)) => names.push(name.as_str().into()),
                Some(Token::Word(name)) if !names.is_empty() || !is_keyword(name) => {
                    names.push((*name).into())
                }
                Some(Token::Quoted(_)) => return Err(self.error(ParseFault::DoubleQuotes)),
                _ => return Err(self.expected("a name")),
            }
            self.next += 1;
            if self.is_symbol("[") {
                return Err(self.error(ParseFault::AliasIndex));
            }
            if names.len() > self.nesting_max {
                return Err(self.error(ParseFault::NestedTooDeep { max: self.nesting_max }));
            }
            if !self.accept(".") {
                return Ok(names);
            }
        }
    }

    /// Name of a column without AS: the last name of a path, or `column_` and the number of the column.
    fn name_of(&self, expr: &Expr) -> Vec<Arc<str>> {
        let name = match expr {
            Expr::Path(path) => match path.parts.iter().rev().find_map(|part| part.name()) {
                Some(name) => Some(name.clone()),
                None => self.root_name(path.root),
            },
            _ => None,
        };
        vec![name.unwrap_or_else(|| format!("column_{}", self.columns.len() + 1).into())]
    }

    fn sources(&mut self) -> Result<Vec<Source>, ParseError> {
        let mut sources = Vec::new();
        loop {
            let source = match self.peek() {
                Some(Token::Quoted(name)) => self.source(name)?,
                Some(Token::Text(_) | Token::Word(_)) => return Err(self.error(ParseFault::NoDoubleQuotes)),
                _ => return Err(self.expected("a Topic Filter or an event in double quotation marks")),
            };
            let max = self.limits.columns;
            if sources.len() >= max {
                return Err(self.error(ParseFault::TooManySources { max }));
            }
            if sources.contains(&source) {
                return Err(self.error(ParseFault::SourceRepeated));
            }
            if !self.events.contains(&source.event()) {
                self.events.push(source.event());
            }
            sources.push(source);
            self.next += 1;
            if !self.accept(",") {
                return Ok(sources);
            }
        }
    }

    fn source(&self, name: &str) -> Result<Source, ParseError> {
        if name.starts_with(EVENTS) {
            return Event::of_name(name).map(Source::Event).ok_or_else(|| {
                self.error(ParseFault::EventUnknown {
                    name: crate::error::shown(name),
                    nearest: Event::nearest(name),
                })
            });
        }
        if name.starts_with("$share/") {
            return Err(self.error(ParseFault::SharedFilter));
        }
        match TopicFilter::parse(name) {
            Ok(_) => Ok(Source::Filter(name.into())),
            Err(error) => {
                Err(self.error(ParseFault::TopicFilter { filter: crate::error::shown(name), error }))
            }
        }
    }
}
