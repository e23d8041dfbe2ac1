//! Topics of a tenant: they begin with its mountpoint, which its clients do not see.

use mqtt::Subscription;

/// Topic as the node knows it; `room` is the buffer for it.
pub(crate) fn mounted<'a>(mountpoint: &str, topic: &str, room: &'a mut String) -> &'a str {
    room.clear();
    room.push_str(mountpoint);
    room.push_str(topic);
    room
}

/// Topic Filter of a SUBSCRIBE or UNSUBSCRIBE as the node knows it. The name of a shared group stays in front. An
/// invalid filter becomes the empty text, which is invalid too.
pub(crate) fn mounted_filter(mountpoint: &str, text: &str) -> String {
    match Subscription::parse(text) {
        Ok(Subscription { share: None, filter }) => format!("{mountpoint}{}", filter.as_str()),
        Ok(Subscription { share: Some(share), filter }) => {
            format!("$share/{share}/{mountpoint}{}", filter.as_str())
        }
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_filter_leads_out_of_the_mountpoint() {
        for (text, mounted) in [
            ("#", "t/#"),
            ("a/+", "t/a/+"),
            ("$SYS/#", "t/$SYS/#"),
            ("$share/g/a", "$share/g/t/a"),
            ("$share/g/$share/h/a", "$share/g/t/$share/h/a"),
            ("/", "t//"),
            ("$share/g", ""),
            ("$share//a", ""),
            ("a#", ""),
            ("", ""),
        ] {
            assert_eq!(mounted_filter("t/", text), mounted, "{text}");
        }
    }
}
