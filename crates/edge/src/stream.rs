//! Byte stream below a connection: ordered and without loss, in both directions [MQTT-4.2.0-1] [MQTT3-7.1.1-1]. The
//! layers between it and MQTT are in `layer`.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

/// Transport of a connection's bytes. Never blocks.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// No socket: bytes are pushed in by the program, and output is discarded. For measurements without the kernel.
    Memory,
}

impl Stream {
    /// Starts to poll whether there is something to read, edge-triggered. A new socket is always writable, and a report
    /// of that would be one event for each connection.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => registry.register(stream, token, Interest::READABLE),
            Stream::Unix(stream) => registry.register(stream, token, Interest::READABLE),
            Stream::Memory => Ok(()),
        }
    }

    /// Polls from now on also whether the socket is writable. It stays so: each change of interest is a system call.
    pub fn poll_writable(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Stream::Tcp(stream) => registry.reregister(stream, token, interest),
            Stream::Unix(stream) => registry.reregister(stream, token, interest),
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

    /// Signals the end of the stream to the peer. An error, such as a peer that is gone, can be ignored.
    pub fn shut_down_writing(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Memory => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}
