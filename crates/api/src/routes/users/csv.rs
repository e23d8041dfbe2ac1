//! Users as comma-separated values (RFC 4180).

use super::body::UserBody;
use super::secret::Secret;

/// Reads users.
///
/// # Errors
/// The fault, with its line. No value is repeated, as it may be a password.
pub fn read(text: &str) -> Result<Vec<UserBody>, String> {
    let mut rows = rows(text)?.into_iter();
    let (_, header) = rows.next().ok_or("the first line must name the columns, including `name`")?;
    if let Some(unknown) = header.iter().find(|column| !COLUMNS.contains(&column.as_str())) {
        return Err(format!("line 1: unknown column `{unknown}`; known are {}", COLUMNS.join(", ")));
    }
    if !header.iter().any(|column| column == "name") {
        return Err("line 1: the column `name` is missing".to_owned());
    }
    rows.map(|(line, fields)| {
        if fields.len() != header.len() {
            return Err(format!("line {line}: {} values, and {} columns", fields.len(), header.len()));
        }
        user(&header, fields).map_err(|why| format!("line {line}: {why}"))
    })
    .collect()
}

fn user(header: &[String], fields: Vec<String>) -> Result<UserBody, String> {
    let mut user = UserBody { enabled: true, ..UserBody::default() };
    for (column, value) in header.iter().zip(fields) {
        let some = (!value.is_empty()).then(|| value.clone());
        match column.as_str() {
            "name" => user.name = Some(value),
            "password" => user.password = some.map(Secret::new),
            "password_hash" => user.password_hash = some.map(Secret::new),
            "superuser" => user.superuser = truth(column, &value, false)?,
            "enabled" => user.enabled = truth(column, &value, true)?,
            "tenant" => user.tenant = some,
            _ => user.description = value,
        }
    }
    Ok(user)
}

fn truth(column: &str, value: &str, default: bool) -> Result<bool, String> {
    match value {
        "" => Ok(default),
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(format!("{column}: expected true or false")),
    }
}

/// Splits the text into rows, each with the line where it begins. Empty lines are skipped.
fn rows(text: &str) -> Result<Vec<(usize, Vec<String>)>, String> {
    let mut rows = Vec::new();
    let (mut row, mut field) = (Vec::new(), String::new());
    let (mut line, mut begun, mut quoted, mut was_quoted) = (1, 1, false, false);
    let mut characters = text.strip_prefix('\u{feff}').unwrap_or(text).chars().peekable();
    while let Some(character) = characters.next() {
        if character == '\n' {
            line += 1;
        }
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                field.push('"');
            }
            '"' if quoted => quoted = false,
            _ if quoted => field.push(character),
            '"' if field.is_empty() && !was_quoted => (quoted, was_quoted) = (true, true),
            ',' => {
                row.push(std::mem::take(&mut field));
                was_quoted = false;
            }
            '\r' if characters.peek() == Some(&'\n') => {}
            '\n' => {
                if !(row.is_empty() && field.is_empty() && !was_quoted) {
                    row.push(std::mem::take(&mut field));
                    rows.push((begun, std::mem::take(&mut row)));
                }
                (begun, was_quoted) = (line, false);
            }
            _ if was_quoted => return Err(format!("line {line}: unexpected text after a closing quote")),
            _ => field.push(character),
        }
    }
    if quoted {
        return Err(format!("line {begun}: a quote is not closed"));
    }
    if !(row.is_empty() && field.is_empty() && !was_quoted) {
        row.push(field);
        rows.push((begun, row));
    }
    Ok(rows)
}

const COLUMNS: [&str; 7] =
    ["name", "password", "password_hash", "superuser", "enabled", "tenant", "description"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written() {
        let text =
            "name,password,superuser,description\r\nalice,\"a,\"\"b\"\"\nc\",true,\r\n\n\"bob\",,,x y\n";
        let users = read(text).unwrap();
        let read: Vec<_> = users
            .iter()
            .map(|user| {
                let password = user.password.as_ref().map(Secret::expose);
                (user.name.as_deref().unwrap(), password, user.superuser, user.description.as_str())
            })
            .collect();
        assert_eq!(read, [("alice", Some("a,\"b\"\nc"), true, ""), ("bob", None, false, "x y")]);
    }

    #[test]
    fn errors_name_the_line_and_not_the_value() {
        for (text, expected) in [
            ("", "must name the columns"),
            ("user\nalice", "line 1: unknown column `user`"),
            ("password\nhunter2", "`name` is missing"),
            ("name,password\na,b\nb,hunter2,c", "line 3: 3 values, and 2 columns"),
            ("name,enabled\nb,hunter2", "line 2: enabled: expected true or false"),
            ("name\n\"hunter2", "line 2: a quote is not closed"),
            ("name\n\"a\"hunter2", "line 2: unexpected text after"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
