//! Search for the known name that is most similar to an unknown one.

/// Number of edits that turn `a` into `b`: insert, delete or replace one character, or swap two neighbours.
pub fn distance(a: &str, b: &str) -> usize {
    strsim::osa_distance(beginning(a), beginning(b))
}

/// The first [`LEN_MAX`] characters.
fn beginning(name: &str) -> &str {
    name.char_indices().nth(LEN_MAX).map_or(name, |(end, _)| &name[..end])
}

/// Dissimilarity of an unknown and a known name: the primary measure, and the one that decides between equals. A part
/// of the name, or its words in another order, counts as one edit at most.
pub fn unlikeness(unknown: &str, known: &str) -> (usize, usize) {
    let edits = distance(unknown, known);
    let is_beginning = unknown.chars().count() >= BEGINNING_MIN && known.starts_with(unknown);
    let is_related = is_beginning || has_words(known, unknown) || has_words(unknown, known);
    (if is_related { edits.min(1) } else { edits }, edits)
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(['_', '.']).filter(|word| !word.is_empty())
}

/// Returns whether one name has words and all of them are words of another.
fn has_words(name: &str, of: &str) -> bool {
    words(of).next().is_some() && words(of).all(|word| words(name).any(|other| other == word))
}

/// The first of the `known` names with the least dissimilarity; `None` when no name is known.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known.into_iter().min_by_key(|name| unlikeness(unknown, name))
}

/// Maximum number of characters compared: a user's input is unbounded.
const LEN_MAX: usize = 64;
/// Minimum length in characters of a part of a name. Fewer characters match too many names.
const BEGINNING_MIN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("", ""), 0);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("qos_mx", "qos_max"), 1);
        assert_eq!(distance("qso_max", "qos_max"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn nearest_takes_the_fewest_edits_and_the_first_of_equals() {
        assert_eq!(nearest("seesion", ["mqtt", "session", "sys"]), Some("session"));
        assert_eq!(nearest("ab", ["ax", "ay"]), Some("ax"));
        assert_eq!(nearest("ab", []), None);
    }

    #[test]
    fn a_part_of_a_name_or_its_words_in_another_order_is_near() {
        let known =
            ["cluster.expect", "cluster.secret_file", "cluster.tls_certificate", "mqtt.packet_size_max"];
        for (unknown, meant) in [
            ("cluster.secret", "cluster.secret_file"),
            ("cluster.tls_cert", "cluster.tls_certificate"),
            ("mqtt.max_packet_size", "mqtt.packet_size_max"),
            ("cluster.expet", "cluster.expect"),
        ] {
            assert_eq!(nearest(unknown, known), Some(meant));
        }
    }

    proptest::proptest! {
        #[test]
        fn distance_is_symmetric_and_bounded(a in "[a-c]{0,8}", b in "[a-c]{0,8}") {
            proptest::prop_assert_eq!(distance(&a, &b), distance(&b, &a));
            proptest::prop_assert!(distance(&a, &b) <= a.len().max(b.len()));
            proptest::prop_assert_eq!(distance(&a, &b) == 0, a == b);
        }
    }
}
