//! Settings `auth.sources` and `auth.no_match`.

use std::fmt;

use settings::{Invalid, Raw, Value, choices};

/// Source of authorisation, as `auth.sources` and metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceName {
    Rules,
    Database,
    AclFile,
    Http,
}

impl SourceName {
    /// Order of the sources when `auth.sources` is unset: the cheapest first.
    pub const ALL: [Self; 4] = [Self::Rules, Self::Database, Self::AclFile, Self::Http];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rules => "rules",
            Self::Database => "database",
            Self::AclFile => "acl_file",
            Self::Http => "http",
        }
    }
}

/// Sources to ask, in order, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceNames(pub Vec<SourceName>);

impl fmt::Display for SourceNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|name| name.as_str()).collect();
        f.write_str(&names.join(", "))
    }
}

impl Value for SourceNames {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let mut names = Vec::new();
        for word in String::from_raw(raw)?.split(',').map(str::trim) {
            let known = SourceName::ALL.into_iter().find(|name| name.as_str() == word);
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

const EXPECTED: &str = "names separated by commas, each once: rules, database, acl_file, http";

choices! {
    /// Decision when no source has an opinion.
    pub enum NoMatch {
        /// Access is refused.
        Deny = "deny",
        /// Access is allowed, except to read `$SYS`.
        Allow = "allow",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_named_once_and_in_order() {
        let read = |text: &str| SourceNames::from_raw(&Raw::Text(text.to_owned()));
        let names = read("http,  rules").unwrap();
        assert_eq!(names.0, [SourceName::Http, SourceName::Rules]);
        assert_eq!(read(&names.to_string()).unwrap(), names);
        for wrong in ["", "rules,", "rules, rules", "file"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
