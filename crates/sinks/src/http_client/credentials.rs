//! Credentials of HTTP requests, which are read from files.

use std::path::Path;

use base64ct::{Base64, Encoding as _};
use ureq::http::HeaderValue;

use crate::SinkProblem;
use crate::connector::ConnectorSettings;

/// Checks the combination of settings, without their files.
///
/// # Errors
/// The setting that is wrong.
pub fn check(connector: &ConnectorSettings) -> Result<(), SinkProblem> {
    let has_token = connector.token_file.is_some();
    match (&connector.username, &connector.password_file) {
        (Some(_), _) | (_, Some(_)) if has_token => {
            Err(SinkProblem::new("token_file", "use either token_file, or username and password_file"))
        }
        (Some(_), None) => {
            Err(SinkProblem::new("password_file", "is missing: write the name of the file with the password"))
        }
        (None, Some(_)) => {
            Err(SinkProblem::new("username", "is missing: write the user name that belongs to password_file"))
        }
        (Some(name), Some(_)) if name.contains(':') || name.chars().any(char::is_control) => {
            Err(SinkProblem::new("username", "has a colon or a control character, which HTTP cannot express"))
        }
        _ => Ok(()),
    }
}

/// Reads the files. Returns the value of the header `Authorization`. `scheme` is that of a token.
///
/// # Errors
/// A file is unreadable or unfit.
pub fn authorization(
    connector: &ConnectorSettings,
    scheme: &str,
) -> Result<Option<HeaderValue>, SinkProblem> {
    let (setting, text) = match (&connector.token_file, &connector.username, &connector.password_file) {
        (Some(path), ..) => {
            let token = first_line(path).map_err(|why| SinkProblem::new("token_file", why))?;
            ("token_file", format!("{scheme} {token}"))
        }
        (None, Some(name), Some(path)) => {
            let password = first_line(path).map_err(|why| SinkProblem::new("password_file", why))?;
            let both = format!("{name}:{password}");
            ("password_file", format!("Basic {}", Base64::encode_string(both.as_bytes())))
        }
        _ => return Ok(None),
    };
    let mut value = HeaderValue::from_str(&text)
        .map_err(|_| SinkProblem::new(setting, "the first line of the file has control characters"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Reads the first line of a file, without blanks around it.
///
/// # Errors
/// A sentence that names the file and not its content.
pub fn first_line(path: &Path) -> Result<String, String> {
    let text = settings::secret_text(path)?;
    match text.trim() {
        "" => Err(format!("{}: the first line is empty", path.display())),
        line => Ok(line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_complete_and_of_one_kind() {
        let file = || Some("/f".into());
        for (name, password, token, wrong) in [
            (None, None, None, None),
            (None, None, file(), None),
            (Some("u"), file(), None, None),
            (Some("u"), file(), file(), Some("token_file")),
            (Some("u"), None, None, Some("password_file")),
            (None, file(), None, Some("username")),
            (Some("a:b"), file(), None, Some("username")),
        ] {
            let connector = ConnectorSettings {
                username: name.map(str::to_owned),
                password_file: password,
                token_file: token,
                ..ConnectorSettings::default()
            };
            assert_eq!(check(&connector).err().map(|problem| problem.setting), wrong, "{connector:?}");
        }
    }
}
