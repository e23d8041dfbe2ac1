//! The settings of JSON Web Tokens.

use std::path::PathBuf;
use std::time::Duration;

use settings::{choices, section};

section! {
    /// JSON Web Tokens instead of passwords; docs/jwt.md has an example. They count when `secret_file`, `public_key_file`, `jwks_file`
    /// or `jwks_url` is set, of which there can be one.
    [jwt]
    pub struct Jwt {
        /// The field of CONNECT that has the token.
        pub from: TokenField = "password", on reload;
        /// Which algorithms tokens may be signed with, separated by commas: HS256, HS384, HS512 with `secret_file`; RS256, RS384, RS512,
        /// PS256, PS384, PS512, ES256, ES384, EdDSA with public keys. Empty is all that fit the keys.
        pub algorithms: String = "", on reload;
        /// The secret of HS256, HS384 and HS512: at least 32, 48 and 64 bytes. One line end after it does not count.
        pub secret_file: Option<PathBuf> = "", at start;
        /// How the secret is written.
        pub secret_encoding: SecretEncoding = "raw", on reload;
        /// Public keys (PEM, `-----BEGIN PUBLIC KEY-----`): RSA of 2048 to 8192 bits, P-256, P-384, Ed25519; at most four.
        pub public_key_file: Option<PathBuf> = "", at start;
        /// A JWK Set in a file.
        pub jwks_file: Option<PathBuf> = "", at start;
        /// Where a JWK Set is fetched: `https://`, or `http://` on loopback.
        pub jwks_url: Option<String> = "", at start;
        /// Authorities (PEM) that the server of `jwks_url` is checked by; those of the system when unset.
        pub jwks_ca_file: Option<PathBuf> = "", on reload;
        /// How often the JWK Set is fetched. More often when the server's `Cache-Control: max-age` says so.
        pub jwks_refresh: Duration = "10m" in "10s..=1d", on reload;
        /// Most time that a fetch may take, and that a client waits for one.
        pub jwks_timeout: Duration = "5s" in "100ms..=1m", on reload;
        /// Least time between two fetches, however many tokens name a key that is not in the set.
        pub jwks_fetch_pause: Duration = "10s" in "1s..=1h", on reload;
        /// How long keys count that cannot be fetched again. Then every token is refused until they can.
        pub jwks_stale_max: Duration = "1d" in "0s..=30d", on reload;
        /// What `iss` has to be; empty is anything.
        pub issuer: String = "", on reload;
        /// What `aud` has to be or contain. When empty, tokens that have an `aud` are refused: they are for somebody else.
        pub audience: String = "", on reload;
        /// How far the clocks of issuer and node may be apart.
        pub leeway: Duration = "30s" in "0s..=5m", on reload;
        /// Whether tokens without `exp` are refused.
        pub require_expiry: bool = "true", on reload;
        /// The claim that is the client's user name. As for all of these, one that begins with `/` is a JSON Pointer, such as
        /// `/device/name`.
        pub username_claim: String = "sub", on reload;
        /// The claim that the Client Identifier has to be equal to; empty is none.
        pub client_id_claim: String = "", on reload;
        /// The claim that names the client's tenant: its topics are below `TENANT/`. Empty is none.
        pub tenant_claim: String = "", on reload;
        /// Claims that become attributes of the client, for rules, separated by commas.
        pub attribute_claims: String = "", on reload;
        /// The claim with the client's own rules; empty is none.
        pub acl_claim: String = "acl", on reload;
        /// The claim that, when `true`, lets the client do everything; empty is none.
        pub superuser_claim: String = "", on reload;
    }
}

choices! {
    /// The field of CONNECT that has a token.
    pub enum TokenField {
        /// Password. A user name beside it has to be that of the token.
        Password = "password",
        /// User Name, which the token's takes the place of.
        Username = "username",
    }
}

choices! {
    /// How a secret is written.
    pub enum SecretEncoding {
        /// As it is.
        Raw = "raw",
        /// In base64 or base64url, with or without padding.
        Base64 = "base64",
    }
}
