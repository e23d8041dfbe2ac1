//! Claims of a verified token: requirements, and the admission that follows from them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use access::{Admission, Grants, Principal};
use serde_json::{Map, Value};

use super::refusal::Refusal;
use super::settings::Jwt;
use crate::grants::ClientGrants;

/// Configured requirements on claims.
#[derive(Clone, Debug)]
pub struct ClaimRules {
    issuer: String,
    audience: String,
    leeway: f64,
    require_expiry: bool,
    username: Claim,
    client_id: Option<Claim>,
    tenant: Option<Claim>,
    attributes: Vec<Claim>,
    acl: Option<Claim>,
    superuser: Option<Claim>,
}

/// Client that presents a token.
#[derive(Clone, Copy, Debug)]
pub struct Bearer<'a> {
    pub client_id: &'a str,
    /// `None` accepts any: CONNECT has no user name, or the user name is the token itself.
    pub username: Option<&'a str>,
}

/// Name of a claim, or a JSON Pointer (RFC 6901) to one.
#[derive(Clone, Debug)]
struct Claim(Box<str>);

impl Claim {
    fn of(setting: &str) -> Option<Self> {
        let name = setting.trim();
        (!name.is_empty()).then(|| Self(name.into()))
    }

    fn find<'a>(&self, claims: &'a Map<String, Value>) -> Option<&'a Value> {
        let Some(path) = self.0.strip_prefix('/') else { return claims.get(&*self.0) };
        let (first, rest) = path.find('/').map_or((path, ""), |at| path.split_at(at));
        claims.get(&first.replace("~1", "/").replace("~0", "~"))?.pointer(rest)
    }

    /// Returns the name of the attribute: the last part of a pointer.
    fn attribute(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    fn wrong(&self, why: &'static str) -> Refusal {
        Refusal::ClaimWrong { claim: self.0.clone(), why }
    }

    /// Returns the claim as text that is valid as an MQTT name.
    fn text<'a>(&self, claims: &'a Map<String, Value>) -> Result<&'a str, Refusal> {
        let value = self.find(claims).ok_or_else(|| Refusal::ClaimMissing(self.0.clone()))?;
        let text = value.as_str().ok_or_else(|| self.wrong("is not a string"))?;
        if text.is_empty() || text.len() > NAME_MAX || text.contains(char::is_control) {
            return Err(self.wrong("is empty, too long, or has control characters"));
        }
        Ok(text)
    }
}

impl ClaimRules {
    /// # Errors
    /// A sentence: the claim of the user name is not set, or there are too many attributes.
    pub fn new(settings: &Jwt) -> Result<Self, String> {
        let username = Claim::of(&settings.username_claim).ok_or(
            "jwt.username_claim is empty; set it to the claim that holds the user name, such as `sub`",
        )?;
        let attributes: Vec<Claim> = settings.attribute_claims.split(',').filter_map(Claim::of).collect();
        if attributes.len() > ATTRIBUTES_MAX {
            return Err(format!("jwt.attribute_claims names more than {ATTRIBUTES_MAX} claims"));
        }
        Ok(Self {
            issuer: settings.issuer.clone(),
            audience: settings.audience.clone(),
            leeway: settings.leeway.as_secs_f64(),
            require_expiry: settings.require_expiry,
            username,
            client_id: Claim::of(&settings.client_id_claim),
            tenant: Claim::of(&settings.tenant_claim),
            attributes,
            acl: Claim::of(&settings.acl_claim),
            superuser: Claim::of(&settings.superuser_claim),
        })
    }

    /// Returns the admission of the bearer of a token with these claims.
    ///
    /// # Errors
    /// The first requirement that is not met.
    pub fn admit(
        &self,
        claims: &Map<String, Value>,
        bearer: Bearer<'_>,
        now: SystemTime,
    ) -> Result<Admission, Refusal> {
        let lifetime = self.check_times(claims, now)?;
        self.check_issuer(claims)?;
        self.check_audience(claims)?;
        let username = self.username.text(claims)?;
        if bearer.username.is_some_and(|other| other != username) {
            return Err(Refusal::OtherUser);
        }
        if let Some(claim) = &self.client_id
            && claim.text(claims)? != bearer.client_id
        {
            return Err(Refusal::OtherClient);
        }
        let principal = Principal {
            superuser: self.superuser(claims)?,
            mountpoint: self.tenant.as_ref().map(|claim| mountpoint(claim, claims)).transpose()?,
            attributes: self.attributes(claims)?,
            grants: self.grants(claims)?,
            rates: None,
            link: None,
        };
        let is_default = !principal.superuser
            && principal.mountpoint.is_none()
            && principal.attributes.is_empty()
            && principal.grants.is_none();
        Ok(Admission {
            client_id: None,
            username: Some(username.into()),
            lifetime,
            principal: (!is_default).then(|| principal.into()),
            validity: None,
        })
    }

    /// Returns the remaining time of the token, without the leeway.
    fn check_times(&self, claims: &Map<String, Value>, now: SystemTime) -> Result<Option<Duration>, Refusal> {
        // A clock before 1970 makes every token one of the future, which is refused.
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        for claim in ["nbf", "iat"] {
            if let Some(time) = numeric_date(claims, claim)?
                && time > now + self.leeway
            {
                return Err(Refusal::NotYet { claim, seconds: (time - now) as u64 });
            }
        }
        match numeric_date(claims, "exp")? {
            Some(end) if now >= end + self.leeway => Err(Refusal::Expired { seconds: (now - end) as u64 }),
            Some(end) => Ok(Some(Duration::from_secs_f64((end - now).max(0.0)).min(LIFETIME_MAX))),
            None if self.require_expiry => Err(Refusal::ClaimMissing("exp".into())),
            None => Ok(None),
        }
    }

    fn check_issuer(&self, claims: &Map<String, Value>) -> Result<(), Refusal> {
        if self.issuer.is_empty() {
            return Ok(());
        }
        match claims.get("iss") {
            None => Err(Refusal::ClaimMissing("iss".into())),
            Some(Value::String(issuer)) if *issuer == self.issuer => Ok(()),
            Some(_) => Err(Refusal::ClaimWrong { claim: "iss".into(), why: "is not jwt.issuer" }),
        }
    }

    /// RFC 7519 (4.1.3): a server that the `aud` of a token does not name must refuse the token.
    fn check_audience(&self, claims: &Map<String, Value>) -> Result<(), Refusal> {
        let found = claims.get("aud");
        if self.audience.is_empty() {
            return match found {
                None => Ok(()),
                Some(_) => {
                    let why = "names an audience, and jwt.audience is empty";
                    Err(Refusal::ClaimWrong { claim: "aud".into(), why })
                }
            };
        }
        let named = match found {
            None => return Err(Refusal::ClaimMissing("aud".into())),
            Some(Value::String(audience)) => *audience == self.audience,
            Some(Value::Array(all)) => {
                all.iter().all(Value::is_string) && all.iter().any(|audience| *audience == *self.audience)
            }
            Some(_) => false,
        };
        if named {
            Ok(())
        } else {
            Err(Refusal::ClaimWrong { claim: "aud".into(), why: "does not name jwt.audience" })
        }
    }

    fn superuser(&self, claims: &Map<String, Value>) -> Result<bool, Refusal> {
        let Some(claim) = &self.superuser else { return Ok(false) };
        match claim.find(claims) {
            None => Ok(false),
            Some(Value::Bool(superuser)) => Ok(*superuser),
            Some(_) => Err(claim.wrong("is neither true nor false")),
        }
    }

    /// Returns the attributes. Missing claims are skipped; each entry of a list is a value.
    fn attributes(&self, claims: &Map<String, Value>) -> Result<Attributes, Refusal> {
        let mut attributes = Vec::new();
        for claim in &self.attributes {
            let values = match claim.find(claims) {
                None | Some(Value::Null) => continue,
                Some(Value::Array(values)) => &**values,
                Some(value) => std::slice::from_ref(value),
            };
            for value in values {
                let text: Box<str> = match value {
                    Value::String(text) => text.as_str().into(),
                    Value::Number(number) => number.to_string().into(),
                    Value::Bool(boolean) => boolean.to_string().into(),
                    _ => return Err(claim.wrong("is not a string, number or boolean, nor a list of them")),
                };
                if text.len() > ATTRIBUTE_MAX || attributes.len() == ATTRIBUTES_MAX {
                    return Err(claim.wrong("is too long for an attribute, or there are too many"));
                }
                attributes.push((claim.attribute().into(), text));
            }
        }
        Ok(attributes)
    }

    fn grants(&self, claims: &Map<String, Value>) -> Result<Option<Box<dyn Grants>>, Refusal> {
        let Some(claim) = &self.acl else { return Ok(None) };
        let Some(value) = claim.find(claims) else { return Ok(None) };
        let grants = ClientGrants::parse(value).map_err(|why| claim.wrong(why))?;
        Ok(Some(Box::new(grants)))
    }
}

/// Returns a mountpoint of one level, which no value can widen.
fn mountpoint(claim: &Claim, claims: &Map<String, Value>) -> Result<Box<str>, Refusal> {
    let tenant = claim.text(claims)?;
    if tenant.len() > TENANT_MAX || tenant.contains(['+', '#', '/']) || tenant.starts_with('$') {
        return Err(claim.wrong("is too long for a tenant, has one of + # /, or begins with $"));
    }
    Ok(format!("{tenant}/").into())
}

/// Parses seconds since 1970, possibly with a fraction (RFC 7519, 2). A time after the year 9999 is most likely in
/// milliseconds.
fn numeric_date(claims: &Map<String, Value>, claim: &'static str) -> Result<Option<f64>, Refusal> {
    let Some(value) = claims.get(claim) else { return Ok(None) };
    match value.as_f64() {
        Some(seconds) if (0.0..=253_402_300_799.0).contains(&seconds) => Ok(Some(seconds)),
        _ => Err(Refusal::ClaimWrong { claim: claim.into(), why: "is not a time in seconds since 1970" }),
    }
}

/// Attributes in the form of `Principal::attributes`.
type Attributes = Vec<(Box<str>, Box<str>)>;

/// Maximum size of an MQTT user name in bytes.
const NAME_MAX: usize = u16::MAX as usize;
const TENANT_MAX: usize = 255;
const ATTRIBUTES_MAX: usize = 64;
const ATTRIBUTE_MAX: usize = 1024;
/// Ten years. A longer time makes no difference to a connection, and every clock can add this one.
const LIFETIME_MAX: Duration = Duration::from_secs(3650 * 86_400);
