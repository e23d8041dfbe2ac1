//! Checks of links with each other and with their node.

use bridges::leads_here;
use definitions::{Kind, Named, Problem};

use crate::registry::LinkKind;
use crate::settings::{LinkSettings, Own};

/// Checks all links of a configuration file, with the files that they name. Returns what is wrong.
pub fn check(links: &[LinkSettings], own: &Own) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, link) in links.iter().enumerate() {
        let checked = alone(link, own)
            .and_then(|()| links[..at].iter().try_for_each(|other| together(link, other, own)));
        problems.extend(checked.err().map(|problem| format!("cluster_link.{at}.{problem}")));
    }
    let (count, maximum) = (links.len(), LinkKind::MAX);
    if count > maximum {
        problems.push(format!("cluster_link: {count} entries, and the maximum is {maximum}; remove some"));
    }
    problems
}

/// Checks a link with its files.
pub fn alone(link: &LinkSettings, own: &Own) -> Result<(), Problem> {
    of_node(link, own)?;
    link.secret()?;
    link.tls().map(drop).map_err(Problem::from)
}

/// Checks a link without its files.
fn of_node(link: &LinkSettings, own: &Own) -> Result<(), Problem> {
    link.check()?;
    let own_name = here(link, own)?;
    if own_name == link.name {
        let why = format!("\"{own_name}\" is this cluster; write the name of the other one");
        return Err(Problem::new("name", why));
    }
    if link.origins.iter().any(|origin| origin == own_name) {
        let why = format!("\"{own_name}\" is this cluster, whose messages are here already; leave it out");
        return Err(Problem::new("origins", why));
    }
    if let Some(address) = link.addresses().find(|address| leads_here(&own.listens, address)) {
        let why = format!("{address} is an address of this node; a link leads to another cluster");
        return Err(Problem::new("address", why));
    }
    Ok(())
}

/// Checks that this node may use the secrets of a link, and returns the name of this cluster in it.
pub fn here<'a>(link: &'a LinkSettings, own: &'a Own) -> Result<&'a str, Problem> {
    own.secrets.check(link)?;
    link.own(own)
}

/// Checks two links of a node.
pub fn together(link: &LinkSettings, other: &LinkSettings, own: &Own) -> Result<(), Problem> {
    if link.name == other.name {
        let why = format!("another cluster link has the name \"{}\"; use another one", link.name);
        return Err(Problem::new("name", why));
    }
    if let (Ok(mine), Ok(others)) = (link.own(own), other.own(own))
        && mine != others
    {
        let why = format!(
            "it is \"{mine}\" here and \"{others}\" in the link \"{}\"; write the same name in all links",
            other.name
        );
        return Err(Problem::new("own_name", why));
    }
    if let Some(twice) =
        link.taken_origins().find(|origin| other.taken_origins().any(|taken| taken == *origin))
    {
        let why = format!(
            "the link \"{}\" takes the messages of \"{twice}\", too, and they would come twice; let one link take them",
            other.name
        );
        return Err(Problem::new("origins", why));
    }
    Ok(())
}

/// Checks a link with all others.
pub fn with_others(link: &LinkSettings, others: &Named<LinkSettings>, own: &Own) -> Result<(), Problem> {
    let mut others =
        others.values().filter(|other| other.settings.name != link.name && other.fault.is_none());
    others.try_for_each(|other| together(link, &other.settings, own))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    use definitions::settings_of_json;
    use serde_json::{Value as Json, json};

    use super::*;

    fn secret() -> PathBuf {
        static PATH: OnceLock<PathBuf> = OnceLock::new();
        let write = || {
            let path = std::env::temp_dir().join(format!("meridian-link-check-{}", std::process::id()));
            std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").expect("a file");
            path
        };
        PATH.get_or_init(write).clone()
    }

    fn link(name: &str, more: Json) -> LinkSettings {
        let mut settings = serde_json::Map::new();
        settings.insert("secret_file".into(), secret().display().to_string().into());
        settings.extend(more.as_object().cloned().unwrap_or_default());
        settings_of_json(name, &settings).expect("readable")
    }

    fn own() -> Own {
        Own { node: "north".into(), listens: vec!["0.0.0.0:1883".parse().expect("valid")], ..Own::default() }
    }

    fn problem(links: &[LinkSettings]) -> String {
        check(links, &own()).join("\n")
    }

    #[test]
    fn one_link_is_checked_with_the_fix() {
        let short = secret().with_extension("short");
        std::fs::write(&short, "0123\n").expect("a file");
        let too_short = format!("secret_file: {}: 4 bytes, at least 16 are needed", short.display());
        let taking = json!({"address": "south:1883", "topics": "a/#", "origins": "east"});
        assert_eq!(problem(&[link("south", taking), link("west", json!({}))]), "");
        for (more, expected) in [
            (json!({"name": "south"}), ""),
            (json!({"topics": "#"}), "address: the other cluster has no address"),
            (json!({"origins": "east"}), "origins: the link takes nothing"),
            (
                json!({"address": "h:1", "topics": "#", "origins": "south"}),
                "origins: \"south\" is the other cluster",
            ),
            (
                json!({"address": "h:1", "topics": "#", "origins": "north"}),
                "origins: \"north\" is this cluster",
            ),
            (json!({"own_name": "south"}), "name: \"south\" is this cluster"),
            (json!({"own_name": "a/b"}), "own_name: \"a/b\" is not a name"),
            (json!({"prefix": "x"}), "prefix: \"x\" does not end with `/`"),
            (json!({"secret_file": null}), "secret_file: a link needs a secret; make one with `head"),
            (json!({"secret_file": "/nonexistent"}), "secret_file: /nonexistent: No such file"),
            (json!({"secret_file": "/dev/zero"}), "secret_file: /dev/zero: it is not a regular file"),
            (json!({"secret_file": short}), &too_short),
            (json!({"tls_ca": "/x"}), "tls: there are settings of TLS and it is off"),
            (json!({"tls": true, "tls_key": "/x"}), "tls_key: tls_certificate and tls_key belong together"),
            (json!({"backoff_min": "2m"}), "backoff_min: it is longer than backoff_max"),
            (json!({"address": "localhost:1883"}), "address: localhost:1883 is an address of this node"),
        ] {
            let found = problem(&[link("south", more.clone())]);
            let expected =
                if expected.is_empty() { String::new() } else { format!("cluster_link.0.{expected}") };
            assert!(
                found.starts_with(&expected) && found.is_empty() == expected.is_empty(),
                "{more}: {found}"
            );
        }
        let clustered = Own { is_clustered: true, ..own() };
        let found = check(&[link("south", json!({}))], &clustered);
        assert!(found[0].starts_with("cluster_link.0.own_name: a node of a cluster needs"), "{found:?}");
    }

    #[test]
    fn links_are_checked_with_each_other() {
        let takes = |name: &str, origins: &str| {
            link(name, json!({"address": "h:1", "topics": "#", "origins": origins}))
        };
        assert_eq!(problem(&[takes("south", ""), takes("east", "")]), "");
        for (links, expected) in [
            ([takes("south", ""), takes("south", "")], "name: another cluster link has the name \"south\""),
            (
                [takes("south", "east"), takes("east", "")],
                "origins: the link \"south\" takes the messages of \"east\", too",
            ),
            (
                [takes("south", "x"), takes("east", "x")],
                "origins: the link \"south\" takes the messages of \"x\"",
            ),
            (
                [link("south", json!({"own_name": "n"})), link("east", json!({}))],
                "own_name: it is \"north\" here and \"n\" in the link \"south\"",
            ),
        ] {
            let found = problem(&links);
            assert!(found.starts_with(&format!("cluster_link.1.{expected}")), "{found}");
        }
    }
}
