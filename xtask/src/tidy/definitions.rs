//! Functions that a file defines, each with the type whose `impl` or `trait` block holds it. Tests do not count.

use crate::source::SourceFile;
use std::fmt;

/// A function or method with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Definition {
    /// Type of the block around it; `None` outside such a block.
    pub owner: Option<String>,
    pub name: String,
}

impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{owner}::{}", self.name),
            None => write!(f, "{}", self.name),
        }
    }
}

/// An identifier, a keyword or a single other character.
struct Token<'a> {
    text: &'a str,
    test: bool,
}

impl Token<'_> {
    fn is_word(&self) -> bool {
        self.text.starts_with(is_of_word)
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// All definitions of a file, in their order.
pub fn definitions(file: &SourceFile) -> Vec<Definition> {
    let tokens = tokens(file);
    let mut found = vec![];
    let mut depth = 0usize;
    // Blocks around the current token: the depth outside of each, and its type.
    let mut blocks: Vec<(usize, String)> = vec![];
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                blocks.pop_if(|(outside, _)| *outside == depth);
            }
            "impl" | "trait" if begins_item(&tokens, at) => {
                let (owner, end) = header(&tokens, at);
                blocks.extend(owner.map(|owner| (depth, owner)));
                at = end;
                continue;
            }
            "fn" if !token.test => {
                let name = tokens.get(at + 1).filter(|name| name.is_word() && has_body(&tokens[at..]));
                let owner = blocks.last().filter(|(outside, _)| outside + 1 == depth);
                found.extend(name.map(|name| Definition {
                    owner: owner.map(|(_, owner)| owner.clone()),
                    name: name.text.to_string(),
                }));
            }
            _ => {}
        }
        at += 1;
    }
    found
}

fn tokens(file: &SourceFile) -> Vec<Token<'_>> {
    let mut tokens = vec![];
    for line in &file.lines {
        let mut rest = line.code.as_str();
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            let (text, after) = rest.split_at(if word > 0 { word } else { first.len_utf8() });
            rest = after;
            if first == '\'' {
                // A lifetime is no identifier.
                rest = rest.trim_start_matches(is_of_word);
            } else if !first.is_whitespace() {
                tokens.push(Token { text, test: line.test });
            }
        }
    }
    tokens
}

/// Returns whether the `impl` or `trait` begins a block. An `impl` in a signature follows other tokens.
fn begins_item(tokens: &[Token<'_>], at: usize) -> bool {
    let before = at.checked_sub(1).map(|before| tokens[before].text);
    tokens[at].text == "trait" || before.is_none_or(|text| ["{", "}", ";", "]", "unsafe"].contains(&text))
}

/// The type of the block that begins at `at`, and the index of its brace. For `impl<T> a::Trait for &b::Type<T>
/// where` the type is `Type`.
fn header(tokens: &[Token<'_>], at: usize) -> (Option<String>, usize) {
    let is_trait = tokens[at].text == "trait";
    let end = (at + 1..tokens.len()).find(|i| ["{", ";"].contains(&tokens[*i].text)).unwrap_or(tokens.len());
    let mut owner = None;
    let mut angles = 0usize;
    for i in at + 1..end {
        match tokens[i].text {
            "<" => angles += 1,
            // An arrow closes nothing.
            ">" if tokens[i - 1].text != "-" => angles = angles.saturating_sub(1),
            _ if angles > 0 => {}
            "where" => break,
            "for" if tokens.get(i + 1).is_some_and(|next| next.text != "<") => owner = None,
            word if tokens[i].is_word() => {
                owner = Some(word.to_string());
                if is_trait {
                    break;
                }
            }
            _ => {}
        }
    }
    (owner, end)
}

/// Returns whether the function that begins here has a body. A trait may declare one without it.
fn has_body(tokens: &[Token<'_>]) -> bool {
    let mut nested = 0usize;
    for token in tokens {
        match token.text {
            "(" | "[" => nested += 1,
            ")" | "]" => nested = nested.saturating_sub(1),
            "{" if nested == 0 => return true,
            ";" if nested == 0 => return false,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Line;
    use std::path::PathBuf;

    fn defined(code: &str) -> Vec<String> {
        let line = |code: &str| Line { text: code.to_string(), code: code.to_string(), test: false };
        let lines = code.lines().map(line).collect();
        definitions(&SourceFile { path: PathBuf::new(), lines }).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn functions_and_methods_are_distinguished() {
        let code = "pub const fn a() { fn b() {} }\nimpl A {\n async fn c(&self) {}\n}\nfn d() {}";
        assert_eq!(defined(code), ["a", "b", "A::c", "d"]);
        assert_eq!(defined("impl A { fn a() { let f = |x: fn(u8)| x; fn b() {} } fn c() {} }").len(), 3);
        assert_eq!(defined("impl A { fn a() { fn b() {} } fn c() {} }"), ["A::a", "b", "A::c"]);
    }

    #[test]
    fn a_method_belongs_to_the_type_of_its_block() {
        for (head, owner) in [
            ("impl<'a, T: Into<String> + Fn() -> u8> Row<'a, T>", "Row"),
            ("impl fmt::Display for a::b::Row", "Row"),
            ("#[cfg(unix)]\nunsafe impl<D> Drop for Row<D> where D: Fn(&mut D) -> Vec<u8>", "Row"),
            ("impl<T> From<Row<T>> for &T", "T"),
            ("impl Source for Box<Row>", "Box"),
            ("pub trait Row<T>: Send + Into<T>", "Row"),
        ] {
            assert_eq!(defined(&format!("{head} {{ fn f() {{}} }}")), [format!("{owner}::f")], "{head}");
        }
    }

    #[test]
    fn an_impl_in_a_signature_begins_no_block() {
        let code = "impl A { fn a(f: impl Fn(u8), g: &mut impl B) -> impl Iterator { f } fn b() {} }";
        assert_eq!(defined(code), ["A::a", "A::b"]);
    }

    #[test]
    fn a_function_without_a_body_is_not_defined() {
        assert_eq!(defined("trait A { fn a(x: [u8; 4]); fn b(x: [u8; 4]) {} }"), ["A::b"]);
    }

    #[test]
    fn tests_define_nothing() {
        let line = |code: &str, test| Line { text: code.to_string(), code: code.to_string(), test };
        let lines = vec![line("fn a() {}", true), line("fn b() {}", false)];
        let found = definitions(&SourceFile { path: PathBuf::new(), lines });
        assert_eq!(found, [Definition { owner: None, name: "b".to_string() }]);
    }
}
