//! Files that are used when they change, without a signal.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustls::ClientConnection;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tls::{ClientTls, Trust};

use crate::authority::Authority;
use crate::node::{Node, meridian, stderr, stdout};

/// A listener and HTTPS with the same files, in `volume`.
const CONFIG: &str = "[node]\nwatch_files = \"100ms\"\n\
    [[listener]]\nname = \"secure\"\naddress = \"127.0.0.1:0\"\ntls_certificate = \"volume/tls.crt\"\n\
    tls_key = \"volume/tls.key\"\n\
    [http]\nlisten = \"127.0.0.1:0\"\ntls_certificate = \"volume/tls.crt\"\ntls_key = \"volume/tls.key\"\n";

/// Returns the certificate that a new connection sees.
fn presented(authority: &Authority, address: &str, alpn: &str) -> CertificateDer<'static> {
    let trust = Trust::File(authority.directory.join("ca.pem"));
    let tls = ClientTls { trust, alpn: vec![alpn.as_bytes().to_vec()], ..ClientTls::default() };
    let name = ServerName::try_from("localhost").unwrap();
    let mut connection = ClientConnection::new(tls.config().unwrap(), name).unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).unwrap();
    }
    connection.peer_certificates().unwrap()[0].clone().into_owned()
}

/// Checks that the listener and HTTPS both present this certificate.
fn present(authority: &Authority, node: &Node, expected: &str) {
    let expected = CertificateDer::from_pem_file(authority.directory.join(expected)).unwrap();
    let listener = format!("127.0.0.1:{}", node.ports[0]);
    assert_eq!(presented(authority, &listener, "mqtt"), expected);
    assert_eq!(presented(authority, &node.http, "http/1.1"), expected);
}

/// Writes a file with another name and renames it: no poll sees a part of it.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

fn copy_pair(authority: &Authority, name: &str, directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for end in ["crt", "key"] {
        let from = authority.directory.join(format!("{name}.{end}"));
        fs::copy(from, directory.join(format!("tls.{end}"))).unwrap();
    }
}

/// Reads the log until both parts have a line with this text and `detail`. A change between the looks at two parts may
/// reach either first.
fn both(node: &mut Node, text: &str, detail: &str) {
    let lines = [node.wait_for(text), node.wait_for(text)];
    for part in ["part=\"listener secure\"", "part=\"http\""] {
        let line = lines.iter().find(|line| line.contains(part));
        assert!(line.is_some_and(|line| line.contains(detail)), "{part}: {lines:?}");
    }
}

/// Kubernetes changes the files of a volume in this way.
#[test]
fn a_swapped_link_of_a_directory_changes_the_certificate_without_a_signal() {
    let authority = Authority::new();
    authority.issue("one", &["localhost"]);
    authority.issue("two", &["localhost"]);
    let volume = authority.directory.join("volume");
    copy_pair(&authority, "one", &volume.join("..1"));
    symlink("..1", volume.join("..data")).unwrap();
    symlink("..data/tls.crt", volume.join("tls.crt")).unwrap();
    symlink("..data/tls.key", volume.join("tls.key")).unwrap();
    let mut node = Node::start(&authority, CONFIG, &[]);
    present(&authority, &node, "one.crt");

    copy_pair(&authority, "two", &volume.join("..2"));
    symlink("..2", volume.join("..new")).unwrap();
    fs::rename(volume.join("..new"), volume.join("..data")).unwrap();
    fs::remove_dir_all(volume.join("..1")).unwrap();
    both(&mut node, "using the new ones", "");
    present(&authority, &node, "two.crt");
}

#[test]
fn a_half_written_pair_changes_nothing_and_is_used_when_it_is_complete() {
    let authority = Authority::new();
    authority.issue("one", &["localhost"]);
    authority.issue("two", &["localhost"]);
    let volume = authority.directory.join("volume");
    copy_pair(&authority, "one", &volume);
    let mut node = Node::start(&authority, CONFIG, &[]);

    let whole = fs::read_to_string(authority.directory.join("two.crt")).unwrap();
    replace(&volume.join("tls.crt"), &whole[..whole.len() / 2]);
    both(&mut node, "changed contents cannot be used", "tls.crt");
    present(&authority, &node, "one.crt");

    // A complete certificate whose key is still the previous one.
    replace(&volume.join("tls.crt"), &whole);
    both(&mut node, "changed contents cannot be used", "cannot be used together");
    present(&authority, &node, "one.crt");
    let url = format!("https://{}", node.http.replace("127.0.0.1", "localhost"));
    let status = meridian(&["ctl", "--url", &url, "--ca", &authority.path("ca.pem"), "status"]);
    let status = stdout(&status) + &stderr(&status);
    assert!(status.contains("the changed files of listener secure cannot be used"), "{status}");

    fs::copy(authority.directory.join("two.key"), volume.join("tls.key")).unwrap();
    both(&mut node, "using the new ones", "");
    present(&authority, &node, "two.crt");
}

#[test]
fn files_wait_for_a_reload_when_they_are_not_watched() {
    let authority = Authority::new();
    authority.issue("one", &["localhost"]);
    authority.issue("two", &["localhost"]);
    let volume = authority.directory.join("volume");
    copy_pair(&authority, "one", &volume);
    let mut node = Node::start(&authority, &CONFIG.replace("100ms", "0s"), &[]);
    copy_pair(&authority, "two", &volume);
    present(&authority, &node, "one.crt");
    node.reload();
    node.wait_for("reloaded");
    present(&authority, &node, "two.crt");
}
