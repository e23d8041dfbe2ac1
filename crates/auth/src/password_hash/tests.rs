use super::*;

fn verify(text: &str, password: &str) -> bool {
    PasswordHash::parse(text).unwrap().verify(password.as_bytes(), &mut Scratch::default())
}

/// Creates a cheap hash, so that tests are fast.
fn cheap(password: &str) -> PasswordHash {
    PasswordHash::argon2id(password.as_bytes(), b"0123456789abcdef", Params::new(64, 1, 1, None).unwrap())
}

/// Hash written by mosquitto_passwd 2.0.11.
const WONDERLAND: &str = "$7$101$8rC3COp401qO7A/N$BWmYz0ZVJJllJtqxM+NJki5gNcYnlJzEsUhmW2Z8M0Jf8z+bYGdowivmp+N4XDkl9XYOeLzGD/bulvak0iBt2Q==";

#[test]
fn passwords_of_mosquitto_are_verified() {
    assert!(verify(WONDERLAND, "wonderland"));
    assert!(!verify(WONDERLAND, "Wonderland"));
    assert!(!verify(WONDERLAND, ""));
}

/// The hash was made by Python's `hashlib.sha512(b"wonderland" + salt)`, in the form of mosquitto_passwd 1.6.
#[test]
fn passwords_of_old_mosquitto_are_verified() {
    let text = "$6$AQIDBAUGBwgJCgsM$M5IFA1YdBdTq1BHhTLfSkiCX8KnuT+pSgVvCf0iGM81lypVXTeXN92G1j7TE3/3sUsa2BPJEZixWYR6T+PTGwA==";
    assert!(verify(text, "wonderland"));
    assert!(!verify(text, "Wonderland"));
    assert!(!verify(text, ""));
    assert!(PasswordHash::parse(text).unwrap().is_weak());
    assert!(!PasswordHash::parse(WONDERLAND).unwrap().is_weak());
    let crypt = "$6$saltsaltsalt$qFmFH.bQmmtXzyBY0s9v7Oicd2z4XSIecDzlB5KiA2/jctKu9YterLp8wwnSq.qc.eoxqOmSuNp2xS0ktL3nh/";
    assert_eq!(PasswordHash::parse(crypt).err(), Some(HashError::Unknown), "of crypt(3)");
}

/// The example of the reference implementation: `echo -n password | argon2 somesalt -t 2 -m 16 -p 1 -l 32 -id`.
#[test]
fn passwords_of_the_reference_argon2_are_verified() {
    let text = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
    assert!(verify(text, "password"));
    assert!(!verify(text, "passwor"));
}

/// Hashes by libxcrypt 4.4: `perl -e 'print crypt("wonderland", "\$2b\$05\$CCCC..")'`; the `U*U` ones are from
/// crypt_blowfish.
#[test]
fn passwords_of_bcrypt_are_verified() {
    let text = "$2b$05$CCCCCCCCCCCCCCCCCCCCC.7AJfzrRz6SV9K2hFak1dyz8LxHHTFsy";
    assert!(verify(text, "wonderland"));
    assert!(!verify(text, "Wonderland"));
    assert!(!verify(text, "wonderland\0wonderland"), "it repeats the same key");
    for prefix in ["$2a$", "$2b$", "$2y$"] {
        let text = format!("{prefix}05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW");
        assert!(verify(&text, "U*U"), "{prefix}");
        assert!(!verify(&text, "U*V"), "{prefix}");
    }
    // The bits after the salt's 16 bytes may have any value.
    assert!(verify("$2y$05$CCCCCCCCCCCCCCCCCCCCC/E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW", "U*U"));
}

#[test]
fn bcrypt_reads_72_bytes_like_other_implementations() {
    let text = "$2b$05$CCCCCCCCCCCCCCCCCCCCC.XxrQqgBi/5Sxuq9soXzDtjIZ7w5pMfK";
    let long = "0123456789".repeat(8);
    assert!(verify(text, &long));
    assert!(verify(text, &long[..72]));
    assert!(!verify(text, &long[..71]));
}

/// The hashes were made by Python's `hashlib.pbkdf2_hmac`, in the PHC form and in that of passlib.
#[test]
fn passwords_of_pbkdf2_are_verified() {
    for text in [
        "$pbkdf2-sha256$i=1000,l=32$MDEyMzQ1Njc4OWFiY2RlZg$b0FaKDULMkLlg4NThBeBNEp1S6xlfQTtaZwup0NyE5Q",
        "$pbkdf2-sha256$i=1000$MDEyMzQ1Njc4OWFiY2RlZg$b0FaKDULMkLlg4NThBeBNEp1S6xlfQTtaZwup0NyE5Q",
        "$pbkdf2-sha256$1000$MDEyMzQ1Njc4OWFiY2RlZg$b0FaKDULMkLlg4NThBeBNEp1S6xlfQTtaZwup0NyE5Q",
        "$pbkdf2-sha512$i=1000$MDEyMzQ1Njc4OWFiY2RlZg$GBQV0aUMYbiyELyBOq6WBd4dDN58zrZ+z4OumtmTSVsnU38dCxiEe/njJ/gCTDccmdqsjR3CyKjD3hhVEdAIZQ",
        "$pbkdf2-sha512$1000$MDEyMzQ1Njc4OWFiY2RlZg$GBQV0aUMYbiyELyBOq6WBd4dDN58zrZ.z4OumtmTSVsnU38dCxiEe/njJ/gCTDccmdqsjR3CyKjD3hhVEdAIZQ",
    ] {
        assert!(verify(text, "wonderland"), "{text}");
        assert!(!verify(text, "wonderlan"), "{text}");
    }
}

/// Keys of RFC 7677, 3: user `user`, password `pencil`.
const PENCIL: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

#[test]
fn a_plain_password_is_verified_against_scram_keys() {
    assert!(verify(PENCIL, "pencil"));
    assert!(verify(PENCIL, "pen\u{AD}cil"), "SASLprep removes the soft hyphen");
    assert!(!verify(PENCIL, "pencil\u{7}"), "SASLprep refuses a control character");
    assert!(!verify(PENCIL, "pencils"));
    let made = PasswordHash::scram_with_salt("pencil", &PasswordHash::parse(PENCIL).unwrap().salt, 4096);
    assert_eq!(made.unwrap().as_str(), PENCIL);
}

#[test]
fn a_created_scram_credential_is_salted_and_reads_back() {
    let create = || PasswordHash::create_scram("pw", SCRAM_ITERATIONS_MIN).unwrap();
    let first = create();
    assert_ne!(first.as_str(), create().as_str());
    assert_eq!(PasswordHash::parse(first.as_str()), Ok(first.clone()));
    assert!(first.verify(b"pw", &mut Scratch::default()));
    assert!(PasswordHash::create_scram("\u{7}", SCRAM_ITERATIONS).is_err());
    for iterations in [0, SCRAM_ITERATIONS_MIN - 1, SCRAM_ITERATIONS_MAX + 1] {
        assert!(PasswordHash::create_scram("pw", iterations).is_err(), "{iterations}");
    }
}

#[test]
fn a_created_hash_is_salted_and_reads_back() {
    let (first, second) = (PasswordHash::create(b"pw").unwrap(), PasswordHash::create(b"pw").unwrap());
    assert_ne!(first.as_str(), second.as_str());
    assert!(first.as_str().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", first.as_str());
    let again = PasswordHash::parse(first.as_str()).unwrap();
    assert_eq!(again, first);
    assert!(again.verify(b"pw", &mut Scratch::default()));
    assert!(!again.verify(b"pW", &mut Scratch::default()));
}

#[test]
fn scratch_memory_serves_hashes_of_different_sizes() {
    let mut scratch = Scratch::default();
    let large = PasswordHash::argon2id(b"b", b"01234567", Params::new(256, 2, 2, None).unwrap());
    for _ in 0..2 {
        assert!(cheap("a").verify(b"a", &mut scratch));
        assert!(large.verify(b"b", &mut scratch));
        assert!(!large.verify(b"a", &mut scratch));
    }
}

#[test]
fn an_invalid_hash_is_refused() {
    for text in [
        "",
        "$",
        "secret",
        "$1$x$y",
        "$2x$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
        "$2b$03$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
        "$2b$32$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
        "$2b$5$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
        "$2b$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOe",
        "$2b$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOe+",
        "$pbkdf2-sha1$i=1000$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
        "$pbkdf2-sha256$i=0$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
        "$pbkdf2-sha256$i=1000,l=32$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
        "$pbkdf2-sha256$i=1000,i=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
        "$pbkdf2-sha256$l=16$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=",
        "SCRAM-SHA-256$1:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=",
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=",
        "SCRAM-SHA-1$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=",
        "$7$101$short$x",
        "$7$0$8rC3COp401qO7A/N$BWmYz0ZVJJllJtqxM+NJki5gNcY=",
        "$7$+5$8rC3COp401qO7A/N$BWmYz0ZVJJllJtqxM+NJki5gNcY=",
        "$7$101$8rC3COp401qO7A/N$",
        "$argon2id$v=19$m=64,t=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
        "$argon2id$v=1$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
        "$argon2x$v=19$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
        "$argon2id$v=19$m=1,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
        "$argon2id$v=19$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEy",
        "$argon2id$v=19$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg$",
    ] {
        assert_eq!(PasswordHash::parse(text).err(), Some(HashError::Unknown), "{text}");
    }
}

/// A hash that would cost too much, by mistake or from another file, never reaches the threads that verify.
#[test]
fn a_hash_that_would_stop_the_verifier_is_refused() {
    let (sixteen, key) = ("MDEyMzQ1Njc4OWFiY2RlZg", "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=");
    let long = "A".repeat(128); // 96 bytes: three blocks of SHA-256.
    for text in [
        format!("$argon2id$v=19$m=4294967295,t=1,p=1${sixteen}${sixteen}"),
        format!("$argon2id$v=19$m=1048576,t=5,p=1${sixteen}${sixteen}"),
        format!("$argon2id$v=19$m=64,t=4294967295,p=1${sixteen}${sixteen}"),
        "$7$4294967295$QUFBQUFBQUE=$QUFBQUFBQUFBQUFBQUFBQQ==".to_owned(),
        format!("$pbkdf2-sha256$i=5000001${sixteen}${sixteen}"),
        format!("$pbkdf2-sha512$5000001${sixteen}${sixteen}"),
        format!("$pbkdf2-sha256$i=1666667${sixteen}${long}"),
        "$2b$17$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW".to_owned(),
        "$2b$31$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW".to_owned(),
        format!("SCRAM-SHA-256$5000001:W22ZaJ0SNY7soEsUEjb6gQ==${key}:{key}"),
    ] {
        assert_eq!(PasswordHash::parse(&text).err(), Some(HashError::TooCostly), "{text}");
    }
    assert!(PasswordHash::parse(&format!("$pbkdf2-sha256$i=1666666${sixteen}${long}")).is_ok());
    assert!(PasswordHash::parse(&format!("$argon2id$v=19$m=1048576,t=4,p=1${sixteen}${sixteen}")).is_ok());
}

#[test]
fn debug_shows_no_hash() {
    assert_eq!(format!("{:?}", PasswordHash::parse(WONDERLAND).unwrap()), "PasswordHash(pbkdf2-sha512)");
}

proptest::proptest! {
    #[test]
    fn equality_is_equality(a in "[ab]{0,3}", b in "[ab]{0,3}") {
        proptest::prop_assert_eq!(equal_in_constant_time(a.as_bytes(), b.as_bytes()), a == b);
    }

    #[test]
    fn no_text_panics(text in "(SCRAM-SHA-256)?([$:](7|2b|05|4096|pbkdf2-sha256|i=1|argon2id|v=19|m=8,t=1,p=1|[A-Za-z0-9+/=,]{0,12})){0,7}") {
        if let Ok(hash) = PasswordHash::parse(&text) {
            proptest::prop_assert_eq!(hash.as_str(), text);
        }
    }
}
