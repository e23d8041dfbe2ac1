//! The only way to the terminal: lines and tables for people, documents for scripts.

use std::io::{self, IsTerminal as _, Write};

use serde_json::Value;

use crate::client::Client;
use crate::escape;
use crate::failure::Failure;
use crate::table::Table;

/// Client, options and outputs of a command.
pub struct Console<'a> {
    pub client: Client,
    /// True for output that a script reads.
    pub json: bool,
    /// True when `--yes` was given.
    pub yes: bool,
    /// True when standard output is a terminal.
    pub terminal: bool,
    /// True when a person can be asked, and sees progress.
    pub person: bool,
    out: Box<dyn Write + 'a>,
    notes: Box<dyn Write + 'a>,
}

impl Console<'static> {
    pub fn new(client: Client, json: bool, yes: bool) -> Self {
        Self {
            client,
            json,
            yes,
            terminal: io::stdout().is_terminal(),
            person: io::stdin().is_terminal() && io::stderr().is_terminal(),
            out: Box::new(io::BufWriter::with_capacity(64 << 10, io::stdout())),
            notes: Box::new(io::stderr()),
        }
    }
}

impl<'a> Console<'a> {
    /// Creates a console for tests: neither output is a terminal, and there is no person to ask.
    #[cfg(test)]
    pub fn to(client: Client, json: bool, yes: bool, out: impl Write + 'a, notes: impl Write + 'a) -> Self {
        let (out, notes) = (Box::new(out), Box::new(notes));
        Self { client, json, yes, terminal: false, person: false, out, notes }
    }

    /// Writes one line of text, escaped.
    ///
    /// # Errors
    /// Those of standard output, here and below.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        Ok(writeln!(self.out, "{}", escape::text(text))?)
    }

    /// Writes pairs of name and value, in two columns; a pair with an empty value is left out.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn pairs(&mut self, pairs: &[(&str, String)]) -> Result<(), Failure> {
        let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 2;
        for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
            self.line(&format!("{name:width$}{value}"))?;
        }
        Ok(())
    }

    /// # Errors
    /// Those of standard output.
    pub fn table(&mut self, table: &mut Table) -> Result<(), Failure> {
        Ok(table.flush(&mut self.out)?)
    }

    /// Writes a document of many lines.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn document(&mut self, document: &Value) -> Result<(), Failure> {
        Ok(writeln!(self.out, "{}", escape::json(&format!("{document:#}")))?)
    }

    /// Writes a document on a line of its own: NDJSON.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn json_line(&mut self, document: &Value) -> Result<(), Failure> {
        Ok(writeln!(self.out, "{}", escape::json(&document.to_string()))?)
    }

    /// Writes bytes unchanged, unless a terminal might obey them.
    ///
    /// # Errors
    /// [`Failure::Usage`] on a terminal, and those of standard output.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.terminal {
            let why = "--raw writes unescaped bytes, which a terminal might obey: redirect them to a file or \
                a program";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(self.out.write_all(bytes)?)
    }

    /// Writes text of many lines: escaped for a terminal, unchanged for a file.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        let text = if self.terminal { escape::lines(text) } else { text.into() };
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// Writes a text that is not part of the result, such as a hint, to standard error.
    pub fn note(&mut self, text: &str) {
        // A note that cannot be written is no reason to fail.
        drop(writeln!(self.notes, "{}", escape::lines(text)));
    }

    /// Names the nodes of the cluster that did not answer, if any.
    pub fn note_missing(&mut self) {
        let missing = self.client.missing();
        if !missing.is_empty() {
            self.note(&format!(
                "! no answer of {}: their data is missing here, or the change was not made there (meridian ctl links)",
                missing.join(", ")
            ));
        }
    }

    /// Overwrites the line of progress; an empty text removes it. It is shown to a person only, and only where the
    /// result does not scroll through it.
    pub fn progress(&mut self, text: &str) {
        if self.person && !self.terminal {
            // Errors are ignored, as for a note.
            drop(write!(self.notes, "\r\x1b[K{}", escape::text(text)));
            drop(self.notes.flush());
        }
    }

    /// Writes the buffered output: before waiting, and at the end.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    /// Writes the answer to a change: the document for a script, a sentence for a person.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn done(&mut self, document: &Value, sentence: &str) -> Result<(), Failure> {
        if self.json { self.document(document) } else { self.line(sentence) }
    }
}
