//! Settings of JSON Web Tokens.

use std::path::PathBuf;
use std::time::Duration;

use settings::{choices, section};

section! {
    /// JSON Web Tokens in place of passwords; docs/jwt.md has an example. Enabled by exactly one of `secret_file`,
    /// `public_key_file`, `jwks_file` and `jwks_url`.
    [jwt]
    pub struct Jwt {
        /// Field of CONNECT with the token.
        pub from: TokenField = "password", on reload;
        /// Allowed signature algorithms, separated by commas: HS256, HS384, HS512 with `secret_file`; RS256, RS384,
        /// RS512, PS256, PS384, PS512, ES256, ES384, EdDSA with public keys. Empty: all that fit the keys.
        pub algorithms: String = "", on reload;
        /// File with the secret of HS256, HS384 and HS512: at least 32, 48 and 64 bytes. One line end after it is
        /// ignored.
        pub secret_file: Option<PathBuf> = "", at start;
        /// Encoding of the secret.
        pub secret_encoding: SecretEncoding = "raw", on reload;
        /// File with public keys (PEM, `-----BEGIN PUBLIC KEY-----`): RSA of 2048 to 8192 bits, P-256, P-384, Ed25519;
        /// at most four.
        pub public_key_file: Option<PathBuf> = "", at start;
        /// File with a JWK Set.
        pub jwks_file: Option<PathBuf> = "", at start;
        /// URL of a JWK Set: `https://`, or `http://` on loopback.
        pub jwks_url: Option<String> = "", at start;
        /// Authorities (PEM) that verify the server of `jwks_url`. Unset: those of the system.
        pub jwks_ca_file: Option<PathBuf> = "", on reload;
        /// Interval between fetches of the JWK Set. It is shorter when the server's `Cache-Control: max-age` is.
        pub jwks_refresh: Duration = "10m" in "10s..=1d", on reload;
        /// Maximum time of a fetch, and of a client's wait for one.
        pub jwks_timeout: Duration = "5s" in "100ms..=1m", on reload;
        /// Minimum time between two fetches, however many tokens name a key that is not in the set.
        pub jwks_fetch_pause: Duration = "10s" in "1s..=1h", on reload;
        /// Maximum age of keys that cannot be fetched again. Beyond it, every token is refused until a fetch succeeds.
        pub jwks_stale_max: Duration = "1d" in "0s..=30d", on reload;
        /// Required value of `iss`; empty accepts any.
        pub issuer: String = "", on reload;
        /// Required value of `aud`, or of one of its entries. Empty: tokens with an `aud` are refused, because they are
        /// for another audience.
        pub audience: String = "", on reload;
        /// Maximum difference between the clocks of issuer and node.
        pub leeway: Duration = "30s" in "0s..=5m", on reload;
        /// Refuse tokens without `exp`.
        pub require_expiry: bool = "true", on reload;
        /// Claim with the client's user name. A name that begins with `/` is a JSON Pointer, such as `/device/name`,
        /// here and in the other claims.
        pub username_claim: String = "sub", on reload;
        /// Claim that must be equal to the Client Identifier; empty for none.
        pub client_id_claim: String = "", on reload;
        /// Claim that names the client's tenant: its topics are below `TENANT/`. Empty for none.
        pub tenant_claim: String = "", on reload;
        /// Claims that become attributes of the client for access rules, separated by commas.
        pub attribute_claims: String = "", on reload;
        /// Claim with the client's own access rules; empty for none.
        pub acl_claim: String = "acl", on reload;
        /// Claim that allows the client everything when it is `true`; empty for none.
        pub superuser_claim: String = "", on reload;
    }
}

choices! {
    /// Field of CONNECT with a token.
    pub enum TokenField {
        /// Password. A user name in CONNECT has to be that of the token.
        Password = "password",
        /// User Name. The user name of the token replaces it.
        Username = "username",
    }
}

choices! {
    /// Encoding of a secret.
    pub enum SecretEncoding {
        /// The bytes of the file.
        Raw = "raw",
        /// Base64 or base64url, with or without padding.
        Base64 = "base64",
    }
}
