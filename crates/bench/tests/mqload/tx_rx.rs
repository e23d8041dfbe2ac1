//! `bench tx-rx`: one publisher, one subscriber, by size and QoS.

use crate::broker::{Behaviour, Broker, Fault};
use crate::mqload;
use serde_json::json;

#[test]
fn every_size_and_qos_is_a_row() {
    let broker = Broker::start(Behaviour::default());
    let run = mqload(&format!("bench tx-rx -h {} -s 100,2KiB -L 200 --json", broker.address));
    let rows = run.at("/rows").as_array().unwrap();
    let found: Vec<(u64, u64)> =
        rows.iter().map(|row| (row["size"].as_u64().unwrap(), row["qos"].as_u64().unwrap())).collect();
    assert_eq!(found, [(100, 0), (100, 1), (100, 2), (2048, 0), (2048, 1), (2048, 2)]);
    for row in rows {
        let here = &row["here"];
        assert_eq!((&here["received"], &here["lost"]), (&json!(200.0), &json!(0.0)), "{row}");
        let (rate, mbit) = (here["msgs_per_s"].as_f64().unwrap(), here["mbit_per_s"].as_f64().unwrap());
        let expected = rate * row["size"].as_f64().unwrap() * 8.0 / 1e6;
        assert!(rate > 0.0 && (mbit - expected).abs() <= 0.01 + expected / 1000.0, "{row}");
        assert!(here["latency_us"]["min"].as_f64() <= here["latency_us"]["max"].as_f64(), "{row}");
    }
    assert_eq!(run.code, 0);
}

#[test]
fn two_brokers_are_measured_in_turn() {
    let (here, there) = (Broker::start(Behaviour::default()), Broker::start(Behaviour::default()));
    let run = mqload(&format!(
        "bench tx-rx -h {} --against {} -s 100 -q 1 -L 100 --rounds 2 --json",
        here.address, there.address
    ));
    assert_eq!((run.at("/rows/0/against/received"), run.code), (&json!(100.0), 0), "{}", run.json);
    assert!(run.at("/rows/0/difference_percent/msgs_per_s").is_number(), "{}", run.json);
}

#[test]
fn lost_messages_are_reported() {
    let broker = Broker::start(Behaviour { fault: Fault::Drop, ..Behaviour::default() });
    let run = mqload(&format!("bench tx-rx -h {} -s 100 -q 1 -L 200 --json", broker.address));
    assert_eq!((run.at("/rows/0/here/lost"), run.code), (&json!(4.0), 1), "{}", run.json);
    assert!(run.at("/problems/0").as_str().unwrap().contains("4 acknowledged messages lost"), "{}", run.json);
}

#[test]
fn two_hosts_without_a_cluster_are_noticed() {
    let (here, there) = (Broker::start(Behaviour::default()), Broker::start(Behaviour::default()));
    let run = mqload(&format!("bench tx-rx -h {},{} -s 100 -q 0 -L 20 --json", here.address, there.address));
    assert!(run.at("/problems/0").as_str().unwrap().contains("nodes of one cluster"), "{}", run.json);
    assert_eq!(run.code, 1);
}

#[test]
fn a_refused_connection_is_reported() {
    let nobody = crate::nobody();
    let run = mqload(&format!("bench tx-rx -h {nobody} --json"));
    assert!(run.at("/problems/0").as_str().unwrap().contains("ECONNREFUSED"), "{}", run.json);
    assert_eq!(run.code, 2);
}
