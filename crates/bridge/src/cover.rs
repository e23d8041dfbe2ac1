//! Topic Filters that include others.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Maximum number of prefixes that are looked at for one filter.
const VISITS_MAX: usize = 256;

/// Returns a filter of `among` that matches all topics which `filter` matches, and that `counts`. It may be `filter`
/// itself. It finds one in nearly all cases, but gives up when there are very many filters to compare.
///
/// Shared subscriptions and topics that begin with `$` have none.
pub fn cover<'a, V>(
    filter: &str,
    among: &'a BTreeMap<Arc<str>, V>,
    counts: impl Fn(&str, &V) -> bool,
) -> Option<&'a Arc<str>> {
    // A wildcard in the first level does not match a topic that begins with `$` [MQTT-4.7.2-1].
    if filter.starts_with('$') || among.is_empty() {
        return None;
    }
    let found = |text: &str| {
        among.get_key_value(text).filter(|(name, value)| counts(name, value)).map(|(name, _)| name)
    };
    let goes_on = |prefix: &str| {
        let mut from = among.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.next().is_some_and(|(name, _)| name.starts_with(prefix))
    };
    // Each entry is a prefix of filters in `among`, with its `/`, and the rest of the filter that is to be matched.
    let mut open: Vec<(String, Option<&str>)> = vec![(String::new(), Some(filter))];
    for _ in 0..VISITS_MAX {
        let (prefix, rest) = open.pop()?;
        let all = format!("{prefix}#");
        if let Some(name) = found(&all) {
            return Some(name);
        }
        let Some(rest) = rest.filter(|rest| *rest != "#") else { continue };
        let (level, after) = match rest.split_once('/') {
            Some((level, after)) => (level, Some(after)),
            None => (rest, None),
        };
        let other = (level != "+").then_some(level);
        for one in ["+"].into_iter().chain(other) {
            let mut text = format!("{prefix}{one}");
            if after.is_none()
                && let Some(name) = found(&text)
            {
                return Some(name);
            }
            // `a/#` also matches `a`.
            text.push('/');
            if goes_on(&text) {
                open.push((text, after));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use random::Random;

    use super::*;

    fn names(of: &[&str]) -> BTreeMap<Arc<str>, ()> {
        of.iter().map(|name| (Arc::from(*name), ())).collect()
    }

    #[test]
    fn a_filter_is_covered_by_itself_and_by_wildcards() {
        for (filter, by, is_covered) in [
            ("a/b", "a/b", true),
            ("a/b", "a/+", true),
            ("a/b", "+/b", true),
            ("a/b", "#", true),
            ("a/b", "a/#", true),
            ("a", "a/#", true),
            ("a/", "a/+", true),
            ("a/+", "a/b", false),
            ("a/+", "+/+", true),
            ("a/#", "a/+", false),
            ("a/#", "+/#", true),
            ("a/#", "a/+/#", false),
            ("a/+/#", "a/#", true),
            ("a", "a/+", false),
            ("a/b!", "a/b", false),
            ("a/b/c", "a/b", false),
            ("/a", "+/a", true),
            ("/a", "a", false),
            ("$SYS/a", "#", false),
            ("$share/g/a", "$share/g/a", false),
        ] {
            assert_eq!(cover(filter, &names(&[by]), |_, _| true).is_some(), is_covered, "{filter} {by}");
        }
        assert_eq!(cover("a", &names(&["a", "b"]), |name, _| name != "a"), None);
    }

    /// Compares level by level, without an order.
    fn includes(by: &str, filter: &str) -> bool {
        let (mut by, mut filter) = (by.split('/'), filter.split('/'));
        loop {
            match (by.next(), filter.next()) {
                (Some("#"), _) | (None, None) => return true,
                (Some("+"), Some(level)) if level != "#" => {}
                (Some(left), Some(right)) if left == right => {}
                _ => return false,
            }
        }
    }

    #[test]
    fn it_finds_what_a_comparison_with_all_filters_finds() {
        let mut random = Random::new(5);
        let filter = |random: &mut Random| {
            let levels = 1 + random.below(4);
            let levels: Vec<&str> = (0..levels).map(|_| *random.pick(&["a", "b", "b!", "", "+"])).collect();
            let text = levels.join("/");
            match random.below(5) {
                0 => format!("{text}/#"),
                _ if text.is_empty() => "c".to_owned(),
                _ => text,
            }
        };
        let mut covered = 0;
        for _ in 0..20_000 {
            let of: Vec<String> = (0..random.below(6)).map(|_| filter(&mut random)).collect();
            let one = filter(&mut random);
            let among = of.iter().map(|name| (Arc::from(name.as_str()), ())).collect();
            let expected = of.iter().any(|by| includes(by, &one));
            let found = cover(&one, &among, |_, ()| true);
            assert_eq!(found.is_some(), expected, "{one} {of:?}");
            assert!(found.is_none_or(|by| includes(by, &one)), "{one} {found:?}");
            covered += u32::from(expected);
        }
        assert!(covered > 1_000, "{covered} filters were covered");
    }
}
