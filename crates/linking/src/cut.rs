//! Intersection of Topic Filters: which filter of the other cluster a client here wants.

use broker::internal::LINK_SHARE;
use mqtt::{Subscription, TopicError, TopicFilter};

/// Longest Topic Filter. No topic matches a longer one.
const FILTER_MAX: usize = 65_535;

/// Returns the filter that matches exactly the topics which both filters match. `None` means that there is none.
pub fn cut(a: TopicFilter<'_>, b: TopicFilter<'_>) -> Option<String> {
    let starts_with_wildcard = |filter: &TopicFilter<'_>| filter.as_str().starts_with(['+', '#']);
    let starts_with_dollar = |filter: &TopicFilter<'_>| filter.as_str().starts_with('$');
    // A wildcard in the first level does not match a topic that begins with `$` [MQTT-4.7.2-1].
    if starts_with_wildcard(&a) && starts_with_dollar(&b)
        || starts_with_dollar(&a) && starts_with_wildcard(&b)
    {
        return None;
    }
    cut_levels(a.as_str(), b.as_str())
}

/// A Topic Filter that a link takes, and the prefix of its topics here.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Number of bytes of the prefix.
    prefix: usize,
    /// The prefix and the filter. A topic of the other cluster has the name prefix + topic here.
    filter: Box<str>,
}

impl Taken {
    pub fn new(prefix: &str, topic: &str) -> Self {
        Self { prefix: prefix.len(), filter: format!("{prefix}{topic}").into() }
    }

    /// The filter at the other cluster.
    pub fn topic(&self) -> &str {
        &self.filter[self.prefix..]
    }

    /// Returns the shared subscription at the other cluster for one of clients here that belongs to all linked
    /// clusters. The link must take everything that its filter matches: the members of a group have one filter in all
    /// clusters.
    pub fn join(&self, local: &str) -> Option<String> {
        let Subscription { share, filter } = Subscription::parse(local).ok()?;
        let filter = TopicFilter::parse(filter.as_str().strip_prefix(&self.filter[..self.prefix])?).ok()?;
        let is_whole =
            !filter.as_str().starts_with('$') && TopicFilter::parse(self.topic()).ok()?.covers(filter);
        let text = format!("$share/{LINK_SHARE}{}/{}", share?, filter.as_str());
        (is_whole && text.len() <= FILTER_MAX).then_some(text)
    }

    /// Returns the filter at the other cluster for a Topic Filter of a client here. The latter may have a share name.
    pub fn cut(&self, local: &str) -> Option<String> {
        let local = Subscription::parse(local).ok()?.filter;
        if self.prefix == 0 {
            return cut(local, TopicFilter::parse(&self.filter).ok()?);
        }
        // Only the name here decides whether a wildcard of the client matches it.
        if self.filter.starts_with('$') && local.as_str().starts_with(['+', '#']) {
            return None;
        }
        let mut levels = cut_levels(local.as_str(), &self.filter)?;
        // `a/#` also matches `a`, which is no topic of the other cluster with the prefix `a/`. The prefix has no
        // wildcards, so each level of it is in the result.
        if !levels.starts_with(&self.filter[..self.prefix]) {
            return None;
        }
        levels.drain(..self.prefix);
        // Only the name there decides whether a wildcard of the link's topics matches it.
        let is_hidden = self.topic().starts_with(['+', '#']) && levels.starts_with('$');
        (!levels.is_empty() && !is_hidden).then_some(levels)
    }
}

/// Checks a prefix: empty, or a text without wildcards that ends with `/`.
///
/// # Errors
/// What is wrong, and what to write instead.
pub fn check_prefix(prefix: &str) -> Result<(), String> {
    if prefix.is_empty() {
        return Ok(());
    }
    if prefix.contains(['+', '#', '\0']) {
        return Err(format!(
            "\"{}\" has a wildcard; write a fixed text such as north/",
            prefix.escape_debug()
        ));
    }
    if prefix.starts_with('$') {
        return Err(format!("\"{prefix}\" begins with `$`, as names of the broker do; use another text"));
    }
    if !prefix.ends_with('/') {
        return Err(format!("\"{prefix}\" does not end with `/`; write \"{prefix}/\""));
    }
    if prefix.len() > PREFIX_MAX {
        return Err(format!(
            "it has {} bytes, and the maximum is {PREFIX_MAX}; use a shorter one",
            prefix.len()
        ));
    }
    Ok(())
}

/// Maximum size of a prefix.
const PREFIX_MAX: usize = 1024;

/// Checks a Topic Filter that a link takes or gives.
///
/// # Errors
/// What is wrong, and what to write instead.
pub fn check_filter(filter: &str) -> Result<(), String> {
    let invalid = |error: TopicError| format!("`{filter}` is not a Topic Filter: {error}");
    TopicFilter::parse(filter).map_err(invalid)?;
    if filter.starts_with('$') {
        return Err(format!("`{filter}` begins with `$`; such topics stay in their cluster"));
    }
    Ok(())
}

/// Intersection, level by level. The first level has no special meaning.
fn cut_levels(a: &str, b: &str) -> Option<String> {
    let mut result = String::with_capacity(a.len().max(b.len()));
    let (mut a, mut b) = (Some(a), Some(b));
    let mut is_first = true;
    loop {
        let level = match (a, b) {
            // `x/#` matches `x`, so a filter that has ended goes with `#`. Otherwise `#` leaves what the other one has.
            (None, None) => break,
            (None, Some("#")) | (Some("#"), None) => break,
            (None, Some(_)) | (Some(_), None) => return None,
            (Some("#"), Some(rest)) | (Some(rest), Some("#")) => {
                push(&mut result, rest, is_first);
                break;
            }
            (Some(left), Some(right)) => {
                let ((left, a_rest), (right, b_rest)) = (split(left), split(right));
                (a, b) = (a_rest, b_rest);
                match (left, right) {
                    ("+", level) | (level, "+") => level,
                    (left, right) if left == right => left,
                    _ => return None,
                }
            }
        };
        push(&mut result, level, is_first);
        is_first = false;
    }
    // No topic is empty.
    (!result.is_empty() && result.len() <= FILTER_MAX).then_some(result)
}

fn push(result: &mut String, level: &str, is_first: bool) {
    if !is_first {
        result.push('/');
    }
    result.push_str(level);
}

/// Splits off the first level.
fn split(filter: &str) -> (&str, Option<&str>) {
    match filter.split_once('/') {
        Some((level, rest)) => (level, Some(rest)),
        None => (filter, None),
    }
}

#[cfg(test)]
mod tests {
    use mqtt::TopicName;
    use random::Random;

    use super::*;

    fn cut_text(a: &str, b: &str) -> Option<String> {
        cut(TopicFilter::parse(a).expect(a), TopicFilter::parse(b).expect(b))
    }

    #[test]
    fn filters_have_one_intersection_or_none() {
        for (a, b, expected) in [
            ("a", "a", Some("a")),
            ("a", "b", None),
            ("a/+", "+/b", Some("a/b")),
            ("#", "a/+", Some("a/+")),
            ("a/#", "a", Some("a")),
            ("a/#", "a/+/c", Some("a/+/c")),
            ("a/#", "+/b/#", Some("a/b/#")),
            ("a/#", "a/#", Some("a/#")),
            ("a/+/#", "a", None),
            ("a/+/#", "a/#", Some("a/+/#")),
            ("+", "#", Some("+")),
            ("#", "$SYS/x", None),
            ("+/x", "$SYS/x", None),
            ("$SYS/#", "$SYS/+/y", Some("$SYS/+/y")),
            ("/+", "+/a", Some("/a")),
            ("a/", "a/+", Some("a/")),
            ("a", "a/", None),
        ] {
            assert_eq!(cut_text(a, b).as_deref(), expected, "{a} {b}");
            assert_eq!(cut_text(b, a).as_deref(), expected, "{b} {a}");
        }
    }

    #[test]
    fn an_intersection_that_is_too_long_matches_nothing() {
        let (long, other) = (format!("+/{}", "x".repeat(60_000)), format!("{}/+", "y".repeat(60_000)));
        assert_eq!(cut_text(&long, &other), None);
    }

    #[test]
    fn the_prefix_is_taken_from_the_filter_of_a_client() {
        for (local, prefix, topic, expected) in [
            ("north/a/b", "north/", "#", Some("a/b")),
            ("north/#", "north/", "#", Some("#")),
            ("#", "north/", "a/#", Some("a/#")),
            ("+/a", "north/", "#", Some("a")),
            ("+", "north/", "#", None),
            ("north", "north/", "#", None),
            ("north/", "north/", "#", None),
            ("south/a", "north/", "#", None),
            ("+/+/a", "x/y/", "#", Some("a")),
            // Topics that begin with `$` at the other cluster are not of `#` there.
            ("north/$SYS/a", "north/", "#", None),
            ("north/+/a", "north/", "+/a", Some("+/a")),
            ("$share/g/north/a", "north/", "#", Some("a")),
            ("$share/g/a", "", "#", Some("a")),
            ("$share/g", "", "#", None),
            ("a/+", "", "a/b", Some("a/b")),
            ("#", "$n/", "a", None),
        ] {
            assert_eq!(Taken::new(prefix, topic).cut(local).as_deref(), expected, "{local} {prefix} {topic}");
        }
    }

    #[test]
    fn a_group_is_joined_if_the_link_takes_all_of_its_filter() {
        for (local, prefix, topic, expected) in [
            ("$share/linked:g/a/+", "", "a/#", Some("$share/$link:linked:g/a/+")),
            ("$share/linked:g/a/+", "", "a/b", None),
            ("$share/linked:g/#", "", "a/#", None),
            ("$share/linked:g/#", "", "#", Some("$share/$link:linked:g/#")),
            ("$share/linked:g/n/a", "n/", "#", Some("$share/$link:linked:g/a")),
            ("$share/linked:g/n/#", "n/", "a/#", None),
            ("$share/linked:g/#", "n/", "#", None),
            ("$share/linked:g/+/a", "n/", "#", None),
            ("$share/linked:g/n/$SYS/a", "n/", "#", None),
            ("$share/linked:g/$SYS/a", "", "#", None),
            ("a", "", "#", None),
        ] {
            assert_eq!(
                Taken::new(prefix, topic).join(local).as_deref(),
                expected,
                "{local} {prefix} {topic}"
            );
        }
    }

    fn text(random: &mut Random, of: &[&str], levels_max: usize) -> String {
        let levels = 1 + random.below(levels_max);
        (0..levels).map(|_| *random.pick(of)).collect::<Vec<_>>().join("/")
    }

    fn filter(random: &mut Random) -> String {
        let mut filter = text(random, &["a", "b", "", "+", "$a"], 4);
        if random.percent(30) {
            filter = if random.percent(20) { "#".to_owned() } else { filter + "/#" };
        }
        if filter.is_empty() { "a".to_owned() } else { filter }
    }

    fn topic(random: &mut Random) -> String {
        let topic = text(random, &["a", "b", "", "c", "$a"], 5);
        if topic.is_empty() { "b".to_owned() } else { topic }
    }

    fn matches(filter: &str, topic: &str) -> bool {
        TopicFilter::parse(filter).expect(filter).matches(TopicName::parse(topic).expect(topic))
    }

    #[test]
    fn a_topic_matches_the_intersection_if_it_matches_both() {
        let mut random = Random::new(1);
        let mut both = 0;
        for _ in 0..200_000 {
            let (a, b, topic) = (filter(&mut random), filter(&mut random), topic(&mut random));
            let expected = matches(&a, &topic) && matches(&b, &topic);
            both += u32::from(expected);
            let cut = cut_text(&a, &b);
            assert_eq!(
                cut.as_deref().is_some_and(|cut| matches(cut, &topic)),
                expected,
                "{a} {b} {topic} {cut:?}"
            );
        }
        assert!(both > 1_000, "{both} topics matched both filters");
    }

    #[test]
    fn a_remote_topic_is_wanted_if_a_client_gets_its_name_here_and_the_link_takes_it() {
        let mut random = Random::new(2);
        let mut wanted = 0;
        for _ in 0..200_000 {
            let (local, taken, topic) = (filter(&mut random), filter(&mut random), topic(&mut random));
            let prefix = *random.pick(&["", "a/", "b/a/", "a//"]);
            let expected = matches(&local, &format!("{prefix}{topic}")) && matches(&taken, &topic);
            wanted += u32::from(expected);
            let cut = Taken::new(prefix, &taken).cut(&local);
            let is_wanted = cut.as_deref().is_some_and(|cut| matches(cut, &topic));
            assert_eq!(is_wanted, expected, "{local} {prefix} {taken} {topic} {cut:?}");
        }
        assert!(wanted > 1_000, "{wanted} topics were wanted");
    }

    #[test]
    fn prefixes_and_filters_are_checked() {
        assert_eq!(check_prefix(""), Ok(()));
        assert_eq!(check_prefix("a/b/"), Ok(()));
        for (prefix, why) in [("a", "write \"a/\""), ("a/+/", "wildcard"), ("$x/", "begins with `$`")] {
            assert!(check_prefix(prefix).expect_err(prefix).contains(why));
        }
        assert_eq!(check_filter("a/+/#"), Ok(()));
        for (filter, why) in [("a/#/b", "not a Topic Filter"), ("$SYS/#", "stay"), ("$share/g/a", "stay")] {
            assert!(check_filter(filter).expect_err(filter).contains(why));
        }
    }
}
