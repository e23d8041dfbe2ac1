//! Mountpoint of a client: the prefix of its topics, built from its names.

use std::fmt;

use access::{Credentials, Principal};
use settings::{Invalid, Raw, Value};

/// Text with placeholders for the names of a client. Checked when it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Username,
    ClientId,
    CertificateName,
    Listener,
    Attribute(Box<str>),
}

/// Reason why a mountpoint is invalid, so that the client cannot connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountpointError {
    /// The placeholder without a value, as the template writes it.
    Empty(String),
    /// The value could match topics of others.
    Unfit { part: String, value: String },
}

impl fmt::Display for MountpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(part) => write!(f, "its {part} is empty, and `auth.mountpoint` needs it"),
            Self::Unfit { part, value } => write!(
                f,
                "its {part} is {value:?}, which could match topics of others: no level of a mountpoint may be empty, contain `+`, `#` or NUL, \
                 or begin with `$`, and no value may contain `/`"
            ),
        }
    }
}

impl Template {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("${") {
            let (name, after) = behind.split_once('}').ok_or("a `${` has no `}`")?;
            parts.push(Part::Text(before.into()));
            parts.push(match name {
                "username" => Part::Username,
                "clientid" => Part::ClientId,
                "cert_cn" => Part::CertificateName,
                "listener" => Part::Listener,
                _ => match name.strip_prefix("attribute.") {
                    Some(attribute) if !attribute.is_empty() => Part::Attribute(attribute.into()),
                    _ => return Err("a placeholder is unknown"),
                },
            });
            rest = after;
        }
        parts.push(Part::Text(rest.into()));
        parts.retain(|part| *part != Part::Text("".into()));
        if text.contains(['+', '#', '\0']) || text.replace("${", "").contains('$') {
            return Err("`+`, `#`, NUL and `$` are not allowed");
        }
        let levels = text.strip_suffix('/').ok_or("it does not end with `/`")?;
        if levels.split('/').any(str::is_empty) {
            return Err("a level is empty");
        }
        Ok(Self { text: text.into(), parts })
    }

    /// Returns the mountpoint of this client.
    ///
    /// # Errors
    /// The value that is invalid.
    pub fn fill(
        &self,
        credentials: &Credentials<'_>,
        principal: Option<&Principal>,
    ) -> Result<Box<str>, MountpointError> {
        let mut out = String::new();
        for part in &self.parts {
            let value = match part {
                Part::Text(text) => {
                    out.push_str(text);
                    continue;
                }
                Part::Username => credentials.username,
                Part::ClientId => Some(credentials.client_id),
                Part::CertificateName => {
                    credentials.certificate.and_then(|certificate| certificate.common_name.as_deref())
                }
                Part::Listener => Some(credentials.listener),
                Part::Attribute(name) => principal.and_then(|principal| {
                    let attribute = principal.attributes.iter().find(|(key, _)| key == name);
                    attribute.map(|(_, value)| &**value)
                }),
            };
            let value = value.unwrap_or_default();
            if value.is_empty() {
                return Err(MountpointError::Empty(part.to_string()));
            }
            if value.contains('/') || !is_level(value) {
                return Err(MountpointError::Unfit { part: part.to_string(), value: value.to_owned() });
            }
            out.push_str(value);
        }
        Ok(out.into())
    }
}

/// Returns the mountpoint of a user or a token, with a `/` at its end.
///
/// # Errors
/// The mountpoint is invalid.
pub fn check(mountpoint: &str) -> Result<Box<str>, MountpointError> {
    let levels = mountpoint.strip_suffix('/').unwrap_or(mountpoint);
    if !levels.split('/').all(is_level) {
        return Err(MountpointError::Unfit { part: "mountpoint".to_owned(), value: mountpoint.to_owned() });
    }
    Ok(format!("{levels}/").into())
}

fn is_level(level: &str) -> bool {
    !level.is_empty() && !level.contains(['+', '#', '\0']) && !level.starts_with('$')
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Username => f.write_str("${username}"),
            Self::ClientId => f.write_str("${clientid}"),
            Self::CertificateName => f.write_str("${cert_cn}"),
            Self::Listener => f.write_str("${listener}"),
            Self::Attribute(name) => write!(f, "${{attribute.{name}}}"),
        }
    }
}

impl Value for Template {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let text = String::from_raw(raw)?;
        Self::parse(&text).map_err(|why| raw.expected(format!("{EXPECTED} ({why})")))
    }

    fn to_toml(&self) -> Option<String> {
        self.text.to_string().to_toml()
    }
}

const EXPECTED: &str = "levels of a topic that end with `/`, with ${username}, ${clientid}, ${cert_cn}, ${listener} or \
                        ${attribute.NAME} in them";

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(template: &str, username: &str, attributes: &[(&str, &str)]) -> Result<String, MountpointError> {
        let credentials = Credentials {
            client_id: "c1",
            username: Some(username),
            listener: "tls",
            ..Credentials::default()
        };
        let attributes = attributes.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let principal = Principal { attributes, ..Principal::default() };
        Template::parse(template).unwrap().fill(&credentials, Some(&principal)).map(Into::into)
    }

    #[test]
    fn placeholders_are_replaced() {
        assert_eq!(fill("t/${username}/", "alice", &[]).unwrap(), "t/alice/");
        assert_eq!(
            fill("${listener}/x-${clientid}/${attribute.org}/", "a", &[("org", "acme")]).unwrap(),
            "tls/x-c1/acme/"
        );
        assert_eq!(fill("fixed/", "", &[]).unwrap(), "fixed/");
    }

    #[test]
    fn values_that_could_match_topics_of_others_are_refused() {
        for name in ["", "+", "#", "a+", "a\0", "$SYS", "victim/x", "/"] {
            assert!(fill("t/${username}/", name, &[]).is_err(), "{name:?}");
        }
        assert_eq!(
            fill("t/${attribute.org}/", "a", &[]),
            Err(MountpointError::Empty("${attribute.org}".into()))
        );
        assert!(fill("${cert_cn}/", "a", &[]).is_err());
    }

    #[test]
    fn templates_are_checked_when_they_are_read() {
        for wrong in
            ["", "t", "/", "/t/", "t//u/", "t/${user}/", "t/${username/", "t/#/", "$SYS/", "t/${attribute.}/"]
        {
            let error = Template::from_raw(&Raw::Text(wrong.to_owned())).unwrap_err().to_string();
            assert!(error.contains("${attribute.NAME}"), "{wrong}: {error}");
        }
        let template = Template::from_raw(&Raw::Text("t/${username}/".into())).unwrap();
        assert_eq!(template.to_toml().as_deref(), Some("\"t/${username}/\""));
    }

    #[test]
    fn the_mountpoint_of_a_user_is_checked_too() {
        assert_eq!(&*check("acme/works").unwrap(), "acme/works/");
        assert_eq!(&*check("acme/").unwrap(), "acme/");
        for wrong in ["", "/", "a//b", "a/+/", "#", "$share/x", "a/$x"] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }
}
