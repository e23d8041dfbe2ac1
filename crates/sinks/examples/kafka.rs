//! Writes numbered records to a server of Kafka and prints how long it took. `tests/kafka/run.sh` starts a server.
//!
//! Arguments: address, topic, number of records, bytes of each, and optionally a SASL mechanism, a user and a file with
//! the password.

use std::time::Instant;

use settings::{HostPorts, Raw, Value as _};
use sinks::{ActionSettings, ConnectorKind, ConnectorSettings, Guard, Record, Sasl, target};

const BATCH: usize = 500;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, topic, count, bytes, login @ ..] = &arguments[..] else {
        return Err("arguments: ADDRESS TOPIC RECORDS BYTES [MECHANISM USER PASSWORD_FILE]".into());
    };
    let (count, bytes): (usize, usize) = (count.parse()?, bytes.parse()?);
    let addresses = HostPorts::from_raw(&Raw::Text(address.clone())).map_err(|why| why.to_string())?;
    let mut connector =
        ConnectorSettings { kind: ConnectorKind::Kafka, address: Some(addresses), ..Default::default() };
    if let [mechanism, user, file] = login {
        connector.sasl = Sasl::from_raw(&Raw::Text(mechanism.clone())).map_err(|why| why.to_string())?;
        connector.username = Some(user.clone());
        connector.password_file = Some(file.into());
    }
    let action = ActionSettings { name: "try".to_owned(), topic: topic.clone(), ..Default::default() };
    let mut sink = target(&connector, &action, Guard { allow_loopback: true, allow_private: true })?.open();
    let record = |number: usize| {
        let field = |text: String| Some(text.into_bytes().into_boxed_slice());
        let fields = vec![
            field(topic.clone()),
            field(format!("key {}", number % 1000)),
            field(format!("{number:0bytes$}")),
        ];
        Record { fields, id: number as u128 + 1 }
    };
    let mut retries = 0;
    let (began, mut longest) = (Instant::now(), 0.0_f64);
    for first in (0..count).step_by(BATCH) {
        let batch: Vec<Record> = (first..count.min(first + BATCH)).map(record).collect();
        let start = Instant::now();
        while let Err(error) = sink.write(&batch) {
            retries += 1;
            if retries == 1 || retries % 10 == 0 {
                println!("attempt {retries} failed: {error}");
            }
            // tidy: allow(thread-sleep): the pause of an action before it tries again; there is nothing to wait for
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        longest = longest.max(start.elapsed().as_secs_f64());
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{count} records of {bytes} bytes in {seconds:.2} s: {:.0} records/s, longest batch {:.1} ms, {retries} retries",
        count as f64 / seconds,
        longest * 1e3
    );
    match sink.test() {
        Ok(found) => println!("test: {found}"),
        Err(error) => println!("test failed: {error}"),
    }
    Ok(())
}
