//! Resolution of names: aliases first, then the element of FOREACH, then fields.

use std::sync::Arc;

use super::Parser;
use super::fault::{ParseError, ParseFault};
use crate::error::shown;
use crate::expression::{Part, Path, Root};
use crate::rule::Column;
use crate::source::{Event, Field};

impl Parser<'_> {
    /// Resolves a path whose first part is a name. `begin` is its token.
    pub(super) fn resolve(&mut self, begin: usize, parts: Vec<Part>) -> Result<Path, ParseError> {
        if let Some((column, len)) = self.alias_of(&parts) {
            self.used.push(column);
            self.plan.uses_aliases = true;
            return Ok(Path { root: Root::Alias(column), parts: parts[len..].into() });
        }
        let Some(Part::Name(first)) = parts.first() else { return Err(self.expected("a name")) };
        if self.item.as_ref() == Some(first) {
            return Ok(Path { root: Root::Item, parts: parts[1..].into() });
        }
        if let Some(field) = Field::of_name(first)
            && let Some(root) = self.field(field)
        {
            if field == Field::Payload && parts.len() > 1 {
                self.plan.wanted.add(parts[1].name());
            }
            return Ok(Path { root, parts: parts[1..].into() });
        }
        Err(self.error_at(begin, self.unknown(first, &parts)))
    }

    /// The field, if a source has it. It gets a slot in the plan.
    pub(super) fn field(&mut self, field: Field) -> Option<Root> {
        if !self.events.iter().any(|event| event.has(field)) {
            return None;
        }
        let fields = &mut self.plan.fields;
        let slot = fields.iter().position(|known| *known == field).unwrap_or_else(|| {
            fields.push(field);
            fields.len() - 1
        });
        Some(Root::Field { field, slot })
    }

    /// Error about a field that no source has.
    pub(super) fn field_missing(&self, field: Field) -> ParseFault {
        let event = Event::ALL.iter().copied().find(|event| event.has(field)).unwrap_or(Event::Publish);
        ParseFault::FieldNotInSources { field, event, nearest: self.nearest(field.name()) }
    }

    /// The visible aliases with their columns.
    fn aliases(&self) -> impl Iterator<Item = (usize, &[Arc<str>])> {
        self.columns[..self.visible].iter().enumerate().filter_map(|(index, column)| match column {
            Column::Expr { name, is_alias: true, .. } => Some((index, &**name)),
            _ => None,
        })
    }

    /// The longest alias that a path begins with: its column and its number of names.
    fn alias_of(&self, parts: &[Part]) -> Option<(usize, usize)> {
        let begins = |alias: &[Arc<str>]| {
            alias.len() <= parts.len()
                && alias.iter().zip(parts).all(|(name, part)| part.name() == Some(name))
        };
        self.aliases()
            .filter(|(_, alias)| begins(alias))
            .map(|(column, alias)| (column, alias.len()))
            .max_by_key(|(_, len)| *len)
    }

    fn unknown(&self, first: &str, parts: &[Part]) -> ParseFault {
        let is_beginning =
            |alias: &[Arc<str>]| alias.iter().zip(parts).all(|(name, part)| part.name() == Some(name));
        if let Some((_, alias)) = self.aliases().find(|(_, alias)| is_beginning(alias)) {
            return ParseFault::PartOfAlias { alias: alias.join(".").into() };
        }
        match Field::of_name(first) {
            Some(field) => self.field_missing(field),
            None => ParseFault::NameUnknown { name: shown(first), nearest: self.nearest(first) },
        }
    }

    /// The known name that is nearest to an unknown one.
    fn nearest(&self, name: &str) -> Box<str> {
        let fields =
            Field::ALL.iter().copied().filter(|field| self.events.iter().any(|event| event.has(*field)));
        let aliases: Vec<String> = self.aliases().map(|(_, alias)| alias.join(".")).collect();
        let mut known: Vec<&str> = aliases.iter().map(String::as_str).chain(self.item.as_deref()).collect();
        for field in fields {
            known.push(field.name());
        }
        settings::nearest(name, known).unwrap_or_default().into()
    }

    /// The last name of a root without parts.
    pub(super) fn root_name(&self, root: Root) -> Option<Arc<str>> {
        match root {
            Root::Field { field, .. } => Some(field.name().into()),
            Root::Item => self.item.clone(),
            Root::Alias(column) => match self.columns.get(column) {
                Some(Column::Expr { name, .. }) => name.last().cloned(),
                _ => None,
            },
        }
    }

    /// The names and indexes that a path was written with.
    pub(super) fn names_of(&self, path: &Path) -> Vec<Part> {
        let alias = match path.root {
            Root::Alias(column) => match self.columns.get(column) {
                Some(Column::Expr { name, .. }) => name.to_vec(),
                _ => Vec::new(),
            },
            root => self.root_name(root).into_iter().collect(),
        };
        alias.into_iter().map(Part::Name).chain(path.parts.iter().cloned()).collect()
    }
}
