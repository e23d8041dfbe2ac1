//! Columns of text, as wide as their cells on a terminal. Every cell is escaped here.

use std::io;

use unicode_width::UnicodeWidthStr as _;

use crate::escape;

/// Maximum width of a column. A wider cell extends beyond its column instead of moving all others to the right.
const COLUMN_MAX: usize = 48;
const GAP: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Heading and alignment of a column.
pub type Column = (&'static str, Align);

pub const fn left(title: &'static str) -> Column {
    (title, Align::Left)
}

pub const fn right(title: &'static str) -> Column {
    (title, Align::Right)
}

#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    /// Widths of the earlier pages.
    widths: Vec<usize>,
    headed: bool,
}

impl Table {
    pub fn new(columns: &[Column]) -> Self {
        let widths = columns.iter().map(|(title, _)| title.width()).collect();
        Self { columns: columns.to_vec(), rows: Vec::new(), widths, headed: false }
    }

    /// Adds a row; missing cells are empty, and surplus cells are left out.
    pub fn row(&mut self, cells: Vec<String>) {
        let mut cells: Vec<String> = cells.into_iter().map(|cell| escape::text(&cell).into_owned()).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Writes the rows since the last call, and the headings before the first ones. Columns never become narrower.
    ///
    /// # Errors
    /// Those of writing.
    pub fn flush(&mut self, to: &mut dyn io::Write) -> io::Result<()> {
        let rows = std::mem::take(&mut self.rows);
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width().min(COLUMN_MAX));
            }
        }
        if !self.headed && !rows.is_empty() {
            self.headed = true;
            let titles: Vec<String> = self.columns.iter().map(|(title, _)| (*title).to_owned()).collect();
            writeln!(to, "{}", self.line(&titles))?;
        }
        rows.iter().try_for_each(|row| writeln!(to, "{}", self.line(row)))
    }

    fn line(&self, cells: &[String]) -> String {
        let mut line = String::new();
        for ((cell, width), (_, align)) in cells.iter().zip(&self.widths).zip(&self.columns) {
            let padding = " ".repeat(width.saturating_sub(cell.width()));
            match align {
                Align::Left => line.extend([cell, &padding[..]]),
                Align::Right => line.extend([&padding[..], cell]),
            }
            line.push_str(&" ".repeat(GAP));
        }
        line.truncate(line.trim_end().len());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(columns: &[Column], pages: &[&[&[&str]]]) -> String {
        let (mut table, mut out) = (Table::new(columns), Vec::new());
        for page in pages {
            page.iter().for_each(|row| table.row(row.iter().map(|c| (*c).to_owned()).collect()));
            table.flush(&mut out).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_line_up_by_width_on_a_terminal() {
        let table = written(&[left("NAME"), right("N")], &[&[&["温度", "1"], &["a\x1b", "1,000"]]]);
        assert_eq!(table, "NAME         N\n温度         1\na\\u{1b}  1,000\n");
    }

    #[test]
    fn a_later_page_has_no_second_heading() {
        let table = written(&[left("A"), left("B")], &[&[&["xx", "1"]], &[&["y", "2"]]]);
        assert_eq!(table, "A   B\nxx  1\ny   2\n");
    }

    #[test]
    fn one_long_cell_does_not_move_the_others() {
        let long = "x".repeat(500);
        let table = written(&[left("A"), left("B")], &[&[&[&long, "1"], &["y", "2"]]]);
        assert!(table.lines().nth(2).unwrap().len() < 60, "{table}");
    }

    #[test]
    fn an_empty_table_writes_nothing() {
        assert_eq!(written(&[left("A")], &[&[]]), "");
    }
}
