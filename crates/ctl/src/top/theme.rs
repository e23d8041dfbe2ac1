//! Colours, or none of them.

use ratatui::style::{Color, Modifier, Style};

/// How much a row or a number wants to be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    #[default]
    Plain,
    /// Headings, labels.
    Quiet,
    /// What is worth a look.
    Warn,
    /// What is wrong.
    Bad,
    /// What has the focus.
    Focus,
}

#[derive(Clone, Copy, Debug)]
pub struct Theme {
    colour: bool,
}

impl Theme {
    /// Without colours when NO_COLOR is set to anything (no-color.org).
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

    /// Bold and dim say what colours say, for terminals and eyes without them.
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
