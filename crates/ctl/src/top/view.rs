//! Draws a state. Everything is cut to the available room, which may be none.

use std::collections::VecDeque;
use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::layout::Layout;
use super::panel::{Content, Panel};
use super::state::State;
use super::theme::{Level, Theme};
use crate::table::Align;
use crate::{escape, human};

pub fn draw(frame: &mut Frame, state: &State, theme: Theme, now: Instant) {
    let layout = Layout::of(frame.area(), state.focus, state.alone, state.snapshot.alarms.len());
    header(frame, layout.header, state, theme, now);
    alarms(frame, layout.alarms, state, theme);
    for (panel, panel_area) in &layout.panels {
        draw_panel(frame, *panel_area, *panel, state, theme);
    }
    footer(frame, layout.footer, state, theme);
    if state.help {
        help(frame, theme);
    }
}

fn header(frame: &mut Frame, area: Rect, state: &State, theme: Theme, now: Instant) {
    let lines = header_lines(state, now);
    let lines: Vec<Line> =
        lines.into_iter().map(|(level, line)| Line::styled(line, theme.style(level))).collect();
    // With one line only, the fault is more important than the node's name.
    let first = usize::from(area.height == 1 && state.trouble.is_some());
    if area.height == 1 && first == 0 && !state.snapshot.alarms.is_empty() {
        return alarms(frame, area, state, theme);
    }
    frame.render_widget(Paragraph::new(lines[first..].to_vec()), area);
}

/// Draws one alarm per line; the last line has the number of further ones.
fn alarms(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let alarms = &state.snapshot.alarms;
    let (rows, width) = (usize::from(area.height), usize::from(area.width));
    let more = match alarms.len().saturating_sub(rows) {
        0 => String::new(),
        more => format!("  (and {more} more: meridian ctl status)"),
    };
    let lines = alarms.iter().take(rows).enumerate().map(|(i, alarm)| {
        let level = if alarm.is_error { Level::Bad } else { Level::Warn };
        let behind = if i + 1 == rows { &more[..] } else { "" };
        let text = cut(&format!("! {}", escape::text(&alarm.text)), width.saturating_sub(behind.width()));
        Line::styled(text + behind, theme.style(level))
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
}

/// Returns the three lines at the top.
pub fn header_lines(state: &State, now: Instant) -> [(Level, String); 3] {
    let node = &state.snapshot;
    let mut first = format!(
        "meridian {} {}   up {}   {}",
        node.name,
        node.version,
        human::seconds(node.uptime_s),
        state.url
    );
    if !matches!(&node.state[..], "ready" | "") {
        first.push_str(&format!("   {}", node.state));
    }
    let of = |part: u64, whole: u64| match whole {
        0 => human::count(part),
        _ => format!("{}/{}", human::count(part), human::short(whole as f64)),
    };
    let second = match &state.trouble {
        Some(trouble) => {
            let since = human::seconds(now.saturating_duration_since(trouble.since).as_secs() as f64);
            (Level::Bad, format!("NO ANSWER for {since}, trying again: {}", trouble.what))
        }
        None => {
            let text = format!(
                "clients {}   sessions {}   subscriptions {}   retained {}",
                of(node.connections, node.connections_max),
                human::count(node.sessions),
                human::count(node.subscriptions),
                human::count(node.retained.0),
            );
            (Level::Plain, text)
        }
    };
    let cpu = state.rates.as_ref().map_or_else(|| "..".to_owned(), |rates| human::percent(rates.cpu));
    let mut third = format!(
        "memory {}   cpu {cpu}   descriptors {}   queued {} ({})",
        human::bytes(node.resident_bytes),
        of(node.open_fds, node.max_fds),
        human::count(node.queued.messages),
        human::bytes(node.queued.bytes)
    );
    if node.accept_errors > 0 {
        third.push_str(&format!("   accept errors {}", human::count(node.accept_errors)));
    }
    [
        (Level::Focus, escape::text(&first).into_owned()),
        (second.0, escape::text(&second.1).into_owned()),
        (Level::Plain, third),
    ]
}

fn footer(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let pace = match state.paused {
        true => Span::styled(" PAUSED ", theme.style(Level::Warn)),
        false => Span::raw(format!(" every {} ", human::duration(state.interval))),
    };
    let keys = "  q quit  p pause  +/- interval  Tab panel  s sort  z zoom  ? help";
    frame.render_widget(
        Paragraph::new(Line::from(vec![pace, Span::styled(keys, theme.style(Level::Quiet))])),
        area,
    );
}

fn draw_panel(frame: &mut Frame, area: Rect, panel: Panel, state: &State, theme: Theme) {
    let focused = panel == state.focus;
    let order = panel.orders().get(state.order(panel)).filter(|_| focused || state.order(panel) > 0);
    let title = match order {
        Some(order) => format!(" {} by {order} ", panel.title()),
        None => format!(" {} ", panel.title()),
    };
    let style = theme.style(if focused { Level::Focus } else { Level::Quiet });
    let block = Block::bordered().border_style(style).title(Span::styled(title, style));
    // Too low for a frame: the content alone.
    let inside = if area.height < 3 || area.width < 4 { area } else { block.inner(area) };
    if inside != area {
        frame.render_widget(block, area);
    }
    if inside.is_empty() {
        return;
    }
    let content = panel.content(state);
    if panel == Panel::Traffic {
        traffic(frame, inside, &content, state, theme);
    } else if content.rows.is_empty() {
        frame.render_widget(Paragraph::new(Line::styled(content.empty, theme.style(Level::Quiet))), inside);
    } else {
        let scroll = if focused { state.scroll.min(content.rows.len() - 1) } else { 0 };
        table(frame, inside, &content, scroll, theme);
    }
}

/// Draws each line with a sparkline.
fn traffic(frame: &mut Frame, area: Rect, content: &Content, state: &State, theme: Theme) {
    const LABEL: u16 = 21;
    let history = &state.history;
    let lines = [
        &history.messages_in,
        &history.messages_out,
        &history.bytes_in,
        &history.bytes_out,
        &history.dropped,
    ];
    let rows = (area.height / content.rows.len() as u16).clamp(1, 3);
    for (i, ((level, cells), line)) in content.rows.iter().zip(lines).enumerate() {
        let y = i as u16 * rows;
        if y + rows > area.height {
            break;
        }
        let row = Rect { y: area.y + y, height: rows, ..area };
        let label = Rect { width: LABEL.min(area.width), height: 1, ..row };
        let per_s = format!("{:<9} {:>10}", cells[0], format!("{}/s", cells[1]));
        frame.render_widget(Paragraph::new(Line::styled(per_s, theme.style(*level))), label);
        if area.width > LABEL + 1 {
            let panel_area = Rect { x: area.x + LABEL, width: area.width - LABEL, ..row };
            let style =
                if line.iter().any(|n| *n > 0) { theme.style(*level) } else { theme.style(Level::Quiet) };
            sparkline(frame, panel_area, line, style);
        }
    }
}

/// Draws a sparkline with the newest point at the right.
fn sparkline(frame: &mut Frame, area: Rect, line: &VecDeque<u64>, style: Style) {
    let points = line.len().min(usize::from(area.width));
    let panel_area = Rect { x: area.right() - points as u16, width: points as u16, ..area };
    let newest: Vec<u64> = line.iter().skip(line.len() - points).copied().collect();
    frame.render_widget(Sparkline::default().data(newest).style(style), panel_area);
}

/// Draws a table. Numbers keep their columns; the first text column takes the remaining width, or is cut.
fn table(frame: &mut Frame, area: Rect, content: &Content, scroll: usize, theme: Theme) {
    let lines = layout_table(content, scroll, usize::from(area.width), usize::from(area.height));
    let lines: Vec<Line> =
        lines.into_iter().map(|(level, line)| Line::styled(line, theme.style(level))).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn layout_table(content: &Content, scroll: usize, width: usize, height: usize) -> Vec<(Level, String)> {
    let shown: Vec<_> = content.rows.iter().skip(scroll).take(height.saturating_sub(1)).collect();
    let mut widths: Vec<usize> = (0..content.columns.len())
        .map(|i| {
            let cells = shown.iter().filter_map(|(_, cells)| cells.get(i)).map(|cell| cell.width());
            cells.max().unwrap_or(0).max(content.columns[i].0.width())
        })
        .collect();
    let gaps = widths.len().saturating_sub(1);
    let stretchy = content.columns.iter().position(|(_, align)| *align == Align::Left);
    if let Some(i) = stretchy {
        let others: usize = widths.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, w)| *w).sum();
        widths[i] = if widths.iter().sum::<usize>() + gaps > width {
            width.saturating_sub(others + gaps).max(widths[i].min(8))
        } else if content.columns.iter().filter(|(_, align)| *align == Align::Left).count() == 1 {
            width - others - gaps
        } else {
            widths[i]
        };
    }
    let line = |cells: &[String]| {
        let mut line = String::new();
        for ((cell, width), (_, align)) in cells.iter().zip(&widths).zip(&content.columns) {
            let cell = cut(cell, *width);
            let padding = " ".repeat(width.saturating_sub(cell.width()));
            match align {
                Align::Left => line.extend([&cell[..], &padding]),
                Align::Right => line.extend([&padding[..], &cell]),
            }
            line.push(' ');
        }
        cut(&line, width)
    };
    let titles: Vec<String> = content.columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    let heading = (Level::Quiet, line(&titles));
    std::iter::once(heading).chain(shown.into_iter().map(|(level, cells)| (*level, line(cells)))).collect()
}

/// Returns the beginning of `text`, at most `width` columns of a terminal; a dot at the end marks a cut.
fn cut(text: &str, width: usize) -> String {
    if text.trim_end().width() <= width {
        return if text.width() <= width { text.to_owned() } else { text.trim_end().to_owned() };
    }
    let (mut cut, mut used) = (String::new(), 0);
    for c in text.chars() {
        let columns = c.width().unwrap_or(0);
        if used + columns + 1 > width {
            break;
        }
        cut.push(c);
        used += columns;
    }
    if width > 0 {
        cut.push('…');
    }
    cut
}

const HELP: [&str; 12] = [
    "q, Ctrl-C      quit",
    "p, Space       pause, continue",
    "+  -           update less often, more often",
    "Tab, arrows    select another panel",
    "z, Enter       this panel alone, all panels",
    "s              sort this panel differently",
    "j k, PgUp PgDn scroll this panel",
    "Esc            back",
    "",
    "Reactors: busy share of time, clients,",
    "p99 of a turn, bytes in its mailbox.",
    "Busiest: estimates from samples.",
];

fn help(frame: &mut Frame, theme: Theme) {
    let screen = frame.area();
    let (width, height) = (48.min(screen.width), (HELP.len() as u16 + 2).min(screen.height));
    let panel_area = Rect {
        x: screen.x + (screen.width - width) / 2,
        y: screen.y + (screen.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, panel_area);
    let block = Block::bordered().title(" Keys ").border_style(theme.style(Level::Focus));
    let lines: Vec<Line> = HELP.iter().map(|line| Line::raw(*line)).collect();
    frame.render_widget(Paragraph::new(lines).block(block), panel_area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{left, right};
    use proptest::prelude::*;

    #[test]
    fn names_give_way_to_numbers() {
        let content = Content {
            columns: vec![left("CLIENT"), right("MSG/S")],
            rows: vec![(Level::Plain, vec!["a-client-with-a-long-name".to_owned(), "1.2k".to_owned()])],
            empty: String::new(),
        };
        let lines: Vec<String> = layout_table(&content, 0, 20, 5).into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, ["CLIENT         MSG/S", "a-client-with…  1.2k"]);
    }

    proptest! {
        #[test]
        fn a_cut_text_is_never_wider(text in "\\PC{0,20}", width in 0_usize..12) {
            prop_assert!(cut(&text, width).width() <= width);
        }
    }
}
