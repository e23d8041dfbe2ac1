//! `meridian top` drawn into memory.

use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use serde_json::{Value, json};

use super::panel::Panel;
use super::rates::Rates;
use super::snapshot::{Answers, Snapshot};
use super::state::{State, UserAction};
use super::theme::Theme;
use super::{once, view};
use crate::client::Client;
use crate::console::Console;
use crate::mock::{Mock, Reply};
use crate::url::Url;

/// Returns the answers of a node after `seconds`, with 1,000 messages in and 200 dropped each second, and one reactor
/// half busy.
fn answers(seconds: u64) -> Answers {
    Answers {
        node: json!({"name": "n1", "version": "0.1.0", "state": "ready", "started_at": "2026-01-31T12:00:00Z", "connections_max": 50_000}),
        stats: json!({
            "at": format!("2026-01-31T12:00:{seconds:02}.000Z"), "uptime_s": seconds, "connections": 1234, "sessions": 12, "subscriptions": 1300, "routes": 900,
            "retained": {"messages": 7, "bytes": 2048}, "queued": {"messages": 42, "bytes": 4096, "offline_bytes": 1024, "oldest_age_s": 90},
            "received": {"messages": seconds * 1000, "bytes": seconds * 65_536}, "sent": {"messages": seconds * 5000, "bytes": seconds * 1_048_576},
            "dropped": {"total": seconds * 200, "by_reason": {"slow_reader": seconds * 150, "queue_full": seconds * 50, "expired": 0}},
            "workers": [
                {"worker": 0, "connections": 600, "busy_us": seconds * 500_000, "turn_us_p99": 850, "mailbox_bytes": 0},
                {"worker": 1, "connections": 634, "busy_us": seconds * 970_000, "turn_us_p99": 12_500, "mailbox_bytes": 3 << 20},
            ],
            "process": {"cpu_s": seconds as f64 * 1.5, "resident_bytes": 120 << 20, "open_fds": 1300, "max_fds": 524_288},
        }),
        top: json!({"window_s": 10, "sample": 16,
            "publishers": [{"client_id": "pub-slow", "messages_per_s": 3.0, "bytes_per_s": 9e6}, {"client_id": "pub-fast", "messages_per_s": 900.0, "bytes_per_s": 57_600.0}],
            "subscribers": [], "topics": [{"topic": "t/\u{1b}[31m温度", "messages_per_s": 1.0, "bytes_per_s": 1.0}]}),
        slow: json!({"items": [{"client_id": "laggard", "latency_ms": 2500, "topic": "t/1", "at": "2026-01-31T12:00:00Z"}], "threshold_ms": 500}),
        alarms: json!({"items": []}),
    }
}

fn state() -> State {
    let mut state = State::new("http://127.0.0.1:18083", Duration::from_secs(2));
    for seconds in [2, 4, 6] {
        state.accept_snapshot(Snapshot::read(&answers(seconds)));
    }
    state
}

fn drawn(state: &State, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, state, Theme::plain(), Instant::now())).unwrap();
    let buffer = terminal.backend().buffer();
    let cells = buffer.content();
    assert!(
        cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset),
        "colours without being asked"
    );
    cells
        .chunks(usize::from(width).max(1))
        .map(|row| row.iter().map(|cell| cell.symbol()).collect())
        .collect()
}

fn press(state: &mut State, code: KeyCode) -> Option<UserAction> {
    state.press(KeyEvent::new(code, KeyModifiers::NONE), 2)
}

#[test]
fn a_usual_terminal_shows_the_main_figures() {
    let screen = drawn(&state(), 80, 24);
    let all = screen.join("\n");
    for part in [
        "meridian n1 0.1.0   up 6s   http://127.0.0.1:18083",
        "clients 1,234/50.0k   sessions 12   subscriptions 1,300   retained 7",
        "memory 120 MiB   cpu 150 %   descriptors 1,300/524k   queued 42 (4.0 KiB)",
        "in            1.0k/s",
        "out           5.0k/s",
        "bytes in  64.0 KiB/s",
        "dropped        200/s",
        "███░░░ 50 %",
        "97 %",
        "12.5ms",
        "pub-fast",
        "every 2s",
        "q quit",
    ] {
        assert!(all.contains(part), "{part}\n{all}");
    }
    assert!(!all.contains('\u{1b}'));
}

/// Returns the answers of a node with these alarms.
fn alarmed(texts: &[(&str, &str)]) -> Answers {
    let alarm = |(severity, text): &(&str, &str)| json!({"node": "n1", "severity": severity, "code": "x", "text": text});
    let alarms = json!({"items": texts.iter().map(alarm).collect::<Vec<_>>()});
    Answers { alarms, ..answers(8) }
}

#[test]
fn alarms_are_below_the_header_and_displace_no_panel() {
    let mut state = state();
    state.accept_snapshot(Snapshot::read(&alarmed(&[
        ("error", "the disk of /data is full"),
        ("error", "n3 is \u{1b}dead"),
        ("warning", "there is no API key"),
        ("notice", "links do not use BBR"),
    ])));
    let screen = drawn(&state, 80, 24);
    assert!(screen[3].starts_with("! the disk of /data is full"), "{}", screen[3]);
    assert!(screen[4].starts_with("! n3 is \\u{1b}dead  (and 1 more: meridian ctl status)"), "{}", screen[4]);
    assert!(screen.join("\n").contains("Busiest subscribers"), "{}", screen.join("\n"));
    let low = drawn(&state, 80, 8);
    assert!(low[0].contains("the disk of /data is full  (and 2 more"), "one line only: {}", low[0]);
}

#[test]
fn one_snapshot_has_every_alarm_in_full() {
    let mock = Mock::serve(|request| {
        let answers =
            alarmed(&[("error", "n3 is dead"), ("warning", "there is no API key"), ("notice", "no BBR")]);
        Reply::json(match request.path() {
            "/api/v1/node" => &answers.node,
            "/api/v1/stats" => &answers.stats,
            "/api/v1/top" => &answers.top,
            "/api/v1/alarms" => &answers.alarms,
            _ => &answers.slow,
        })
    });
    let text = picture(&mock, false);
    assert!(text.contains("! n3 is dead\n! there is no API key\n") && !text.contains("BBR"), "{text}");
    let document: Value = serde_json::from_str(&picture(&mock, true)).unwrap();
    assert_eq!(document["alarms"][0]["text"], "n3 is dead");
}

#[test]
fn the_node_s_text_is_escaped() {
    let mut state = state();
    state.focus = Panel::Topics;
    let all = drawn(&state, 160, 50).join("\n");
    assert!(all.contains("t/\\u{1b}[31m"), "{all}");
}

#[test]
fn the_lowest_panels_are_reached_with_a_few_keys() {
    let mut state = state();
    assert!(!drawn(&state, 80, 24).join("\n").contains("slow_reader"));
    press(&mut state, KeyCode::BackTab);
    let all = drawn(&state, 80, 24).join("\n");
    assert!(all.contains("slow_reader") && all.contains("of these for absent clients"), "{all}");
}

#[test]
fn rates_are_differences_by_the_node_s_clock() {
    let before = Snapshot::read(&answers(2));
    let after = Snapshot::read(&answers(6));
    let rates = Rates::between(&before, &after).unwrap();
    assert_eq!((rates.messages_in, rates.dropped, rates.seconds), (1000.0, 200.0, 4.0));
    assert_eq!(rates.busy, [0.5, 0.97]);
    assert_eq!(rates.cpu, 1.5);
    assert_eq!(rates.drops, [150.0, 50.0, 0.0]);
}

#[test]
fn a_restarted_node_has_no_rates_at_first() {
    let mut state = state();
    let mut again = answers(1);
    again.node["started_at"] = "2026-01-31T12:30:00Z".into();
    state.accept_snapshot(Snapshot::read(&again));
    assert_eq!(state.rates, None);
    assert!(drawn(&state, 80, 24).join("\n").contains(".."));
}

#[test]
fn a_snapshot_of_the_same_moment_changes_no_rate() {
    let mut state = state();
    let points = state.history.messages_in.len();
    state.accept_snapshot(Snapshot::read(&answers(6)));
    assert!(state.rates.is_some());
    assert_eq!(state.history.messages_in.len(), points);
}

/// The node updates its figures once a second; `top` asks twice as often.
#[test]
fn short_intervals_do_not_make_rates_jump() {
    let mut state = State::new("http://x", Duration::from_millis(500));
    for half in 0..20_u64 {
        let mut answers = answers(half / 2);
        answers.stats["at"] = format!("2026-01-31T12:00:{:02}.{}Z", half / 2, half % 2 * 5).into();
        state.accept_snapshot(Snapshot::read(&answers));
        if half > 4 {
            assert_eq!(state.rates.as_ref().unwrap().messages_in, 1000.0);
        }
    }
}

#[test]
fn a_node_that_stops_answering_is_shown_as_such_until_it_returns() {
    let mut state = state();
    let now = Instant::now();
    state.record_failure("no node answers at \u{1b}x".to_owned(), now);
    for size in [(80, 24), (80, 5)] {
        let all = drawn(&state, size.0, size.1).join("\n");
        assert!(all.contains("NO ANSWER") && !all.contains('\u{1b}'), "{all}");
    }
    state.accept_snapshot(Snapshot::read(&answers(8)));
    assert!(!drawn(&state, 80, 24).join("\n").contains("NO ANSWER"));
}

#[test]
fn keys_do_what_the_help_says() {
    let mut state = state();
    assert_eq!(
        press(&mut state, KeyCode::Char('+')),
        Some(UserAction::Interval(Some(Duration::from_secs(4))))
    );
    assert_eq!(
        press(&mut state, KeyCode::Char('-')),
        Some(UserAction::Interval(Some(Duration::from_secs(2))))
    );
    assert_eq!(press(&mut state, KeyCode::Char('p')), Some(UserAction::Interval(None)));
    assert!(drawn(&state, 80, 24).join("\n").contains("PAUSED"));
    assert_eq!(press(&mut state, KeyCode::Char('+')), Some(UserAction::Interval(None)));
    assert_eq!(
        press(&mut state, KeyCode::Char('p')),
        Some(UserAction::Interval(Some(Duration::from_secs(4))))
    );
    press(&mut state, KeyCode::Tab);
    assert_eq!(state.focus, Panel::Reactors);
    press(&mut state, KeyCode::Down);
    assert_eq!(state.focus, Panel::Topics);
    press(&mut state, KeyCode::Left);
    assert_eq!(state.focus, Panel::Publishers);
    press(&mut state, KeyCode::Char('?'));
    assert!(drawn(&state, 80, 24).join("\n").contains("quit"));
    assert_eq!(press(&mut state, KeyCode::Char('p')), None, "any key closes the help");
    assert!(!state.help && !state.paused);
    assert_eq!(
        state.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), 2),
        Some(UserAction::Quit)
    );
    assert_eq!(press(&mut state, KeyCode::Char('q')), Some(UserAction::Quit));
}

#[test]
fn the_interval_stays_in_its_range() {
    let mut state = state();
    for _ in 0..40 {
        press(&mut state, KeyCode::Char('-'));
    }
    assert_eq!(state.interval, super::INTERVAL_MIN);
    for _ in 0..40 {
        press(&mut state, KeyCode::Char('+'));
    }
    assert_eq!(state.interval, super::INTERVAL_MAX);
}

#[test]
fn sorting_changes_the_order() {
    let mut state = state();
    state.focus = Panel::Publishers;
    let first = |state: &State| Panel::Publishers.content(state).rows[0].1[0].clone();
    assert_eq!(first(&state), "pub-fast");
    press(&mut state, KeyCode::Char('s'));
    assert_eq!(first(&state), "pub-slow");
    assert!(drawn(&state, 80, 24).join("\n").contains("Busiest publishers by bytes"));
}

#[test]
fn a_panel_scrolls_to_its_last_row_and_no_further() {
    let mut state = state();
    state.focus = Panel::Publishers;
    for _ in 0..5 {
        press(&mut state, KeyCode::Char('j'));
    }
    assert_eq!(state.scroll, 1);
    press(&mut state, KeyCode::PageUp);
    assert_eq!(state.scroll, 0);
}

#[test]
fn colours_are_used_unless_disabled() {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| view::draw(frame, &state(), Theme::coloured(), Instant::now())).unwrap();
    assert!(terminal.backend().buffer().content().iter().any(|cell| cell.fg == Color::Cyan));
}

fn node(n: u64) -> Mock {
    Mock::serve(move |request| {
        let answers = answers(n);
        Reply::json(match request.path() {
            "/api/v1/node" => &answers.node,
            "/api/v1/stats" => &answers.stats,
            "/api/v1/top" => &answers.top,
            "/api/v1/alarms" => &answers.alarms,
            _ => &answers.slow,
        })
    })
}

fn picture(mock: &Mock, json: bool) -> String {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let client = Client::new(Url::parse(&mock.url).unwrap(), None, Duration::from_secs(5), None);
    once::run(&mut Console::to(client, json, false, &mut out, &mut notes), Duration::ZERO).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn one_snapshot_as_text_has_every_panel() {
    let text = picture(&node(3), false);
    for panel in Panel::ALL {
        assert!(text.contains(&panel.title().to_uppercase()), "{text}");
    }
    assert!(
        text.contains("laggard")
            && text.contains("t/\\u{1b}[31m温度")
            && text.contains("none in the last 10 s"),
        "{text}"
    );
}

#[test]
fn one_snapshot_as_json_has_the_answers_of_the_node() {
    let document: Value = serde_json::from_str(&picture(&node(3), true)).unwrap();
    assert_eq!(document["stats"]["connections"], 1234);
    assert_eq!(document["slow_subscribers"]["threshold_ms"], 500);
    assert_eq!(document["rates"], Value::Null, "no time went by by the node's clock");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<String>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ];
    let keys = prop::sample::select(vec![
        "at",
        "received",
        "sent",
        "messages",
        "bytes",
        "dropped",
        "by_reason",
        "workers",
        "busy_us",
        "worker",
        "publishers",
        "client_id",
        "items",
        "latency_ms",
        "process",
        "cpu_s",
        "uptime_s",
        "window_s",
        "started_at",
        "queued",
        "turn_us_p99",
        "text",
        "severity",
    ]);
    leaf.prop_recursive(4, 60, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..8).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
            )),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_answer_no_key_and_no_size_panics(
        said in prop::collection::vec((any_json(), any_json(), any_json(), any_json(), any_json()), 1..4),
        keys in prop::collection::vec(prop::sample::select(vec![
            KeyCode::Tab, KeyCode::BackTab, KeyCode::Up, KeyCode::Down, KeyCode::Char('s'), KeyCode::Char('z'), KeyCode::Char('?'),
            KeyCode::Char('j'), KeyCode::PageDown, KeyCode::Char('p'), KeyCode::Char('+'), KeyCode::Esc,
        ]), 0..12),
        (width, height) in (0_u16..200, 0_u16..60),
    ) {
        let mut state = state();
        for (node, stats, top, slow, alarms) in said {
            state.accept_snapshot(Snapshot::read(&Answers { node, stats, top, slow, alarms }));
            for key in &keys {
                press(&mut state, *key);
            }
            let all = drawn(&state, width, height).concat();
            prop_assert!(!all.chars().any(char::is_control));
            drawn(&state, 1, 1);
        }
    }
}
