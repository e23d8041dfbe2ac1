//! Files that a configuration names, and the tables of the data directory that control access.
//!
//! `meridian start` and `meridian config check` both read them with [`Files::read`], so that neither accepts what the
//! other refuses.

use std::fmt::Display;
use std::sync::Arc;

use auth::{Acl, Bans, Guard, HttpServices, JwtLink, Link, PasswordFile, RuleSet, RuleTable, Users};
use configstore::ConfigStore;

use crate::cluster;
use crate::config::Config;
use crate::otel::Otel;
use crate::secrets;

/// Contents of the files, used by the node.
pub struct Files {
    pub guard: Guard,
    pub users: Arc<Users>,
    pub rules: Arc<RuleTable>,
    pub bans: Arc<Bans>,
    pub services: HttpServices,
    pub tokens: Option<Arc<JwtLink>>,
}

impl Files {
    /// Reads all files. Changes nothing on disk and opens no listener.
    ///
    /// # Errors
    /// Every file that cannot be used, as one problem each.
    pub fn read(
        config: &Config,
        name: &str,
        config_store: &Arc<dyn ConfigStore>,
    ) -> Result<Self, Vec<String>> {
        let mut problems = Problems::default();
        problems.keep(Otel::check(&config.otel));
        problems.keep(config.storage.check());
        problems.all(edge::check(&config.edge));
        problems.keep(api::Certificates::check(&config.http));
        problems.keep(config.http.check());
        problems.all(secrets::check_directories(config));
        problems.keep(cluster::check(config, name));

        let users =
            problems.keep(Users::open(config_store.clone(), config.auth.users_max as usize).map(Arc::new));
        let rules = problems.keep(RuleTable::open(config_store.clone()).map(Arc::new));
        let bans =
            problems.keep(Bans::open(config_store.clone(), config.auth.bans_max as usize).map(Arc::new));
        let tokens = problems.keep(JwtLink::open(&config.jwt));
        let services = problems.keep(HttpServices::open(&config.http_auth, &config.http_acl));
        let mut links: Vec<Arc<dyn Link>> = Vec::new();
        links.extend(users.clone().map(|users| users as Arc<dyn Link>));
        links.extend(tokens.clone().flatten().map(|tokens| tokens as Arc<dyn Link>));
        let service = services.as_ref().and_then(HttpServices::link);
        links.extend(service.map(|service| service.clone() as Arc<dyn Link>));
        // A link that could not be opened is missing from the chain, and `Guard` would report it a second time.
        let guard = match (&users, &tokens, &services) {
            (Some(_), Some(_), Some(_)) => {
                problems.keep(Guard::open_with(&config.auth, &config.protection, links))
            }
            _ => {
                problems.all(unreadable(config));
                None
            }
        };
        match (guard, users, rules, bans, services, tokens) {
            (Some(guard), Some(users), Some(rules), Some(bans), Some(services), Some(tokens))
                if problems.0.is_empty() =>
            {
                Ok(Self { guard, users, rules, bans, services, tokens })
            }
            _ => Err(problems.0),
        }
    }
}

/// Checks the files of passwords and rules, when their chain cannot be opened.
fn unreadable(config: &Config) -> Vec<String> {
    let auth = &config.auth;
    let mut problems = Problems::default();
    if let Some(path) = &auth.password_file {
        problems.keep(PasswordFile::read(path));
    }
    if let Some(path) = &auth.acl_file {
        problems.keep(Acl::read(path));
    }
    if let Some(path) = &auth.rules_file {
        problems.keep(RuleSet::read(path));
    }
    problems.0
}

#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn keep<T, E: Display>(&mut self, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.0.push(error.to_string())).ok()
    }

    fn all(&mut self, problems: impl IntoIterator<Item = impl Display>) {
        self.0.extend(problems.into_iter().map(|problem| problem.to_string()));
    }
}
