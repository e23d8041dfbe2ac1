//! Colours, or none.

use ratatui::style::{Color, Modifier, Style};

/// Emphasis of a row or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    #[default]
    Plain,
    /// Headings, labels.
    Quiet,
    /// Deserves attention.
    Warn,
    /// Fault.
    Bad,
    /// Marks the focus.
    Focus,
}

#[derive(Clone, Copy, Debug)]
pub struct Theme {
    colour: bool,
}

impl Theme {
    /// Returns a theme without colours when NO_COLOR is set to anything (no-color.org).
    pub fn of_environment() -> Self {
        Self { colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    #[cfg(test)]
    pub fn plain() -> Self {
        Self { colour: false }
    }

    #[cfg(test)]
    pub fn coloured() -> Self {
        Self { colour: true }
    }

    /// Returns the style of a level. Bold and dim repeat the meaning of the colours, for terminals and eyes without
    /// them.
    pub fn style(self, level: Level) -> Style {
        let (colour, modifier) = match level {
            Level::Plain => return Style::new(),
            Level::Quiet => return Style::new().add_modifier(Modifier::DIM),
            Level::Warn => (Color::Yellow, Modifier::BOLD),
            Level::Bad => (Color::Red, Modifier::BOLD),
            Level::Focus => (Color::Cyan, Modifier::BOLD),
        };
        let style = Style::new().add_modifier(modifier);
        if self.colour { style.fg(colour) } else { style }
    }
}
