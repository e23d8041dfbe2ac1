//! The known name that is most like an unknown one.

/// Edits that turn `a` into `b`: insert, delete, replace one character, or swap two neighbours.
pub fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(LEN_MAX).collect();
    let b: Vec<char> = b.chars().take(LEN_MAX).collect();
    // Three rows of the usual table: the one before the last is needed for swaps.
    let mut oldest = vec![0; b.len() + 1];
    let mut older: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1; b.len() + 1];
        for (j, to) in b.iter().enumerate() {
            let replaced = older[j] + usize::from(from != to);
            row[j + 1] = replaced.min(older[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                row[j + 1] = row[j + 1].min(oldest[j - 1] + 1);
            }
        }
        oldest = older;
        older = row;
    }
    older[b.len()]
}

/// The first of the `known` names with the fewest edits; `None` when nothing is known.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known.into_iter().min_by_key(|name| distance(unknown, name))
}

/// Characters compared: what a user typed is unbounded.
const LEN_MAX: usize = 64;

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

    proptest::proptest! {
        #[test]
        fn distance_is_symmetric_and_bounded(a in "[a-c]{0,8}", b in "[a-c]{0,8}") {
            proptest::prop_assert_eq!(distance(&a, &b), distance(&b, &a));
            proptest::prop_assert!(distance(&a, &b) <= a.len().max(b.len()));
            proptest::prop_assert_eq!(distance(&a, &b) == 0, a == b);
        }
    }
}
