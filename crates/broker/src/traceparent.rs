//! Trace context of a message: the User Properties `traceparent` and `tracestate` of W3C Trace Context.
//!
//! The broker reads them, and passes them on unaltered [MQTT-3.3.2-17].

use mqtt::Properties;

use crate::message::MessageView;
use crate::origin;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// Length of `traceparent` in version 00. Later versions may only append fields.
const LEN: usize = 55;
/// Bit of the trace flags: the caller records the trace.
const SAMPLED: u8 = 1;
/// Maximum length of a `tracestate` that spans carry. Everyone has to pass on that many bytes.
const STATE_MAX: usize = 512;

/// Maximum number of bytes of the properties of a message that are searched for a context. They are searched for each
/// span, so more of them would be a way to keep a worker busy.
const SEARCHED_MAX: usize = 8 * 1024;

/// Place of a message in a distributed trace, as its publisher says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext<'a> {
    pub trace_id: [u8; 16],
    /// Span of the publisher.
    pub parent_id: [u8; 8],
    pub is_sampled: bool,
    /// Value of `tracestate`; empty if there is none, or none that spans can carry.
    pub state: &'a str,
}

impl<'a> TraceContext<'a> {
    /// Reads the trace context of a message. `None` without a `traceparent`, with an invalid one, with several, or with
    /// more than [`SEARCHED_MAX`] bytes of properties.
    pub fn of(view: &MessageView<'a>) -> Option<Self> {
        let properties = origin::split(view.properties).1;
        if properties.len() > SEARCHED_MAX {
            return None;
        }
        let properties = Properties::of_checked(properties);
        let (mut context, mut state) = (None, None);
        let mut states = 0;
        for (name, value) in properties.user_properties() {
            match name {
                TRACEPARENT if context.is_some() => return None,
                TRACEPARENT => context = Some(Self::parse(value)?),
                TRACESTATE => {
                    states += 1;
                    state = Some(value);
                }
                _ => {}
            }
        }
        let is_usable = |state: &&str| {
            states == 1 && state.len() <= STATE_MAX && state.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        };
        Some(Self { state: state.filter(is_usable).unwrap_or_default(), ..context? })
    }

    /// Reads a value of `traceparent`: version, trace id, parent id and flags, in lower-case hexadecimal digits.
    fn parse(value: &str) -> Option<Self> {
        let bytes = value.as_bytes();
        let (known, rest) = bytes.split_at_checked(LEN)?;
        let [version] = hex(&known[..2])?;
        // The fields of a later version follow a hyphen.
        let is_complete = rest.is_empty() || version != 0 && rest[0] == b'-';
        let has_hyphens = [2, 35, 52].iter().all(|at| known[*at] == b'-');
        if version == 0xff || !is_complete || !has_hyphens {
            return None;
        }
        let (trace_id, parent_id) = (hex(&known[3..35])?, hex(&known[36..52])?);
        let [flags] = hex(&known[53..])?;
        let is_valid = trace_id != [0; 16] && parent_id != [0; 8];
        is_valid.then_some(Self { trace_id, parent_id, is_sampled: flags & SAMPLED != 0, state: "" })
    }
}

/// Reads `N` bytes of two lower-case hexadecimal digits each.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use mqtt::{PropertiesBuf, Property};

    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(properties: &[(&str, &str)]) -> Option<(u8, u8, bool, String)> {
        let properties: PropertiesBuf =
            properties.iter().map(|(name, value)| Property::UserProperty(name, value)).collect();
        let properties = properties.as_properties();
        let view = MessageView { properties: properties.as_bytes(), ..MessageView::plain("t") };
        let context = TraceContext::of(&view)?;
        Some((context.trace_id[0], context.parent_id[7], context.is_sampled, context.state.to_owned()))
    }

    fn parent(value: &str) -> Option<(u8, u8, bool, String)> {
        of(&[("traceparent", value)])
    }

    #[test]
    fn a_valid_context_is_read() {
        let context = |is_sampled| Some((0x0a, 0x31, is_sampled, String::new()));
        assert_eq!(parent(VALID), context(true));
        for (flags, is_sampled) in [("00", false), ("02", false), ("03", true), ("ff", true), ("fe", false)] {
            assert_eq!(parent(&format!("{}{flags}", &VALID[..53])), context(is_sampled), "{flags}");
        }
        let later = |version: &str, rest: &str| parent(&format!("{version}{}{rest}", &VALID[2..]));
        for (version, rest) in [("01", ""), ("01", "-"), ("cc", "-what-comes-later"), ("fe", "-00")] {
            assert_eq!(later(version, rest), context(true), "{version} {rest}");
        }
    }

    #[test]
    fn an_invalid_context_is_ignored() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("Traceparent", VALID), ("traceparent ", VALID)]), None);
        assert_eq!(of(&[("traceparent", VALID), ("traceparent", VALID)]), None, "which one counts?");
        assert_eq!(of(&[("traceparent", "no"), ("traceparent", VALID)]), None);
        let long = "0".repeat(65_000);
        for value in [
            "",
            "00",
            "00-",
            &VALID[..54],
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 ",
            " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
            "+1-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01",
            // As many bytes, and a boundary of a character within a field.
            "00-0af7651916cd43dd8448eb211c8031é-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-é",
            &long,
        ] {
            assert_eq!(parent(value), None, "{value}");
        }
    }

    /// No text of 55 bytes that differs in one byte from a valid one causes a panic.
    #[test]
    fn each_byte_is_checked() {
        for at in 0..VALID.len() {
            for byte in 0..=0x7f {
                let mut bytes = VALID.as_bytes().to_vec();
                bytes[at] = byte;
                let value = String::from_utf8(bytes).unwrap();
                let is_hyphen = [2, 35, 52].contains(&at);
                let is_valid = match byte {
                    b'-' => is_hyphen,
                    b'0'..=b'9' | b'a'..=b'f' => !is_hyphen && !(value.starts_with("ff")),
                    _ => false,
                };
                assert_eq!(parent(&value).is_some(), is_valid, "{value}");
            }
        }
    }

    #[test]
    fn long_properties_are_not_searched() {
        let fits = "x".repeat(SEARCHED_MAX - 80);
        assert!(of(&[("k", &fits), ("traceparent", VALID)]).is_some());
        assert_eq!(of(&[("k", &fits), ("traceparent", VALID), ("k", "more")]), None);
    }

    #[test]
    fn a_state_is_carried_if_there_is_one_that_spans_can_carry() {
        let state = |states: &[&str]| {
            let states = states.iter().map(|state| ("tracestate", *state));
            let all: Vec<_> = states.chain([("traceparent", VALID)]).collect();
            of(&all).unwrap().3
        };
        assert_eq!(state(&["congo=t61rcWkgMzE,rojo=1"]), "congo=t61rcWkgMzE,rojo=1");
        assert_eq!(state(&["a=1", "b=2"]), "");
        assert_eq!(state(&["a=ü"]), "");
        assert_eq!(state(&["a=1\n"]), "");
        assert_eq!(state(&[&"a".repeat(512)]).len(), 512);
        assert_eq!(state(&[&"a".repeat(513)]), "");
        assert_eq!(of(&[("tracestate", "a=1")]), None);
    }
}
