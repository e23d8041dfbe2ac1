//! PostgreSQL: a statement for each record, with placeholders as parameters.
//!
//! Start with [`Plan`]. [`statement`] makes numbered parameters of placeholders and, of an INSERT of one row, a
//! statement with an array for each parameter, so that a batch is one statement. [`sink`] writes records, each call all
//! or nothing.
//!
//! **Invariant:** no value of a record becomes a part of the text of a statement.

mod connection;
mod failure;
mod limited;
mod secure;
mod sink;
mod statement;
mod tokens;
mod values;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rules::{Limits, RenderError, Template, Value};
use rustls::ClientConfig;
use settings::HostPort;
use tls::OptionStyle;

use self::sink::PostgreSqlSink;
use self::statement::Statement;
use self::values::Filling;
use crate::{ActionSettings, ConnectorSettings, Guard, Record, Sink, SinkProblem, Target};

/// Creates the target of an action.
///
/// # Errors
/// The first setting that is wrong.
pub fn target(
    connector: &ConnectorSettings,
    action: &ActionSettings,
    guard: Guard,
) -> Result<Arc<dyn Target>, SinkProblem> {
    let addresses = connector.address.as_ref().map(|addresses| addresses.0.clone()).unwrap_or_default();
    if addresses.is_empty() {
        return Err(SinkProblem::new("address", "it is empty; write HOST:PORT, such as db.example.com:5432"));
    }
    if connector.database.is_empty() {
        return Err(SinkProblem::new("database", "it is empty; write the name of the database"));
    }
    let username = connector.username.clone().filter(|name| !name.is_empty());
    let username = username.ok_or_else(|| {
        SinkProblem::new("username", "it is empty; write the name of a role of the database")
    })?;
    for (setting, text) in [("database", &connector.database), ("username", &username)] {
        if text.contains('\0') {
            return Err(SinkProblem::new(setting, "it has a NUL character; remove it"));
        }
    }
    let statement =
        Statement::parse(&action.statement).map_err(|error| SinkProblem::new("statement", error))?;
    let limits = Limits::default();
    let sources = statement.placeholders.iter().map(|text| Source::parse(text, &limits));
    let sources: Box<[Source]> =
        sources.collect::<Result<_, _>>().map_err(|error| SinkProblem::new("statement", error))?;
    let plan = Plan {
        addresses,
        database: connector.database.clone(),
        username,
        password_file: connector.password_file.clone(),
        tls: client_config(connector)?,
        timeout: connector.timeout,
        response_max: usize::try_from(connector.response_max.0).unwrap_or(usize::MAX).max(RESPONSE_MIN),
        guard,
        statement,
        fillings: sources.iter().map(Source::filling).collect(),
    };
    plan.password().map_err(|error| SinkProblem::new("password_file", error))?;
    Ok(Arc::new(PostgreSql { plan: Arc::new(plan), sources, limits }))
}

/// Target for rows of a database.
struct PostgreSql {
    plan: Arc<Plan>,
    /// Sources of the parameters.
    sources: Box<[Source]>,
    limits: Limits,
}

/// All that a sink must know.
struct Plan {
    addresses: Vec<HostPort>,
    database: String,
    username: String,
    password_file: Option<PathBuf>,
    tls: Option<Arc<ClientConfig>>,
    /// Maximum time of a call.
    timeout: Duration,
    /// Number of bytes that the server may answer, without what depends on the records.
    response_max: usize,
    guard: Guard,
    statement: Statement,
    /// Fillings of the parameters.
    fillings: Box<[Filling]>,
}

/// Source of the value of a parameter.
enum Source {
    RecordId,
    Path {
        /// The placeholder alone, and not optional, so that a missing value is an error.
        template: Template,
        is_optional: bool,
    },
}

impl Source {
    /// Parses the text between the braces of a placeholder.
    fn parse(text: &str, limits: &Limits) -> Result<Self, rules::TemplateError> {
        let (path, is_optional) = text.strip_suffix('?').map_or((text, false), |path| (path, true));
        if path == RECORD_ID {
            return Ok(Self::RecordId);
        }
        let template = Template::parse(&format!("${{{path}}}"), limits)?;
        Ok(Self::Path { template, is_optional })
    }

    fn filling(&self) -> Filling {
        match self {
            Self::RecordId => Filling::RecordId,
            Self::Path { .. } => Filling::Field,
        }
    }

    fn render(&self, output: &Value, limits: &Limits) -> Result<Option<Box<[u8]>>, RenderError> {
        let Self::Path { template, is_optional } = self else { return Ok(None) };
        match template.render(output, limits) {
            Ok(value) => Ok(Some(value.into())),
            Err(RenderError::Missing { .. }) if *is_optional => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Target for PostgreSql {
    fn render(&self, output: &Value) -> Result<Record, RenderError> {
        let fields = self.sources.iter().map(|source| source.render(output, &self.limits));
        Ok(Record { fields: fields.collect::<Result<_, _>>()?, id: 0 })
    }

    fn field_names(&self) -> Vec<String> {
        let name = |source: &Source| match source {
            Source::RecordId => format!("${{{RECORD_ID}}}"),
            Source::Path { template, .. } => template.to_string(),
        };
        self.sources.iter().map(name).collect()
    }

    fn open(&self) -> Box<dyn Sink> {
        Box::new(PostgreSqlSink::new(self.plan.clone()))
    }
}

impl Plan {
    /// Reads the password, which may have changed. Only the first line counts.
    fn password(&self) -> Result<Option<Vec<u8>>, String> {
        self.password_file.as_deref().map(settings::secret_line).transpose()
    }
}

fn client_config(connector: &ConnectorSettings) -> Result<Option<Arc<ClientConfig>>, SinkProblem> {
    let has_files = connector.tls_ca.is_some() || connector.tls_certificate.is_some();
    if !connector.tls {
        return match has_files {
            true => Err(SinkProblem::new("tls", "there are files of TLS and it is off; set tls = true")),
            false => Ok(None),
        };
    }
    match (&connector.tls_certificate, &connector.tls_key) {
        (Some(_), None) => Err(SinkProblem::new("tls_key", "tls_certificate needs it")),
        (None, Some(_)) => Err(SinkProblem::new("tls_certificate", "tls_key needs it")),
        (Some(_), Some(_)) | (None, None) => connector.client_tls(OptionStyle::Connector).map(Some),
    }
}

/// Placeholder of the id of the record, for a column with a unique key.
const RECORD_ID: &str = "meridian_id";

/// Least number of bytes that a server may answer: a login alone takes about 1 KiB.
const RESPONSE_MIN: usize = 16 * 1024;
