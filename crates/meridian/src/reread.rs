//! Files that a reload reads again.

use settings::{Layers, settings_of};

use crate::config::Config;
use crate::expiry::TlsFiles;

/// The configuration file, the file of run-time changes, and the files named by effective settings, in the order of
/// the settings. Files that are read at the start only are not among them.
pub fn files(layers: &Layers, config: &Config, tls: &TlsFiles) -> Vec<String> {
    let of_layers =
        [layers.file.as_ref().map(|(path, _)| path), layers.runtime.as_ref().map(|(path, _)| path)];
    let of_layers = of_layers.into_iter().flatten().map(|path| path.display().to_string());
    let parts = Parts { https: tls.https.is_some(), links: tls.links.is_some() };
    let mut files: Vec<String> = Vec::new();
    for file in of_layers.chain(named(config, parts)) {
        if !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

/// Parts of the node that read files.
#[derive(Clone, Copy)]
struct Parts {
    https: bool,
    links: bool,
}

fn named(config: &Config, parts: Parts) -> Vec<String> {
    let is_read = |name: &str| match name.split_once('.') {
        Some(("node" | "storage", _)) | Some(("cluster", "secret_file")) => false,
        Some(("cluster", _)) => parts.links,
        Some(("http", _)) => parts.https,
        Some(("http_auth", _)) => config.http_auth.url.is_some(),
        Some(("http_acl", _)) => config.http_acl.url.is_some(),
        _ => true,
    };
    let settings = settings_of(&mut config.clone());
    let paths =
        settings.into_iter().filter(|setting| setting.field.type_name == "path" && is_read(&setting.name));
    paths.filter_map(|setting| setting.value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_named_by_settings_are_read_again_but_not_those_of_the_start() {
        let mut config = Config::default();
        config.auth.password_file = Some("users".into());
        config.cluster.secret_file = Some("secret".into());
        config.cluster.tls_certificate = Some("node.crt".into());
        config.http.tls_key = Some("http.key".into());
        config.http_auth.headers_file = Some("headers".into());
        config.edge.listeners[0].tls_certificate = Some("server.crt".into());
        let all = Parts { https: true, links: true };
        assert_eq!(named(&config, all), ["http.key", "users", "node.crt", "server.crt"]);
        assert_eq!(named(&config, Parts { https: false, links: false }), ["users", "server.crt"]);
        config.http_auth.url = Some("http://127.0.0.1/".into());
        assert!(named(&config, all).contains(&"headers".to_owned()));
    }
}
