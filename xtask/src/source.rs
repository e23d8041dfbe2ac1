//! Rust source as lines of code, without comments and the contents of literals, with marks on lines of tests. It is a
//! scanner, not a parser: sufficient for rules that look for words.

use anyhow::{Context, Result};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

pub struct Line {
    /// Text as written.
    pub text: String,
    /// Code without comments; literals are left as their quotes.
    pub code: String,
    /// True for code that is compiled for tests only.
    pub test: bool,
}

pub struct SourceFile {
    /// Path relative to the root of the workspace.
    pub path: PathBuf,
    pub lines: Vec<Line>,
}

/// Reads `paths`, relative to `root`, and marks the lines of tests.
pub fn read(root: &Path, paths: &[PathBuf]) -> Result<Vec<SourceFile>> {
    let mut files = vec![];
    let mut test_modules = HashSet::new();
    for path in paths {
        let text = std::fs::read_to_string(root.join(path)).with_context(|| path.display().to_string())?;
        let (file, modules) = scan(path.clone(), &text);
        let directory = match path.file_stem().and_then(|s| s.to_str()) {
            Some("lib" | "main" | "mod") | None => path.parent().unwrap_or(Path::new("")).to_path_buf(),
            Some(_) => path.with_extension(""),
        };
        for module in modules {
            test_modules.insert(directory.join(&module).with_extension("rs"));
            test_modules.insert(directory.join(&module));
        }
        files.push(file);
    }
    for file in &mut files {
        if of_tests(&file.path) || file.path.ancestors().any(|p| test_modules.contains(p)) {
            file.lines.iter_mut().for_each(|l| l.test = true);
        }
    }
    Ok(files)
}

/// Returns whether the whole file is in a directory where Cargo looks for tests and benchmarks.
fn of_tests(path: &Path) -> bool {
    let in_src = path.components().any(|c| c.as_os_str() == "src");
    !in_src && path.components().any(|c| ["tests", "benches", "fuzz"].iter().any(|d| c.as_os_str() == *d))
}

/// Scans one file. Also returns the names of the modules that it declares for tests only (`#[cfg(test)] mod name;`).
fn scan(path: PathBuf, text: &str) -> (SourceFile, Vec<String>) {
    let code = without_comments(text);
    let mut lines: Vec<Line> = text
        .lines()
        .zip(code.split('\n'))
        .map(|(text, code)| Line { text: text.to_string(), code: code.to_string(), test: false })
        .collect();
    let modules = mark_tests(&mut lines);
    (SourceFile { path, lines }, modules)
}

/// Marks the lines that `#[cfg(test)]` and `#[test]` cover: up to the end of the item's braces or its semicolon.
fn mark_tests(lines: &mut [Line]) -> Vec<String> {
    let mut modules = vec![];
    let mut depth = 0usize;
    // The start of the item under a test attribute, and the depth of the braces around it.
    let mut item: Option<(String, usize)> = None;
    for line in lines {
        let attribute = line.code.contains("#[cfg(test)]")
            || line.code.contains("#[cfg(all(test")
            || line.code.contains("#[test]");
        if attribute && item.is_none() {
            item = Some((String::new(), depth));
        }
        line.test = item.is_some();
        for c in line.code.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            let Some((head, outside)) = &mut item else { continue };
            head.push(c);
            let ends = (c == '}' || c == ';') && depth == *outside;
            if ends {
                if c == ';'
                    && let Some(name) = head.split("mod ").nth(1)
                {
                    modules.push(name.trim_end_matches(';').trim().to_string());
                }
                item = None;
            }
        }
        if let Some((head, _)) = &mut item {
            head.push(' ');
        }
    }
    modules
}

/// The text without comments and contents of literals; line ends are kept.
fn without_comments(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut out = String::new();
    let mut i = 0;
    while i < chars.len() {
        let c = chars[i];
        let word = i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_');
        if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && chars[i] != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            i = block_comment(&chars, i, &mut out);
        } else if c == '"' {
            i = string(&chars, i, &mut out);
        } else if c == 'r' && (!word || at(i - 1) == 'b') && raw_hashes(&chars, i).is_some() {
            i = raw_string(&chars, i, &mut out);
        } else if c == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            i += if at(i + 1) == '\\' { 3 } else { 2 };
            while i < chars.len() && chars[i] != '\'' {
                i += 1;
            }
            out.push_str("''");
            i += 1;
        } else {
            out.push(c);
            i += 1;
        }
    }
    out
}

fn block_comment(chars: &[char], mut i: usize, out: &mut String) -> usize {
    let mut depth = 0;
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                i += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    break;
                }
            }
            (c, _) => {
                if c == '\n' {
                    out.push('\n');
                }
                i += 1;
            }
        }
    }
    i
}

fn string(chars: &[char], mut i: usize, out: &mut String) -> usize {
    out.push('"');
    i += 1;
    while i < chars.len() && chars[i] != '"' {
        if chars[i] == '\\' {
            i += 1;
        }
        if chars.get(i) == Some(&'\n') {
            out.push('\n');
        }
        i += 1;
    }
    out.push('"');
    i + 1
}

/// Number of `#` of a raw string that begins with the `r` at `i`; `None` when it is no raw string.
fn raw_hashes(chars: &[char], i: usize) -> Option<usize> {
    let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
    (chars.get(i + 1 + hashes) == Some(&'"')).then_some(hashes)
}

fn raw_string(chars: &[char], i: usize, out: &mut String) -> usize {
    let hashes = raw_hashes(chars, i).expect("asked before");
    out.push('"');
    let mut i = i + hashes + 2;
    while i < chars.len() {
        if chars[i] == '\n' {
            out.push('\n');
        }
        if chars[i] == '"' && chars[i + 1..].iter().take_while(|c| **c == '#').count() >= hashes {
            i += hashes + 1;
            break;
        }
        i += 1;
    }
    out.push('"');
    i
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        without_comments(text)
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        assert_eq!(code("a(); // todo!()\nb"), "a(); \nb");
        assert_eq!(code("a /* x /* y */\n z */ b"), "a \n b");
        assert_eq!(code(r#"f("dbg!(\"x\")", 1)"#), r#"f("", 1)"#);
        assert_eq!(code("f(r#\"a \"b\" // c\"#, br\"d\")"), "f(\"\", b\"\")");
        assert_eq!(code("'\"' 'a 'b' '\\'' x"), "'' 'a '' '' x");
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(code("\"one\ntwo\" x"), "\"\n\" x");
    }

    #[test]
    fn items_under_cfg_test_are_tests() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { if x { y } }\n}\nfn c() {}\n#[cfg(test)] mod model;\nfn d() {}";
        let (file, modules) = scan(PathBuf::from("x.rs"), text);
        let marks: Vec<bool> = file.lines.iter().map(|l| l.test).collect();
        assert_eq!(marks, [false, true, true, true, true, false, true, false]);
        assert_eq!(modules, ["model"]);
    }
}
