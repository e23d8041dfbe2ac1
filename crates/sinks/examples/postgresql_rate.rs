//! Measures how many rows per second the PostgreSQL target writes:
//! `cargo run --release -p sinks --example postgresql_rate -- postgresql://USER@HOST:PORT/DATABASE [PASSWORD_FILE]`
//!
//! It writes to a table that must exist:
//! `CREATE TABLE meridian_rate (id uuid, time timestamptz, temp float8, raw jsonb)`.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rules::Value;
use settings::HostPorts;
use sinks::{ActionSettings, ConnectorKind, ConnectorSettings, Guard, Record, Sink, Target};

const USAGE: &str = "postgresql_rate postgresql://USER@HOST:PORT/DATABASE [PASSWORD_FILE]";
const ARRAYS: &str = "INSERT INTO meridian_rate (id, time, temp, raw) VALUES (${meridian_id}, \
                      to_timestamp(${timestamp}::float8 / 1000), ${payload.temp}, ${payload})";
const SECONDS: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or(USAGE)?;
    let connector = connector(&url, arguments.next().map(PathBuf::from)).ok_or(USAGE)?;
    // WITH has no form with arrays.
    let one_by_one = format!("WITH w AS (SELECT 1) {ARRAYS}");
    for (name, statement) in
        [("one statement for a batch", ARRAYS), ("one statement for each row", &one_by_one)]
    {
        let action = ActionSettings { statement: statement.to_owned(), ..ActionSettings::default() };
        let target = sinks::target(&connector, &action, Guard { allow_loopback: true, allow_private: true })?;
        let mut sink = target.open();
        println!("{}", sink.test()?);
        for batch in [1, 10, 100, 500] {
            let rate = rate(&target, &mut *sink, batch)?;
            println!("{name}, batches of {batch:>3}: {rate:>8.0} rows/s");
        }
    }
    Ok(())
}

fn connector(url: &str, password_file: Option<PathBuf>) -> Option<ConnectorSettings> {
    let (user, rest) = url.strip_prefix("postgresql://")?.split_once('@')?;
    let (address, database) = rest.split_once('/')?;
    Some(ConnectorSettings {
        kind: ConnectorKind::PostgreSql,
        address: Some(HostPorts(vec![address.parse().ok()?])),
        database: database.to_owned(),
        username: Some(user.to_owned()),
        password_file,
        ..ConnectorSettings::default()
    })
}

/// Returns the number of rows per second. Rendering counts, too.
fn rate(target: &Arc<dyn Target>, sink: &mut dyn Sink, batch: u32) -> Result<f64, Box<dyn Error>> {
    let output = Value::object([
        ("timestamp", Value::from(1_700_000_000_123_i64)),
        ("payload", Value::from(r#"{"temp": 21.5, "unit": "C", "sensor": "boiler-17"}"#)),
    ]);
    let begun = Instant::now();
    let mut rows = 0_u32;
    while begun.elapsed() < SECONDS {
        let record =
            |number| target.render(&output).map(|record| Record { id: u128::from(number), ..record });
        let records = (rows..rows + batch).map(record).collect::<Result<Vec<_>, _>>()?;
        sink.write(&records)?;
        rows += batch;
    }
    Ok(f64::from(rows) / begun.elapsed().as_secs_f64())
}
