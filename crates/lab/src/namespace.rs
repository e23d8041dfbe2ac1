//! Network namespace without a name, with one TUN device in it. The kernel removes both when the last descriptor
//! and the last process are gone, however they ended: there is nothing to clean up.

use crate::topology::Host;
use crate::{LabError, Topology};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;

/// The namespace, and the device that carries all packets of its processes.
pub(crate) struct Namespace {
    pub(crate) net: File,
    pub(crate) tun: File,
}

const DEVICE: &str = "wan0";
/// Maximum number of packets that wait in the device for us.
const DEVICE_QUEUE: i32 = 10_000;

impl Namespace {
    /// Creates the namespace and the device.
    ///
    /// # Errors
    /// The process is not root, or the system refuses an operation.
    pub(crate) fn open(host: &Host, topology: &Topology) -> Result<Self, LabError> {
        // A new thread moves into the new namespace and ends there: no other thread moves.
        thread::scope(|scope| {
            let made = scope.spawn(|| make(host, topology)).join();
            made.unwrap_or_else(|_| Err(LabError::System(host.name.clone(), io::Error::other("panic"))))
        })
    }
}

fn make(host: &Host, topology: &Topology) -> Result<Namespace, LabError> {
    // SAFETY: no memory is involved; the call affects this thread only, which ends soon.
    match check(unsafe { libc::unshare(libc::CLONE_NEWNET) }) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Err(LabError::NotRoot),
        Err(error) => return Err(LabError::System("unshare".into(), error)),
        Ok(_) => {}
    }
    let path = "/proc/thread-self/ns/net";
    let net = File::open(path).map_err(LabError::system(path))?;
    let tun = device().map_err(LabError::system("/dev/net/tun"))?;
    for (name, value) in &topology.sysctl {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        fs::write(&path, value).map_err(LabError::system(path))?;
    }
    // IPv4 only: the kernel would send IPv6 packets on its own. A kernel without IPv6 has no such file.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{DEVICE}/disable_ipv6"), "1");
    set_up(host.address, i32::from(topology.mtu)).map_err(LabError::system(DEVICE))?;
    Ok(Namespace { net, tun })
}

/// Moves the calling thread into the namespace. Async-signal-safe.
pub(crate) fn enter(net: RawFd) -> io::Result<()> {
    // SAFETY: no memory is involved, and an invalid descriptor is an error.
    check(unsafe { libc::setns(net, libc::CLONE_NEWNET) }).map(|_| ())
}

fn device() -> io::Result<File> {
    let options = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let tun = OpenOptions::new().read(true).write(true).custom_flags(options).open("/dev/net/tun")?;
    let mut request = request(DEVICE);
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    ioctl(&tun, libc::TUNSETIFF, &mut request)?;
    Ok(tun)
}

fn set_up(address: Ipv4Addr, mtu: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let socket = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new, and we own it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let up = |name: &str| {
        let mut request = request(name);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        ioctl(&socket, libc::SIOCSIFFLAGS, &mut request)
    };
    up("lo")?;
    let with_address = |call: libc::c_ulong, address: Ipv4Addr| {
        let mut request = request(DEVICE);
        request.ifr_ifru.ifru_addr = socket_address(address);
        ioctl(&socket, call, &mut request)
    };
    // The route to all hosts comes with the address and its mask. There is no other route.
    with_address(libc::SIOCSIFADDR, address)?;
    with_address(libc::SIOCSIFNETMASK, Ipv4Addr::new(255, 255, 0, 0))?;
    let with_number = |call: libc::c_ulong, number: i32| {
        let mut request = request(DEVICE);
        request.ifr_ifru.ifru_mtu = number;
        ioctl(&socket, call, &mut request)
    };
    with_number(libc::SIOCSIFMTU, mtu)?;
    with_number(SIOCSIFTXQLEN, DEVICE_QUEUE)?;
    up(DEVICE)
}

/// Request number from linux/sockios.h; its argument has the position of that of SIOCSIFMTU.
const SIOCSIFTXQLEN: libc::c_ulong = 0x8943;

fn request(name: &str) -> libc::ifreq {
    // SAFETY: all zeros are an empty name and a valid value of each kind.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

fn ioctl(of: &impl AsRawFd, call: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: each call of this file takes an `ifreq`, which is valid until it returns.
    check(unsafe { libc::ioctl(of.as_raw_fd(), call as _, request) }).map(|_| ())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
