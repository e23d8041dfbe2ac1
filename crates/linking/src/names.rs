//! Client Identifiers of the sessions of links.

use broker::internal::{LINK, LINKED};

/// Client Identifier at the other cluster: that of messages of the other cluster, or of `transit`, which come through
/// it.
pub fn remote_session(own: &str, transit: Option<&str>) -> String {
    join(LINK, own, transit)
}

/// Client Identifier of the session here that publishes what comes by a link.
pub fn local_session(link: &str, transit: Option<&str>) -> String {
    join(LINKED, link, transit)
}

/// The cluster of a Client Identifier of [`remote_session`], and the cluster whose messages it takes, if that is not
/// this one.
pub fn parse_remote(client_id: &str) -> Option<(&str, Option<&str>)> {
    let name = client_id.strip_prefix(LINK)?;
    Some(match name.split_once('/') {
        Some((name, transit)) => (name, Some(transit)),
        None => (name, None),
    })
}

fn join(prefix: &str, name: &str, transit: Option<&str>) -> String {
    match transit {
        Some(transit) => format!("{prefix}{name}/{transit}"),
        None => format!("{prefix}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_names_its_cluster_and_the_origin() {
        assert_eq!(remote_session("south", None), "$link/south");
        assert_eq!(local_session("north", Some("east")), "$linked/north/east");
        assert_eq!(parse_remote("$link/south"), Some(("south", None)));
        assert_eq!(parse_remote("$link/south/east"), Some(("south", Some("east"))));
        assert_eq!(parse_remote("$linked/south"), None);
        assert_eq!(parse_remote("south"), None);
    }
}
