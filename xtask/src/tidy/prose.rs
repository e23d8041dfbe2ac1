//! Plain English in comments, texts and pages: part of `cargo xtask tidy`.
//!
//! The rules catch words and forms that made texts of this project hard to read. They cannot tell whether a sentence is
//! good.

use crate::source::SourceFile;
use std::path::Path;

/// A line that breaks a rule of this module.
pub struct Finding {
    /// Counted from 1.
    pub line: usize,
    pub rule: &'static str,
    pub message: String,
}

/// Maximum number of characters of a line of comments, and of prose in a page.
const WIDTH_MAX: usize = 120;

/// Words of the former dialect, and the word to write.
const BANNED: &[(&str, &str)] = &[
    ("anew", "again"),
    ("beside", "next to"),
    ("besides", "also"),
    ("whoever", "a client that, an operator that"),
    ("of which", "whose"),
    ("life", "incarnation"),
    ("told", "notified, reported"),
    ("hear", "be notified, receive"),
    ("hears", "is notified, receives"),
    ("heard", "notified, received"),
    ("crowd", "unauthenticated connections"),
    ("stranger", "unauthenticated connection"),
    ("strangers", "unauthenticated connections"),
    ("fleet", "simulated cluster"),
    ("limbo", "retired list"),
    ("courier", "record sync"),
    ("wish", "proposal"),
    ("wishes", "proposals"),
    ("lets go", "releases"),
    ("gives back", "frees"),
    ("takes in", "accepts"),
];

/// First words of a doc comment that leave its subject open. A doc comment begins with a noun, a verb or an article.
const FLOATING: &[&str] = &[
    "After",
    "Against",
    "Among",
    "As",
    "At",
    "Because",
    "Before",
    "Behind",
    "Between",
    "By",
    "Does",
    "Else",
    "For",
    "From",
    "Has",
    "How",
    "If",
    "In",
    "Into",
    "Is",
    "It",
    "Its",
    "Of",
    "On",
    "Only",
    "Out",
    "Since",
    "So",
    "Some",
    "Somebody",
    "Something",
    "Such",
    "Than",
    "That",
    "Their",
    "Them",
    "There",
    "They",
    "Those",
    "To",
    "Towards",
    "Under",
    "Until",
    "Upon",
    "What",
    "When",
    "Where",
    "Whether",
    "Which",
    "While",
    "Who",
    "Whoever",
    "Whom",
    "Whose",
    "Why",
    "With",
    "Without",
];

/// Files that may break these rules: history, and this list of words.
const EXEMPT: &[&str] = &["CHANGELOG.md", "changelog.d/", "docs/adr/", "xtask/src/tidy/prose.rs"];

fn is_checked(path: &Path) -> bool {
    let path = path.display().to_string();
    !EXEMPT.iter().any(|prefix| path.starts_with(prefix))
}

/// Findings in a Rust file.
pub fn inspect(file: &SourceFile) -> Vec<Finding> {
    if !is_checked(&file.path) {
        return vec![];
    }
    let mut findings = vec![];
    let mut is_doc_before = false;
    for (at, line) in file.lines.iter().enumerate() {
        let mut find = |rule, message| findings.push(Finding { line: at + 1, rule, message });
        let text = line.text.trim_start();
        if text.starts_with("//") && line.text.chars().count() > WIDTH_MAX {
            find("comment-width", format!("a comment line has at most {WIDTH_MAX} characters"));
        }
        let doc = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"));
        if let Some(doc) = doc.filter(|_| !is_doc_before)
            && let Some(word) = doc.split_whitespace().next().filter(|word| FLOATING.contains(word))
        {
            find(
                "doc-start",
                format!(
                    "begin with what the item is or does, not with `{word}`: a noun, a verb or an article"
                ),
            );
        }
        is_doc_before = doc.is_some();
        for (word, instead) in banned(&line.text, &line.code) {
            find("plain-words", format!("`{word}`: write `{instead}` (docs/glossary.md)"));
        }
    }
    findings
}

/// Findings in a Markdown page. Code blocks are left out; tables, headings and links may be wider than other lines.
pub fn inspect_page(path: &Path, text: &str) -> Vec<Finding> {
    if !is_checked(path) {
        return vec![];
    }
    let mut findings = vec![];
    let mut is_code = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        let mut find = |rule, message| findings.push(Finding { line: at + 1, rule, message });
        let may_be_wide = line.starts_with('|') || line.starts_with('#') || line.contains("](");
        if !may_be_wide && line.chars().count() > WIDTH_MAX {
            find("page-width", format!("a line of prose has at most {WIDTH_MAX} characters"));
        }
        for (word, instead) in banned(line, "") {
            find("plain-words", format!("`{word}`: write `{instead}` (docs/glossary.md)"));
        }
    }
    findings
}

/// Banned words that are in `text` more often than in `code`, the part of it that is no comment and no literal.
fn banned(text: &str, code: &str) -> Vec<(&'static str, &'static str)> {
    let text = text.to_lowercase();
    let code = code.to_lowercase();
    BANNED.iter().copied().filter(|(word, _)| count(&text, word) > count(&code, word)).collect()
}

/// Number of times that `word` stands alone in `text`. Names in backticks and parts of identifiers do not count.
fn count(text: &str, word: &str) -> usize {
    let is_boundary = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    let outside = text.split('`').step_by(2);
    let in_part = |part: &str| {
        let stands_alone = |at: &usize| {
            is_boundary(part[..*at].chars().next_back())
                && is_boundary(part[at + word.len()..].chars().next())
        };
        part.match_indices(word).map(|(at, _)| at).filter(stands_alone).count()
    };
    outside.map(in_part).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Line;
    use std::path::PathBuf;

    fn rules(lines: &[(&str, &str)]) -> Vec<&'static str> {
        let lines = lines
            .iter()
            .map(|(text, code)| Line { text: text.to_string(), code: code.to_string(), test: false })
            .collect();
        inspect(&SourceFile { path: PathBuf::from("checked/a.rs"), lines }).iter().map(|f| f.rule).collect()
    }

    #[test]
    fn a_doc_comment_begins_with_its_subject() {
        assert_eq!(rules(&[("/// Of its last change.", "")]), ["doc-start"]);
        assert_eq!(rules(&[("    /// Whether anything waits.", "    ")]), ["doc-start"]);
        assert!(rules(&[("/// Number of messages that wait.", "")]).is_empty());
        assert!(rules(&[("/// Number of messages", ""), ("/// Of all queues.", "")]).is_empty());
        assert!(rules(&[("// Of its last change.", "")]).is_empty(), "not a doc comment");
    }

    #[test]
    fn words_of_the_dialect_are_found_in_texts_only() {
        assert_eq!(rules(&[("// The node begins anew.", "")]), ["plain-words"]);
        assert_eq!(rules(&[("let text = \"the peer is told\";", "let text = \"\";")]), ["plain-words"]);
        assert!(rules(&[("let told = 1;", "let told = 1;")]).is_empty());
        assert!(rules(&[("// See `told`, and untold ones.", "")]).is_empty());
    }

    #[test]
    fn comments_are_not_wider_than_a_screen() {
        let wide = format!("// {}", "word ".repeat(30));
        assert_eq!(rules(&[(&wide, "")]), ["comment-width"]);
    }

    #[test]
    fn pages_are_checked_outside_code_and_tables() {
        let page = "It begins anew.\n```\nanew\n```\n| anew |\n";
        let found: Vec<usize> = inspect_page(Path::new("checked.md"), page).iter().map(|f| f.line).collect();
        assert_eq!(found, [1, 5]);
        let wide = format!("| {} |\n{}\n", "word ".repeat(30), "word ".repeat(30));
        let found: Vec<usize> = inspect_page(Path::new("checked.md"), &wide).iter().map(|f| f.line).collect();
        assert_eq!(found, [2]);
    }
}
