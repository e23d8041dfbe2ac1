//! Certificates for a test, in files.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use tls::{ClientTls, Trust};

/// A connection whose certificate was checked.
pub type Secure = StreamOwned<ClientConnection, TcpStream>;

/// A directory of one test, removed at the end of the test, with an authority whose certificate is `ca.pem`.
pub struct Authority {
    pub directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("secure-{}-{number}", std::process::id()));
        drop(std::fs::remove_dir_all(&directory));
        std::fs::create_dir_all(&directory).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("test authority {number}"));
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { directory, issuer };
        authority.write("ca.pem", &authority.issuer.pem());
        authority
    }

    /// Issues NAME.crt and NAME.key, for these host names and addresses.
    pub fn issue(&self, name: &str, names: &[&str]) {
        self.issue_with(name, names, |_| ());
    }

    /// Issues a certificate that was valid until 2001.
    pub fn issue_expired(&self, name: &str, names: &[&str]) {
        self.issue_with(name, names, |params| {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        });
    }

    /// Issues a certificate that is valid from 2100 on.
    pub fn issue_for_later(&self, name: &str, names: &[&str]) {
        self.issue_with(name, names, |params| {
            params.not_before = date_time_ymd(2100, 1, 1);
            params.not_after = date_time_ymd(2101, 1, 1);
        });
    }

    /// Issues a certificate that clients cannot use.
    pub fn issue_for_servers(&self, name: &str, names: &[&str]) {
        self.issue_with(name, names, |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        });
    }

    fn issue_with(&self, name: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.write(&format!("{name}.crt"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// Connects by TLS to `localhost` at this address, trusting `ca.pem`.
    pub fn connect(&self, address: &str) -> Secure {
        let trust = Trust::File(self.directory.join("ca.pem"));
        let tls = ClientTls { trust, alpn: vec![b"http/1.1".to_vec()], ..ClientTls::default() };
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(tls.config().unwrap(), name).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        StreamOwned::new(connection, stream)
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.directory.join(name), text).unwrap();
        self.path(name)
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.directory));
    }
}
