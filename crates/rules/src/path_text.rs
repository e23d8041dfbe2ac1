//! Paths that are written in templates and in arguments of functions: `a.b[1].'c d'`.

use std::sync::Arc;

use crate::expression::Part;
use crate::limits::VALUE_DEPTH_MAX;

/// Parses a path; `None` when it is not one. A name without quotation marks may have any characters except `.`, `[`,
/// `]`, `{`, `}`, `'` and `?`.
pub fn parse(text: &str) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (part, after) = match rest.strip_prefix('[') {
            // A path may begin with an index.
            Some(_) if parts.is_empty() => index(rest)?,
            _ => name(rest)?,
        };
        parts.push(part);
        rest = after;
        while rest.starts_with('[') {
            let (part, after) = index(rest)?;
            parts.push(part);
            rest = after;
        }
        if parts.len() > VALUE_DEPTH_MAX {
            return None;
        }
        if rest.is_empty() {
            return Some(parts);
        }
        rest = rest.strip_prefix('.')?;
    }
}

fn name(text: &str) -> Option<(Part, &str)> {
    if let Some(quoted) = text.strip_prefix('\'') {
        let (name, after) = quoted.split_once('\'')?;
        return Some((Part::Name(Arc::from(name)), after));
    }
    let end = text.find(['.', '[', ']', '{', '}', '\'', '?']).unwrap_or(text.len());
    let (name, after) = text.split_at(end);
    (!name.is_empty()).then(|| (Part::Name(Arc::from(name)), after))
}

fn index(text: &str) -> Option<(Part, &str)> {
    let (index, after) = text.strip_prefix('[')?.split_once(']')?;
    let is_number = index.strip_prefix('-').unwrap_or(index).bytes().all(|byte| byte.is_ascii_digit());
    let index = index.parse().ok().filter(|index| is_number && *index != 0)?;
    Some((Part::Index(index), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_names_and_indexes() {
        let name = |name: &str| Part::Name(name.into());
        assert_eq!(parse("a"), Some(vec![name("a")]));
        assert_eq!(
            parse("a.b-c[1][-2].'d.e'"),
            Some(vec![name("a"), name("b-c"), Part::Index(1), Part::Index(-2), name("d.e")])
        );
        assert_eq!(parse("[1].a"), Some(vec![Part::Index(1), name("a")]));
        for wrong in
            ["", ".", "a.", ".a", "a..b", "a[0]", "a[", "a[]", "a[+1]", "a[x]", "a]", "a[1]b", "'a", "a{"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(parse(&"[1]".repeat(200)), None);
        assert_eq!(parse(&vec!["a"; 200].join(".")), None);
    }
}
