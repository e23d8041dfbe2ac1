//! Password file with one `user:hash` a line.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;
use std::sync::Arc;

use base64ct::{Base64, Encoding};

use crate::error::{Fault, FileError};
use crate::password_hash::{HashError, PasswordHash, SCRAM_KEY_LEN, ScramKeys, hmac_sha256};

mod link;

/// Users and their hashed passwords. Empty lines and lines that begin with `#` are skipped.
#[derive(Debug)]
pub struct PasswordFile {
    users: HashMap<Box<str>, usize>,
    hashes: Vec<Arc<PasswordHash>>,
    /// Chooses the hash that an unknown user's password is compared with. Differs between processes.
    decoys: RandomState,
    /// Iterations and length of the salt of the users with SCRAM keys, each combination once.
    scram_kinds: Vec<(u32, usize)>,
    /// Key of the SCRAM answers to unknown users, kept in the file so that it stays constant.
    scram_decoys: [u8; SCRAM_KEY_LEN],
    stores_decoy_key: bool,
}

/// Hash that a user's password is compared with.
#[derive(Clone, Debug)]
pub enum Candidate {
    User(Arc<PasswordHash>),
    /// The user is unknown. Verifying against this hash of another user takes the time of a known user; the answer is
    /// always a refusal.
    Decoy(Arc<PasswordHash>),
    /// The file has no users.
    Nobody,
}

impl PasswordFile {
    /// # Errors
    /// [`FileError`] with the line.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let bytes = std::fs::read(path).map_err(|error| FileError::new(path, None, Fault::Io(error)))?;
        let text = String::from_utf8(bytes).map_err(|_| FileError::new(path, None, Fault::NotText))?;
        Self::parse(path, &text)
    }

    /// # Errors
    /// [`FileError`] with the line.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let decoys = RandomState::new();
        let kept = text.lines().find_map(read_decoy_key);
        let mut file = Self {
            users: HashMap::new(),
            hashes: Vec::new(),
            scram_kinds: Vec::new(),
            scram_decoys: kept.unwrap_or_else(|| temporary_decoy_key(&decoys)),
            stores_decoy_key: kept.is_some(),
            decoys,
        };
        let mut lines: Vec<usize> = Vec::new();
        for (number, line) in numbered(text) {
            let error = |fault| Err(FileError::new(path, number, fault));
            let Some((user, hash)) = line.split_once(':') else { return error(Fault::NoColon) };
            if user.is_empty() {
                return error(Fault::UserEmpty);
            }
            let hash = match PasswordHash::parse(hash.trim()) {
                Ok(hash) => hash,
                Err(HashError::Unknown) => return error(Fault::NotAHash { user: user.to_owned() }),
                Err(HashError::TooCostly) => return error(Fault::TooCostly { user: user.to_owned() }),
            };
            if let Some(first) = file.users.insert(user.into(), file.hashes.len()) {
                return error(Fault::UserTwice { user: user.to_owned(), first: lines[first] });
            }
            file.scram_kinds.extend(hash.scram().map(|keys| (keys.iterations, keys.salt.len())));
            file.hashes.push(Arc::new(hash));
            lines.push(number);
        }
        file.scram_kinds.sort_unstable();
        file.scram_kinds.dedup();
        Ok(file)
    }

    pub fn len(&self) -> usize {
        self.users.len()
    }

    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Returns the number of users whose hash is weak.
    pub fn weak_users(&self) -> usize {
        self.hashes.iter().filter(|hash| hash.is_weak()).count()
    }

    pub fn candidate(&self, user: &str) -> Candidate {
        match self.users.get(user) {
            Some(at) => Candidate::User(self.hashes[*at].clone()),
            None if self.hashes.is_empty() => Candidate::Nobody,
            None => {
                // A file may hold expensive and cheap hashes. With one fixed decoy, the response time would reveal
                // unknown users. So each name always gets the same decoy.
                let at = self.decoys.hash_one(user) % self.hashes.len() as u64;
                Candidate::Decoy(self.hashes[at as usize].clone())
            }
        }
    }
}

impl PasswordFile {
    /// Returns whether the SCRAM answers to unknown users stay constant after this file is read again.
    pub fn stores_decoy_key(&self) -> bool {
        self.stores_decoy_key
    }

    /// Returns a constant salt like those of other users, and keys without a password.
    fn decoy_keys_of(&self, user: &str) -> Option<ScramKeys> {
        let part = |name: &[u8]| hmac_sha256(&self.scram_decoys, &[name, b"\0", user.as_bytes()]);
        let kind = part(b"kind").first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let at = kind.checked_rem(self.scram_kinds.len() as u64)?;
        let (iterations, salt_len) = *self.scram_kinds.get(at as usize)?;
        // No salt is longer than two of these.
        let salt: Vec<u8> = [part(b"salt"), part(b"more salt")].concat();
        let salt = salt[..salt_len.min(salt.len())].into();
        Some(ScramKeys { iterations, salt, stored_key: part(b"stored key"), server_key: part(b"server key") })
    }
}

/// Parses the line with the key of SCRAM answers to unknown users. Other programs read it as a comment.
fn read_decoy_key(line: &str) -> Option<[u8; SCRAM_KEY_LEN]> {
    let bytes = Base64::decode_vec(line.strip_prefix(DECOYS)?.trim()).ok()?;
    bytes.try_into().ok()
}

fn temporary_decoy_key(random: &RandomState) -> [u8; SCRAM_KEY_LEN] {
    let mut key = [0; SCRAM_KEY_LEN];
    key.chunks_mut(8)
        .enumerate()
        .for_each(|(at, part)| part.copy_from_slice(&random.hash_one(at).to_le_bytes()));
    key
}

const DECOYS: &str = "#meridian-scram-decoys ";

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim_end()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// Edits a password file without changing its other lines.
#[derive(Clone, Debug, Default)]
pub struct PasswordFileEdit {
    lines: Vec<String>,
}

impl PasswordFileEdit {
    /// # Errors
    /// The file cannot be read. A missing file is an error of the kind `NotFound`.
    pub fn read(path: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        Ok(Self { lines: text.lines().map(str::to_owned).collect() })
    }

    /// Adds a user, or replaces the password.
    pub fn set(&mut self, user: &str, hash: &PasswordHash) {
        let line = format!("{user}:{}", hash.as_str());
        match self.position(user) {
            Some(at) => self.lines[at] = line,
            None => self.lines.push(line),
        }
    }

    /// Adds the line with the key of SCRAM answers to unknown users, if it is missing. They then stay constant across
    /// restarts.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn store_decoy_key(&mut self) -> Result<(), getrandom::Error> {
        if !self.lines.iter().any(|line| read_decoy_key(line).is_some()) {
            let mut key = [0; SCRAM_KEY_LEN];
            getrandom::fill(&mut key)?;
            self.lines.insert(0, format!("{DECOYS}{}", Base64::encode_string(&key)));
        }
        Ok(())
    }

    /// Removes a user. Returns whether the user existed.
    pub fn remove(&mut self, user: &str) -> bool {
        let position = self.position(user);
        if let Some(at) = position {
            self.lines.remove(at);
        }
        position.is_some()
    }

    fn position(&self, user: &str) -> Option<usize> {
        self.lines.iter().position(|line| line.split_once(':').is_some_and(|(name, _)| name == user))
    }

    pub fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Replaces the file in one step: a broker that reads it sees the old or the new file, never a part. The new file
    /// keeps owner and permissions of the old one. Only its owner can read a newly created file.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        use std::io::Write as _;
        use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};

        let old = std::fs::metadata(path).ok();
        let mode = old.as_ref().map_or(0o600, |old| old.permissions().mode() & 0o7777);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let new = path.with_file_name(name);
        let mut options = std::fs::OpenOptions::new();
        let written = options.write(true).create_new(true).mode(mode).open(&new).and_then(|mut file| {
            if let Some(old) = &old
                && (file.metadata()?.uid(), file.metadata()?.gid()) != (old.uid(), old.gid())
            {
                // Otherwise a change by root would make the file unreadable for the broker's user.
                std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
            }
            file.write_all(self.text().as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, path)
        });
        if written.is_err() {
            // Only the first error matters, and a file that was never created cannot be removed either.
            let _ = std::fs::remove_file(&new);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::ScramSource;
    use crate::scram::{ScramUser, user_of};

    fn scram(file: &PasswordFile, user: &str) -> Option<ScramUser> {
        user_of([file as &dyn ScramSource].into_iter(), user).map(|(user, _)| user)
    }

    const A: &str = "$7$1$8rC3COp401qO7A/N$BWmYz0ZVJJllJtqxM+NJki5gNcY=";
    const B: &str = "$argon2id$v=19$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg";

    fn parse(text: &str) -> Result<PasswordFile, String> {
        PasswordFile::parse(Path::new("users"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn users_are_found_with_their_hash() {
        let file = parse(&format!("# ours\n\nalice:{A}\nbob smith:{B}  \r\n")).unwrap();
        assert_eq!(file.len(), 2);
        let Candidate::User(hash) = file.candidate("bob smith") else { panic!("bob exists") };
        assert_eq!(hash.as_str(), B);
    }

    #[test]
    fn an_unknown_user_always_meets_the_same_decoy() {
        let file = parse(&format!("alice:{A}\nbob:{B}\n")).unwrap();
        let decoy = |user: &str| match file.candidate(user) {
            Candidate::Decoy(hash) => hash.as_str().to_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(decoy("eve"), decoy("eve"));
        let decoys: std::collections::HashSet<_> = (0..64).map(|n| decoy(&format!("eve{n}"))).collect();
        assert_eq!(decoys.len(), 2, "unknown users get hashes of both costs");
        assert!(matches!(parse("").unwrap().candidate("eve"), Candidate::Nobody));
    }

    const C: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
    const D: &str = "SCRAM-SHA-256$8192:W22ZaJ0SNY7soEsU$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    #[test]
    fn users_with_scram_keys_can_use_scram() {
        assert!(!parse(&format!("alice:{A}")).unwrap().has_scram());
        assert_eq!(scram(&parse(&format!("alice:{A}")).unwrap(), "alice"), None);
        let file = parse(&format!("alice:{A}\ncarol:{C}")).unwrap();
        let carol = scram(&file, "carol").unwrap();
        assert!(carol.known && carol.keys.iterations == 4096);
        assert!(!scram(&file, "alice").unwrap().known, "hers is another kind of hash");
    }

    /// Otherwise the answers would reveal which users exist.
    #[test]
    fn scram_answers_unknown_users_like_known_ones() {
        let mut edit = PasswordFileEdit { lines: vec![format!("carol:{C}"), format!("dave:{D}")] };
        edit.store_decoy_key().unwrap();
        let once = edit.text();
        edit.store_decoy_key().unwrap();
        assert_eq!(edit.text(), once);
        let (file, again) = (parse(&once).unwrap(), parse(&format!("{once}alice:{A}\n")).unwrap());
        assert!(file.stores_decoy_key());
        let mut kinds = std::collections::BTreeSet::new();
        let mut salts = std::collections::BTreeSet::new();
        for n in 0..64 {
            let (user, name) = (scram(&file, &format!("eve{n}")).unwrap(), format!("eve{n}"));
            assert!(!user.known);
            assert_eq!(
                Some(&user),
                scram(&again, &name).as_ref(),
                "neither a restart nor a new user changes it"
            );
            kinds.insert((user.keys.iterations, user.keys.salt.len()));
            salts.insert(user.keys.salt);
        }
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), [(4096, 16), (8192, 12)]);
        assert_eq!(salts.len(), 64);
        let other = parse(&format!("carol:{C}")).unwrap();
        assert!(!other.stores_decoy_key());
        assert_ne!(scram(&other, "eve1").unwrap().keys.salt, scram(&file, "eve1").unwrap().keys.salt);
    }

    #[test]
    fn errors_name_file_line_and_fix() {
        assert_eq!(parse("alice").unwrap_err(), "users:1: expected user:hash");
        assert_eq!(parse(&format!("\n:{A}")).unwrap_err(), "users:2: the user name is empty");
        assert_eq!(
            parse(&format!("alice:{A}\n#\nalice:{B}")).unwrap_err(),
            "users:3: user `alice` is in line 1 already"
        );
        assert!(parse("alice:secret").unwrap_err().contains("meridian passwd"));
        assert!(!parse("alice:secret").unwrap_err().contains("secret"), "an error never shows a password");
    }

    #[test]
    fn an_edit_keeps_the_other_lines() {
        let hash = PasswordHash::parse(B).unwrap();
        let mut edit =
            PasswordFileEdit { lines: vec!["# ours".into(), format!("alice:{A}"), format!("bob:{A}")] };
        edit.set("alice", &hash);
        edit.set("carol", &hash);
        assert!(edit.remove("bob"));
        assert!(!edit.remove("bob"));
        assert_eq!(edit.text(), format!("# ours\nalice:{B}\ncarol:{B}\n"));
    }

    #[test]
    fn a_written_file_reads_back_and_only_its_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = std::env::temp_dir().join(format!("meridian-password-file-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("users");
        let mut edit = PasswordFileEdit::default();
        edit.set("alice", &PasswordHash::parse(A).unwrap());
        edit.write(&path).unwrap();
        assert_eq!(PasswordFile::read(&path).unwrap().len(), 1);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(PasswordFileEdit::read(&path).unwrap().text(), edit.text());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "no temporary file is left");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "[a-z:$7=,#\n]{0,60}") {
            // Other tests check which texts are errors.
            if let Ok(file) = parse(&text) {
                proptest::prop_assert!(file.is_empty() || text.contains(':'));
            }
        }
    }
}
