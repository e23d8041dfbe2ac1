//! Setting `auth.chain`.

use std::fmt;

use settings::{Invalid, Raw, Value};

/// Way to authenticate, as `auth.chain` and metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkName {
    Certificate,
    Users,
    PasswordFile,
    Jwt,
    Http,
}

impl LinkName {
    /// Order of the links when `auth.chain` is unset: the cheapest first.
    pub const ALL: [Self; 5] = [Self::Certificate, Self::Users, Self::PasswordFile, Self::Jwt, Self::Http];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Users => "users",
            Self::PasswordFile => "password_file",
            Self::Jwt => "jwt",
            Self::Http => "http",
        }
    }

    /// Returns what to do for a link that `auth.chain` names and that is not configured.
    pub fn how_to_configure(self) -> &'static str {
        match self {
            Self::Certificate => "it needs no configuration",
            Self::Users => "the node needs its table of users",
            Self::PasswordFile => "set `auth.password_file`",
            Self::Jwt => "set a key or a JWKS address for tokens",
            Self::Http => "set the address of the HTTP service",
        }
    }
}

/// Links to ask, in order, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainNames(pub Vec<LinkName>);

impl fmt::Display for ChainNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|name| name.as_str()).collect();
        f.write_str(&names.join(", "))
    }
}

impl Value for ChainNames {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let mut names = Vec::new();
        for word in String::from_raw(raw)?.split(',').map(str::trim) {
            let known = LinkName::ALL.into_iter().find(|name| name.as_str() == word);
            match known {
                Some(name) if !names.contains(&name) => names.push(name),
                _ => return Err(raw.expected(EXPECTED)),
            }
        }
        Ok(Self(names))
    }

    fn to_toml(&self) -> Option<String> {
        self.to_string().to_toml()
    }
}

const EXPECTED: &str = "names separated by commas, each once: certificate, users, password_file, jwt, http";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_order_when_read_and_written() {
        let read = |text: &str| ChainNames::from_raw(&Raw::Text(text.to_owned()));
        let names = read("http,password_file ,  certificate").unwrap();
        assert_eq!(names.0, [LinkName::Http, LinkName::PasswordFile, LinkName::Certificate]);
        assert_eq!(names.to_toml().as_deref(), Some("\"http, password_file, certificate\""));
        for wrong in ["", "htp", "http,", "http,jwt,http"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains("certificate, users, password_file, jwt, http"), "{error}");
        }
    }
}
