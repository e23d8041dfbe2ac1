//! Positions of the panels: a grid of as many whole rows as fit, always with the panel that has the focus.

use ratatui::layout::Rect;

use super::panel::Panel;

/// Minimum number of rows of a panel with its frame.
const PANEL_ROWS_MIN: u16 = 6;
/// Minimum number of columns of a panel with its frame.
const PANEL_COLUMNS_MIN: u16 = 38;

/// Maximum number of rows that alarms take from the panels: a usual terminal shows as many panels with them as without.
pub const ALARM_ROWS_MAX: usize = 2;

/// The screen, split into areas. All of them are inside it, and are empty where it has no room.
#[derive(Debug, PartialEq)]
pub struct Layout {
    pub header: Rect,
    /// Alarms, below the header.
    pub alarms: Rect,
    pub panels: Vec<(Panel, Rect)>,
    pub footer: Rect,
    /// Number of panels in a row.
    pub columns: usize,
}

/// Returns the number of panels in a row for this width.
pub fn columns(width: u16) -> usize {
    usize::from(width / PANEL_COLUMNS_MIN).clamp(1, 4).min(if width >= 160 { 4 } else { 2 })
}

impl Layout {
    /// Splits a screen. `alone` shows only the panel with the focus. `alarms` is the number of alarms.
    pub fn of(screen: Rect, focus: Panel, alone: bool, alarms: usize) -> Self {
        let header_rows = match screen.height {
            0..=3 => screen.height.min(1),
            4..=11 => 1,
            _ => 3,
        };
        let footer_rows = u16::from(screen.height >= 4);
        let header = Rect { height: header_rows, ..screen };
        let footer = Rect { y: screen.bottom() - footer_rows, height: footer_rows, ..screen };
        // A lower screen has a header of one line, which shows the first alarm.
        let alarm_rows = if header_rows == 3 { alarms.min(ALARM_ROWS_MAX) as u16 } else { 0 };
        let alarms = Rect { y: header.bottom(), height: alarm_rows, ..screen };
        let rest = Rect {
            y: alarms.bottom(),
            height: screen.height - header_rows - alarm_rows - footer_rows,
            ..screen
        };
        let columns = if alone { 1 } else { columns(screen.width) };
        let panels = if alone || rest.height < PANEL_ROWS_MIN {
            vec![(focus, rest)]
        } else {
            grid(rest, focus, columns)
        };
        Self { header, alarms, panels, footer, columns }
    }
}

fn grid(area: Rect, focus: Panel, columns: usize) -> Vec<(Panel, Rect)> {
    let rows: Vec<&[Panel]> = Panel::ALL.chunks(columns).collect();
    let fit = usize::from(area.height / PANEL_ROWS_MIN).clamp(1, rows.len());
    let focused = Panel::ALL.iter().position(|panel| *panel == focus).unwrap_or(0) / columns;
    let first = focused.saturating_sub(fit - 1).min(rows.len() - fit);
    let mut panels = Vec::new();
    for (i, row) in rows[first..first + fit].iter().enumerate() {
        let (top, bottom) = part(area.height, i, fit);
        for (j, panel) in row.iter().enumerate() {
            let (left, right) = part(area.width, j, row.len());
            let panel_area =
                Rect { x: area.x + left, y: area.y + top, width: right - left, height: bottom - top };
            panels.push((*panel, panel_area));
        }
    }
    panels
}

/// Returns start and end of the `i`th of `n` parts of `length`. The first parts are the longer ones.
fn part(length: u16, i: usize, n: usize) -> (u16, u16) {
    let at = |i: usize| (usize::from(length) * i).div_ceil(n) as u16;
    (at(i), at(i + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_usual_terminal_has_two_columns_and_three_rows() {
        let layout = Layout::of(Rect::new(0, 0, 80, 24), Panel::Traffic, false, 9);
        assert_eq!(layout.panels.len(), 6);
        assert!(
            layout.panels.iter().all(|(_, panel_area)| panel_area.width == 40 && panel_area.height >= 6),
            "{layout:?}"
        );
    }

    proptest! {
        #[test]
        fn panels_lie_on_the_screen_and_never_on_each_other(
            width in 0_u16..400, height in 0_u16..200, focus in 0..Panel::ALL.len(), alone: bool,
            alarms in 0_usize..9,
        ) {
            let (screen, focus) = (Rect::new(0, 0, width, height), Panel::ALL[focus]);
            let layout = Layout::of(screen, focus, alone, alarms);
            prop_assert!(layout.panels.iter().any(|(panel, _)| *panel == focus));
            let mut areas: Vec<Rect> = layout.panels.iter().map(|(_, panel_area)| *panel_area).collect();
            areas.extend([layout.header, layout.alarms, layout.footer]);
            for (i, a) in areas.iter().enumerate() {
                prop_assert!(a.right() <= width && a.bottom() <= height, "{layout:?}");
                for b in areas.iter().skip(i + 1) {
                    prop_assert!(a.is_empty() || b.is_empty() || !a.intersects(*b), "{layout:?}");
                }
            }
        }
    }
}
