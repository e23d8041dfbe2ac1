#!/bin/sh
# Tries the Kafka target with a real Apache Kafka: writes records with each kind of login, kills the server with SIGKILL
# while records are written, starts it again, and prints the number of records that it has. The last line must be
# "records: 1503000". It needs Java 17, Maven and awk. Argument: an empty directory for the server.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?a directory for the server}"
cd "$here/../.." && cargo build --release -p sinks --example kafka
try="$PWD/target/release/examples/kafka"
cd "$1"
cp "$here/pom.xml" "$here/server.properties" .
mvn -B -q dependency:copy-dependencies -DoutputDirectory=libs
kafka() { java -Xmx512m -cp 'libs/*' "$@"; }
kafka kafka.tools.StorageTool format -t "$(kafka kafka.tools.StorageTool random-uuid)" -c server.properties \
    --add-scram 'SCRAM-SHA-256=[name=meridian,password=secret]' \
    --add-scram 'SCRAM-SHA-512=[name=meridian,password=secret]' > format.log
printf secret > password

java -Xmx512m -cp 'libs/*' kafka.Kafka server.properties > first.log 2>&1 & server=$!
trap 'kill "$server"' EXIT
for mechanism in plain scram_sha_256 scram_sha_512; do
    "$try" 127.0.0.1:19093 try 1000 200 "$mechanism" meridian password
done
"$try" 127.0.0.1:19092 try 1500000 200 & writer=$!
sleep 5
kill -9 "$server"
java -Xmx512m -cp 'libs/*' kafka.Kafka server.properties > second.log 2>&1 & server=$!
wait "$writer"
kafka org.apache.kafka.tools.GetOffsetShell --bootstrap-server 127.0.0.1:19092 --topic try \
    | awk -F: '{ sum += $3 } END { print "records: " sum }'
