//! Evaluation of a rule for one message.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::EvalError;
use crate::expression::{Comparison, Expr, Part, Path, Prepared, Root, descend};
use crate::functions::{self, Arguments, Function, Pattern, Run};
use crate::json::{self, Wanted};
use crate::limits::Limits;
use crate::message::Message;
use crate::meter::{Context, Meter};
use crate::operators::{arithmetic, compare, matches, wrong_operand};
use crate::path_text;
use crate::rule::{Column, Kind, Plan, Rule};
use crate::source::Field;
use crate::value::{Object, Value};

impl Rule {
    /// Evaluates the rule for a message or an event of one of its sources. Returns the outputs, which are objects.
    /// There are none when WHERE does not hold.
    ///
    /// # Errors
    /// The evaluation reaches a limit, or an expression has no value.
    pub fn evaluate(
        &self,
        message: &dyn Message,
        context: &Context,
        limits: &Limits,
    ) -> Result<Vec<Value>, EvalError> {
        let mut machine = Machine {
            message,
            plan: &self.plan,
            meter: Meter::new(limits, context),
            fields: SmallVec::new(),
            payload: None,
            aliases: Vec::new(),
            item: Value::Null,
        };
        if self.plan.uses_aliases {
            machine.aliases = vec![Value::Null; self.columns.len()];
        }
        for column in &self.plan.early {
            machine.alias(&self.columns, *column)?;
        }
        if let Some(condition) = &self.condition
            && !machine.holds(condition, "WHERE")?
        {
            return Ok(Vec::new());
        }
        match &self.kind {
            Kind::Select => Ok(vec![machine.output(&self.columns, &self.plan.early)?]),
            Kind::Foreach { over, incase, .. } => {
                let elements = match machine.eval(over)? {
                    Value::Text(text) => {
                        json::decode(&mut machine.meter, FOREACH, text.as_bytes(), &Wanted::All)?
                    }
                    other => other,
                };
                let elements = match &elements {
                    Value::Null => &[],
                    Value::Array(array) => array.elements(),
                    other => return Err(wrong_operand(FOREACH, "an array", other)),
                };
                machine.outputs(self, elements, incase.as_ref())
            }
        }
    }
}

const FOREACH: &str = "FOREACH";

/// State of one evaluation.
struct Machine<'a> {
    message: &'a dyn Message,
    plan: &'a Plan,
    meter: Meter,
    /// Values of the fields of the plan that were used before.
    fields: SmallVec<[Option<Value>; 6]>,
    /// Decoded payload. Only the members that the plan wants.
    payload: Option<Value>,
    /// Values of the columns that have an alias.
    aliases: Vec<Value>,
    /// Current element of FOREACH.
    item: Value,
}

impl Machine<'_> {
    /// Evaluates a column and keeps its value for later expressions.
    fn alias(&mut self, columns: &[Column], index: usize) -> Result<(), EvalError> {
        if let Some(Column::Expr { expr, .. }) = columns.get(index) {
            self.aliases[index] = self.eval(expr)?;
        }
        Ok(())
    }

    fn outputs(
        &mut self,
        rule: &Rule,
        elements: &[Value],
        incase: Option<&Expr>,
    ) -> Result<Vec<Value>, EvalError> {
        let mut outputs = Vec::new();
        // Fields of outputs without DO, which all of them share.
        let mut fields = Object::new();
        for element in elements {
            self.meter.step(1)?;
            self.item = element.clone();
            if let Some(condition) = incase
                && !self.holds(condition, "INCASE")?
            {
                continue;
            }
            let max = self.meter.limits.outputs;
            if outputs.len() >= max {
                return Err(EvalError::OutputLimit { max });
            }
            outputs.push(if rule.columns.is_empty() {
                if fields.is_empty() {
                    self.add_all_fields(&mut fields)?;
                }
                self.meter.produce_elements(fields.len() + 1)?;
                let mut object = fields.clone();
                object.insert(rule.item_name().into(), element.clone());
                self.meter.checked(Value::Object(Arc::new(object)))?
            } else {
                self.output(&rule.columns, &[])?
            });
        }
        Ok(outputs)
    }

    /// Makes one output. The columns in `early` are evaluated already.
    fn output(&mut self, columns: &[Column], early: &[usize]) -> Result<Value, EvalError> {
        let mut output = Object::with_capacity(columns.len());
        for (index, column) in columns.iter().enumerate() {
            let (expr, name) = match column {
                Column::All => {
                    self.add_all_fields(&mut output)?;
                    continue;
                }
                Column::Expr { expr, name, .. } => (expr, name),
            };
            let value = if early.binary_search(&index).is_ok() {
                self.aliases.get(index).cloned().unwrap_or_default()
            } else {
                self.eval(expr)?
            };
            if let Some(kept) = self.aliases.get_mut(index) {
                *kept = value.clone();
            }
            if let [first, _, ..] = &**name {
                self.open_payload(&mut output, first)?;
            }
            functions::put_into(&mut self.meter, &mut output, name, value)?;
        }
        self.meter.checked(Value::Object(Arc::new(output)))
    }

    /// Decodes the payload in an output, because a column is about to be put into it.
    fn open_payload(&mut self, output: &mut Object, first: &Arc<str>) -> Result<(), EvalError> {
        if **first == *Field::Payload.name()
            && let Some(Value::Text(text)) = output.get(first)
        {
            let text = text.clone();
            let decoded = json::decode(&mut self.meter, PAYLOAD, text.as_bytes(), &Wanted::All)?;
            output.insert(first.clone(), decoded);
        }
        Ok(())
    }

    /// Adds all fields of the message: `*`.
    fn add_all_fields(&mut self, output: &mut Object) -> Result<(), EvalError> {
        for field in self.message.event().fields() {
            self.meter.produce_elements(1)?;
            let value = self.field_by_name(field)?;
            output.insert(field.name().into(), value);
        }
        Ok(())
    }

    fn field_of_message(&mut self, field: Field) -> Result<Value, EvalError> {
        match field {
            Field::Event => Ok(self.message.event().value().into()),
            // An event without a payload has null, and a message without one has an empty string.
            Field::Payload if !self.message.event().has(field) => Ok(Value::Null),
            Field::Payload => self.meter.of_bytes(self.message.payload()),
            other => self.meter.checked(self.message.field(other)),
        }
    }

    /// Value of a field that an expression may have used before.
    fn field_by_name(&mut self, field: Field) -> Result<Value, EvalError> {
        match self.plan.fields.iter().position(|known| *known == field) {
            Some(slot) => self.field(field, slot),
            None => self.field_of_message(field),
        }
    }

    /// Value of a field, which is made once.
    fn field(&mut self, field: Field, slot: usize) -> Result<Value, EvalError> {
        if self.fields.is_empty() {
            self.fields.resize(self.plan.fields.len(), None);
        }
        if let Some(Some(value)) = self.fields.get(slot) {
            return Ok(value.clone());
        }
        let value = self.field_of_message(field)?;
        if let Some(kept) = self.fields.get_mut(slot) {
            *kept = Some(value.clone());
        }
        Ok(value)
    }

    /// The decoded payload, which is decoded once.
    fn decoded_payload(&mut self) -> Result<Value, EvalError> {
        if let Some(decoded) = &self.payload {
            return Ok(decoded.clone());
        }
        let decoded = if self.message.event().has(Field::Payload) {
            json::decode(&mut self.meter, PAYLOAD, self.message.payload(), &self.plan.wanted)?
        } else {
            Value::Null
        };
        self.payload = Some(decoded.clone());
        Ok(decoded)
    }

    fn path(&mut self, path: &Path) -> Result<Value, EvalError> {
        self.meter.step(path.parts.len())?;
        let root = match path.root {
            Root::Field { field: Field::Payload, .. } if !path.parts.is_empty() => self.decoded_payload()?,
            Root::Field { field, slot } => self.field(field, slot)?,
            Root::Alias(column) => self.aliases.get(column).cloned().unwrap_or_default(),
            Root::Item => self.item.clone(),
        };
        if path.parts.is_empty() {
            return Ok(root);
        }
        Ok(descend(&root, &path.parts).cloned().unwrap_or_default())
    }

    /// Returns whether a condition holds. Null does not.
    fn holds(&mut self, condition: &Expr, operation: &'static str) -> Result<bool, EvalError> {
        match self.eval(condition)? {
            Value::Bool(holds) => Ok(holds),
            Value::Null => Ok(false),
            other => Err(wrong_operand(operation, "a condition", &other)),
        }
    }

    fn eval(&mut self, expr: &Expr) -> Result<Value, EvalError> {
        self.meter.step(1)?;
        match expr {
            Expr::Literal(value) => Ok(value.clone()),
            Expr::Path(path) => self.path(path),
            Expr::Access(expr, parts) => {
                self.meter.step(parts.len())?;
                let value = self.eval(expr)?;
                Ok(descend(&value, parts).cloned().unwrap_or_default())
            }
            Expr::Negate(expr) => match self.eval(expr)? {
                Value::Null => Ok(Value::Null),
                Value::Int(number) => {
                    number.checked_neg().map(Value::Int).ok_or(EvalError::Overflow { operation: "-" })
                }
                Value::Float(number) => Ok(Value::Float(-number)),
                other => Err(wrong_operand("-", "a number", &other)),
            },
            Expr::Not(expr) => Ok(Value::Bool(!self.holds(expr, "not")?)),
            Expr::And(list) => {
                for condition in list {
                    if !self.holds(condition, "and")? {
                        return Ok(Value::Bool(false));
                    }
                }
                Ok(Value::Bool(true))
            }
            Expr::Or(list) => {
                for condition in list {
                    if self.holds(condition, "or")? {
                        return Ok(Value::Bool(true));
                    }
                }
                Ok(Value::Bool(false))
            }
            Expr::Arithmetic(operator, left, right) => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                arithmetic(&mut self.meter, *operator, &left, &right)
            }
            Expr::Compare(comparison, left, right) => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                compare(&mut self.meter, *comparison, &left, &right).map(Value::Bool)
            }
            Expr::Matches(left, right) => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                matches(&mut self.meter, &left, &right).map(Value::Bool)
            }
            Expr::In { value, list, negated } => {
                let value = self.eval(value)?;
                for candidate in list {
                    let candidate = self.eval(candidate)?;
                    if compare(&mut self.meter, Comparison::Equal, &value, &candidate)? {
                        return Ok(Value::Bool(!negated));
                    }
                }
                Ok(Value::Bool(*negated))
            }
            Expr::IsNull { value, negated } => Ok(Value::Bool(self.eval(value)?.is_null() != *negated)),
            Expr::Case { subject, arms, otherwise } => {
                self.case(subject.as_deref(), arms, otherwise.as_deref())
            }
            Expr::Call { function, arguments, prepared } => self.call(function, arguments, prepared),
        }
    }

    fn case(
        &mut self,
        subject: Option<&Expr>,
        arms: &[(Expr, Expr)],
        otherwise: Option<&Expr>,
    ) -> Result<Value, EvalError> {
        let subject = subject.map(|subject| self.eval(subject)).transpose()?;
        for (when, then) in arms {
            let is_taken = match &subject {
                Some(subject) => {
                    let when = self.eval(when)?;
                    compare(&mut self.meter, Comparison::Equal, subject, &when)?
                }
                None => self.holds(when, "case")?,
            };
            if is_taken {
                return self.eval(then);
            }
        }
        otherwise.map_or(Ok(Value::Null), |otherwise| self.eval(otherwise))
    }

    fn call(
        &mut self,
        function: &'static Function,
        arguments: &[Expr],
        prepared: &Prepared,
    ) -> Result<Value, EvalError> {
        if let Run::Coalesce = function.run {
            for argument in arguments {
                let value = self.eval(argument)?;
                if !value.is_null() {
                    return Ok(value);
                }
            }
            return Ok(Value::Null);
        }
        let mut values = SmallVec::<[Value; 4]>::new();
        for argument in arguments {
            values.push(self.eval(argument)?);
        }
        if function.is_null_with_null && values.iter().any(Value::is_null) {
            return Ok(Value::Null);
        }
        let it = Arguments { function: function.name, values: &values };
        match function.run {
            Run::Plain(run) => run(&mut self.meter, &it),
            Run::Regex(run) => match prepared {
                Prepared::Regex(regex) => run(&mut self.meter, regex, &it),
                _ => {
                    self.meter.step(COMPILE_STEPS.saturating_add(it.text(1)?.len().saturating_mul(4)))?;
                    let regex = Pattern::compile(it.text(1)?, &self.meter.limits)
                        .map_err(|error| EvalError::Regex { function: function.name, error })?;
                    run(&mut self.meter, &regex, &it)
                }
            },
            #[cfg(feature = "jq")]
            Run::Jq(run) => match prepared {
                Prepared::Jq(program) => run(&mut self.meter, program, &it),
                _ => Err(it.wrong(0, "a constant program")),
            },
            Run::Topic => self.topic_level(&it),
            Run::Payload => self.payload_at(&it),
            Run::Coalesce => Ok(Value::Null),
        }
    }

    /// `topic()` and `topic(n)`.
    fn topic_level(&mut self, it: &Arguments<'_>) -> Result<Value, EvalError> {
        let topic = self.field_by_name(Field::Topic)?;
        if it.len() == 0 {
            return Ok(topic);
        }
        let index = it.int(0)?;
        let Value::Text(topic) = topic else { return Ok(Value::Null) };
        self.meter.read(topic.len())?;
        let nth = |number: i64| usize::try_from(number.unsigned_abs()).ok()?.checked_sub(1);
        let level = match nth(index) {
            None => return Ok(Value::Null),
            Some(at) if index > 0 => topic.split('/').nth(at),
            Some(at) => topic.rsplit('/').nth(at),
        };
        level.map_or(Ok(Value::Null), |level| self.meter.text(level))
    }

    /// `payload()` and `payload(path)`.
    fn payload_at(&mut self, it: &Arguments<'_>) -> Result<Value, EvalError> {
        if it.len() == 0 {
            return self.field_by_name(Field::Payload);
        }
        let parts: Vec<Part> =
            path_text::parse(it.text(0)?).ok_or_else(|| it.wrong(0, "a path such as 'a.b' or 'a.b[1]'"))?;
        self.meter.step(parts.len())?;
        let payload = self.decoded_payload()?;
        Ok(descend(&payload, &parts).cloned().unwrap_or_default())
    }
}

const PAYLOAD: &str = "payload";

/// Steps of the compilation of a regular expression that is not a constant.
const COMPILE_STEPS: usize = 10_000;
