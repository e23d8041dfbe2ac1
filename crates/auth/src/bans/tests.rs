use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use super::*;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn new(kind: BanKind, value: &str, until: Option<u64>) -> NewBan {
    NewBan {
        target: BanTarget::parse(kind, value).unwrap(),
        reason: "a reason".into(),
        by: "ops".into(),
        until: until.map(at),
    }
}

fn client(value: &str) -> NewBan {
    new(BanKind::ClientId, value, None)
}

fn is_banned(bans: &Bans, client_id: &str) -> bool {
    bans.find(client_id, None, None, || at(0)).is_some()
}

/// Data directory of one test, removed at its end.
struct DataDir(PathBuf);

impl DataDir {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("meridian-bans-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn open(&self) -> Result<Bans, String> {
        let config_store = LocalStore::open(&self.0).map_err(|error| error.to_string())?;
        let bans = Bans::open(Arc::new(config_store), 10)?;
        bans.import(&self.0).map_err(|error| error.to_string())?;
        Ok(bans)
    }

    fn file(&self) -> PathBuf {
        self.0.join("bans.json")
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn a_client_is_found_by_each_kind_of_ban() {
    let bans = Bans::in_memory(10);
    let find = |client_id: &str, username: Option<&str>, peer: Option<&str>| {
        bans.find(client_id, username, peer.map(|peer| peer.parse().unwrap()), || at(0)).map(|id| id.0)
    };
    assert_eq!(find("c", Some("eve"), Some("10.0.0.1")), None);
    bans.add(client("exact"), at(0)).unwrap();
    bans.add(client("pre*"), at(0)).unwrap();
    bans.add(new(BanKind::Username, "eve", None), at(0)).unwrap();
    bans.add(new(BanKind::Address, "10.0.0.0/24", None), at(0)).unwrap();
    bans.add(new(BanKind::Address, "2001:db8::7", None), at(0)).unwrap();
    assert_eq!(find("exact", None, None), Some(1));
    assert_eq!(find("exactly", None, None), None);
    assert_eq!(find("prefix", None, None), Some(2));
    assert_eq!(find("c", Some("eve"), None), Some(3));
    assert_eq!(find("eve", Some("adam"), None), None);
    assert_eq!(find("c", None, Some("10.0.0.99")), Some(4));
    assert_eq!(find("c", None, Some("::ffff:10.0.0.99")), Some(4));
    assert_eq!(find("c", None, Some("10.0.1.0")), None);
    assert_eq!(find("c", None, Some("2001:db8::7")), Some(5));
    assert_eq!(find("c", None, Some("2001:db8::8")), None);
}

#[test]
fn an_expired_ban_does_not_count_towards_the_limit() {
    let bans = Bans::in_memory(1);
    bans.add(new(BanKind::ClientId, "c", Some(10)), at(0)).unwrap();
    let find = |seconds| bans.find("c", None, None, || at(seconds)).is_some();
    assert!(find(9) && !find(10));
    assert!(matches!(bans.add(client("d"), at(9)), Err(BanError::TooMany { maximum: 1 })));
    assert_eq!(bans.list(None, 10, at(9)).0.len(), 1);
    assert_eq!(bans.list(None, 10, at(10)).0.len(), 0);
    bans.add(client("d"), at(10)).unwrap();
    assert_eq!(bans.len(), 1);
}

/// Either of two nested prefixes may expire first.
#[test]
fn nested_prefixes_end_each_at_its_own_time() {
    let bans = Bans::in_memory(10);
    bans.add(new(BanKind::ClientId, "a*", Some(20)), at(0)).unwrap();
    bans.add(new(BanKind::ClientId, "ab*", Some(10)), at(0)).unwrap();
    bans.add(new(BanKind::ClientId, "abc*", Some(30)), at(0)).unwrap();
    let find = |client_id: &str, seconds| bans.find(client_id, None, None, || at(seconds)).map(|id| id.0);
    assert_eq!(find("abz", 0), Some(2));
    assert_eq!(find("abz", 10), Some(1));
    assert_eq!(find("abz", 20), None);
    assert_eq!(find("abcd", 20), Some(3));
}

#[test]
fn a_target_is_banned_once() {
    let bans = Bans::in_memory(10);
    bans.add(new(BanKind::Address, "10.0.0.1", None), at(0)).unwrap();
    let again = bans.add(new(BanKind::Address, "::ffff:10.0.0.1", None), at(0));
    assert!(matches!(again, Err(BanError::Exists(BanId(1)))), "{again:?}");
    bans.add(client("10.0.0.1"), at(0)).unwrap();
}

#[test]
fn a_removed_ban_is_not_in_force_and_its_id_is_not_reused() {
    let bans = Bans::in_memory(10);
    bans.add(client("c"), at(0)).unwrap();
    assert!(bans.remove(BanId(2), at(0)).unwrap().is_none());
    assert_eq!(bans.remove(BanId(1), at(0)).unwrap().unwrap().target.to_string(), "c");
    assert!(!is_banned(&bans, "c"));
    assert_eq!(bans.add(client("c"), at(0)).unwrap().id, BanId(2));
}

/// Bans of other nodes count too: the views of all nodes see the same records.
#[test]
fn a_ban_that_comes_into_force_increases_the_number_of_revocations() {
    let bans = Bans::in_memory(10);
    let elsewhere = Bans::open(bans.config_store.clone(), 10).unwrap();
    let looks = || (bans.revocations(), elsewhere.revocations());
    assert_eq!(looks(), (0, 0));
    bans.add(client("c"), at(0)).unwrap();
    assert_eq!(looks(), (1, 1));
    assert!(is_banned(&elsewhere, "c"));
    bans.remove(BanId(1), at(0)).unwrap();
    assert_eq!(looks(), (1, 1), "no client has lost access");
    elsewhere.add(client("d"), at(0)).unwrap();
    assert_eq!(looks(), (2, 2));
    // A complete copy at once.
    assert_eq!(Bans::open(bans.config_store.clone(), 10).unwrap().revocations(), 1);
}

#[test]
fn bans_are_listed_in_pages() {
    let bans = Bans::in_memory(10);
    for n in 0..5 {
        bans.add(client(&format!("c{n}")), at(0)).unwrap();
    }
    let (first, more) = bans.list(None, 2, at(0));
    assert!(more && first.len() == 2);
    bans.remove(first[1].id, at(0)).unwrap();
    let (second, more) = bans.list(Some(first[1].id), 3, at(0));
    assert_eq!(second.iter().map(|ban| ban.id.0).collect::<Vec<_>>(), [3, 4, 5]);
    assert!(!more);
}

#[test]
fn a_long_reason_is_refused() {
    let bans = Bans::in_memory(10);
    let long = NewBan { reason: "x".repeat(REASON_MAX + 1), ..client("c") };
    assert!(matches!(bans.add(long, at(0)), Err(BanError::ReasonLong)));
    assert!(bans.is_empty());
}

#[test]
fn bans_survive_a_restart() {
    let data = DataDir::new("restart");
    let bans = data.open().unwrap();
    bans.add(client("c"), at(0)).unwrap();
    bans.add(new(BanKind::Address, "10.0.0.0/8", Some(50)), at(0)).unwrap();
    bans.remove(BanId(1), at(1)).unwrap();

    let again = data.open().unwrap();
    let (list, _) = again.list(None, 10, at(1));
    let [ban] = &*list else { panic!("{list:?}") };
    assert_eq!((ban.id, ban.target.to_string()), (BanId(2), "10.0.0.0/8".to_owned()));
    assert_eq!((&*ban.reason, &*ban.by, ban.until), ("a reason", "ops", Some(at(50))));
    assert_eq!(again.add(client("d"), at(1)).unwrap().id, BanId(3));
    assert!(data.open().unwrap().list(None, 10, at(50)).0.len() == 1, "the other has expired");
}

#[test]
fn expired_bans_are_removed_with_the_next_change() {
    let bans = Bans::in_memory(10);
    bans.add(new(BanKind::ClientId, "c", Some(10)), at(0)).unwrap();
    bans.add(client("d"), at(10)).unwrap();
    assert_eq!(bans.len(), 1);
    assert_eq!(bans.config_store.figures().records, [("bans".into(), 1), ("counters".into(), 1)]);
}

#[test]
fn the_file_of_earlier_versions_is_imported_once() {
    let data = DataDir::new("import");
    let file = r#"{"version":1,"next_id":9,"bans":[
        {"id":3,"kind":"address","value":"10.0.0.0/8","reason":"","by":"ops","created_ms":1000,"until_ms":null},
        {"id":7,"kind":"client_id","value":"a*","reason":"loud","by":"","created_ms":2000,"until_ms":null}]}"#;
    std::fs::write(data.file(), file).unwrap();
    let bans = data.open().unwrap();
    assert!(is_banned(&bans, "abc"));
    assert!(!data.file().exists() && data.0.join("bans.json.imported").exists());
    assert_eq!(bans.add(client("c"), at(0)).unwrap().id, BanId(9));
    bans.remove(BanId(7), at(0)).unwrap();
    bans.add(client("x*"), at(0)).unwrap();
    // The file was put back: targets are not banned twice, and used ids are not reused.
    let again = file.replace("\"id\":3", "\"id\":2").replace("10.0.0.0/8", "11.0.0.0/8");
    std::fs::write(data.file(), again.replace("\"id\":7", "\"id\":3")).unwrap();
    let bans = data.open().unwrap();
    let (list, _) = bans.list(None, 10, at(0));
    let listed: Vec<_> = list.iter().map(|ban| (ban.id.0, ban.target.to_string())).collect();
    let listed: Vec<_> = listed.iter().map(|(id, target)| (*id, target.as_str())).collect();
    assert_eq!(listed, [(2, "11.0.0.0/8"), (3, "10.0.0.0/8"), (9, "c"), (10, "x*"), (11, "a*")]);
    assert_eq!(bans.add(client("z"), at(0)).unwrap().id, BanId(12));
}

#[test]
fn an_unusable_file_is_an_error() {
    let data = DataDir::new("unusable");
    std::fs::write(data.file(), "{").unwrap();
    let error = data.open().unwrap_err();
    assert!(error.contains("bans.json") && error.contains("move it away"), "{error}");
    assert!(data.file().exists());
    std::fs::remove_file(data.file()).unwrap();
    let config_store = LocalStore::open(&data.0).unwrap();
    config_store.propose(vec![Change::put(TABLE, record::key(BanId(1)), &"who?").unwrap()]).unwrap();
    let error = data.open().unwrap_err();
    assert!(error.contains("ban 00000000000000000001"), "{error}");
}

#[test]
fn a_ban_that_cannot_be_written_is_not_in_force() {
    let data = DataDir::new("unwritable");
    let bans = data.open().unwrap();
    bans.add(client("c"), at(0)).unwrap();
    let journal = data.0.join(configstore::FILE);
    std::fs::remove_file(&journal).unwrap();
    // A directory in place of the file cannot be replaced by a file, not even by root.
    std::fs::create_dir_all(journal.join("x")).unwrap();
    assert!(matches!(bans.add(client("d"), at(0)), Err(BanError::Write(_))));
    assert!(matches!(bans.remove(BanId(1), at(0)), Err(BanError::Write(_))));
    assert!(!is_banned(&bans, "d") && is_banned(&bans, "c"));
}

fn texts() -> impl Strategy<Value = String> {
    "[ab/é]{1,4}"
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0u8..4, 0u8..4).prop_map(|(a, b)| IpAddr::from([10, 0, a, b])),
        (0u16..4, 0u16..4).prop_map(|(a, b)| IpAddr::from([0x2001, 0, 0, 0, 0, 0, a, b])),
        (0u8..4)
            .prop_map(|a| IpAddr::from(std::net::Ipv4Addr::from([10, 0, 0, a]).to_ipv6_mapped().octets())),
    ]
}

fn targets() -> impl Strategy<Value = BanTarget> {
    let net = |(address, drop): (IpAddr, u8)| {
        let width = Net::of(address).prefix_len();
        let address = net::mask(address.to_canonical(), width - drop);
        BanTarget::parse(BanKind::Address, &format!("{address}/{}", width - drop)).unwrap()
    };
    let pattern = || (texts(), any::<bool>()).prop_map(|(text, prefix)| text + if prefix { "*" } else { "" });
    prop_oneof![
        pattern().prop_map(|value| BanTarget::parse(BanKind::ClientId, &value).unwrap()),
        pattern().prop_map(|value| BanTarget::parse(BanKind::Username, &value).unwrap()),
        (addresses(), 0u8..20).prop_map(net),
    ]
}

proptest! {
    /// The model checks one ban after the other, which is slow and simple.
    #[test]
    fn the_index_finds_the_same_bans_as_a_linear_search(
        changes in proptest::collection::vec((targets(), proptest::option::of(0u64..40), 0usize..8), 0..40),
        questions in proptest::collection::vec((texts(), proptest::option::of(texts()), proptest::option::of(addresses())), 1..20),
        // Time does not go back: a change removes bans that had expired before it.
        ask_at in 40u64..80,
    ) {
        let bans = Bans::in_memory(20);
        let mut model: Vec<(u64, BanTarget, Option<u64>)> = Vec::new();
        for (step, (target, lasts, remove)) in changes.into_iter().enumerate() {
            let now = step as u64;
            model.retain(|(_, _, until)| until.is_none_or(|until| now < until));
            if remove == 0 && !model.is_empty() {
                let (id, ..) = model.remove(0);
                prop_assert!(bans.remove(BanId(id), at(now)).unwrap().is_some());
            }
            let until = lasts.map(|lasts| now + lasts);
            let new = NewBan { target: target.clone(), reason: String::new(), by: String::new(), until: until.map(at) };
            match bans.add(new, at(now)) {
                Ok(ban) => model.push((ban.id.0, target, until)),
                Err(BanError::Exists(id)) => prop_assert!(model.iter().any(|ban| ban.0 == id.0 && ban.1 == target)),
                Err(error) => {
                    let full = matches!(error, BanError::TooMany { maximum: 20 });
                    prop_assert!(full && model.len() == 20);
                }
            }
        }
        for (client_id, username, peer) in questions {
            let meant: Vec<u64> = model
                .iter()
                .filter(|(_, target, until)| {
                    until.is_none_or(|until| ask_at < until) && target.matches(&client_id, username.as_deref(), peer)
                })
                .map(|ban| ban.0)
                .collect();
            let found = bans.find(&client_id, username.as_deref(), peer, || at(ask_at));
            prop_assert_eq!(found.is_some(), !meant.is_empty());
            prop_assert!(found.is_none_or(|found| meant.contains(&found.0)), "{:?} of {:?}", found, meant);
        }
    }
}
