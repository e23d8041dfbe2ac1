//! `rumqttc-interop HOST:PORT`: runs every cell with both versions and prints one JSON line for each.
//! `tests/interop/run.py` reads the lines.
//!
//! `rumqttc-interop driver PORT`: a driver, as `tests/interop/client.py` describes it.

use std::io::Write;

use anyhow::{Context, Result};
use interop::{Broker, Cell, ClientVersion};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    const USAGE: &str = "usage: rumqttc-interop HOST:PORT | driver PORT";
    let address = std::env::args().nth(1).context(USAGE)?;
    if address == "driver" {
        return interop::drive(std::env::args().nth(2).context(USAGE)?.parse()?).await;
    }
    let (host, port) = address.rsplit_once(':').context("the address has no port")?;
    let broker = Broker { host: host.to_owned(), port: port.parse()? };
    let mut output = std::io::stdout().lock();
    for version in ClientVersion::ALL {
        for cell in Cell::ALL {
            let (result, detail) = match cell.applies_to(version) {
                false => ("-", String::new()),
                true => match cell.run(&broker, version).await {
                    Ok(()) => ("pass", String::new()),
                    Err(error) => ("FAIL", format!("{error:#}")),
                },
            };
            let line = json!({
                "client": "rumqttc", "version": version.mqtt(), "cell": cell.name(), "result": result, "detail": detail,
            });
            writeln!(output, "{line}")?;
        }
    }
    Ok(())
}
