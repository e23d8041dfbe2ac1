//! Search for the process that occupies a port, as far as `/proc` shows it.

use std::fs;
use std::net::ToSocketAddrs;
use std::path::Path;

use api::BindError;
use edge::StartError;

/// Adds the process that occupies the address to an error about an occupied address.
pub fn of_listener(mut error: StartError) -> StartError {
    if let StartError::Bind { address, holder, .. } = &mut error {
        *holder = of(address);
    }
    error
}

/// Adds the process that occupies the HTTP address to the error.
pub fn of_http(mut error: BindError) -> BindError {
    if let BindError::Address { address, holder, .. } = &mut error {
        *holder = of(&address.to_string());
    }
    error
}

/// The process that listens on the port of this address: its name and identifier. `None` when there is none, or when
/// another user's processes cannot be inspected.
fn of(address: &str) -> Option<String> {
    let ports: Vec<u16> = address.to_socket_addrs().ok()?.map(|address| address.port()).collect();
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let inodes: Vec<String> = tables.iter().flat_map(|table| inodes(table, &ports)).collect();
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut numbered =
        processes.filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())));
    let (id, path) = numbered.find(|(_, path)| has_socket(path, &inodes))?;
    let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
    // Escaped: a process chooses its name.
    Some(format!("{} (process {id})", name.trim().escape_debug()))
}

/// Sockets of a table of `/proc/net` that listen on one of the ports.
fn inodes(table: &str, ports: &[u16]) -> Vec<String> {
    const LISTENS: &str = "0A";
    let listening = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (*state == LISTENS && ports.contains(&port)).then(|| (*inode).to_owned())
    });
    listening.collect()
}

fn has_socket(process: &Path, inodes: &[String]) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    descriptors.filter_map(Result::ok).any(|descriptor| {
        let Ok(target) = fs::read_link(descriptor.path()) else { return false };
        let Some(target) = target.to_str() else { return false };
        let inode = target.strip_prefix("socket:[").and_then(|target| target.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.iter().any(|known| known == inode))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_occupies_a_port_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let holder = of(&address.to_string()).expect("it is this process");
        assert!(holder.ends_with(&format!("(process {})", std::process::id())), "{holder}");
        drop(listener);
        assert_eq!(of(&address.to_string()), None);
    }

    #[test]
    fn only_sockets_that_listen_on_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:075B 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 111 1\n   \
                     1: 0100007F:075B 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 222 1\n   \
                     2: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 333 1\n";
        assert_eq!(inodes(table, &[1883]), ["111"]);
        assert_eq!(inodes("", &[1883]), Vec::<String>::new());
    }
}
