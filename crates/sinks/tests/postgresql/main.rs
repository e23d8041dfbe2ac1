//! The PostgreSQL target with a real server, and with a peer that follows no protocol.

#![cfg(feature = "postgresql")]

mod peer;
mod server;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rules::Value;
use server::{PASSWORD, Server, USER};
use settings::HostPorts;
use sinks::{
    ActionSettings, ConnectorKind, ConnectorSettings, Guard, Record, Sink, SinkProblem, Target, WriteError,
};

const OPEN: Guard = Guard { allow_loopback: true, allow_private: true };

fn connector(ports: &[u16], password_file: Option<PathBuf>) -> ConnectorSettings {
    let addresses = ports.iter().map(|port| format!("127.0.0.1:{port}").parse().expect("an address"));
    ConnectorSettings {
        kind: ConnectorKind::PostgreSql,
        address: Some(HostPorts(addresses.collect())),
        database: "postgres".to_owned(),
        username: Some(USER.to_owned()),
        password_file,
        timeout: Duration::from_secs(60),
        ..ConnectorSettings::default()
    }
}

fn of_server(server: &Server) -> ConnectorSettings {
    connector(&[server.port], Some(server.file("right", PASSWORD)))
}

fn target_of(connector: &ConnectorSettings, statement: &str) -> Result<Arc<dyn Target>, SinkProblem> {
    let action = ActionSettings { statement: statement.to_owned(), ..ActionSettings::default() };
    sinks::target(connector, &action, OPEN)
}

/// A sink with records of JSON payloads, whose ids are 1, 2, and so on.
struct Scene {
    target: Arc<dyn Target>,
    sink: Box<dyn Sink>,
}

impl Scene {
    fn new(connector: &ConnectorSettings, statement: &str) -> Self {
        let target = target_of(connector, statement).unwrap_or_else(|problem| panic!("{problem}"));
        let sink = target.open();
        Self { target, sink }
    }

    fn records(&self, payloads: &[&str]) -> Vec<Record> {
        let record = |(id, payload): (u128, &&str)| {
            let output = Value::object([("payload", Value::from(*payload))]);
            Record { id, ..self.target.render(&output).unwrap_or_else(|error| panic!("{payload}: {error}")) }
        };
        (1..).zip(payloads).map(record).collect()
    }

    fn write(&mut self, payloads: &[&str]) -> Result<(), WriteError> {
        let records = self.records(payloads);
        self.sink.write(&records)
    }
}

/// Writes records and divides them when they are refused. Returns the refused ones.
fn divide(sink: &mut dyn Sink, records: &[Record]) -> Vec<u128> {
    match (sink.write(records), records) {
        (Ok(()), _) => vec![],
        (Err(WriteError::Refused(_)), [one]) => vec![one.id],
        (Err(WriteError::Refused(_)), _) => {
            let (first, second) = records.split_at(records.len() / 2);
            let mut refused = divide(sink, first);
            refused.extend(divide(sink, second));
            refused
        }
        (Err(error), _) => panic!("{error}"),
    }
}

fn unavailable(result: Result<impl std::fmt::Debug, WriteError>) -> String {
    match result {
        Err(WriteError::Unavailable(why) | WriteError::Failed(why)) => why,
        other => panic!("not unavailable: {other:?}"),
    }
}

fn refused(result: Result<(), WriteError>) -> String {
    match result {
        Err(WriteError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

/// One record at a time and all records as a batch, by arrays and, because of DEFAULT, one by one.
#[test]
fn values_of_all_common_types_arrive_unchanged() {
    let Some(server) = Server::shared() else { return };
    let columns = [
        ("boolean", "true", "true"),
        ("smallint", "-7", "-7"),
        ("bigint", "9223372036854775807", "9223372036854775807"),
        ("real", "0.5", "0.5"),
        ("double precision", "21.25", "21.25"),
        ("numeric(10,2)", "1.005", "1.01"),
        ("text", r#""it's \"q\" \\ {a,b} $1 \n☃ 😀""#, "it's \"q\" \\ {a,b} $1 \n☃ 😀"),
        ("varchar(5)", r#""a,b""#, "a,b"),
        ("char(3)", r#""ab""#, "ab"),
        (r#""char""#, r#""x""#, "x"),
        ("bit(4)", r#""1010""#, "1010"),
        ("bytea", r#""\\x41 '☃""#, "\\x5c7834312027e29883"),
        ("date", r#""2024-02-29""#, "2024-02-29"),
        ("timestamptz", r#""2024-02-29T12:00:00.5+01:00""#, "2024-02-29 11:00:00.5+00"),
        ("interval", r#""1h 5m""#, "01:05:00"),
        ("uuid", r#""A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11""#, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("inet", r#""10.0.0.1""#, "10.0.0.1/32"),
        ("json", r#"{"a":[1,null,"\""]}"#, r#"{"a":[1,null,"\""]}"#),
        ("jsonb", r#"[1,{"b":2}]"#, r#"[1, {"b": 2}]"#),
        ("int[]", r#""{1,NULL,3}""#, "{1,NULL,3}"),
        ("text[]", r#""{\"a,b\",c}""#, "{\"a,b\",c}"),
        ("mood", r#""sad""#, "sad"),
        ("positive", "5", "5"),
    ];
    server.sql(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN positive AS int CHECK (VALUE > 0); \
         CREATE SCHEMA \"we\"\"ird\"; CREATE TYPE \"we\"\"ird\".\"My Type\" AS ENUM ('x')",
    );
    let definitions: String =
        columns.iter().enumerate().map(|(n, (of, ..))| format!("c{n} {of}, ")).collect();
    let names: String = (0..columns.len()).map(|n| format!("c{n}, ")).collect();
    let holders: String = (0..columns.len()).map(|n| format!("${{payload.c{n}?}}, ")).collect();
    let members: Vec<String> =
        columns.iter().enumerate().map(|(n, (_, value, _))| format!("\"c{n}\": {value}")).collect();
    let row = format!("{{\"odd\": \"x\", {}}}", members.join(", "));
    server.sql(&format!("CREATE TABLE kinds ({definitions} odd \"we\"\"ird\".\"My Type\", d int DEFAULT 4)"));
    let by_arrays = format!("INSERT INTO kinds ({names} odd) VALUES ({holders} ${{payload.odd?}})");
    let one_by_one =
        format!("INSERT INTO kinds ({names} odd, d) VALUES ({holders} ${{payload.odd?}}, DEFAULT)");
    let payloads = [row.as_str(), "{}", row.as_str()];
    for (statement, batch) in [(&by_arrays, 1), (&by_arrays, 3), (&one_by_one, 1), (&one_by_one, 3)] {
        server.sql("TRUNCATE kinds");
        let mut scene = Scene::new(&of_server(&server), statement);
        for part in payloads.chunks(batch) {
            scene.write(part).unwrap_or_else(|error| panic!("{statement} by {batch}: {error}"));
        }
        assert_eq!(server.sql("SELECT count(*), sum(d) FROM kinds WHERE odd = 'x'"), "2|8");
        let all_null =
            format!("SELECT count(*) FROM kinds WHERE num_nulls({names} odd) = {}", columns.len() + 1);
        assert_eq!(server.sql(&all_null), "1");
        for (n, (of, _, expected)) in columns.iter().enumerate() {
            let found = server
                .sql(&format!("SET timezone = 'UTC'; SELECT DISTINCT c{n}::text FROM kinds WHERE odd = 'x'"));
            assert_eq!(found, *expected, "{of} by {batch}");
        }
    }
}

#[test]
fn a_number_of_milliseconds_becomes_a_time_in_the_statement() {
    let Some(server) = Server::shared() else { return };
    server.sql("CREATE TABLE times (t timestamptz, v double precision)");
    let mut scene = Scene::new(
        &of_server(&server),
        "INSERT INTO times VALUES (to_timestamp(${payload.ts}::double precision / 1000), ${payload.v})",
    );
    let sentence = scene.sink.test().expect("a test");
    assert!(sentence.starts_with("PostgreSQL "), "{sentence}");
    let types =
        "the statement is valid and has parameters of the types float8, float8; a batch is one statement";
    assert!(sentence.ends_with(types), "{sentence}");
    let row = r#"{"ts": 1700000000123, "v": 1}"#;
    scene.write(&[row]).expect("one");
    scene.write(&[row, row]).expect("a batch");
    let found = server.sql("SET timezone = 'UTC'; SELECT DISTINCT t, count(*) OVER () FROM times");
    assert_eq!(found, "2023-11-14 22:13:20.123+00|3");
}

#[test]
fn a_wrong_record_is_refused_and_a_divided_batch_writes_the_others() {
    let Some(server) = Server::shared() else { return };
    server.sql("CREATE TABLE divided (v int CHECK (v < 100))");
    for statement in [
        "INSERT INTO divided VALUES (${payload.v})",
        "WITH x AS (SELECT 1) INSERT INTO divided VALUES (${payload.v})",
    ] {
        server.sql("TRUNCATE divided");
        let mut scene = Scene::new(&of_server(&server), statement);
        let payloads = [
            r#"{"v":1}"#,
            r#"{"v":2}"#,
            r#"{"v":"two"}"#,
            r#"{"v":4}"#,
            r#"{"v":500}"#,
            "{\"v\":\"\\u0000\"}",
            r#"{"v":7}"#,
        ];
        refused(scene.write(&payloads));
        let why = refused(scene.write(&payloads[..4]));
        assert!(why.contains("invalid input syntax for type integer: \"two\" (SQLSTATE 22P02)"), "{why}");
        assert_eq!(server.sql("SELECT count(*) FROM divided"), "0", "a batch is all or nothing");
        let records = scene.records(&payloads);
        assert_eq!(divide(&mut *scene.sink, &records), [3, 5, 6]);
        assert_eq!(server.sql("SELECT string_agg(v::text, ',' ORDER BY v) FROM divided"), "1,2,4,7");
    }
}

#[test]
fn a_batch_that_is_written_twice_has_each_row_once_with_a_unique_key() {
    let Some(server) = Server::shared() else { return };
    server.sql("CREATE TABLE once (id uuid PRIMARY KEY, v int)");
    let mut scene = Scene::new(
        &of_server(&server),
        "INSERT INTO once VALUES (${meridian_id}, ${payload.v}) ON CONFLICT DO NOTHING",
    );
    let payloads = [r#"{"v":1}"#, r#"{"v":2}"#];
    scene.write(&payloads).expect("the first time");
    scene.write(&payloads).expect("the second time");
    scene.write(&payloads[..1]).expect("one record");
    let first = "00000000-0000-0000-0000-000000000001|1\n";
    assert_eq!(
        server.sql("SELECT * FROM once ORDER BY v"),
        format!("{first}00000000-0000-0000-0000-000000000002|2")
    );
}

#[test]
fn a_procedure_that_commits_gets_each_record_alone() {
    let Some(server) = Server::shared() else { return };
    server.sql("CREATE TABLE called (v int)");
    server.sql(
        "CREATE PROCEDURE call_it(v int) LANGUAGE plpgsql AS \
         $$BEGIN INSERT INTO called VALUES (v); COMMIT; END$$",
    );
    let mut scene = Scene::new(&of_server(&server), "CALL call_it(${payload.v}::int)");
    let payloads = [r#"{"v":1}"#, r#"{"v":2}"#, r#"{"v":3}"#];
    let records = scene.records(&payloads);
    assert_eq!(divide(&mut *scene.sink, &records), [0; 0]);
    assert_eq!(server.sql("SELECT string_agg(v::text, ',' ORDER BY v) FROM called"), "1,2,3");
}

#[test]
fn errors_that_a_record_may_cause_are_told_from_an_outage() {
    let Some(server) = Server::shared() else { return };
    server.sql(
        "CREATE FUNCTION fail_or_sleep(v int) RETURNS int LANGUAGE plpgsql AS \
         $$BEGIN IF v = 2 THEN RAISE 'broken' USING ERRCODE = 'XX000'; END IF; PERFORM pg_sleep(v); RETURN v; END$$",
    );
    let settings = ConnectorSettings { timeout: Duration::from_secs(2), ..of_server(&server) };
    let mut scene = Scene::new(&settings, "SELECT fail_or_sleep(${payload.v}::int)");
    for (payload, says) in [(r#"{"v":2}"#, "(SQLSTATE XX000)"), (r#"{"v":60}"#, "")] {
        let result = scene.write(&[payload]);
        assert!(matches!(&result, Err(WriteError::Failed(why)) if why.contains(says)), "{result:?}");
    }
    let gone = Scene::new(&connector(&[1], None), "SELECT ${payload.v}::int").sink.test();
    assert!(matches!(&gone, Err(WriteError::Unavailable(_))), "{gone:?}");
}

#[test]
fn the_last_value_of_a_repeated_key_stays() {
    let Some(server) = Server::shared() else { return };
    server.sql("CREATE TABLE latest (k text PRIMARY KEY, v int)");
    let mut scene = Scene::new(
        &of_server(&server),
        "INSERT INTO latest VALUES (${payload.k}, ${payload.v}) ON CONFLICT (k) DO UPDATE SET v = excluded.v",
    );
    let payloads = [r#"{"k":"a","v":1}"#, r#"{"k":"b","v":2}"#, r#"{"k":"a","v":3}"#];
    scene.write(&payloads).expect("a batch");
    scene.write(&payloads[..2]).expect("a batch without repeated keys");
    assert_eq!(server.sql("SELECT k, v FROM latest ORDER BY k"), "a|1\nb|2");
    scene.write(&payloads).expect("a batch");
    assert_eq!(server.sql("SELECT k, v FROM latest ORDER BY k"), "a|3\nb|2");
}

#[test]
fn what_an_operator_can_mend_loses_nothing() {
    let Some(server) = Server::shared() else { return };
    let mut scene = Scene::new(&of_server(&server), "INSERT INTO missing VALUES (${payload.v})");
    let why = unavailable(scene.write(&[r#"{"v":1}"#]));
    assert!(why.contains(r#"relation "missing" does not exist (SQLSTATE 42P01); create the table"#), "{why}");
    unavailable(scene.sink.test());
    server.sql("CREATE TABLE missing (v int)");
    scene.write(&[r#"{"v":1}"#]).expect("after the table was created");
    // The type of the prepared parameter is wrong now.
    server.sql("ALTER TABLE missing ALTER v TYPE text");
    scene.write(&[r#"{"v":"two"}"#]).expect("after the column was changed");
    server.sql("DROP TABLE missing; CREATE TABLE missing (v text)");
    scene.write(&[r#"{"v":"a"}"#, r#"{"v":"b"}"#]).expect("after the table was created again");
    assert_eq!(server.sql("SELECT count(*) FROM missing"), "2");

    let wrong = ConnectorSettings { database: "nowhere".to_owned(), ..of_server(&server) };
    let why = unavailable(Scene::new(&wrong, "SELECT ${payload.v}::text").sink.test());
    assert!(why.contains("3D000") && why.contains("correct `database`"), "{why}");
    let password = server.file("wrong", "wrong");
    let wrong = ConnectorSettings { password_file: Some(password.clone()), ..of_server(&server) };
    let mut scene = Scene::new(&wrong, "INSERT INTO missing VALUES (${payload.v})");
    let why = unavailable(scene.write(&[r#"{"v":1}"#]));
    assert!(why.contains("28P01") && why.contains("password_file"), "{why}");
    std::fs::write(password, PASSWORD).expect("a password file");
    scene.write(&[r#"{"v":1}"#]).expect("with the changed password");
}

#[test]
fn tls_is_verified() {
    let Some(server) = Server::shared() else { return };
    server.sql("CREATE TABLE secure (v bool)");
    let with = |ca| ConnectorSettings { tls: true, tls_ca: ca, ..of_server(&server) };
    let statement =
        "INSERT INTO secure SELECT ssl AND ${payload.v} FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let mut scene = Scene::new(&with(Some(server.authority())), statement);
    scene.write(&[r#"{"v":true}"#]).expect("a row");
    assert_eq!(server.sql("SELECT v FROM secure"), "t");

    let mut other = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    other.distinguished_name.push(rcgen::DnType::CommonName, "another authority");
    let other = other.self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("a certificate");
    let path = server.file("other.pem", &other.pem());
    let why = unavailable(Scene::new(&with(Some(path)), statement).sink.test());
    assert!(why.contains("authority") && why.contains("set tls_ca to the file"), "{why}");
}

#[test]
fn a_server_that_stops_or_crashes_delays_records() {
    let Some(server) = Server::start() else { return };
    server.sql("CREATE TABLE kept (v int)");
    let settings = ConnectorSettings { timeout: Duration::from_secs(2), ..of_server(&server) };
    let mut scene = Scene::new(&settings, "INSERT INTO kept VALUES (${payload.v})");
    let payloads = [r#"{"v":1}"#, r#"{"v":2}"#];
    let write = |sink: &mut Scene| {
        // The machine of the test can be slow.
        let result = (0..30).map(|_| sink.write(&payloads)).find(Result::is_ok);
        assert_eq!(result, Some(Ok(())));
    };
    write(&mut scene);
    let stopped = server.connections();
    assert!(!stopped.is_empty());
    server.signal_connections("STOP", &stopped);
    let why = unavailable(scene.write(&payloads));
    assert!(why.contains("did not answer within 2s"), "{why}");
    write(&mut scene);
    server.signal_connections("CONT", &stopped);
    server.crash_and_restart();
    write(&mut scene);
    let count: u32 = server.sql("SELECT count(*) FROM kept").parse().expect("a number");
    assert!(count >= 6 && count.is_multiple_of(2), "{count}");
}

#[test]
fn a_connection_that_the_server_closed_is_replaced_before_the_next_write() {
    let Some(server) = Server::shared() else { return };
    server.sql("CREATE TABLE idle_for_long (v int)");
    let mut scene = Scene::new(&of_server(&server), "INSERT INTO idle_for_long VALUES (${payload.v})");
    for _ in 0..2 {
        scene.write(&[r#"{"v":1}"#]).expect("a row");
        let ended = server.sql(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity \
             WHERE application_name = 'meridian' AND query LIKE '%idle_for_long%'",
        );
        assert_eq!(ended, "t");
    }
    scene.write(&[r#"{"v":1}"#, r#"{"v":1}"#]).expect("a batch");
    assert_eq!(server.sql("SELECT count(*) FROM idle_for_long"), "4");
}

#[test]
fn the_first_address_that_answers_is_used() {
    let Some(server) = Server::shared() else { return };
    server.sql("CREATE TABLE several (v int)");
    let closed =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("a port").port();
    let password = server.file("several", PASSWORD);
    let mut scene = Scene::new(
        &connector(&[closed, server.port], Some(password)),
        "INSERT INTO several VALUES (${payload.v})",
    );
    scene.write(&[r#"{"v":1}"#]).expect("a row");
    assert_eq!(server.sql("SELECT count(*) FROM several"), "1");
}
