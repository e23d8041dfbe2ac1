//! Topics of a bridge in the notation of mosquitto's `topic`.

use bridge::{Direction, Topic, TopicMap};
use mqtt::QoS;
use settings::{Invalid, Raw, Value};

/// Topics of a bridge, checked when they are read. Each line has a pattern and up to four more words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topics {
    text: String,
    topics: Vec<Topic>,
}

impl Topics {
    pub fn topics(&self) -> &[Topic] {
        &self.topics
    }

    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut topics = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !is_comment(line)) {
            topics.push(topic(line).map_err(|why| format!("`{line}`: {why}"))?);
        }
        TopicMap::new(&topics).map_err(|error| error.to_string())?;
        Ok(Self { text: text.to_owned(), topics })
    }
}

/// Returns whether a line is a comment. The pattern `#` with valid words after it is none.
fn is_comment(line: &str) -> bool {
    let is_pattern = line == "#" || line.starts_with("# ") && topic(line).is_ok();
    line.starts_with('#') && !is_pattern
}

/// Parses one line.
fn topic(line: &str) -> Result<Topic, String> {
    let words = words(line)?;
    let word = |at: usize| words.get(at).map(String::as_str);
    if words.len() > 5 {
        return Err(format!(
            "it has {} words; the form is PATTERN [DIRECTION [QOS [LOCAL REMOTE]]]",
            words.len()
        ));
    }
    let direction = match word(1).unwrap_or("out") {
        "out" => Direction::Out,
        "in" => Direction::In,
        "both" => Direction::Both,
        other => return Err(format!("`{other}` is no direction; use out, in or both")),
    };
    let qos = match word(2).unwrap_or("0") {
        "0" => QoS::AtMostOnce,
        "1" => QoS::AtLeastOnce,
        "2" => QoS::ExactlyOnce,
        other => return Err(format!("`{other}` is no QoS; use 0, 1 or 2")),
    };
    let (pattern, local, remote) = (word(0).unwrap_or(""), word(3).unwrap_or(""), word(4).unwrap_or(""));
    Ok(Topic::prefixed(pattern, direction, qos, local, remote))
}

/// Splits a line into words. A word in double quotes may be empty and have spaces.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, tail) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or("a quote is not closed")?,
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        words.push(word.to_owned());
        rest = tail.trim_start();
    }
    Ok(words)
}

impl Value for Topics {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let text = String::from_raw(raw)?;
        Self::parse(&text).map_err(|why| Invalid::Form {
            expected: "lines of the form PATTERN [out|in|both [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]]",
            found: raw.to_string(),
            why,
        })
    }

    fn to_toml(&self) -> Option<String> {
        self.text.to_toml()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_words_of_mosquitto() {
        let topics = Topics::parse(
            "# sensors\nsensors/#\n\n  commands/+ in 1\nstate both 2 \"\" site7/\n\"a b/#\" out 0 x/ \"y z/\"\n",
        )
        .expect("valid");
        let expected = [
            Topic::new("sensors/#", Direction::Out, QoS::AtMostOnce),
            Topic::new("commands/+", Direction::In, QoS::AtLeastOnce),
            Topic::prefixed("state", Direction::Both, QoS::ExactlyOnce, "", "site7/"),
            Topic::prefixed("a b/#", Direction::Out, QoS::AtMostOnce, "x/", "y z/"),
        ];
        assert_eq!(topics.topics(), expected);
    }

    #[test]
    fn all_topics_are_no_comment() {
        for (text, expected) in
            [("#", 1), ("# in 1", 1), ("# both", 1), ("# in the morning", 0), ("## in", 0), ("#a", 0)]
        {
            assert_eq!(Topics::parse(text).map(|topics| topics.topics().len()), Ok(expected), "{text}");
        }
        let all = Topics::parse("# in 1").expect("valid");
        assert_eq!(all.topics(), [Topic::new("#", Direction::In, QoS::AtLeastOnce)]);
    }

    #[test]
    fn a_wrong_line_is_named_with_the_reason() {
        for (text, why) in [
            ("a up", "`up` is no direction"),
            ("a out 3", "`3` is no QoS"),
            ("a out 1 x y z", "6 words"),
            ("\"a", "not closed"),
            ("a/#/b", "a/#/b"),
        ] {
            let error = Topics::parse(text).expect_err(text);
            assert!(error.contains(why), "{error}");
        }
    }
}
