//! The byte stream below a connection: ordered and without loss, both ways [MQTT-4.2.0-1] [MQTT3-7.1.1-1].
//! What may lie between it and MQTT is in `layer`.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

/// What carries a connection's bytes. Never blocks.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// No socket at all: bytes are pushed in by hand and those put out vanish. For measuring everything but the kernel.
    Memory,
}

impl Stream {
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        // Registered once, for both directions and edges only: no system call when interest changes.
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Stream::Tcp(stream) => registry.register(stream, token, interest),
            Stream::Unix(stream) => registry.register(stream, token, interest),
            Stream::Memory => Ok(()),
        }
    }

    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Memory => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Memory => Ok(bytes.len()),
        }
    }

    pub fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write_vectored(slices),
            Stream::Unix(stream) => stream.write_vectored(slices),
            Stream::Memory => Ok(slices.iter().map(|slice| slice.len()).sum()),
        }
    }

    /// Tells the peer that nothing more comes. Fails when the peer is gone already, which is just as good.
    pub fn shut_down_writing(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Memory => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}
