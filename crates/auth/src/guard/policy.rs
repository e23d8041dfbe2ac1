//! Settings and files, read together, so that no client is checked against old users with new rules.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use access::Credentials;
use settings::{Invalid, Raw, Value};

use crate::authority::Sources;
use crate::certificate::{Certificate, CertificateName};
use crate::chain::{Chain, LinkCounterTable, LinkName};
use crate::error::FileError;
use crate::link::{Link, ScramSource};
use crate::mountpoint::Template;
use crate::password_file::PasswordFile;
use crate::settings::{Auth, OnFailure};

/// Settings in force, with their files and links.
#[derive(Debug)]
pub struct Policy {
    pub chain: Chain,
    pub on_failure: OnFailure,
    pub timeout: Duration,
    pub certificate_client_id: CertificateName,
    pub mountpoint: Option<Template>,
    pub sources: Sources,
    anonymous: Option<bool>,
    /// True when `auth.chain` names the links.
    is_named: bool,
    anonymous_listeners: ListenerNames,
}

/// Reason why a policy cannot be read. The policy in force stays.
#[derive(Debug)]
pub enum PolicyError {
    File(FileError),
    /// The chain names a link that is not configured.
    NotConfigured(LinkName),
    /// A link cannot be created, for this reason.
    Link(LinkName, String),
    /// The threads of a link cannot be started.
    Threads(std::io::Error),
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::NotConfigured(name) => write!(
                f,
                "`auth.chain` names `{}`, which is not configured: {}, or leave it out",
                name.as_str(),
                name.how_to_configure()
            ),
            Self::Link(name, why) => write!(f, "authentication by `{}` cannot start: {why}", name.as_str()),
            Self::Threads(error) => write!(f, "threads for authentication cannot be started: {error}"),
        }
    }
}

impl PolicyError {
    /// Returns the message without any contents of the files, for callers who may name files and not read them.
    pub fn without_contents(&self) -> String {
        match self {
            Self::File(error) => error.without_contents(),
            other => other.to_string(),
        }
    }
}

impl std::error::Error for PolicyError {}

impl From<FileError> for PolicyError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl Policy {
    /// Reads settings and files. `extra_links` are links that do not come from settings.
    pub fn read(
        settings: &Auth,
        extra_links: &[Arc<dyn Link>],
        link_counters: &LinkCounterTable,
    ) -> Result<Self, PolicyError> {
        let links = links(settings, extra_links)?;
        let sources = Sources::read(settings)?;
        let anonymous_listeners = settings.anonymous_listeners.clone();
        Ok(Self {
            chain: Chain::new(links, link_counters),
            on_failure: settings.on_failure,
            timeout: settings.timeout,
            certificate_client_id: settings.certificate_client_id,
            mountpoint: settings.mountpoint.clone(),
            sources,
            anonymous: settings.allow_anonymous,
            is_named: settings.chain.is_some(),
            anonymous_listeners,
        })
    }

    /// Returns whether this client may connect without credentials.
    pub fn admits_anonymous(&self, credentials: &Credentials<'_>) -> bool {
        // A name or a password that no link knows is wrong, not anonymous. Without links it proves nothing and is
        // ignored.
        let has_no_credentials = credentials.username.is_none() && credentials.password.is_none();
        let is_open_here =
            || self.anonymous_listeners.0.iter().any(|listener| **listener == *credentials.listener);
        let has_no_method = self.has_no_method();
        let is_open = || self.anonymous.unwrap_or(has_no_method && self.anonymous_listeners.0.is_empty());
        (has_no_credentials || has_no_method) && (is_open() || is_open_here())
    }

    /// Returns whether there is no way to authenticate. A database without users is none until its first user.
    fn has_no_method(&self) -> bool {
        self.chain.is_empty() || !self.is_named && self.chain.links().all(|link| link.is_idle())
    }

    /// Returns whether clients may connect without a login only because the user database is empty. The first user ends
    /// that.
    pub fn is_open_until_first_user(&self) -> bool {
        let is_unset = self.anonymous.is_none() && self.anonymous_listeners.0.is_empty();
        is_unset && !self.chain.is_empty() && self.has_no_method()
    }

    pub fn scram_sources(&self) -> impl Iterator<Item = &dyn ScramSource> {
        self.chain.links().filter_map(|link| link.scram())
    }
}

/// Returns the links of the chain, in order.
fn links(settings: &Auth, extra_links: &[Arc<dyn Link>]) -> Result<Vec<Arc<dyn Link>>, PolicyError> {
    let mut links = Vec::new();
    match &settings.chain {
        Some(names) => {
            for name in &names.0 {
                links.push(
                    link(*name, settings, extra_links, true)?.ok_or(PolicyError::NotConfigured(*name))?,
                );
            }
        }
        None => {
            for name in LinkName::ALL {
                links.extend(link(name, settings, extra_links, false)?);
            }
        }
    }
    Ok(links)
}

/// Returns the link; `None` when it is not configured.
fn link(
    name: LinkName,
    settings: &Auth,
    extra_links: &[Arc<dyn Link>],
    is_named: bool,
) -> Result<Option<Arc<dyn Link>>, PolicyError> {
    if let Some(link) = extra_links.iter().find(|link| link.name() == name.as_str()) {
        return Ok(Some(link.clone()));
    }
    Ok(match name {
        LinkName::Certificate => {
            let username = settings.certificate_username;
            let is_wanted = is_named || username != CertificateName::None;
            is_wanted.then(|| Arc::new(Certificate { username }) as Arc<dyn Link>)
        }
        LinkName::PasswordFile => password_file(settings)?.map(|file| Arc::new(file) as Arc<dyn Link>),
        LinkName::Users | LinkName::Jwt | LinkName::Http => None,
    })
}

fn password_file(settings: &Auth) -> Result<Option<PasswordFile>, FileError> {
    let Some(path) = &settings.password_file else { return Ok(None) };
    let missing = |error: FileError| {
        error.of_setting("auth.password_file", "`meridian passwd -c FILE USER` makes it and adds a user")
    };
    let file = PasswordFile::read(path).map_err(missing)?;
    if file.has_scram() && !file.stores_decoy_key() {
        tracing::warn!(
            file = %path.display(),
            "the salts sent for unknown users change at each start and reload, which reveals that they are unknown; \
             `meridian passwd --scram` writes a line that keeps the salts constant"
        );
    }
    let weak = file.weak_users();
    if weak > 0 {
        tracing::warn!(
            file = %path.display(),
            users = weak,
            "passwords of old mosquitto ($6$) are hashed so fast that a stolen file reveals them; set them again with `meridian passwd`"
        );
    }
    Ok(Some(file))
}

/// Names of listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerNames(pub Vec<Box<str>>);

impl Value for ListenerNames {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let text = String::from_raw(raw)?;
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        Ok(Self(names.map(Into::into).collect()))
    }

    fn to_toml(&self) -> Option<String> {
        self.0.join(",").to_toml()
    }
}
