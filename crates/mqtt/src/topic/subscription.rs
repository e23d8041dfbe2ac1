//! Subscriptions of SUBSCRIBE and UNSUBSCRIBE: a Topic Filter, or a shared one.

use super::check_length;
use super::error::TopicError;
use super::filter::TopicFilter;

/// A subscription of one client, or of all clients that name the same share and filter (4.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Subscription<'a> {
    /// ShareName: not empty, without `/`, `+` and `#` [MQTT-4.8.2-1] [MQTT-4.8.2-2]. `None` when not shared.
    pub share: Option<&'a str>,
    pub filter: TopicFilter<'a>,
}

const SHARE: &str = "$share/";

impl<'a> Subscription<'a> {
    /// Parses a text that was parsed before, as the decoder does with filters of SUBSCRIBE and UNSUBSCRIBE. Only a
    /// share is checked again: before 5.0 the decoder accepts `$share` as an ordinary level.
    ///
    /// # Errors
    /// Those of [`Self::parse`] for a share.
    #[inline]
    pub fn of_parsed(text: &'a str) -> Result<Subscription<'a>, TopicError> {
        if text.starts_with(SHARE) {
            return Self::parse(text);
        }
        Ok(Subscription { share: None, filter: TopicFilter::of_parsed(text) })
    }

    /// Parses `$share/{ShareName}/{filter}` or a plain Topic Filter.
    ///
    /// # Errors
    /// The errors of [`TopicFilter::parse`], an invalid ShareName, or no filter after it.
    pub fn parse(text: &'a str) -> Result<Subscription<'a>, TopicError> {
        let Some(shared) = text.strip_prefix(SHARE) else {
            return TopicFilter::parse(text).map(|filter| Subscription { share: None, filter });
        };
        check_length(text)?;
        let (share, filter) = match shared.split_once('/') {
            Some((share, filter)) => (share, Some(filter)),
            None => (shared, None),
        };
        if share.contains('\0') {
            return Err(TopicError::ContainsNull);
        }
        if share.is_empty() || share.contains(['+', '#']) {
            return Err(TopicError::ShareNameInvalid);
        }
        match filter {
            None | Some("") => Err(TopicError::ShareFilterMissing),
            Some(filter) => {
                TopicFilter::parse(filter).map(|filter| Subscription { share: Some(share), filter })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_and_shared_subscriptions_are_distinguished() {
        let cases = [
            ("a/+", None, "a/+"),
            ("$share", None, "$share"),
            ("$shared/a/b", None, "$shared/a/b"),
            ("$SHARE/a/b", None, "$SHARE/a/b"),
            ("$share/consumer1/sport/tennis/+", Some("consumer1"), "sport/tennis/+"),
            ("$share/consumer2//finance", Some("consumer2"), "/finance"),
            ("$share/g/#", Some("g"), "#"),
            ("$share/g//", Some("g"), "/"),
            ("$share/$g/$share/x/y", Some("$g"), "$share/x/y"),
        ];
        for (text, share, filter) in cases {
            let filter = TopicFilter::parse(filter).unwrap();
            assert_eq!(Subscription::parse(text), Ok(Subscription { share, filter }), "{text}");
        }
    }

    #[test]
    fn invalid_subscriptions_are_refused() {
        let too_long = format!("$share/g/{}", "x".repeat(65_527));
        let cases = [
            ("", TopicError::Empty),
            ("a#", TopicError::WildcardNotAlone),
            // [MQTT-4.8.2-1]
            ("$share//a", TopicError::ShareNameInvalid),
            ("$share/", TopicError::ShareNameInvalid),
            // [MQTT-4.8.2-2]
            ("$share/+/a", TopicError::ShareNameInvalid),
            ("$share/#", TopicError::ShareNameInvalid),
            ("$share/a#/b", TopicError::ShareNameInvalid),
            ("$share/g", TopicError::ShareFilterMissing),
            ("$share/g/", TopicError::ShareFilterMissing),
            ("$share/g/a#", TopicError::WildcardNotAlone),
            ("$share/g/#/a", TopicError::MultiLevelWildcardNotLast),
            ("$share/g\0/a", TopicError::ContainsNull),
            ("$share/g/a\0", TopicError::ContainsNull),
            // [MQTT-4.7.3-3]: the limit applies to the whole string.
            (&too_long, TopicError::TooLong { size: 65_536 }),
        ];
        for (text, error) in cases {
            assert_eq!(Subscription::parse(text), Err(error), "{text:.20}");
        }
    }
}
