//! A scripted server of Kafka: it decodes requests, stores batches like a broker with idempotent producers, and follows
//! a script of faults.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};

use crate::kafka::wire::{Malformed, Reader, Writer};

/// Answer to the next Produce request.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// An error for the partition with this number, which stores nothing. Others are stored.
    Error { partition: i32, code: i16 },
    /// Errors for several partitions.
    Errors(&'static [(i32, i16)]),
    /// Stores everything, and answers with this error for all partitions.
    StoreAndFail(i16),
    /// Reads the request and closes the connection without storing anything.
    Close,
    /// Stores everything, and closes the connection without an answer.
    StoreAndClose,
    /// No answer until the client closes the connection.
    Silence,
    /// Sends these bytes, and closes the connection.
    Bytes(&'static [u8]),
    /// Answers about no partition.
    Nothing,
}

/// A stored record: key, value and headers.
pub type Stored = (Option<String>, String, Vec<(String, String)>);

/// State of the server, which a test changes and reads.
pub struct State {
    /// Topics and their number of partitions.
    pub topics: HashMap<String, i32>,
    pub script: VecDeque<Answer>,
    pub log: HashMap<(String, i32), Vec<Stored>>,
    /// Highest version of Produce.
    pub produce_max: i16,
    /// Error code of InitProducerId.
    pub producer_code: i16,
    /// Address that the cluster announces, instead of its own.
    pub announced: Option<(String, i32)>,
    /// Mechanism, and the password that PLAIN accepts.
    pub password: Option<&'static str>,
    pub connections: usize,
    pub produce_requests: usize,
    producers: i64,
    /// Last batch of a producer in a partition: first sequence and number of records.
    sequences: HashMap<(i64, String, i32), (i32, i32)>,
}

#[derive(Clone)]
pub struct Peer {
    pub port: u16,
    pub state: Arc<Mutex<State>>,
}

impl Peer {
    pub fn new() -> Self {
        Self::start(None)
    }

    /// A server that expects TLS.
    pub fn with_tls(config: rustls::ServerConfig) -> Self {
        Self::start(Some(Arc::new(config)))
    }

    fn start(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = State {
            topics: HashMap::from([("t".to_owned(), 3), ("other".to_owned(), 1)]),
            script: VecDeque::new(),
            log: HashMap::new(),
            produce_max: 8,
            producer_code: 0,
            announced: None,
            password: None,
            connections: 0,
            produce_requests: 0,
            producers: 0,
            sequences: HashMap::new(),
        };
        let peer = Self { port, state: Arc::new(Mutex::new(state)) };
        let served = peer.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (peer, stream, tls) = (served.clone(), stream.unwrap(), tls.clone());
                peer.state.lock().unwrap().connections += 1;
                std::thread::spawn(move || match tls {
                    None => peer.serve(stream),
                    Some(config) => {
                        let tls = rustls::ServerConnection::new(config).unwrap();
                        peer.serve(rustls::StreamOwned::new(tls, stream));
                    }
                });
            }
        });
        peer
    }

    pub fn follow(&self, script: &[Answer]) {
        self.state.lock().unwrap().script.extend(script);
    }

    /// Values in a partition.
    pub fn values(&self, topic: &str, partition: i32) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let stored = state.log.get(&(topic.to_owned(), partition)).cloned().unwrap_or_default();
        stored.into_iter().map(|(_, value, _)| value).collect()
    }

    /// Values in all partitions of a topic, sorted.
    pub fn all_values(&self, topic: &str) -> Vec<String> {
        let mut values: Vec<_> = (0..3).flat_map(|partition| self.values(topic, partition)).collect();
        values.sort();
        values
    }

    fn serve(&self, mut stream: impl Read + Write) {
        while let Some(request) = read_frame(&mut stream) {
            let mut reader = Reader(&request);
            let (key, version) = (reader.i16().unwrap(), reader.i16().unwrap());
            let correlation = reader.i32().unwrap();
            assert_eq!(reader.string().unwrap(), "meridian");
            let mut answer = Writer::default();
            answer.i32(correlation);
            let goes_on = match key {
                0 => self.produce(&mut reader, version, &mut answer, &mut stream),
                3 => self.metadata(&mut reader, &mut answer),
                17 => handshake(&mut reader, &mut answer),
                18 => self.versions(&mut answer),
                22 => self.init_producer(&mut answer),
                36 => self.authenticate(&mut reader, &mut answer),
                other => panic!("request {other}"),
            };
            if !goes_on {
                return;
            }
            let mut frame = Writer::default();
            frame.bytes(&answer.0);
            if stream.write_all(&frame.0).and_then(|()| stream.flush()).is_err() {
                return;
            }
        }
    }

    fn versions(&self, answer: &mut Writer) -> bool {
        let produce_max = self.state.lock().unwrap().produce_max;
        let versions = [(0, 3, produce_max), (3, 0, 9), (17, 0, 1), (18, 0, 3), (22, 0, 4), (36, 0, 2)];
        answer.i16(0);
        answer.count(versions.len());
        for (key, min, max) in versions {
            [key, min, max].into_iter().for_each(|number| answer.i16(number));
        }
        true
    }

    fn metadata(&self, reader: &mut Reader<'_>, answer: &mut Writer) -> bool {
        let names = reader.items(Reader::string).unwrap();
        let state = self.state.lock().unwrap();
        let (host, port) = state.announced.clone().unwrap_or(("127.0.0.1".to_owned(), i32::from(self.port)));
        answer.i32(0);
        answer.count(1);
        answer.i32(7);
        answer.string(&host);
        answer.i32(port);
        answer.null_string();
        answer.string("the-cluster");
        answer.i32(7);
        answer.count(names.len());
        for name in &names {
            let partitions = state.topics.get(name);
            answer.i16(if partitions.is_some() { 0 } else { 3 });
            answer.string(name);
            answer.bool(false);
            let partitions = *partitions.unwrap_or(&0);
            answer.i32(partitions);
            for partition in 0..partitions {
                answer.i16(0);
                answer.i32(partition);
                answer.i32(7);
                answer.count(0);
                answer.count(0);
            }
        }
        true
    }

    fn init_producer(&self, answer: &mut Writer) -> bool {
        let mut state = self.state.lock().unwrap();
        state.producers += 1;
        answer.i32(0);
        answer.i16(state.producer_code);
        answer.i64(state.producers);
        answer.i16(0);
        true
    }

    fn authenticate(&self, reader: &mut Reader<'_>, answer: &mut Writer) -> bool {
        let message = reader.bytes().unwrap();
        let password = self.state.lock().unwrap().password;
        let is_right = password.is_some_and(|password| message == format!("\0user\0{password}").as_bytes());
        answer.i16(if is_right { 0 } else { 58 });
        if is_right {
            answer.null_string()
        } else {
            answer.string("Authentication failed")
        }
        answer.bytes(b"");
        answer.i64(0);
        true
    }

    fn produce(
        &self,
        reader: &mut Reader<'_>,
        version: i16,
        answer: &mut Writer,
        stream: &mut (impl Read + Write),
    ) -> bool {
        assert_eq!(reader.nullable_string(), Ok(None));
        assert_eq!(reader.i16(), Ok(-1), "acks=all");
        assert!(reader.i32().unwrap() > 0);
        let topics = reader.items(|reader| {
            let topic = reader.string()?;
            let batches = reader.items(|reader| Ok((reader.i32()?, reader.bytes()?)))?;
            Ok(batches
                .into_iter()
                .map(|(partition, batch)| (topic.clone(), partition, batch))
                .collect::<Vec<_>>())
        });
        let topics = topics.unwrap();
        let mut names: Vec<_> = topics.iter().map(|batches| &batches[0].0).collect();
        names.dedup();
        assert_eq!(names.len(), topics.len(), "a topic is named once");
        let batches: Vec<_> = topics.into_iter().flatten().collect();
        assert!(reader.0.is_empty());
        let step = {
            let mut state = self.state.lock().unwrap();
            state.produce_requests += 1;
            state.script.pop_front()
        };
        let mut codes = vec![];
        for (topic, partition, batch) in batches {
            let code = match step {
                Some(Answer::Error { partition: with_error, code }) if with_error == partition => code,
                Some(Answer::Errors(errors)) if errors.iter().any(|(at, _)| *at == partition) => {
                    errors.iter().find(|(at, _)| *at == partition).map_or(0, |(_, code)| *code)
                }
                Some(Answer::StoreAndFail(code)) => {
                    self.store(&topic, partition, batch);
                    code
                }
                Some(Answer::Close | Answer::Silence | Answer::Bytes(_) | Answer::Nothing) => 0,
                _ => self.store(&topic, partition, batch),
            };
            codes.push((topic, partition, code));
        }
        match step {
            Some(Answer::Close | Answer::StoreAndClose) => return false,
            Some(Answer::Silence) => {
                let _ = stream.read(&mut [0]);
                return false;
            }
            Some(Answer::Bytes(bytes)) => {
                stream.write_all(bytes).unwrap();
                return false;
            }
            Some(Answer::Nothing) => codes.clear(),
            _ => {}
        }
        answer.count(codes.len());
        for (topic, partition, code) in codes {
            answer.string(&topic);
            answer.count(1);
            answer.i32(partition);
            answer.i16(code);
            (0..3).for_each(|_| answer.i64(-1));
            if version >= 8 {
                answer.count(0);
                if code == 0 { answer.null_string() } else { answer.string("scripted") }
            }
        }
        answer.i32(0);
        true
    }

    /// Stores a batch, unless its producer has stored it before. Returns an error code.
    fn store(&self, topic: &str, partition: i32, batch: &[u8]) -> i16 {
        let (producer, first, records) = decode(batch).expect("a batch");
        let mut state = self.state.lock().unwrap();
        if producer >= 0 {
            let count = records.len() as i32;
            let last = state.sequences.get(&(producer, topic.to_owned(), partition)).copied();
            if last == Some((first, count)) {
                return 46;
            }
            if last.map_or(0, |(first, count)| first + count) != first {
                return 45;
            }
            state.sequences.insert((producer, topic.to_owned(), partition), (first, count));
        }
        state.log.entry((topic.to_owned(), partition)).or_default().extend(records);
        0
    }
}

fn handshake(reader: &mut Reader<'_>, answer: &mut Writer) -> bool {
    let is_plain = reader.string().unwrap() == "PLAIN";
    answer.i16(if is_plain { 0 } else { 33 });
    answer.count(1);
    answer.string("PLAIN");
    true
}

fn read_frame(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    Some(frame)
}

/// Returns the producer, its first sequence, and the records of a batch.
fn decode(batch: &[u8]) -> Result<(i64, i32, Vec<Stored>), Malformed> {
    let mut reader = Reader(batch);
    assert_eq!(reader.i64()?, 0, "offset");
    assert_eq!(reader.i32()? as usize, reader.0.len(), "length");
    reader.i32()?;
    assert_eq!(reader.take(1)?, [2], "format");
    let checksum = reader.i32()? as u32;
    assert_eq!(checksum, crc32c::crc32c(reader.0), "checksum");
    assert_eq!(reader.i16()?, 0, "attributes");
    let last = reader.i32()?;
    assert_eq!(reader.i64()?, reader.i64()?, "times");
    let producer = reader.i64()?;
    reader.i16()?;
    let first = reader.i32()?;
    let records = reader.items(record)?;
    assert_eq!(last + 1, records.len() as i32);
    assert!(reader.0.is_empty());
    Ok((producer, first, records))
}

fn record(reader: &mut Reader<'_>) -> Result<Stored, Malformed> {
    let length = varint(reader)? as usize;
    let mut reader = Reader(reader.take(length)?);
    reader.take(1)?;
    varint(&mut reader)?;
    varint(&mut reader)?;
    let (key, value) = (varbytes(&mut reader)?, varbytes(&mut reader)?.ok_or(Malformed)?);
    let count = varint(&mut reader)?;
    let mut headers = vec![];
    for _ in 0..count {
        headers.push((varbytes(&mut reader)?.ok_or(Malformed)?, varbytes(&mut reader)?.ok_or(Malformed)?));
    }
    assert!(reader.0.is_empty());
    Ok((key, value, headers))
}

fn varint(reader: &mut Reader<'_>) -> Result<i64, Malformed> {
    let (mut value, mut shift) = (0_u64, 0);
    loop {
        let byte = reader.take(1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
}

fn varbytes(reader: &mut Reader<'_>) -> Result<Option<String>, Malformed> {
    let length = varint(reader)?;
    if length < 0 {
        return Ok(None);
    }
    let bytes = reader.take(length as usize)?;
    Ok(Some(String::from_utf8(bytes.to_vec()).map_err(|_| Malformed)?))
}
