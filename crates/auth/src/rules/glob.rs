//! Text with `*` for any characters.

use std::fmt;

use super::tokens::{self, Token};

/// Matches a whole text; each `*` stands for any number of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    /// Texts between the stars: one more than there are stars.
    pieces: Box<[Box<str>]>,
}

impl Glob {
    /// Returns the glob of a word, from this byte on.
    pub(super) fn of(token: &Token, from: usize) -> Self {
        let mut pieces = vec![];
        let mut begins = from;
        for (at, _) in token.text.match_indices('*') {
            if at >= from && !token.stars.contains(&at) {
                pieces.push(token.text[begins..at].into());
                begins = at + 1;
            }
        }
        pieces.push(token.text[begins..].into());
        Self { pieces: pieces.into() }
    }

    /// Returns the only text that it matches, if there is just one.
    pub fn exact(&self) -> Option<&str> {
        match &*self.pieces {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Returns whether the text matches. The time is proportional to the text for each star.
    pub fn matches(&self, text: &str) -> bool {
        let [first, between @ .., last] = &*self.pieces else { return *self.pieces[0] == *text };
        let rest = text.strip_prefix(&**first).and_then(|rest| rest.strip_suffix(&**last));
        let Some(mut rest) = rest else { return false };
        // The first position of a piece leaves most of the text for the others.
        for piece in between {
            match rest.find(&**piece) {
                Some(at) => rest = &rest[at + piece.len()..],
                None => return false,
            }
        }
        true
    }

    /// Writes the glob as a word after `prefix`.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>, prefix: &str) -> fmt::Result {
        let mut text = prefix.to_owned();
        let mut stars = Vec::new();
        for (index, piece) in self.pieces.iter().enumerate() {
            if index > 0 {
                text.push('*');
            }
            stars.extend(piece.match_indices('*').map(|(at, _)| text.len() + at));
            text.push_str(piece);
        }
        if stars.is_empty() { tokens::write(f, &text) } else { tokens::write_quoted(f, &text, &stars) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(glob: &str, yes: &[&str], no: &[&str]) {
        let glob = Glob::of(&tokens::split(glob).unwrap()[0], 0);
        for text in yes {
            assert!(glob.matches(text), "{text}");
        }
        for text in no {
            assert!(!glob.matches(text), "{text}");
        }
    }

    #[test]
    fn a_star_is_any_number_of_characters_and_the_rest_is_anchored() {
        check("dev-*", &["dev-", "dev-1", "dev-*"], &["dev", "xdev-1"]);
        check("*-dev", &["-dev", "a-dev"], &["a-dev-", "dev"]);
        check("a*b*c", &["abc", "axbxc", "abbc", "abcbc"], &["ab", "ac", "abcd", "xabc"]);
        check("*", &["", "a", "+", "#"], &[]);
        check("**", &["", "a"], &[]);
        check("a*a", &["aa", "aba"], &["a", "ab"]);
        check("alice", &["alice"], &["alic", "alicee", "Alice", ""]);
        check("\"a\\*b\"", &["a*b"], &["ab", "axb"]);
        check("\"a\\**\"", &["a*", "a*b"], &["a", "ab"]);
    }
}
