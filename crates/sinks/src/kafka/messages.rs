//! Requests and answers of Kafka's protocol that a producer needs, each in one version (two of Produce).

use super::code::Code;
use super::wire::{Malformed, Reader, Writer};

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Api {
    pub key: i16,
    pub version: i16,
    pub name: &'static str,
}

pub const API_VERSIONS: Api = Api { key: 18, version: 0, name: "ApiVersions" };
pub const METADATA: Api = Api { key: 3, version: 4, name: "Metadata" };
pub const SASL_HANDSHAKE: Api = Api { key: 17, version: 1, name: "SaslHandshake" };
pub const SASL_AUTHENTICATE: Api = Api { key: 36, version: 1, name: "SaslAuthenticate" };
pub const INIT_PRODUCER_ID: Api = Api { key: 22, version: 1, name: "InitProducerId" };
pub const PRODUCE_7: Api = Api { key: 0, version: 7, name: "Produce" };
/// Version with messages of errors.
pub const PRODUCE_8: Api = Api { key: 0, version: 8, name: "Produce" };

/// All replicas that are in sync have a batch before it is confirmed.
const ACKS_ALL: i16 = -1;

/// Versions of a request that a server supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub key: i16,
    pub min: i16,
    pub max: i16,
}

pub fn read_api_versions(reader: &mut Reader<'_>) -> Result<(Code, Vec<Versions>), Malformed> {
    let code = Code(reader.i16()?);
    let versions =
        reader.items(|reader| Ok(Versions { key: reader.i16()?, min: reader.i16()?, max: reader.i16()? }))?;
    Ok((code, versions))
}

pub fn read_sasl_handshake(reader: &mut Reader<'_>) -> Result<(Code, Vec<String>), Malformed> {
    Ok((Code(reader.i16()?), reader.items(Reader::string)?))
}

/// Answer to one message of a login.
pub struct Authenticated {
    pub code: Code,
    pub message: Option<String>,
    pub answer: Vec<u8>,
    /// Time after which the server ends the session; 0 is never.
    pub lifetime_ms: i64,
}

pub fn read_sasl_authenticate(reader: &mut Reader<'_>) -> Result<Authenticated, Malformed> {
    Ok(Authenticated {
        code: Code(reader.i16()?),
        message: reader.nullable_string()?,
        answer: reader.bytes()?.to_vec(),
        lifetime_ms: reader.i64()?,
    })
}

pub fn write_metadata(writer: &mut Writer, topics: &[&str], creates: bool) {
    writer.count(topics.len());
    topics.iter().for_each(|topic| writer.string(topic));
    writer.bool(creates);
}

/// Nodes of a cluster, and topics.
#[derive(Debug)]
pub struct Metadata {
    pub brokers: Vec<BrokerAddress>,
    pub cluster: Option<String>,
    pub topics: Vec<TopicMetadata>,
}

#[derive(Debug)]
pub struct BrokerAddress {
    pub id: i32,
    pub host: String,
    pub port: i32,
}

#[derive(Debug)]
pub struct TopicMetadata {
    pub code: Code,
    pub name: String,
    /// Number of a partition and the node that leads it; -1 is none.
    pub leaders: Vec<(i32, i32)>,
}

pub fn read_metadata(reader: &mut Reader<'_>) -> Result<Metadata, Malformed> {
    reader.i32()?;
    let brokers = reader.items(|reader| {
        let broker = BrokerAddress { id: reader.i32()?, host: reader.string()?, port: reader.i32()? };
        reader.nullable_string()?;
        Ok(broker)
    })?;
    let cluster = reader.nullable_string()?;
    reader.i32()?;
    let topics = reader.items(|reader| {
        let (code, name) = (Code(reader.i16()?), reader.string()?);
        reader.bool()?;
        let leaders = reader.items(|reader| {
            reader.i16()?;
            let leader = (reader.i32()?, reader.i32()?);
            reader.items(Reader::i32)?;
            reader.items(Reader::i32)?;
            Ok(leader)
        })?;
        Ok(TopicMetadata { code, name, leaders })
    })?;
    Ok(Metadata { brokers, cluster, topics })
}

pub fn write_init_producer_id(writer: &mut Writer) {
    writer.null_string();
    writer.i32(i32::MAX);
}

/// Producer id and epoch.
pub fn read_init_producer_id(reader: &mut Reader<'_>) -> Result<(Code, i64, i16), Malformed> {
    reader.i32()?;
    Ok((Code(reader.i16()?), reader.i64()?, reader.i16()?))
}

/// A record batch for a partition.
pub struct Produced<'a> {
    pub topic: &'a str,
    pub partition: i32,
    pub batch: &'a [u8],
}

/// Writes batches that are sorted by topic, because a request names each topic once.
pub fn write_produce(writer: &mut Writer, batches: &[Produced<'_>], timeout_ms: i32) {
    writer.null_string();
    writer.i16(ACKS_ALL);
    writer.i32(timeout_ms);
    let topics = || batches.chunk_by(|one, next| one.topic == next.topic);
    writer.count(topics().count());
    for partitions in topics() {
        writer.string(partitions[0].topic);
        writer.count(partitions.len());
        for batch in partitions {
            writer.i32(batch.partition);
            writer.bytes(batch.batch);
        }
    }
}

/// Result of a batch.
pub struct ProduceResult {
    pub topic: String,
    pub partition: i32,
    pub code: Code,
    pub message: Option<String>,
}

pub fn read_produce(reader: &mut Reader<'_>, version: i16) -> Result<Vec<ProduceResult>, Malformed> {
    let topics = reader.items(|reader| {
        let topic = reader.string()?;
        reader.items(|reader| {
            let (partition, code) = (reader.i32()?, Code(reader.i16()?));
            reader.take(3 * 8)?;
            let message = if version >= PRODUCE_8.version { read_messages(reader)? } else { None };
            Ok(ProduceResult { topic: topic.clone(), partition, code, message })
        })
    })?;
    reader.i32()?;
    Ok(topics.into_iter().flatten().collect())
}

/// Returns the message about the batch, or else the first one about a record.
fn read_messages(reader: &mut Reader<'_>) -> Result<Option<String>, Malformed> {
    let of_records = reader.items(|reader| {
        reader.i32()?;
        reader.nullable_string()
    })?;
    let of_batch = reader.nullable_string()?;
    Ok(of_batch.or_else(|| of_records.into_iter().flatten().next()))
}
