//! Expressions: operators by their strength, paths, calls and CASE.

use std::sync::Arc;

use mqtt::TopicFilter;

use super::Parser;
use super::fault::{ParseError, ParseFault};
use super::lexer::{Token, is_keyword};
use crate::error::shown;
use crate::expression::{Arithmetic, Comparison, Expr, Part, Prepared};
use crate::functions::{self, Function, Pattern, Run};
use crate::json::Wanted;
use crate::path_text;
use crate::print::strength;
use crate::source::Field;
use crate::value::Value;

/// An expression and its height: 1 for a constant, one more for each level around it.
struct Tree {
    expr: Expr,
    height: usize,
}

/// An operator between two operands.
enum Infix {
    And,
    Or,
    Arithmetic(Arithmetic),
    Compare(Comparison),
    Matches,
    In { negated: bool },
    IsNull { negated: bool },
}

impl Infix {
    fn strength(&self) -> u8 {
        match self {
            Self::Or => strength::OR,
            Self::And => strength::AND,
            Self::Compare(_) | Self::Matches | Self::In { .. } | Self::IsNull { .. } => strength::COMPARE,
            Self::Arithmetic(operator) => operator.strength(),
        }
    }
}

impl<'a> Parser<'a> {
    /// Parses one expression. Forgets the aliases that earlier ones used.
    pub(super) fn expression(&mut self) -> Result<Expr, ParseError> {
        self.used.clear();
        Ok(self.infix(0)?.expr)
    }

    /// Makes an expression of others. `height` is that of the highest of them.
    fn tree(&self, expr: Expr, height: usize) -> Result<Tree, ParseError> {
        let height = height + 1;
        if height > self.nesting_max {
            return Err(self.error(ParseFault::NestedTooDeep { max: self.nesting_max }));
        }
        Ok(Tree { expr, height })
    }

    /// Parses operators that bind at least as strong as `min`.
    fn infix(&mut self, min: u8) -> Result<Tree, ParseError> {
        self.nesting += 1;
        if self.nesting > self.nesting_max {
            return Err(self.error(ParseFault::NestedTooDeep { max: self.nesting_max }));
        }
        let mut left = self.prefix()?;
        while let Some((infix, len)) = self.operator()
            && infix.strength() >= min
        {
            self.next += len;
            left = self.operands(left, infix)?;
        }
        self.nesting -= 1;
        Ok(left)
    }

    /// The next operator and its number of tokens.
    fn operator(&self) -> Option<(Infix, usize)> {
        let infix = match self.peek()? {
            Token::Symbol(symbol) => match *symbol {
                "+" => Infix::Arithmetic(Arithmetic::Add),
                "-" => Infix::Arithmetic(Arithmetic::Subtract),
                "*" => Infix::Arithmetic(Arithmetic::Multiply),
                "/" => Infix::Arithmetic(Arithmetic::Divide),
                "=" => Infix::Compare(Comparison::Equal),
                "!=" | "<>" => Infix::Compare(Comparison::NotEqual),
                "<" => Infix::Compare(Comparison::Less),
                "<=" => Infix::Compare(Comparison::LessOrEqual),
                ">" => Infix::Compare(Comparison::Greater),
                ">=" => Infix::Compare(Comparison::GreaterOrEqual),
                "=~" => Infix::Matches,
                _ => return None,
            },
            Token::Word(word) => match word.to_ascii_lowercase().as_str() {
                "and" => Infix::And,
                "or" => Infix::Or,
                "div" => Infix::Arithmetic(Arithmetic::Div),
                "mod" => Infix::Arithmetic(Arithmetic::Mod),
                "in" => Infix::In { negated: false },
                "not" if self.is_word(self.next + 1, "in") => return Some((Infix::In { negated: true }, 2)),
                "is" if self.is_word(self.next + 1, "null") => {
                    return Some((Infix::IsNull { negated: false }, 2));
                }
                "is" if self.is_word(self.next + 1, "not") && self.is_word(self.next + 2, "null") => {
                    return Some((Infix::IsNull { negated: true }, 3));
                }
                _ => return None,
            },
            _ => return None,
        };
        Some((infix, 1))
    }

    /// Parses what follows an operator.
    fn operands(&mut self, left: Tree, infix: Infix) -> Result<Tree, ParseError> {
        let tighter = infix.strength() + 1;
        let (left_height, left) = (left.height, left.expr);
        match infix {
            Infix::And | Infix::Or => {
                let is_and = matches!(infix, Infix::And);
                let (mut list, mut height) = (vec![left], left_height);
                loop {
                    let operand = self.infix(tighter)?;
                    height = height.max(operand.height);
                    list.push(operand.expr);
                    if !self.accept_word(if is_and { "and" } else { "or" }) {
                        break;
                    }
                }
                self.tree(if is_and { Expr::And(list.into()) } else { Expr::Or(list.into()) }, height)
            }
            Infix::Arithmetic(operator) => {
                let right = self.infix(tighter)?;
                let expr = Expr::Arithmetic(operator, left.into(), right.expr.into());
                self.tree(expr, left_height.max(right.height))
            }
            Infix::Compare(comparison) => {
                let right = self.infix(tighter)?;
                let expr = Expr::Compare(comparison, left.into(), right.expr.into());
                self.tree(expr, left_height.max(right.height))
            }
            Infix::Matches => {
                let begin = self.next;
                let right = match self.peek() {
                    // A Topic Filter may be in the quotation marks of sources.
                    Some(Token::Quoted(filter)) => {
                        self.next += 1;
                        Tree { expr: Expr::Literal(filter.as_str().into()), height: 1 }
                    }
                    _ => self.infix(tighter)?,
                };
                if let Expr::Literal(Value::Text(filter)) = &right.expr
                    && let Err(error) = TopicFilter::parse(filter)
                {
                    return Err(
                        self.error_at(begin, ParseFault::TopicFilter { filter: shown(filter), error })
                    );
                }
                self.tree(Expr::Matches(left.into(), right.expr.into()), left_height.max(right.height))
            }
            Infix::In { negated } => {
                self.expect("(", "`(` and a list of values")?;
                let (list, height) = self.list()?;
                if list.is_empty() {
                    return Err(self.error_at(self.next - 1, ParseFault::Expected { expected: "a value" }));
                }
                self.tree(Expr::In { value: left.into(), list, negated }, left_height.max(height))
            }
            Infix::IsNull { negated } => self.tree(Expr::IsNull { value: left.into(), negated }, left_height),
        }
    }

    /// Parses expressions up to `)`. Returns them and the greatest height.
    fn list(&mut self) -> Result<(Box<[Expr]>, usize), ParseError> {
        let (mut list, mut height) = (Vec::new(), 0);
        if self.accept(")") {
            return Ok((list.into(), height));
        }
        loop {
            let tree = self.infix(0)?;
            height = height.max(tree.height);
            list.push(tree.expr);
            if !self.accept(",") {
                self.expect(")", "`,` or `)`")?;
                return Ok((list.into(), height));
            }
        }
    }

    /// Parses `not`, `-` and what they apply to.
    fn prefix(&mut self) -> Result<Tree, ParseError> {
        if self.accept_word("not") {
            let tree = self.infix(strength::NOT)?;
            return self.tree(Expr::Not(tree.expr.into()), tree.height);
        }
        if !self.accept("-") {
            return self.primary();
        }
        // The smallest integer has no positive counterpart.
        if let Some(Token::Int(number)) = self.peek()
            && *number == i64::MIN.unsigned_abs()
        {
            self.next += 1;
            return Ok(Tree { expr: Expr::Literal(Value::Int(i64::MIN)), height: 1 });
        }
        let tree = self.infix(strength::NEGATE)?;
        match tree.expr {
            Expr::Literal(Value::Int(number)) if number != i64::MIN => {
                Ok(Tree { expr: Expr::Literal(Value::Int(-number)), height: tree.height })
            }
            Expr::Literal(Value::Float(number)) => {
                Ok(Tree { expr: Expr::Literal(Value::Float(-number)), height: tree.height })
            }
            Expr::Literal(Value::Int(_)) => Err(self.error_at(self.next - 1, ParseFault::IntegerTooLarge)),
            expr => self.tree(Expr::Negate(expr.into()), tree.height),
        }
    }

    fn primary(&mut self) -> Result<Tree, ParseError> {
        let begin = self.next;
        let literal = |value| Tree { expr: Expr::Literal(value), height: 1 };
        let Some(token) = self.peek() else { return Err(self.expected("a value")) };
        let tree = match token {
            Token::Int(number) => {
                let number = i64::try_from(*number).map_err(|_| self.error(ParseFault::IntegerTooLarge))?;
                self.next += 1;
                return Ok(literal(Value::Int(number)));
            }
            Token::Float(number) => {
                self.next += 1;
                return Ok(literal(Value::Float(*number)));
            }
            Token::Text(text) => {
                self.next += 1;
                return Ok(literal(text.as_str().into()));
            }
            Token::Quoted(_) => return Err(self.error(ParseFault::DoubleQuotes)),
            Token::Symbol("(") => {
                self.next += 1;
                let tree = self.infix(0)?;
                self.expect(")", "an operator or `)`")?;
                tree
            }
            Token::Symbol(_) => return Err(self.expected("a value")),
            Token::Word(word) => {
                let is_call = matches!(
                    self.tokens.get(self.next + 1).map(|spanned| &spanned.token),
                    Some(Token::Symbol("("))
                );
                match word.to_ascii_lowercase().as_str() {
                    "null" | "true" | "false" => {
                        self.next += 1;
                        let is_true = word.eq_ignore_ascii_case("true");
                        let is_null = word.eq_ignore_ascii_case("null");
                        return Ok(literal(if is_null { Value::Null } else { Value::Bool(is_true) }));
                    }
                    "case" => {
                        self.next += 1;
                        self.case()?
                    }
                    _ if is_call && (word.eq_ignore_ascii_case("mod") || !is_keyword(word)) => {
                        self.call(word)?
                    }
                    _ if is_keyword(word) => return Err(self.expected("a value")),
                    _ => {
                        self.next += 1;
                        let mut parts = vec![Part::Name(Arc::from(*word))];
                        self.parts(&mut parts)?;
                        let expr = Expr::Path(self.resolve(begin, parts)?);
                        return Ok(Tree { expr, height: 1 });
                    }
                }
            }
        };
        self.access(begin, tree)
    }

    /// Parses `.name` and `[n]` after an expression in parentheses, a call or CASE.
    fn access(&mut self, begin: usize, tree: Tree) -> Result<Tree, ParseError> {
        let mut parts = Vec::new();
        self.parts(&mut parts)?;
        if parts.is_empty() {
            return Ok(tree);
        }
        match tree.expr {
            // Parentheses around a path change nothing.
            Expr::Path(path) => {
                let mut names = self.names_of(&path);
                names.append(&mut parts);
                let expr = Expr::Path(self.resolve(begin, names)?);
                Ok(Tree { expr, height: 1 })
            }
            Expr::Access(expr, inner) => {
                let parts = inner.into_iter().chain(parts).collect();
                Ok(Tree { expr: Expr::Access(expr, parts), height: tree.height })
            }
            expr => self.tree(Expr::Access(expr.into(), parts.into()), tree.height),
        }
    }

    /// Parses the rest of a path.
    fn parts(&mut self, parts: &mut Vec<Part>) -> Result<(), ParseError> {
        loop {
            if self.accept(".") {
                match self.peek() {
                    Some(Token::Word(name)) => parts.push(Part::Name(Arc::from(*name))),
                    Some(Token::Text(name)) => parts.push(Part::Name(name.as_str().into())),
                    Some(Token::Quoted(_)) => return Err(self.error(ParseFault::DoubleQuotes)),
                    Some(Token::Int(_) | Token::Float(_)) => {
                        return Err(self.error(ParseFault::NumberAndName));
                    }
                    _ => return Err(self.expected("a name after the dot")),
                }
                self.next += 1;
            } else if self.accept("[") {
                let is_negative = self.accept("-");
                let Some(Token::Int(number)) = self.peek() else {
                    return Err(self.expected("an integer; use nth for an index that is not a constant"));
                };
                let index = i64::try_from(*number).map_err(|_| self.error(ParseFault::IntegerTooLarge))?;
                if index == 0 {
                    return Err(self.error(ParseFault::IndexZero));
                }
                self.next += 1;
                self.expect("]", "`]`")?;
                parts.push(Part::Index(if is_negative { -index } else { index }));
            } else {
                return Ok(());
            }
        }
    }

    /// Parses CASE behind its first word.
    fn case(&mut self) -> Result<Tree, ParseError> {
        let (mut subject, mut height) = (None, 0);
        if !self.is_word(self.next, "when") {
            let tree = self.infix(0)?;
            height = tree.height;
            subject = Some(Box::new(tree.expr));
        }
        let mut arms = Vec::new();
        while self.accept_word("when") {
            let when = self.infix(0)?;
            if !self.accept_word("then") {
                return Err(self.error(ParseFault::Expected { expected: "THEN" }));
            }
            let then = self.infix(0)?;
            height = height.max(when.height).max(then.height);
            arms.push((when.expr, then.expr));
        }
        if arms.is_empty() {
            return Err(self.error(ParseFault::Expected { expected: "WHEN" }));
        }
        let mut otherwise = None;
        if self.accept_word("else") {
            let tree = self.infix(0)?;
            height = height.max(tree.height);
            otherwise = Some(Box::new(tree.expr));
        }
        if !self.accept_word("end") {
            return Err(self.error(ParseFault::Expected { expected: "WHEN, ELSE or END" }));
        }
        self.tree(Expr::Case { subject, arms: arms.into(), otherwise }, height)
    }

    fn call(&mut self, name: &str) -> Result<Tree, ParseError> {
        let begin = self.next;
        let Some(function) = functions::find(name) else {
            let not_built = functions::NOT_BUILT.iter().find(|known| known.eq_ignore_ascii_case(name));
            let fault = match not_built {
                Some(name) => ParseFault::FunctionNotBuilt { name },
                None => {
                    let nearest = settings::nearest(name, functions::function_names());
                    let nearest = nearest.and_then(functions::find).map_or("", |function| function.name);
                    ParseFault::FunctionUnknown { name: shown(name), nearest }
                }
            };
            return Err(self.error(fault));
        };
        self.next += 2;
        let (arguments, height) = self.list()?;
        let (min, max, found) = (function.min, function.max, arguments.len());
        if found < min || max.is_some_and(|max| found > max) {
            let fault = ParseFault::ArgumentCount { function: function.name, min, max, found };
            return Err(self.error_at(begin, fault));
        }
        let prepared = self.prepare(begin, function, &arguments)?;
        self.tree(Expr::Call { function, arguments, prepared }, height)
    }

    /// Checks constant arguments, and compiles them.
    fn prepare(
        &mut self,
        begin: usize,
        function: &'static Function,
        arguments: &[Expr],
    ) -> Result<Prepared, ParseError> {
        let constant = |at: usize| match arguments.get(at) {
            Some(Expr::Literal(Value::Text(text))) => Some(&**text),
            _ => None,
        };
        let wrong =
            |at: usize, expected| ParseFault::Argument { function: function.name, at: at + 1, expected };
        match function.run {
            Run::Regex(_) => {
                let Some(pattern) = constant(1) else { return Ok(Prepared::Nothing) };
                let max = self.limits.regexes;
                if self.compiled >= max {
                    return Err(self.error_at(begin, ParseFault::TooManyRegexes { max }));
                }
                self.compiled += 1;
                return Pattern::compile(pattern, self.limits)
                    .map(Prepared::Regex)
                    .map_err(|error| self.error_at(begin, ParseFault::Regex(error)));
            }
            #[cfg(feature = "jq")]
            Run::Jq(_) => {
                return constant(0).and_then(crate::jq::compile).map(Prepared::Jq).ok_or_else(|| {
                    self.error_at(
                        begin,
                        wrong(0, "a constant program of jq, without errors and not too long"),
                    )
                });
            }
            Run::Topic => {
                self.field(Field::Topic)
                    .ok_or_else(|| self.error_at(begin, self.field_missing(Field::Topic)))?;
            }
            Run::Payload => {
                self.field(Field::Payload)
                    .ok_or_else(|| self.error_at(begin, self.field_missing(Field::Payload)))?;
                if let Some(text) = constant(0) {
                    let parts = path_text::parse(text)
                        .ok_or_else(|| self.error_at(begin, wrong(0, "a path such as 'a.b' or 'a.b[1]'")))?;
                    self.plan.wanted.add(parts.first().and_then(Part::name));
                } else if !arguments.is_empty() {
                    self.plan.wanted = Wanted::All;
                }
            }
            Run::Plain(_) if function.name == "sprintf" => {
                if let Some(format) = constant(0)
                    && functions::directives(format) != Some(arguments.len() - 1)
                {
                    return Err(self.error_at(begin, wrong(0, functions::FORMAT)));
                }
            }
            Run::Plain(_) | Run::Coalesce => {}
        }
        Ok(Prepared::Nothing)
    }
}
