//! Thin layer over the socket and epoll system calls.

use std::net::{IpAddr, SocketAddr};

/// CLOCK_MONOTONIC in nanoseconds: the same clock in every process of the machine, so processes can compare times.
pub fn now() -> u64 {
    // SAFETY: zeroes are a valid `timespec`, and the call writes nothing else.
    unsafe {
        let mut t: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }
}

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu() -> u64 {
    // SAFETY: zeroes are a valid `timespec`, and the call writes nothing else.
    unsafe {
        let mut t: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }
}

/// CLOCK_REALTIME in nanoseconds since 1970, which machines can synchronise.
pub fn wall() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64)
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub fn errname(e: i32) -> String {
    match e {
        libc::ECONNREFUSED => "ECONNREFUSED".into(),
        libc::ECONNRESET => "ECONNRESET".into(),
        libc::EPIPE => "EPIPE".into(),
        libc::ETIMEDOUT => "ETIMEDOUT".into(),
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL".into(),
        libc::EADDRINUSE => "EADDRINUSE".into(),
        libc::EMFILE => "EMFILE".into(),
        libc::ENETUNREACH => "ENETUNREACH".into(),
        libc::EHOSTUNREACH => "EHOSTUNREACH".into(),
        e => format!("errno {e}"),
    }
}

/// The kernel's form of an address, and its size.
fn sockaddr(to: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: `sockaddr_storage` is plain integers, for which zeroes are valid; it is large enough and aligned for
    // each of the forms that are written to it.
    unsafe {
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let size = match to {
            SocketAddr::V4(to) => {
                let a = &mut *(&raw mut storage).cast::<libc::sockaddr_in>();
                a.sin_family = libc::AF_INET as u16;
                a.sin_port = to.port().to_be();
                a.sin_addr.s_addr = u32::from(*to.ip()).to_be();
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(to) => {
                let a = &mut *(&raw mut storage).cast::<libc::sockaddr_in6>();
                a.sin6_family = libc::AF_INET6 as u16;
                a.sin6_port = to.port().to_be();
                a.sin6_addr.s6_addr = to.ip().octets();
                a.sin6_scope_id = to.scope_id();
                size_of::<libc::sockaddr_in6>()
            }
        };
        (storage, size as libc::socklen_t)
    }
}

fn opt(fd: i32, level: i32, name: i32, v: i32) {
    // SAFETY: the kernel reads four bytes of `v`, which outlives the call.
    unsafe {
        libc::setsockopt(fd, level, name, &v as *const i32 as *const libc::c_void, 4);
    }
}

/// Starts a connection; (fd, already connected) or errno.
pub fn connect(to: SocketAddr, from: Option<IpAddr>, sndbuf: i32, rcvbuf: i32) -> Result<(i32, bool), i32> {
    // SAFETY: addresses are given with their true size and outlive the calls; `fd` is owned here and closed on every
    // path that does not return it.
    unsafe {
        let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(errno());
        }
        opt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        if sndbuf > 0 {
            opt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, sndbuf);
        }
        if rcvbuf > 0 {
            opt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, rcvbuf);
        }
        if let Some(ip) = from {
            opt(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
            let (a, size) = sockaddr(SocketAddr::new(ip, 0));
            if libc::bind(fd, (&raw const a).cast(), size) < 0 {
                let e = errno();
                libc::close(fd);
                return Err(e);
            }
        }
        let (a, size) = sockaddr(to);
        if libc::connect(fd, (&raw const a).cast(), size) == 0 {
            return Ok((fd, true));
        }
        let e = errno();
        if e == libc::EINPROGRESS {
            return Ok((fd, false));
        }
        libc::close(fd);
        Err(e)
    }
}

/// The socket's pending error; reading clears it.
pub fn so_error(fd: i32) -> i32 {
    // SAFETY: the kernel writes at most `l` bytes to `v`.
    unsafe {
        let mut v = 0i32;
        let mut l = 4u32;
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            &mut v as *mut i32 as *mut libc::c_void,
            &mut l,
        );
        v
    }
}

/// Returns whether a socket is connected to itself. That can happen on loopback when no process listens on a port of
/// the ephemeral range.
pub fn self_connected(fd: i32, to: SocketAddr) -> bool {
    // SAFETY: zeroes are a valid `sockaddr_storage`, and the kernel writes at most `size` bytes to it.
    let (own, size) = unsafe {
        let mut own: libc::sockaddr_storage = std::mem::zeroed();
        let mut size = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        if libc::getsockname(fd, (&raw mut own).cast(), &mut size) != 0 {
            return false;
        }
        (own, size)
    };
    let (to, to_size) = sockaddr(to);
    let bytes = |a: &libc::sockaddr_storage| {
        // SAFETY: `sockaddr_storage` is plain bytes, all of them set.
        unsafe { *(&raw const *a).cast::<[u8; size_of::<libc::sockaddr_in6>()]>() }
    };
    size == to_size && bytes(&own)[..size as usize] == bytes(&to)[..size as usize]
}

pub fn close(fd: i32) {
    // SAFETY: callers own `fd` and do not use it afterwards.
    unsafe {
        libc::close(fd);
    }
}

/// Reads bytes. Returns their number, 0 at the end of the stream, or errno.
#[inline]
pub fn read(fd: i32, b: &mut [u8]) -> Result<usize, i32> {
    // SAFETY: the kernel writes at most `b.len()` bytes to `b`.
    let n = unsafe { libc::recv(fd, b.as_mut_ptr() as *mut libc::c_void, b.len(), 0) };
    if n < 0 { Err(errno()) } else { Ok(n as usize) }
}

/// Writes bytes. Returns their number, or errno.
#[inline]
pub fn write(fd: i32, b: &[u8]) -> Result<usize, i32> {
    // SAFETY: the kernel reads at most `b.len()` bytes of `b`.
    let n = unsafe { libc::send(fd, b.as_ptr() as *const libc::c_void, b.len(), libc::MSG_NOSIGNAL) };
    if n < 0 { Err(errno()) } else { Ok(n as usize) }
}

pub struct Epoll(i32);

pub const IN: u32 = libc::EPOLLIN as u32;
pub const OUT: u32 = libc::EPOLLOUT as u32;
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub const ERRHUP: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

impl Epoll {
    pub fn new() -> Epoll {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(fd >= 0, "epoll_create1");
        Epoll(fd)
    }
    pub fn ctl(&self, add: bool, fd: i32, events: u32, data: u64) {
        let mut e = libc::epoll_event { events, u64: data };
        let op = if add { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
        // SAFETY: `e` outlives the call.
        let r = unsafe { libc::epoll_ctl(self.0, op, fd, &mut e) };
        assert!(r == 0, "epoll_ctl: errno {}", errno());
    }
    pub fn wait(&self, ev: &mut [libc::epoll_event], timeout_ns: u64) -> usize {
        let ts = libc::timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        // SAFETY: the kernel writes at most `ev.len()` events; a null signal mask leaves the mask as it is.
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.0,
                ev.as_mut_ptr(),
                ev.len() as i32,
                &ts as *const libc::timespec,
                std::ptr::null::<libc::sigset_t>(),
                8usize,
            )
        };
        if n < 0 { 0 } else { n as usize }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        close(self.0);
    }
}
